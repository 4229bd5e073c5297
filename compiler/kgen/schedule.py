"""How a group's domain is walked: the scalars of a group come in, a nest of loops as data goes out, the same
for every target.

Neighbouring axes that every access walks as one become one axis. Then a kernel is flat (each element on its
own), a row kernel (reductions along contiguous memory, computed once a row), or a column kernel
(neighbouring outputs reduce side by side)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from dlcb.compiler.expr.dag import Expr, rebuild, toposort
from dlcb.compiler.expr.node import ONE, ZERO, apply, index, product, reduce, remake
from dlcb.compiler.expr.ops import SLOW, cost_of
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.kgen.affine import Sum, linear
from dlcb.compiler.kgen.coords import Element, Scalars
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.shapes.system import System

SERIAL = 16  # elements; a reduction of at most so many, of constant extent, is computed one after the other
SHORT = 32  # elements; a reduction of so many is one thread's


@dataclass(frozen=True)
class Parts:
    """A loop over `total` elements that is cut into parts of `length`: part `chunk`, element `place` of it.
    The last part may be shorter."""

    total: Expr
    length: Expr
    chunk: Expr
    place: Expr

    @property
    def end(self) -> Expr:
        """How many elements the part has."""
        return apply("min", self.length, self.total - self.chunk * self.length)


@dataclass(frozen=True)
class Nest:
    """`rows` are the outer loops; `lane` is the index that neighbouring lanes take in a flat or column
    kernel; `inner` are the loops inside a row of a row kernel. Elements that lack the inner indices are
    stored once a row."""

    kind: str
    rows: tuple[Expr, ...]
    lane: Expr | None
    inner: tuple[Expr, ...]
    elements: tuple[Element, ...]
    parts: Parts | None = None  # where its reductions run over parts of their elements
    places: int = 1  # neighbouring elements that one turn of the innermost loop computes

    @property
    def domain(self) -> Expr:
        return product(i.args[0] for i in self.loops)

    @property
    def loops(self) -> tuple[Expr, ...]:
        return (*self.rows, *((self.lane,) if self.lane is not None else ()), *self.inner)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(e.value for e in self.elements))

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """What its scalars are made of, arguments first."""
        return tuple(toposort(e.scalar for e in self.elements))

    @cached_property
    def all_nodes(self) -> tuple[Expr, ...]:
        """What its scalars, offsets and guards are made of, arguments first."""
        return tuple(toposort(part for e in self.elements for part in e.parts))

    @cached_property
    def reductions(self) -> tuple[Expr, ...]:
        """Every fold in it, inner ones first."""
        return tuple(node for node in self.nodes if node.op == "reduce")

    def work(self) -> Expr:
        """Elements that the innermost loops visit, as far as sizes tell: of the domain, and of the longest
        fold for each row."""
        longest: Expr = ONE
        for fold in self.reductions:
            if not extent(fold).is_const or not longest.is_const or extent(fold).value > longest.value:
                longest = extent(fold)
        if self.kind == "row":
            return product(i.args[0] for i in self.rows) * (longest + product(i.args[0] for i in self.inner))
        return self.domain * longest * self.places


def extent(fold: Expr) -> Expr:
    """The number of elements that a reduction joins."""
    return product(i.args[0] for i in fold.args[1:])


def is_serial(fold: Expr) -> bool:
    """Is a reduction so short that each element computes its own?"""
    count = extent(fold)
    return count.is_const and count.value <= SERIAL


def is_short(fold: Expr) -> bool:
    """Does one thread rather reduce alone than share the work of a result?"""
    count = extent(fold)
    return count.is_const and count.value <= SHORT


def plan(scalars: Scalars, group: Group, system: System) -> Nest:
    """The nest for a group."""
    rows = tuple(i for i in scalars.domain[: group.rows] if i is not ZERO)
    inner = tuple(i for i in scalars.domain[group.rows :] if i is not ZERO)
    elements = tuple(
        replace(e, indices=tuple(i for i in e.indices if i is not ZERO)) for e in scalars.elements
    )
    folds = [node for node in toposort(e.scalar for e in elements) if node.op == "reduce"]
    outer = [fold for fold in folds if fold.free <= {*rows, *inner, *_sizes(fold)}]
    long = [fold for fold in outer if not is_serial(fold)]
    if inner or (long and all(_along(fold, rows) for fold in long)):
        nest = Nest("row", rows, None, inner, elements)
    elif not folds:
        nest = Nest("flat", rows[:-1], rows[-1] if rows else None, (), elements)
    else:
        nest = Nest("column", rows[:-1], rows[-1] if rows else None, (), elements)
    return coalesce(nest, system)


def _sizes(node: Expr) -> Iterable[Expr]:
    return (variable for variable in node.free if variable.op == "size")


def _along(fold: Expr, rows: tuple[Expr, ...]) -> bool:
    """Does the reduction run along contiguous memory, rather than its neighbours lie side by side?"""
    inward, beside = fold.args[-1], rows[-1] if rows else None
    along = across = 0
    for node in toposort([fold.args[0]]):
        if node.op == "load":
            sums = linear(node.args[0])
            along += sums.get(inward) is ONE
            across += beside is not None and sums.get(beside) is ONE
    return along > across or beside is None


def kept_loops(nest: Nest) -> tuple[Expr, ...]:
    """The loops of a row that several of its reductions and stores walk: values may be kept from one walk to
    the next."""
    if nest.kind != "row":
        return ()
    return nest.inner or next(
        (fold.args[1:] for fold in nest.reductions if not set(fold.args[1:]) & fold.free), ()
    )


def worth_keeping(nest: Nest, memory_is_dear: bool = False) -> frozenset[Expr]:
    """What a row kernel computes in several loops over its row, and should rather compute once and keep:
    expressions with an expensive operator or a table look-up, with `memory_is_dear` any load, that is not
    itself in something kept."""
    loops = kept_loops(nest)
    walks = [
        [fold.args[0]] for fold in nest.reductions if fold.args[1:] == loops and not set(loops) & fold.free
    ]
    # what is stored along a row is stored in one loop
    walks.append([e.scalar for e in nest.elements if nest.inner and nest.inner[-1] in e.indices])
    reached = [{node for body in walk for node in beneath(body)} for walk in walks]
    shared = {
        node
        for k, nodes in enumerate(reached)
        for node in nodes
        if any(node in other for other in reached[:k])
    }
    roots = {body for walk in walks for body in walk}
    used_outside = {arg for nodes in reached for node in nodes - shared for arg in node.args}
    kept: set[Expr] = set()
    costly: set[Expr] = set()
    for node in toposort(shared, lambda n: n in shared):
        look_up = node.op == "load" and (
            memory_is_dear or any(t.op not in ("index", "const") for t in linear(node.args[0]))
        )
        dear = cost_of(node) >= SLOW or look_up or any(arg in costly for arg in node.args)
        if dear and set(loops) & node.free and node.op != "check":
            if node in roots or node in used_outside:
                kept.add(node)
            else:
                costly.add(node)
    return frozenset(kept)


def beneath(body: Expr) -> Iterator[Expr]:
    """The nodes of `body` outside of reductions in it."""
    stack, seen = [body], {body}
    while stack:
        node = stack.pop()
        yield node
        for arg in () if node.op in ("reduce", "index") else node.args:
            if arg not in seen:
                seen.add(arg)
                stack.append(arg)


# ---- neighbouring axes as one --------------------------------------------------------------------


def coalesce(nest: Nest, system: System) -> Nest:
    """`nest` with axes merged wherever every address walks them as one."""
    while (pair := next(_mergeable(nest, system), None)) is not None:
        nest = _merge(nest, *pair)
    return nest


def _mergeable(nest: Nest, system: System) -> Iterator[tuple[Expr, Expr]]:
    """Pairs of loops, one directly inside the other, that may become one."""
    addresses, values = _uses(nest)
    folds = list(nest.reductions)
    outer_loops = nest.rows if nest.lane is None else (*nest.rows, nest.lane)
    for loops in (outer_loops, nest.inner, *(fold.args[1:] for fold in folds)):
        for outer, inner in pairwise(loops):
            together = [e.indices for e in nest.elements] + [fold.args[1:] for fold in folds]
            if (
                not values & {outer, inner}
                and all(_adjacent(walked, outer, inner) for walked in together)
                and all(_one_walk(sums, outer, inner, system) for sums in addresses)
            ):
                yield outer, inner


def _uses(nest: Nest) -> tuple[list[Sum], set[Expr]]:
    """The addresses of all accesses, and the indices that are used other than as a term of an address."""
    addresses: list[Sum] = []
    values: set[Expr] = set()
    stack: list[Expr] = []

    def address(offset: Expr) -> None:
        sums = linear(offset)
        addresses.append(sums)
        stack.extend(term for term in sums if term.op != "index")

    for element in nest.elements:
        address(element.offset)
        stack += (element.scalar, element.guard)
    seen: set[Expr] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        match node.op:
            case "index":
                values.add(node)
            case "load":
                address(node.args[0])
                stack.append(node.args[1])
            case "check":
                address(node.args[3])
                stack.extend((*node.args[:3], node.args[4]))
            case "reduce":
                stack.append(node.args[0])
            case _:
                stack.extend(node.args)
    return addresses, values


def _adjacent(loops: tuple[Expr, ...], outer: Expr, inner: Expr) -> bool:
    """Are both loops among `loops`, one directly inside the other, or neither?"""
    if outer not in loops and inner not in loops:
        return True
    return outer in loops and inner in loops and loops.index(inner) == loops.index(outer) + 1


def _one_walk(sums: Sum, outer: Expr, inner: Expr, system: System) -> bool:
    return system.simplify(sums.get(outer, ZERO) - sums.get(inner, ZERO) * inner.args[0]) is ZERO


def _merge(nest: Nest, outer: Expr, inner: Expr) -> Nest:
    """One loop in place of two: every address is a multiple of the merged index by the inner one's
    coefficient."""
    joined = index(f"{outer.value}_{inner.value[1:]}", outer.args[0] * inner.args[0])

    def loops(old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(joined if i is inner else i for i in old if i is not outer)

    def remade(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op == "reduce":
            return reduce(node.value, (i for i in args[1:] if i is not ZERO), args[0])
        return remake(node, args)

    made = rebuild([part for e in nest.elements for part in e.parts], {outer: ZERO, inner: joined}, remade)
    elements = tuple(
        Element(e.value, scalar, offset, loops(e.indices), guard)
        for e, scalar, offset, guard in zip(nest.elements, made[::3], made[1::3], made[2::3], strict=True)
    )
    lane = joined if nest.lane is inner else nest.lane
    return replace(nest, rows=loops(nest.rows), lane=lane, inner=loops(nest.inner), elements=elements)
