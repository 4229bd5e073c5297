"""Draws random programs: an operator is chosen first, each as likely as any other, then operands that suit
it are picked among the values so far or added as inputs. What depends on rounding (comparisons, floor,
argmax, casts to integers) is applied only to values that every float type holds exactly, so that all who
run the program must decide alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dlcb.compiler.bridge.emit import to_torch
from dlcb.compiler.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, INT64, UINT8, DType
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, as_expr, product, size
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder, Value

from .program import Input, Program, Sizes, Step, numbers

FLOATS = (FLOAT32, FLOAT32, FLOAT16, BFLOAT16)
INTEGERS = (INT64, INT32, UINT8)
EVERY = (*FLOATS, *INTEGERS, BOOL)
_LONGEST = 20
_LARGEST_RANK = 4


class Unsuited(Exception):
    """This operator finds no operands in this program."""


@dataclass(frozen=True)
class Facts:
    """`stable`: the same bits in every float type. `tame`: also finite and small, so that an integer holds
    it."""

    stable: bool
    tame: bool


class Draft:
    """A program while it is drawn."""

    def __init__(self, seed: int, plain_types: bool = False) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.names = [f"n{k}" for k in range(self.random.randint(1, 3))]
        self.floats = (FLOAT32,) if plain_types else FLOATS
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: dict[str, Value] = {}
        self.facts: dict[str, Facts] = {}
        self.rebuild()

    # ---- building --------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """A builder that knows nothing but the steps that were kept."""
        self.build = GraphBuilder(f"p{self.seed}")
        for name in self.names:
            self.build.system.fresh(name)
        self.values = {}
        for given in self.inputs:
            self._enter(given)
        for step in self.steps:
            self.values[step.name] = self._apply(step)

    def _enter(self, given: Input) -> None:
        make = self.build.parameter if given.parameter else self.build.input
        self.values[given.name] = make(given.name, given.shape, given.dtype)

    def _apply(self, step: Step) -> Value:
        return self.build.apply(
            ops.OPS[step.op], *(self.values[name] for name in step.operands), **step.attributes
        )

    def add(self, op: str, *operands: str, stable: bool | None = None, **attributes: Any) -> str:
        """Appends a step; gives its value's name. Unsuited where the shapes contradict each other."""
        step = Step(f"v{len(self.steps)}", op, operands, attributes)
        try:
            value = self._apply(step)
        except (CompilerError, ZeroDivisionError) as error:
            raise Unsuited(str(error)) from error
        if value.rank > _LARGEST_RANK + 1:
            raise Unsuited("too many axes")
        self.steps.append(step)
        self.values[step.name] = value
        kept = [self.facts[name] for name in operands]
        if not value.dtype.is_float:
            self.facts[step.name] = Facts(True, True)
        else:
            moved = ops.OPS[op].kind in ("move", "index") and op != "upsample_bilinear"
            steady = moved if stable is None else stable
            self.facts[step.name] = Facts(
                steady and all(f.stable for f in kept), steady and all(f.tame for f in kept)
            )
        return step.name

    def new(
        self, shape: Sequence[Expr | int], dtype: DType, values: Any = "plain", parameter: bool = False
    ) -> str:
        """A new input. Its sizes are plain: a number, or a free dim."""
        extents = tuple(as_expr(s) for s in shape)
        if any(s.op not in ("size", "const") for s in extents) or (
            parameter and not all(s.is_const for s in extents)
        ):
            raise Unsuited("an input's size must be plain")
        if values == "plain" and dtype.is_float and self.random.random() < 0.05:
            values = "special"
        given = Input(f"x{len(self.inputs)}", extents, dtype, values, parameter)
        self.inputs.append(given)
        self._enter(given)
        self.facts[given.name] = Facts(True, values != "special")
        return given.name

    # ---- choosing --------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def one(self, items: Sequence[Any]) -> Any:
        return items[self.random.randrange(len(items))]

    def dim(self) -> Expr:
        return size(self.one(self.names)) if self.chance(0.7) else as_expr(self.one((1, 2, 3, 4, 6)))

    def kinds(self, types: Sequence[DType]) -> list[DType]:
        return [t for t in types if not t.is_float or t in self.floats]

    def pick(
        self,
        types: Sequence[DType] = EVERY,
        rank: tuple[int, int] = (0, _LARGEST_RANK),
        stable: bool = False,
        tame: bool = False,
        fits: Callable[[Value], bool] = lambda value: True,
        shape: Sequence[Expr | int] | None = None,
    ) -> str:
        """A value of one of these types and ranks: mostly one that is there, recent ones first; else a new
        input."""
        types = self.kinds(types)
        suited = [
            name
            for name, v in self.values.items()
            if v.dtype in types
            and rank[0] <= v.rank <= rank[1]
            and fits(v)
            and (self.facts[name].stable or not stable)
            and (self.facts[name].tame or not tame)
        ]
        if suited and self.chance(0.85):
            return suited[-1 - min(int(self.random.expovariate(0.7)), len(suited) - 1)]
        if shape is None:
            shape = [
                self.dim()
                for _ in range(
                    self.random.randint(rank[0], min(rank[1], 3)) if rank[1] > rank[0] else rank[0]
                )
            ]
        name = self.new(shape, self.one(types), "plain")
        if not fits(self.values[name]) or (tame and not self.facts[name].tame):
            raise Unsuited("the new input does not fit")
        return name

    def partner(self, name: str, types: Sequence[DType] | None = None, values: Any = "plain") -> str:
        """A value that broadcasts with this one."""
        x = self.values[name]
        types = self.kinds(types or (x.dtype,))
        there = [
            other
            for other, v in self.values.items()
            if v.dtype in types
            and v.shape[v.rank - min(v.rank, x.rank) :] == x.shape[x.rank - min(v.rank, x.rank) :]
        ]
        if there and values == "plain" and self.chance(0.5):
            return self.one(there)
        if values == "plain" and self.chance(0.15):
            return self.add("full", shape=(), value=self.number(types[0]), dtype=types[0])
        lead = self.random.randint(0, x.rank) if self.chance(0.3) else 0
        shape = [ONE if s.op not in ("size", "const") or self.chance(0.2) else s for s in x.shape[lead:]]
        if shape and self.chance(0.1):
            shape[self.random.randrange(len(shape))] = size(self.one(self.names))
        constant = all(as_expr(s).is_const for s in shape) and self.chance(0.5)
        return self.new(shape, self.one(types), values, parameter=constant)

    def number(self, dtype: DType) -> Any:
        if dtype is BOOL:
            return self.chance(0.5)
        if dtype.is_float:
            return self.one((0.0, 1.0, -1.5, 2.0, 0.5, 3.0))
        return self.one((0, 1, 2, 3, 7))

    def axis(self, name: str) -> int:
        return self.random.randrange(self.values[name].rank)

    def axes(self, name: str) -> tuple[int, ...]:
        rank = self.values[name].rank
        return tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))


