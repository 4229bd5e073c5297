"""Few long reductions on CUDA: a nest whose results are too few to give every multiprocessor a block comes
in; two nests go out, of which the first reduces parts of equal length into a workspace, and the second joins
these in order, so that equal inputs give equal results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import ZERO, apply, ceildiv, index, load, reduce, substitute_all, where
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.ir.op import Type
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.schedule import Nest, Parts, coalesce, is_short
from dlcb.compiler.kgen.variants import FEW, Choice, Variant, choose, narrow_guards, wide_guards, widest
from dlcb.compiler.shapes.system import System


@dataclass(frozen=True)
class Limits:
    """When a nest is split, and how finely: `results` at most so many, reductions of `length` or more, parts
    of `part` elements or more, of which there are about `parts` in all."""

    results: int
    length: int
    part: int
    parts: int


ROWS = Limits(results=256, length=1 << 14, part=1 << 12, parts=1 << 18)
COLUMNS = Limits(results=1 << 16, length=256, part=64, parts=1 << 17)
_MOST_PARTS = 1024  # of one result
_MULTIPLE = 8  # elements of a part, so that vector accesses stay within it


@dataclass(frozen=True)
class Split:
    """`condition` says at which sizes to launch one of `first`, which write `partials`, and then one of
    `second`."""

    first: list[Choice]
    second: list[Choice]
    partials: tuple[Value, ...]
    condition: Expr


def split(nest: Nest, system: System) -> Split | None:
    """None where every result is long in coming for another reason, or there is nothing long to reduce."""
    folds = [fold for fold in nest.reductions if not is_short(fold)]
    alone = not nest.inner and nest.kind != "flat" and all(node.op != "check" for node in nest.nodes)
    if not folds or not alone or any(fold.args[1:] != folds[0].args[1:] for fold in folds):
        return None
    if any(below in folds for fold in folds for below in toposort([fold.args[0]])):
        return None
    outer, *rest = folds[0].args[1:]
    if not all(outer in fold.args[0].free for fold in folds):
        return None  # equal elements: their number, which differs in the last part, would be all that counts
    limits, results = ROWS if nest.kind == "row" else COLUMNS, nest.domain
    condition = system.simplify(apply("and", results <= limits.results, limits.length <= outer.args[0]))
    if condition.is_const and not condition.value:
        return None
    parts = Parts(outer.args[0], *_indices(outer, limits, results, system))
    columns = () if nest.lane is None else (nest.lane,)
    partials, stored, replaced = [], [], {}
    for number, fold in enumerate(folds):
        (body,) = substitute_all([fold.args[0]], {outer: parts.chunk * parts.length + parts.place})
        elements = where(condition, results * parts.chunk.args[0], ZERO)
        value = Value(f"partial{number}", Type((elements,), fold.dtype), "node")
        offset = _row_major((*nest.rows, parts.chunk, *columns))
        part = reduce(fold.value, (parts.place, *rest), body)
        partials.append(value)
        stored.append(Element(value, part, offset, (*nest.rows, parts.chunk, *columns)))
        replaced[fold] = reduce(fold.value, (parts.chunk,), load(value.name, offset, fold.dtype))
    first = replace(nest, rows=(*nest.rows, parts.chunk), elements=tuple(stored), parts=parts)
    finished = substitute_all([e.scalar for e in nest.elements], replaced)
    elements_after = (replace(e, scalar=s) for e, s in zip(nest.elements, finished, strict=True))
    second = coalesce(replace(nest, elements=tuple(elements_after)), system)
    choices = choose(coalesce(first, system), system)
    return Split(choices, list(_joins(second, condition, system)), tuple(partials), condition)


def _joins(nest: Nest, condition: Expr, system: System) -> Iterator[Choice]:
    """How partial results are joined: there are few of them."""
    guards = (condition, *narrow_guards(nest, system))
    if nest.kind == "row":
        yield nest, Variant(1), guards
        return
    for width in dict.fromkeys((widest(nest), 1)):
        wide = wide_guards(nest, width, system)
        if wide is not None:
            yield nest, Variant(width, shape="columns", across=FEW), (*wide, *guards)
        if wide == ():
            return


def _indices(outer: Expr, limits: Limits, results: Expr, system: System) -> tuple[Expr, Expr, Expr]:
    """A part's length, the index of parts, and the index within one."""
    wanted = apply("min", apply("max", limits.parts // apply("max", results, 1), 1), _MOST_PARTS)
    shortest = ceildiv(ceildiv(outer.args[0], wanted), _MULTIPLE) * _MULTIPLE
    length = system.simplify(apply("max", shortest, limits.part))
    chunk = index(f"{outer.value}_chunk", system.simplify(ceildiv(outer.args[0], length)))
    return length, chunk, index(f"{outer.value}_place", length)


def _row_major(loops: tuple[Expr, ...]) -> Expr:
    offset: Expr = ZERO
    for loop in loops:
        offset = offset * loop.args[0] + loop
    return offset
