"""Loops that walk merged axes, parted again: where a lane is divided by the length of an axis, the lanes of
one such axis become the loop, and the axes around it a loop outside. A CPU then walks memory without
dividing, and what it reads lies side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dlcb.compiler.expr.dag import Expr, rebuild, toposort
from dlcb.compiler.expr.node import ZERO, index, remake
from dlcb.compiler.kgen.affine import over_sizes
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.schedule import Nest, coalesce
from dlcb.compiler.shapes.system import System

_MOST = 3  # loops that one is parted into
_SHORTEST = 3  # elements of a loop, if their number is known: fewer are better written out


def parted(nest: Nest, system: System) -> Nest:
    """`nest`, whose lane walks one axis only, as far as its divisions tell."""
    for _ in range(_MOST - 1):
        length = next(_lengths(nest, system), None)
        if length is None:
            break
        nest = coalesce(_part(nest, length, system), system)
    return nest


def _lengths(nest: Nest, system: System) -> Iterator[Expr]:
    """What the lane's index is divided by, if the number of lanes is a multiple of it, the longest first."""
    lane = nest.lane
    if lane is None:
        return
    nodes = toposort(part for e in nest.elements for part in e.parts)
    divisors = {
        n.args[1]
        for n in nodes
        if n.op in ("floordiv", "mod") and n.args[0] is lane and over_sizes(n.args[1])
    }
    numbers = sorted((d for d in divisors if d.is_const), key=lambda d: -d.value)
    products = sorted((d for d in divisors if not d.is_const), key=lambda d: (-len(d.free), repr(d)))
    for length in (*products, *numbers):
        short = length.is_const and length.value < _SHORTEST
        if not short and length is not lane.args[0] and system.simplify(lane.args[0] % length) is ZERO:
            yield length


def _part(nest: Nest, length: Expr, system: System) -> Nest:
    """`nest` with a loop of `length` for its lanes and one around it."""
    lane = nest.lane
    assert lane is not None
    outer = index(f"{lane.value}_outer", system.simplify(lane.args[0] // length))
    inner = index(f"{lane.value}_inner", length)
    place = outer * length + inner

    def remade(node: Expr, args: tuple[Expr, ...]) -> Expr:
        made = remake(node, args)
        return system.simplify(made) if node.op in ("floordiv", "mod") else made

    made = rebuild([part for e in nest.elements for part in e.parts], {lane: place}, remade)
    elements = tuple(
        Element(e.value, scalar, offset, _with(e.indices, lane, outer, inner), guard)
        for e, scalar, offset, guard in zip(nest.elements, made[::3], made[1::3], made[2::3], strict=True)
    )
    return replace(nest, rows=(*nest.rows, outer), lane=inner, elements=elements)


def _with(indices: tuple[Expr, ...], lane: Expr, outer: Expr, inner: Expr) -> tuple[Expr, ...]:
    return tuple(i for old in indices for i in ((outer, inner) if old is lane else (old,)) if i is not ZERO)
