"""Random programs around rows that data choose: tables as they are, parts of wider ones or computed, looked
up by every operator that does so, with casts, guards and conditions along the row beside them. The rows are
long enough for the kernels that copy them, and lie on and off every alignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dlcb.compiler.dtype import BOOL, DTYPES, FLOAT32, DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ZERO, as_expr, size
from dlcb.compiler.ir.graph import Value

from . import rows
from .draft import EVERY, LARGEST_RANK, Draft, Unsuited
from .draw import trimmed
from .program import Program

_BESIDE = (
    *("cast", "cast", "cast", "add", "add", "add", "mul", "maximum", "where", "where", "neg", "tanh", "exp"),
    *("lt", "logical_not", "pad", "slice", "concat", "flip", "tril", "roll", "expand", "reshape", "select"),
    *("sum", "softmax"),
)
_WIDTHS = (64, 65, 130, 131, 132, 133, 160, 257, 258, 264, 515, 517, 640, 1028)
_TYPES = (*EVERY, *(DTYPES[name] for name in ("float64", "int16", "int8")))
_SHORTEST, _LONGEST = 2, 8


class LongRows(Draft):
    """A draft whose operators go on from what was looked up, where that suits them."""

    def pick(
        self,
        types: Sequence[DType] = EVERY,
        rank: tuple[int, int] = (0, LARGEST_RANK),
        stable: bool = False,
        tame: bool = False,
        fits: Callable[[Value], bool] = lambda value: True,
        shape: Sequence[Expr | int] | None = None,
    ) -> str:
        made = {self.values[step.name] for step in self.steps}

        def fits_too(value: Value) -> bool:
            return value in made and _is_long(value) and fits(value)

        there = any(v.dtype in types and rank[0] <= v.rank <= rank[1] and fits_too(v) for v in made)
        return super().pick(types, rank, stable, tame, fits_too if there else fits, shape)


def _is_long(value: Value) -> bool:
    extent = value.shape[-1] if value.shape else ZERO
    return not extent.is_const or extent.value >= _WIDTHS[0]


def program(seed: int) -> Program:
    """The program of this seed; every third operator looks rows up."""
    d = LongRows(seed)
    d.names = ["n0", "n1"][: d.random.randint(1, 2)]
    width = size("width") if d.chance(0.4) else as_expr(d.one(_WIDTHS))
    d.names += ["width"] if width.op == "size" else []
    d.rebuild()
    d.names = [name for name in d.names if name != "width"]
    wanted = d.random.randint(_SHORTEST, _LONGEST)
    while len(d.steps) < wanted:
        op = "look_up" if not d.steps or d.chance(0.35) else d.one(_BESIDE)
        inputs, steps = len(d.inputs), len(d.steps)
        try:
            look_up(d, width) if op == "look_up" else rows.ROWS[op](d, op)
        except Unsuited:
            del d.inputs[inputs:], d.steps[steps:]
            d.rebuild()
    rounded = frozenset(name for name, v in d.values.items() if v.dtype.is_float and not d.facts[name].stable)
    return trimmed(replace(Program(seed, tuple(d.inputs), tuple(d.steps), ()), rounded=rounded))


def look_up(d: Draft, width: Expr) -> Any:
    """Rows of a table, `width` wide or nearly so, at indices that may be those of another look-up."""
    table = _table(d, width)
    extent = d.values[table].shape[0]
    there = [x.name for x in d.inputs if x.values == (ZERO, extent)]
    shape = [d.dim() for _ in range(d.one((1, 1, 2)))]
    op = d.one(("embedding", "embedding", "index_select", "advanced_index", "advanced_index", "gather"))
    if op == "index_select":
        shape = shape[:1]
    if op == "gather":  # the same row for all columns, of which none need be known to be so
        shape = [shape[0], *d.values[table].shape[1:]]
    fits = [name for name in there if len(d.values[name].shape) == len(shape) or op == "embedding"]
    ids = d.one(fits) if fits and d.chance(0.6) else rows.indices(d, shape, ZERO, extent, wide=True)
    match op:
        case "embedding":
            if d.values[table].rank != 2:
                raise Unsuited("a table has two axes")
            return d.add(op, table, ids)
        case "advanced_index":
            return d.add(op, table, ids, axes=(0,))
    return d.add(op, table, ids, axis=0)


def _table(d: Draft, width: Expr) -> str:
    """Mostly a new one, of any type."""
    if d.chance(0.2):
        return d.pick(rank=(2, 3), fits=lambda v: v.shape[-1] is width)
    kind, count = d.one(_TYPES), d.one((as_expr(7), size(d.names[0])))
    between = [as_expr(d.one((2, 3)))] if d.chance(0.2) else []
    if width.is_const and kind is not BOOL and d.chance(0.3):  # a part of each row
        more = d.one((1, 3, 8))
        table = d.new([count, *between, width + more], kind)
        return d.add("slice", table, axis=len(between) + 1, start=d.one((0, more)), stop=width + more)
    fixed = count.is_const and width.is_const and d.chance(0.2)
    table = d.new([count, *between, width], kind, parameter=fixed)
    return d.add("cast", table, dtype=FLOAT32) if d.chance(0.15) and kind is not FLOAT32 else table