# ---- one function a family of operators ----------------------------------------------------------

Row = Callable[[Draft, str], Any]


def unary(types: Sequence[DType], stable: bool = False, keeps: bool = False, tame: bool = False) -> Row:
    return lambda d, op: d.add(op, d.pick(types, stable=stable, tame=tame), stable=keeps)


def edged(d: Draft, op: str) -> Any:
    """An operator that is defined, or smooth, on part of the numbers: of exact values, or of values between
    0 and 1."""
    if d.chance(0.5):
        return d.add(op, d.pick((*FLOATS, *FLOATS, INT64, BOOL), stable=True), stable=False)
    return d.add(op, d.add("sigmoid", d.pick(FLOATS)), stable=False)


def binary(types: Sequence[DType], stable: bool = False, keeps: bool = False, mixed: bool = True) -> Row:
    def row(d: Draft, op: str) -> Any:
        a = d.pick(types, stable=stable)
        others = d.kinds(types) if mixed and d.chance(0.2) else None
        b = d.partner(a, others)
        if stable and not d.facts[b].stable:
            raise Unsuited("a comparison needs exact operands")
        return d.add(op, *((a, b) if d.chance(0.7) else (b, a)), stable=keeps)

    return row


def division(d: Draft, op: str) -> Any:
    a = d.pick((*FLOATS, *INTEGERS), stable=True, tame=True)
    if d.chance(0.4):
        b = d.add("full", shape=(), value=d.one((2, 3, 4)), dtype=d.values[a].dtype)
    else:
        b = d.partner(a, values="divisor")
    return d.add(op, a, b, stable=False)


