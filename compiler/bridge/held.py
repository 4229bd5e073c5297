"""Numbers of a lone program that no size in its graph explains. What one may have been made of, other sizes
would make another: the sizes that it may follow are held as the file has them. The operators' own names of
their arguments tell positions along an axis, which any size of it may have made, from other numbers, which
hold a size that a simple form of it gives (n, n - 1, n // 2, 1 / n, the root of n ...)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node as FxNode

from dlcb.compiler.bridge.written import Call, Number, Origin, Told, told
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir.graph import Value

Follow = tuple[Expr, str]  # a size that a number may follow, and how that is told


@dataclass(frozen=True)
class Known:
    """The sizes that a number may have been made of, with their values, and the numbers that are sizes in the
    graph at every size of the inputs."""

    near: Sequence[Expr]  # those of the operands
    sizes: Mapping[Expr, int]
    constants: Collection[int]

    def any_of(self, said: str) -> Iterator[Follow]:
        """Each size of the operands, or where they have none that is free, each in the graph."""
        free = [size for size in self.near if size in self.sizes]
        return ((size, f"{said} may follow {size!r}") for size in free or self.sizes)

    def inputs(self) -> Collection[int]:
        """The values of the sizes of inputs."""
        return {n for size, n in self.sizes.items() if size.op == "size"}

    def only(self, sizes: Sequence[Expr]) -> Known:
        """Of the sizes these alone."""
        return Known(sizes, {size: n for size, n in self.sizes.items() if size in sizes}, self.constants)


def operator_of(target: OpOverload) -> str:
    """The name of an ATen operator without overload, and as its functional form has it."""
    return str(target).split(".")[1].strip("_")


def times(nodes: Iterable[FxNode]) -> Counter[tuple[str, str]]:
    """How many calls of an operator come from a line."""
    return Counter(
        (node.meta.get("stack_trace") or "", operator_of(node.target))
        for node in nodes
        if isinstance(node.target, OpOverload)
    )


def named(target: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by their names in the operator's schema, in its order, defaults filled in."""
    schema = target._schema.arguments
    given = dict(zip((each.name for each in schema), arguments, strict=False))
    return {
        each.name: given[each.name] if each.name in given else keywords.get(each.name, each.default_value)
        for each in schema
    }


def followed(stack_trace: str, call: Call, given: Mapping[str, Any], known: Known) -> Iterator[Follow]:
    """The sizes that numbers in `call` may follow; `given`: its arguments as they are lowered, where what
    a size explains is no number."""
    tensor = next((value for value in given.values() if isinstance(value, Value)), None)
    for name, argument in given.items():
        if _is_of_another_kind(call.operator, name):
            continue
        entries = enumerate(argument) if isinstance(argument, (list, tuple)) else ((None, argument),)
        for place, value in entries:
            if not _is_number(value):
                continue
            axes = None if tensor is None else _along(call.operator, name, place, given, tensor.rank)
            found = told(stack_trace, call, name, place)
            usual = name in call.left_out or abs(value) in _USUAL[axes is None or name in _FACTORS]
            if found.origin in _SETTLED or (found.origin is Origin.UNSEEN and usual):
                continue
            said = f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
            extents = tuple(tensor.shape[axis] for axis in axes or () if tensor is not None)
            if extents:
                yield from _along_axes(said, value, known, found, call, extents)
                continue
            yield from _made(said, value, known, found, _WHOLE)
            if found.origin is Origin.CALCULATED and found.formula is None:
                yield from known.any_of(said)


def _along_axes(
    said: str, value: Number, known: Known, found: Told, call: Call, extents: Sequence[Expr]
) -> Iterator[Follow]:
    """The sizes that a position or count along axes of these extents may follow: any of them, and another
    axis's as it stands, halved or doubled. Along an axis that never changes it is a constant, unless the line
    calculates it of something else, or it cuts a table of the program's."""
    if found.origin is Origin.UNSEEN and call.operator.endswith(_WINDOWS):
        yield from _made(
            said, value, known.only(extents), found, _WHOLE[:1] if value <= 3 else _ALONG_ANOTHER
        )
        return
    if all(extent.is_const for extent in extents):
        own = found.formula is not None and any(_is(found.formula(each.value), value) for each in extents)
        if (call.of_weight and value) or (found.origin is Origin.CALCULATED and found.formula is None):
            yield from known.any_of(said)
        if own or found.origin is not Origin.CALCULATED:
            return
    if value == 0 and found.origin is Origin.NAMED and call.operator in ("slice", "select"):
        return
    for extent in extents:
        yield extent, f"{said} may follow {extent!r}"
    plain = [size for size in known.sizes if size.op == "size"]
    yield from _made(said, value, known.only(plain), found, _ALONG_ANOTHER)


_SETTLED = (Origin.WRITTEN, Origin.OF_PYTORCH)
_FACTORS = frozenset({"step", "scale_factors"})  # no positions, though they count along an axis
# What is taken for a constant where no line shows it: positions, and other numbers
_USUAL = (frozenset({0, 1}), frozenset({0, 1, 2, 0.5}))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 40


# ---- what an argument is -----------------------------------------------------------------------------

# Names that ATen's operators give to axes and to other numbers that no size has made
_NO_SIZES = frozenset(
    {
        *("dim", "dims", "dim0", "dim1", "dim2", "dimension", "axis", "start_dim", "end_dim"),
        *("source", "destination", "dtype", "layout", "memory_format", "num_layers", "momentum"),
        "normalized_shape",
    }
)
_RESHAPES = frozenset({"view", "reshape", "unsafe_view", "unflatten"})  # groups of axes explain these
_ALONG_DIM = frozenset(
    {
        *("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unfold"),
        *("repeat_interleave", "slice_scatter", "select_scatter", "topk", "kthvalue", "unsafe_split"),
    }
)
_DIAGONALS = frozenset({"tril", "triu", "diagonal", "diag", "diag_embed", "diagonal_scatter"})
_WINDOWS = ("pool1d", "pool2d", "pool3d", "im2col")


