"""Lanes that one loop treats differently, cut into loops that need not ask: a nest comes in, and one whose
elements are stored for ranges of its lane goes out. In each range, the conditions on the lane that hold there
or do not are decided, so that a CPU's vector code reads and writes whole vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dlcb.compiler.dtype import INDEX
from dlcb.compiler.expr.dag import Expr, rebuild, toposort
from dlcb.compiler.expr.node import FALSE, ONE, TRUE, ZERO, as_expr, remake, substitute, where
from dlcb.compiler.kgen.affine import linear, over_sizes
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.schedule import Nest
from dlcb.compiler.kgen.verify import highest, lowest
from dlcb.compiler.shapes.system import System

_MOST = 6  # ranges; with more, asking is cheaper than the text


@dataclass(frozen=True)
class _Limit:
    """A condition that holds from a lane on (`rising`), or up to it."""

    place: Expr
    rising: bool


@dataclass(frozen=True)
class _Range:
    """Lanes from each of some places on, up to others."""

    lows: tuple[Expr, ...]
    highs: tuple[Expr, ...]

    def beyond(self, place: Expr) -> _Range:
        return _Range((*self.lows, place), self.highs)

    def up_to(self, place: Expr) -> _Range:
        return _Range(self.lows, (*self.highs, place))

    def side(self, place: Expr, system: System) -> bool | None:
        """Whether its lanes are all at `place` or beyond (True), or before (False), as far as is known."""
        if any(system.known(place <= low) is True for low in self.lows):
            return True
        return False if any(system.known(high <= place) is True for high in self.highs) else None


def cut(nest: Nest, system: System) -> Nest:
    """`nest` with its elements once for each range of the lane, in order: a guard `lane < last` says where a
    range ends, and the next one goes on there. As it is where nothing asks for the lane, or too much does."""
    if nest.kind != "flat" or nest.lane is None or any(node.op == "check" for node in nest.nodes):
        return nest
    pieces: list[Element] = []
    whole = _Range((ZERO,), (nest.lane.args[0],))
    for count, piece in enumerate(_pieces(nest.elements, whole, nest, system)):
        if count == _MOST:
            return nest
        pieces += piece
    return replace(nest, elements=tuple(pieces))


def _pieces(
    elements: Sequence[Element], within: _Range, nest: Nest, system: System
) -> Iterator[Sequence[Element]]:
    """The elements once for each range of lanes in which the same conditions hold."""
    lane = nest.lane
    assert lane is not None
    elements = _asking(elements, lane, system)
    limits = {c: limit for c in _conditions(elements) if (limit := _limit(c, nest, system)) is not None}
    if not limits:
        yield elements
        return
    place = next(iter(limits.values())).place
    at_once = {condition: limit for condition, limit in limits.items() if limit.place is place}
    known = within.side(place, system)
    for beyond in (False, True):
        if known is (not beyond):
            continue
        part, there = _decided(elements, at_once, beyond), within
        if known is None and beyond:
            there = within.beyond(place)
        elif known is None:
            there = within.up_to(place)
            part = [replace(e, guard=e.guard & (lane < place)) for e in part]
        yield from _pieces(part, there, nest, system)


def _conditions(elements: Sequence[Element]) -> Iterator[Expr]:
    for node in toposort(e.scalar for e in elements):
        if node.op in ("le", "lt") and node.args[0].dtype is INDEX:
            yield node


def _limit(condition: Expr, nest: Nest, system: System) -> _Limit | None:
    """Where `condition` changes along the lane; None where it does not, or not once in a row."""
    lane = nest.lane
    assert lane is not None
    known = {lane, *nest.rows}
    if lane not in condition.free or condition.reads or any(v.op == "index" for v in condition.free - known):
        return None
    low, high = condition.args
    gap = high - low - (ONE if condition.op == "lt" else ZERO)  # it holds where this is not negative
    times = linear(gap).get(lane, ZERO)
    rest = substitute(gap, {lane: ZERO})
    if not times.is_const or any(lane in term.free for term in linear(gap) if term is not lane):
        return None
    step = as_expr(abs(times.value))
    if times.value > 0:
        return _Limit(system.simplify((step - ONE - rest) // step), rising=True)
    return _Limit(system.simplify(rest // step + ONE), rising=False)


def _asking(elements: Sequence[Element], lane: Expr, system: System) -> list[Element]:
    """`elements` whose least, greatest and absolute values along the lane, and remainders of less than twice
    their divisor, are choices."""

    def remade(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.dtype is INDEX and lane in node.free and all(_along(arg, lane) for arg in args):
            if node.op in ("mod", "floordiv") and _at_most_once(args[0], args[1], system):
                inside, beyond = (args[0], args[0] - args[1]) if node.op == "mod" else (ZERO, ONE)
                return where(args[0] < args[1], inside, beyond)
            if node.op == "abs":
                return where(args[0] >= ZERO, args[0], ZERO - args[0])
            if node.op in ("min", "max"):
                ordered = args if node.op == "min" else args[::-1]
                return where(args[0] <= args[1], *ordered)
        return remake(node, args)

    done: dict[Expr, Expr] = {}
    for node in toposort(e.scalar for e in elements):
        leaf = not node.args or node.op == "index"
        done[node] = node if leaf else remade(node, tuple(done[arg] for arg in node.args))
    return [replace(e, scalar=done[e.scalar]) for e in elements]


def _at_most_once(numerator: Expr, divisor: Expr, system: System) -> bool:
    """Is 0 <= `numerator` < 2 * `divisor`?"""
    low, high = lowest(system, numerator), highest(system, numerator)
    if low is None or high is None or not over_sizes(divisor):
        return False
    return system.known(low >= ZERO) is True and system.known(high < divisor * 2) is True


def _along(e: Expr, lane: Expr) -> bool:
    """Is `e` a multiple of the lane, and something that does not depend on it?"""
    return not e.reads and all(term is lane or lane not in term.free for term in linear(e))


def _decided(elements: Sequence[Element], limits: Mapping[Expr, _Limit], beyond: bool) -> list[Element]:
    """`elements` on one side of the place at which all of `limits` are."""
    decided = {condition: TRUE if limit.rising is beyond else FALSE for condition, limit in limits.items()}
    made = rebuild([e.scalar for e in elements], decided, remake)
    return [replace(e, scalar=scalar) for e, scalar in zip(elements, made, strict=True)]