def power(d: Draft, op: str) -> Any:
    a = d.pick(FLOATS, stable=True) if d.chance(0.5) else d.add("sigmoid", d.pick(FLOATS))
    kind = d.values[a].dtype
    if d.chance(0.6):
        b = d.add("full", shape=(), value=d.one((2.0, 3.0, 0.5, -0.5, -1.0, 1.5)), dtype=kind)
    else:
        b = d.partner(a, (kind,))
    if not d.facts[b].stable:
        raise Unsuited("near 0, an exponent's rounding decides")
    return d.add(op, a, b)


def gelu(d: Draft, op: str) -> Any:
    return d.add(op, d.pick(FLOATS), approximate=d.one(("none", "tanh")))


def cast(d: Draft, op: str) -> Any:
    to = d.one(d.kinds(EVERY))
    if to.is_float:
        x = d.pick()
        return d.add(op, x, dtype=to, stable=d.values[x].dtype is BOOL or d.values[x].dtype.is_float)
    if to is BOOL:
        return d.add(op, d.pick(stable=True), dtype=to)
    types = (*INTEGERS, BOOL) if to is UINT8 else EVERY
    return d.add(op, d.pick(types, tame=True), dtype=to)


def where(d: Draft, op: str) -> Any:
    a = d.pick()
    return d.add(op, d.partner(a, (BOOL,)), a, d.partner(a), stable=True)