def _is_of_another_kind(operator: str, name: str) -> bool:
    return operator in _RESHAPES or (name in _NO_SIZES and (operator, name) != ("tile", "dims"))


def _along(
    operator: str, name: str, place: int | None, given: Mapping[str, Any], rank: int
) -> Sequence[int] | None:
    """The axes of the first tensor along which an argument counts; None where it is another number."""
    if rank == 0:
        return None
    if operator == "roll":
        dims = given["dims"]
        return [dims[place] % rank] if dims and place is not None else range(rank)
    if operator in _ALONG_DIM:
        dim = given.get("dim", given.get("dimension"))
        return range(rank) if dim is None else [dim % rank]
    if operator in ("repeat", "tile"):
        axis = (place or 0) - len(given["repeats" if operator == "repeat" else "dims"]) + rank
        return [axis] if axis >= 0 else ()
    if operator.endswith(("pad", "pad_nd", "pad1d", "pad2d", "pad3d")) and place is not None:
        return [rank - 1 - place // 2]
    if operator in _DIAGONALS and name in ("diagonal", "offset"):
        return sorted({given.get("dim1", -2) % rank, given.get("dim2", -1) % rank})
    if operator.endswith(_WINDOWS) or operator.startswith("upsample"):
        count = len(given[name]) if place is not None else 0
        spatial = min(rank, 2 if operator == "im2col" else _spatial(operator))
        return [rank - count + (place or 0)] if count == spatial else range(rank - spatial, rank)
    return None


def _spatial(operator: str) -> int:
    """How many axes a pooling or resizing works on: its name says it."""
    return next(int(digit) for digit in operator if digit.isdecimal())


# ---- what sizes make ---------------------------------------------------------------------------------


def _made(said: str, value: Number, known: Known, found: Told, forms: Sequence[Form]) -> Iterator[Follow]:
    """The sizes of which `value` is what the line calculates, or else a simple form. What is a plain form of
    a size which never changes, as the root of a weight's width is, follows no other form of another."""
    if found.formula is not None:
        for size, n in known.sizes.items():
            if _is(found.formula(n), value) and not (found.formula.of_size and size.op == "mul"):
                yield size, f"{said} may be made of {size!r}"
        if any(_is(found.formula(n), value) for n in (*known.constants, *known.sizes.values())):
            return
    if value == 0 and found.origin is not Origin.CALCULATED:
        return
    value = abs(value)
    unseen = found.origin is Origin.UNSEEN
    if isinstance(value, float):
        forms, plain = (_FRACTIONS[:4] if unseen else _FRACTIONS), _FRACTIONS[: len(_OF_ONE)]
    else:
        forms, plain = (_ALONE if unseen and forms is _WHOLE else forms), forms[:1]
    if found.origin is Origin.SIZE:  # of an axis that never changes, where none has it that is free
        forms = plain = plain[:1]
    own = any(_is(form(n), value) for n in known.constants if n > _SMALL for _, form in plain)
    if own and said.startswith("scale"):
        return
    for size, n in known.sizes.items():
        fitting = plain if own else forms
        if (own and size.op != "size") or (unseen and size.op == "mul"):
            continue
        if size.op == "mul":  # by an axis of 1 it is the other's size again
            fitting = plain if found.origin is Origin.CALCULATED or n not in known.inputs() else ()
        of = next((text for text, form in fitting if _is(form(n), value)), None)
        if of is not None:
            yield size, f"{said} may be {of.format(size)}"


Form = tuple[str, Callable[[int], float | None]]
_SMALL = 2
_WHOLE: tuple[Form, ...] = (
    ("{!r}", lambda n: n),
    ("{!r} - 1", lambda n: n - 1),
    ("{!r} + 1", lambda n: n + 1),
    ("{!r} // 2", lambda n: n // 2),
    ("2 * {!r}", lambda n: 2 * n),
    ("{!r} // 2 + 1", lambda n: n // 2 + 1),
    ("{!r} // 3", lambda n: n // 3),
    ("{!r} // 4", lambda n: n // 4),
    ("the root of {!r}", math.isqrt),
)
_ALONG_ANOTHER = tuple(_WHOLE[k] for k in (0, 3, 4))  # what counts along an axis may be of another's size
_ALONE = tuple(_WHOLE[k] for k in (0, 1, 3))  # where no line tells
_OF_ONE: tuple[tuple[str, Callable[[float], float | None]], ...] = (
    ("{}", lambda t: t),
    ("1 / ({})", lambda t: 1 / t if t else None),
    ("the root of {}", lambda t: math.sqrt(t) if t >= 0 else None),
    ("1 / the root of {}", lambda t: 1 / math.sqrt(t) if t > 0 else None),
    ("log({})", lambda t: math.log(t) if t > 0 else None),
    ("log2({})", lambda t: math.log2(t) if t > 0 else None),
)
_FRACTIONS: tuple[Form, ...] = tuple(
    (outer.format(inner), lambda n, form=form, base=base: form(base(n)))  # type: ignore[misc]
    for inner, base in (*_WHOLE[:3], ("{!r} / 2", lambda n: n / 2), *_WHOLE[3:5])
    for outer, form in _OF_ONE
)


def _is(made: float | None, value: Number) -> bool:
    return made is not None and abs(made - value) <= 1e-9 * abs(value)
