"""Axes on which neighbouring places hold different expressions: halves that are stacked along the last axis,
parts of complex numbers, what an image's channels become in a pixel shuffle. The scalars and nest of a group
come in. Where its innermost loop takes its index apart by a small number, or chooses by a place on a short
axis, scalars and a nest go out that compute so many places one after the other, so that no place is tested
and what neighbours share is read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, lcm

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import ZERO
from dlcb.compiler.kgen.affine import linear
from dlcb.compiler.kgen.coords import Layouts, Scalars, infer
from dlcb.compiler.kgen.schedule import Nest, plan, worth_keeping
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.shapes.system import System

_MOST_PLACES = 8
_SHORT = 4  # elements, fewer than a vector holds
_MOST_NODES = 1024  # of the scalars of all places: beyond it the text grows and registers run out


def written_out(
    group: Group, layouts: Layouts, system: System, scalars: Scalars, nest: Nest
) -> tuple[Scalars, Nest]:
    """`scalars` and `nest` with the places of the innermost loop one after the other, or as they are."""
    loop = next((i for i in reversed(scalars.domain) if i is not ZERO), None)
    if loop is None or loop.args[0] is ZERO or not _may_be_written_out(nest):
        return scalars, nest
    places = _places(scalars, loop)
    if places == 1 and _is_computed(nest, loop):
        places = loop.args[0].value
    if places == 1 or system.divisor(loop.args[0]) % places:
        return scalars, nest
    apart = infer(group, layouts, system, places=places)
    nodes = sum(1 for _ in toposort(part for e in apart.elements for part in e.parts))
    innermost = next((i for i in reversed(apart.domain) if i is not ZERO), loop)
    if nodes > _MOST_NODES or _places(apart, innermost) > 1:
        return scalars, nest
    return apart, replace(plan(apart, group, system), places=places)


def _may_be_written_out(nest: Nest) -> bool:
    """Not where a row is stored as reductions walk it, which keep for it what they compute."""
    return nest.kind != "row" or (bool(nest.inner) and not worth_keeping(nest))


def _is_computed(nest: Nest, loop: Expr) -> bool:
    """Is more done along a loop that is shorter than a vector than moving elements?"""
    size = loop.args[0]
    short = size.is_const and size.value <= _SHORT and nest.kind == "flat" and nest.lane is loop
    return short and bool(nest.rows) and any(e.scalar.op != "load" for e in nest.elements)


def _places(scalars: Scalars, loop: Expr) -> int:
    """How many neighbouring places of the innermost loop have to be told apart; 1: none."""
    size, found = loop.args[0], 1
    short = size.is_const and size.value <= _MOST_PLACES
    for node in toposort(part for e in scalars.elements for part in e.parts):
        if loop not in node.free:
            continue
        if node.op in ("floordiv", "mod") and not node.reads:
            for places in _taken_apart(node, loop):
                found = lcm(found, places)
        elif short and any(loop in condition.free for condition in _conditions(node)):
            return size.value
    return found if found <= _MOST_PLACES else 1


def _taken_apart(node: Expr, loop: Expr) -> Iterator[int]:
    """The steps of `loop` after which a quotient or remainder by a small number starts anew."""
    dividend, divisor = node.args
    if not divisor.is_const or not 1 < divisor.value <= _MOST_PLACES:
        return
    for term, coefficient in linear(dividend).items():
        step = 1
        if term.op == "floordiv" and term.args[0] is loop and term.args[1].is_const:
            step = term.args[1].value
        if coefficient.is_const and (step > 1 or term is loop):
            yield step * divisor.value // gcd(divisor.value, coefficient.value)


def _conditions(node: Expr) -> tuple[Expr, ...]:
    """What decides whether something is read, or which of two things is taken."""
    return node.args[:1] if node.op == "where" else node.args[1:] if node.op == "load" else ()