def reshape(d: Draft, op: str) -> Any:
    x = d.pick()
    shape = list(d.values[x].shape)
    k = d.random.randrange(len(shape) + 1)
    choice = d.one(("insert", "merge", "flatten", "split", "drop", "swap"))
    if choice == "insert":
        shape.insert(k, ONE)
    elif choice == "merge" and len(shape) > 1:
        k = d.random.randrange(len(shape) - 1)
        shape[k : k + 2] = [shape[k] * shape[k + 1]]
    elif choice == "flatten":
        shape = [product(shape)]
    elif choice == "split":
        even = [k for k, s in enumerate(shape) if s.is_const and s.value in (4, 6)]
        if not even:
            raise Unsuited("no axis to split")
        k = d.one(even)
        shape[k : k + 1] = [as_expr(2), as_expr(shape[k].value // 2)]
    elif choice == "drop":
        shape = [s for s in shape if s is not ONE]
    elif choice == "swap" and len(shape) > 1:
        k = d.random.randrange(len(shape) - 1)
        shape[k], shape[k + 1] = shape[k + 1], shape[k]
    return d.add(op, x, shape=tuple(shape))


def permute(d: Draft, op: str) -> Any:
    x = d.pick(rank=(2, _LARGEST_RANK))
    return d.add(op, x, order=tuple(d.random.sample(range(d.values[x].rank), d.values[x].rank)))


def expand(d: Draft, op: str) -> Any:
    x = d.pick(rank=(0, 3))
    shape = [d.dim() if s is ONE else s for s in d.values[x].shape]
    lead = [d.dim() for _ in range(d.random.randint(0, 1))]
    return d.add(op, x, shape=(*lead, *shape))


def slice_(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, _LARGEST_RANK))
    axis = d.axis(x)
    extent = d.values[x].shape[axis]
    start = d.one((ZERO, as_expr(1), as_expr(2), as_expr(-3), extent // 2))
    stop = d.one(
        (extent, extent, as_expr(-1), as_expr(5), extent - 1 if extent.is_const else extent // 2 + 1)
    )
    return d.add(op, x, axis=axis, start=start, stop=stop, step=d.one((1, 1, 2, 3)))


def select(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, _LARGEST_RANK))
    axis = d.axis(x)
    extent = d.values[x].shape[axis]
    return d.add(op, x, axis=axis, index=d.one((ZERO, as_expr(-1), extent // 2)))


def concat(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, _LARGEST_RANK))
    axis, value = d.axis(x), d.values[x]
    parts = [x]
    for _ in range(d.random.randint(1, 2)):
        if d.chance(0.4):
            parts.append(x)
        else:
            shape = list(value.shape)
            shape[axis] = d.dim()
            parts.append(d.new(shape, value.dtype))
    d.random.shuffle(parts)
    return d.add(op, *parts, axis=axis)


def pad(d: Draft, op: str) -> Any:
    x = d.pick((*FLOATS, *INTEGERS), rank=(1, _LARGEST_RANK))
    rank = d.values[x].rank
    low, high = (tuple(d.one((0, 0, 1, 2, -1)) for _ in range(rank)) for _ in range(2))
    return d.add(op, x, low=low, high=high, value=d.number(d.values[x].dtype))


def flip(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, _LARGEST_RANK))
    return d.add(op, x, axes=d.axes(x))


def repeat(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    lead = (2,) if d.chance(0.2) else ()
    return d.add(
        op, x, counts=(*map(as_expr, lead), *(as_expr(d.one((1, 1, 2, 3))) for _ in d.values[x].shape))
    )


def roll(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, _LARGEST_RANK))
    return d.add(op, x, axis=d.axis(x), shift=d.one((1, -1, 2, 5)))


def triangle(d: Draft, op: str) -> Any:
    return d.add(op, d.pick(rank=(2, _LARGEST_RANK)), diagonal=d.one((0, 0, 1, -1, 2)))


def image(d: Draft, types: Sequence[DType], rank: int) -> str:
    """A value with two leading axes and `rank` more."""
    return d.pick(
        types,
        rank=(rank + 2, rank + 2),
        shape=[d.dim(), as_expr(d.one((2, 4)))] + [d.dim() for _ in range(rank)],
    )


def upsample(d: Draft, op: str) -> Any:
    rank = 2 if op == "upsample_bilinear" else d.one((1, 2))
    x = image(d, FLOATS, rank)
    shape = d.values[x].shape[-rank:]
    output = tuple(d.one((s * 2, s + 1, as_expr(5), s * 3 // 2)) for s in shape)
    more = {"align_corners": d.chance(0.5)} if op == "upsample_bilinear" else {}
    return d.add(op, x, output=output, **more)


def full(d: Draft, op: str) -> Any:
    kind = d.one(d.kinds(EVERY))
    if kind in (FLOAT32, INT64) and d.chance(0.3):
        value: Any = size(d.one(d.names))
    else:
        value = d.number(kind)
    return d.add(
        op, shape=tuple(d.dim() for _ in range(d.random.randint(0, 3))), value=value, dtype=kind, stable=True
    )


def arange(d: Draft, op: str) -> Any:
    kind = d.one((INT64, INT64, INT32, FLOAT32))
    start, step = d.one((ZERO, ONE, as_expr(3))), d.one((1, 2, 3))
    return d.add(op, start=start, stop=start + d.dim(), step=step, dtype=kind, stable=True)


def eye(d: Draft, op: str) -> Any:
    return d.add(op, rows=d.dim(), columns=d.dim(), dtype=d.one((FLOAT32, INT64)), stable=True)


def fold(types: Sequence[DType], stable: bool = False, keeps: bool = False) -> Row:
    def row(d: Draft, op: str) -> Any:
        x = d.pick(types, rank=(1, _LARGEST_RANK), stable=stable)
        return d.add(op, x, axes=d.axes(x), keepdim=d.chance(0.5), stable=keeps)

    return row


def variance(d: Draft, op: str) -> Any:
    x = d.pick(FLOATS, rank=(1, _LARGEST_RANK))
    return d.add(op, x, axes=d.axes(x), keepdim=d.chance(0.5), correction=d.one((0, 1)))


def position(d: Draft, op: str) -> Any:
    x = d.pick((*FLOATS, *INTEGERS), rank=(1, _LARGEST_RANK), stable=True)
    return d.add(op, x, axis=d.axis(x), keepdim=d.chance(0.5))


def along(types: Sequence[DType]) -> Row:
    def row(d: Draft, op: str) -> Any:
        x = d.pick(types, rank=(1, _LARGEST_RANK))
        return d.add(op, x, axis=d.axis(x))

    return row


def pool(d: Draft, op: str) -> Any:
    rank = d.one((1, 2))
    x = d.pick((FLOAT32,), rank=(rank, rank + 2))
    window = tuple(d.one((1, 2, 3)) for _ in range(rank))
    padding = tuple(d.one((0, w // 2)) for w in window)
    options: dict[str, Any] = {
        "window": window,
        "stride": tuple(d.one((1, 2)) for _ in window),
        "padding": padding,
        "ceil_mode": d.chance(0.3),
    }
    if op == "avg_pool":
        options["count_include_pad"] = d.chance(0.5)
    else:
        options["dilation"] = tuple(1 if op == "sum_pool" else d.one((1, 1, 2)) for _ in window)
    return d.add(op, x, stable=op == "max_pool", **options)


def adaptive(d: Draft, op: str) -> Any:
    rank = d.one((1, 2))
    x = d.pick((FLOAT32,), rank=(rank, rank + 2))
    return d.add(op, x, output=tuple(as_expr(d.one((1, 2, 3, 5))) for _ in range(rank)))


def weights(d: Draft, shape: Sequence[Expr], dtype: DType, count: int) -> list[str]:
    parameter = all(s.is_const for s in shape) and d.chance(0.7)
    return [d.new(shape, dtype, parameter=parameter) for _ in range(count)]


def norm(d: Draft, op: str) -> Any:
    x = d.pick(FLOATS, rank=(1, _LARGEST_RANK))
    value = d.values[x]
    dims = 2 if value.rank > 2 and d.chance(0.2) else 1
    count = d.one((0, 1) if op == "rms_norm" else (0, 1, 2))
    return d.add(op, x, *weights(d, value.shape[-dims:], value.dtype, count), dims=dims, eps=1e-5)


def batch_norm(d: Draft, op: str) -> Any:
    x = d.pick(FLOATS, rank=(2, _LARGEST_RANK))
    value = d.values[x]
    mean, *affine = weights(d, value.shape[1:2], value.dtype, d.one((1, 3)))
    spread = d.new(
        value.shape[1:2],
        value.dtype,
        "positive",
        parameter=next(g for g in d.inputs if g.name == mean).parameter,
    )
    return d.add(op, x, mean, spread, *affine, eps=1e-5)


def group_norm(d: Draft, op: str) -> Any:
    x = d.pick(
        FLOATS,
        rank=(3, 4),
        fits=lambda v: v.shape[1].is_const and v.shape[1].value % 2 == 0,
        shape=[d.dim(), as_expr(4), d.dim()],
    )
    value = d.values[x]
    return d.add(op, x, *weights(d, value.shape[1:2], value.dtype, d.one((0, 2))), groups=2, eps=1e-5)


def indices(d: Draft, shape: Sequence[Expr], low: Expr, high: Expr, wide: bool = False) -> str:
    return d.new(shape, d.one((INT64,) if wide else (INT64, INT64, INT32)), (low, high))


def embedding(d: Draft, op: str) -> Any:
    table = d.pick(FLOATS, rank=(2, 2), shape=[as_expr(7), d.dim()])
    ids = indices(d, [d.dim() for _ in range(d.random.randint(1, 2))], ZERO, d.values[table].shape[0])
    return d.add(op, table, ids)


def gather(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    axis = d.axis(x)
    shape = list(d.values[x].shape)
    extent, shape[axis] = shape[axis], d.dim()
    if op == "take_along":
        shape = [ONE if k != axis and d.chance(0.3) else s for k, s in enumerate(shape)]
    return d.add(op, x, indices(d, shape, ZERO, extent), axis=axis)


def index_select(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    axis = d.axis(x)
    return d.add(op, x, indices(d, [d.dim()], ZERO, d.values[x].shape[axis]), axis=axis)


def advanced_index(d: Draft, op: str) -> Any:
    x = d.pick(rank=(1, 3))
    axes = tuple(
        sorted(d.random.sample(range(d.values[x].rank), d.random.randint(1, min(2, d.values[x].rank))))
    )
    shape = [d.dim() for _ in range(d.random.randint(1, 2))]
    places = []
    for axis in axes:
        extent = d.values[x].shape[axis]
        own = [ONE if d.chance(0.3) else s for s in shape]
        places.append(indices(d, own, ZERO - extent, extent, wide=True))
    return d.add(op, x, *places, axes=axes)


def one_hot(d: Draft, op: str) -> Any:
    classes = d.dim()
    return d.add(
        op, indices(d, [d.dim() for _ in range(d.random.randint(1, 2))], ZERO, classes), classes=classes
    )


def matmul(d: Draft, op: str) -> Any:
    a = d.pick(FLOATS, rank=(1, 4))
    value = d.values[a]
    shape = [value.shape[-1], d.dim()] if d.chance(0.8) else [value.shape[-1]]
    if value.rank > 2 and len(shape) == 2 and d.chance(0.5):
        shape = [
            *(ONE if s.op not in ("size", "const") or d.chance(0.2) else s for s in value.shape[:-2]),
            *shape,
        ]
    return d.add(op, a, d.new(shape, value.dtype))


def linear(d: Draft, op: str) -> Any:
    x = d.pick(FLOATS, rank=(1, 4), fits=lambda v: v.shape[-1].is_const, shape=[d.dim(), as_expr(4)])
    value, width = d.values[x], as_expr(d.one((1, 3, 8)))
    kinds = weights(d, (width, value.shape[-1]), value.dtype, 1)
    return d.add(op, x, *kinds, *weights(d, (width,), value.dtype, d.one((0, 1))))


def convolution(d: Draft, op: str) -> Any:
    rank = d.one((1, 2))
    x = d.pick(
        (FLOAT32,),
        rank=(rank + 2, rank + 2),
        fits=lambda v: v.shape[1].is_const and v.shape[1].value > 0,
        shape=[d.dim(), as_expr(4), *(d.dim() for _ in range(rank))],
    )
    channels = d.values[x].shape[1].value
    groups = 2 if channels % 2 == 0 and d.chance(0.3) else 1
    window = [d.one((1, 3)) for _ in range(rank)]
    w = weights(d, [as_expr(n) for n in (4, channels // groups, *window)], FLOAT32, 1)
    bias = weights(d, [as_expr(4)], FLOAT32, d.one((0, 1)))
    options = {
        "stride": tuple(d.one((1, 2)) for _ in window),
        "padding": tuple(d.one((0, n // 2)) for n in window),
    }
    return d.add(op, x, *w, *bias, dilation=(1,) * rank, groups=groups, **options)


def attention(d: Draft, op: str) -> Any:
    # PyTorch's several kernels disagree about NaN and infinities among each other
    q = d.pick((FLOAT32,), rank=(4, 4), tame=True, shape=[d.dim(), as_expr(2), d.dim(), as_expr(4)])
    batch, heads, length, width = d.values[q].shape
    keys = length if d.chance(0.5) else d.dim()
    k, v = (d.new((batch, heads, keys, width), FLOAT32, "finite") for _ in range(2))
    if d.chance(0.3):
        return d.add(op, q, k, v, scale=None, causal=keys is length)
    if d.chance(0.5):
        return d.add(op, q, k, v, scale=d.one((None, 0.3)), causal=False)
    mask = d.new(d.one(((length, keys), (batch, ONE, ONE, keys))), d.one((BOOL, FLOAT32)), "finite")
    return d.add(op, q, k, v, mask, scale=None, causal=False)


NUMBERS = (*FLOATS, *INTEGERS)
ROWS: dict[str, Row] = {
    **dict.fromkeys(("neg", "abs"), unary(NUMBERS, keeps=True)),
    **dict.fromkeys(("sign", "floor", "ceil", "trunc", "round"), unary(NUMBERS, stable=True, keeps=True)),
    "relu": unary(NUMBERS, keeps=True),
    **dict.fromkeys(
        [
            "exp",
            "exp2",
            "expm1",
            "sin",
            "cos",
            "tan",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "erf",
            "reciprocal",
            "sigmoid",
        ],
        unary((*FLOATS, *FLOATS, INT64, BOOL)),
    ),
    **dict.fromkeys(["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "asin", "acos"], edged),
    "silu": unary(FLOATS),
    "gelu": gelu,
    "cast": cast,
    **dict.fromkeys(("isnan", "isinf"), unary(FLOATS, stable=True)),
    "logical_not": unary(EVERY, stable=True),
    "bitwise_not": unary((*INTEGERS, BOOL)),
    **dict.fromkeys(("add", "mul"), binary(EVERY)),
    "sub": binary(NUMBERS),
    "div": binary(EVERY),
    **dict.fromkeys(("floordiv", "mod", "fmod"), division),
    "pow": power,
    **dict.fromkeys(("minimum", "maximum"), binary(EVERY, keeps=True)),
    "atan2": binary(FLOATS, stable=True),
    **dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge"], binary(EVERY, stable=True)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), binary(EVERY, stable=True)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), binary((*INTEGERS, BOOL))),
    "where": where,
    "reshape": reshape,
    "permute": permute,
    "expand": expand,
    "slice": slice_,
    "select": select,
    "concat": concat,
    "pad": pad,
    "flip": flip,
    "repeat": repeat,
    "roll": roll,
    "tril": triangle,
    "triu": triangle,
    "upsample_nearest": upsample,
    "upsample_bilinear": upsample,
    "full": full,
    "arange": arange,
    "eye": eye,
    **dict.fromkeys(("sum", "prod"), fold(EVERY)),
    **dict.fromkeys(("any", "all"), fold(EVERY, stable=True)),
    **dict.fromkeys(("max", "min"), fold(EVERY, keeps=True)),
    "mean": fold(NUMBERS),
    "var": variance,
    "argmax": position,
    "argmin": position,
    "softmax": along(FLOATS),
    "log_softmax": along(FLOATS),
    "cumsum": along((FLOAT32, INT64, BOOL)),
    "max_pool": pool,
    "sum_pool": pool,
    "avg_pool": pool,
    "adaptive_avg_pool": adaptive,
    "layer_norm": norm,
    "rms_norm": norm,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "embedding": embedding,
    "gather": gather,
    "take_along": gather,
    "index_select": index_select,
    "advanced_index": advanced_index,
    "one_hot": one_hot,
    "matmul": matmul,
    "linear": linear,
    "convolution": convolution,
    "attention": attention,
}


def program(seed: int, for_bridge: bool = False) -> Program:
    """The program of this seed: 3 to 20 operators; its outputs are all values that nothing reads."""
    d = Draft(seed, plain_types=for_bridge and seed % 2 == 0)  # PyTorch lacks some operators in half types
    wanted = d.random.randint(3, _LONGEST - 3)
    rows = sorted(ROWS)
    while len(d.steps) < wanted:
        inputs, steps = len(d.inputs), len(d.steps)
        op = d.one(rows)
        try:
            ROWS[op](d, op)
        except Unsuited:
            del d.inputs[inputs:], d.steps[steps:]
            d.rebuild()
    rounded = frozenset(name for name, v in d.values.items() if v.dtype.is_float and not d.facts[name].stable)
    return trimmed(Program(seed, tuple(d.inputs), tuple(d.steps[:_LONGEST]), (), rounded))


def trimmed(p: Program) -> Program:
    """`p` with the unread values as its outputs, or the same outputs, and without inputs and steps that
    these do not need. Inputs that alone show a free dim stay."""
    read = {name for step in p.steps for name in step.operands}
    outputs = p.outputs or tuple(step.name for step in p.steps if step.name not in read)
    needed = set(outputs)
    steps = []
    for step in reversed(p.steps):
        if step.name in needed:
            steps.append(step)
            needed.update(step.operands)
    kept = [x for x in p.inputs if x.name in needed]
    wanted = {s.value for x in kept for s in _sizes(x.shape)} | {
        s.value for step in steps for value in step.attributes.values() for s in _sizes(value)
    }
    shown = {s.value for x in kept if not x.parameter for s in x.shape if s.op == "size"}
    for name in sorted(wanted - shown):
        there = [x for x in p.inputs if any(s.op == "size" and s.value == name for s in x.shape)]
        kept.append(there[0] if there else Input(f"shape_of_{name}", (size(name),), FLOAT32))
    if not any(not x.parameter for x in kept):
        kept.append(Input("unused", (size("n0"),), FLOAT32))
    order = {x.name: k for k, x in enumerate(p.inputs)}
    kept = sorted(dict.fromkeys(kept), key=lambda x: order.get(x.name, len(order)))
    return replace(p, inputs=tuple(kept), steps=tuple(reversed(steps)), outputs=outputs)


def _sizes(value: Any) -> set[Expr]:
    if isinstance(value, Expr):
        return set(value.free)
    if isinstance(value, tuple):
        return {s for item in value for s in _sizes(item)}
    return set()


# ---- inputs --------------------------------------------------------------------------------------


def parameters(p: Program) -> dict[str, torch.Tensor]:
    """The values of the program's parameters."""
    generator = torch.Generator().manual_seed(p.seed)
    return {x.name: tensor(x, {}, generator) for x in p.inputs if x.parameter}


def tensor(given: Input, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """A contiguous tensor for an input at these sizes."""
    shape, kind = numbers(given.shape, sizes), to_torch(given.dtype)
    if isinstance(given.values, tuple):
        low, high = numbers(given.values, sizes)
        return torch.randint(low, max(high, low + 1), shape, generator=generator).to(kind)
    if given.dtype is BOOL:
        return torch.rand(shape, generator=generator) < 0.5
    quarters = torch.randint(-12, 13, shape, generator=generator)
    if given.values == "divisor":
        quarters = torch.where(quarters == 0, 4, quarters)
    if given.values == "positive":
        quarters = quarters.abs() + 1
    if given.dtype.is_float:
        values = quarters / 4
        if given.values == "special" and values.numel():
            flat = values.view(-1)
            for k, odd in enumerate((float("nan"), float("inf"), -float("inf"))):
                flat[(5 * k + 1) % flat.numel()] = odd
        return values.to(kind)
    return (quarters.abs() if given.dtype is UINT8 else quarters).to(kind)
