"""A program while it is drawn: values by name with what is known of their bits, and the choice of operands
among them. What depends on rounding is applied only to values that every float type holds exactly; the facts
kept here tell which."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, INT64, UINT8, DType
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, as_expr, size
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder, Value

from .program import Input, Step

FLOATS = (FLOAT32, FLOAT32, FLOAT16, BFLOAT16)
INTEGERS = (INT64, INT32, UINT8)
EVERY = (*FLOATS, *INTEGERS, BOOL)
LONGEST = 20
LARGEST_RANK = 4


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
        if value.rank > LARGEST_RANK + 1:
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
        rank: tuple[int, int] = (0, LARGEST_RANK),
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
            return self.one((0.0, 1.0, -1.5, 2.0, 0.5, 3.0, dtype.held(0.1)))
        return self.one((0, 1, 2, 3, 7))

    def axis(self, name: str) -> int:
        return self.random.randrange(self.values[name].rank)

    def axes(self, name: str) -> tuple[int, ...]:
        rank = self.values[name].rank
        return tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))
