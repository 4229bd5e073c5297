"""How an operator reads its operands:
the coordinates that its `at` rule takes each one at, found by running the rule.

Fusion, views and the proof that batch rows are independent all ask this one question,
so none of them lists operators."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import (
    ONE,
    TRUE,
    ZERO,
    as_expr,
    cast,
    equal,
    index,
    load,
    not_equal,
    where,
)
from dlcb.compiler.expr.ops import cost_of
from dlcb.compiler.ir.graph import Node, Value
from dlcb.compiler.ir.op import Shape

_COMPUTING = frozenset({"create", "move", "pointwise", "index"})
_FARTHEST = 32  # nodes a coordinate computation may span


@dataclass(frozen=True)
class Access:
    """One read: operand number, the coordinates read at, and the condition under which it is read."""

    operand: int
    coordinates: tuple[Expr, ...]
    guard: Expr


@dataclass(frozen=True)
class Reading:
    """What one node reads to make the element at `out`:
    output indices, reduction indices, reads, and the scalar body.

    In `body` a read of operand k appears as a load from "operand k" whose offset says which access it is."""

    out: tuple[Expr, ...]
    over: tuple[Expr, ...]
    accesses: tuple[Access, ...]
    body: Expr

    @cached_property
    def dearest(self) -> int:
        """What the dearest scalar operator in it costs."""
        return max(map(cost_of, toposort([self.body])))


# (extent, coordinate) of each axis of the result: where an operand has the same extent, nothing is broadcast
_Fitting: TypeAlias = frozenset[tuple[Expr, Expr]]


class _Recorder:
    """An operand that notes how it is read.
    One made of coordinates alone (an arange) gives its element as an expression."""

    def __init__(self, number: int, value: Value, reads: dict[Access, int], fitting: _Fitting) -> None:
        self.number, self.value, self.type, self.reads = number, value, value.type, reads
        self.fitting = fitting
        self.name = f"operand {number}"

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self):
        return self.type.dtype

    def __getitem__(self, coordinates: Sequence[Expr]) -> Expr:
        return self._read(coordinates, TRUE)

    def along(self, i: Sequence[Expr]) -> Expr:
        trailing = i[len(i) - len(self.shape) :]
        coordinates = broadcast_coordinates(self.shape, i)
        fits = [pair in self.fitting for pair in zip(self.shape, trailing, strict=True)]
        return self._read(
            [own if fit else c for fit, own, c in zip(fits, trailing, coordinates, strict=True)], TRUE
        )

    def inside(self, coordinates: Sequence[Expr], guard: Expr, otherwise: Expr) -> Expr:
        return where(guard, self._read(coordinates, guard), otherwise)

    def _read(self, coordinates: Sequence[Expr], guard: Expr) -> Expr:
        coordinates = tuple(as_expr(c) for c in coordinates)
        place = self.reads.setdefault(Access(self.number, coordinates, guard), len(self.reads))
        computed = from_coordinates(self.value, coordinates)
        if computed is not None:
            return computed
        value = load(self.name, place, self.type.dtype)
        return cast(value, self.type.dtype.accumulator) if self.type.dtype.is_float else value


def broadcast_coordinates(shape: Shape, i: Sequence[Expr]) -> tuple[Expr, ...]:
    """Coordinates in a tensor of `shape` for output coordinates `i`: trailing axes;
    size 1, known or at run time, reads 0."""
    trailing = i[len(i) - len(shape) :]
    return tuple(
        broadcast_coordinate(size, coordinate) for size, coordinate in zip(shape, trailing, strict=True)
    )


def broadcast_coordinate(size: Expr, coordinate: Expr) -> Expr:
    """The coordinate on an axis of `size` for the output's."""
    if size.is_const:
        return ZERO if size.value == 1 else coordinate
    if coordinate.op == "index" and coordinate.args[0] is size:
        return coordinate
    if coordinate.op == "where" and coordinate.args[:2] == (equal(size, ONE), ZERO):
        return coordinate  # it was broadcast from this size before
    return coordinate * cast(not_equal(size, 1), coordinate.dtype)


_readings: WeakKeyDictionary[Node, Reading] = WeakKeyDictionary()  # nodes never change
_alike: WeakValueDictionary[Hashable, Reading] = WeakValueDictionary()  # of equal nodes, as equal layers have


def read(node: Node) -> Reading:
    """The reads of a node with an `at` rule and one result."""
    reading = _readings.get(node)
    if reading is None:
        key = alike(node)
        reading = _alike.get(key)
        if reading is None:
            reading = _read(node)
            if key is not None:
                _alike[key] = reading
        _readings[node] = reading
    return reading


def alike(node: Node) -> Hashable | None:
    """What nodes of one result share that read their operands alike, as those of equal layers do; None where
    that depends on how an operand is made."""
    if any(map(is_computed, node.inputs)):
        return None
    return node.op, node.content, tuple(value.type for value in (*node.inputs, node.result))


def _read(node: Node) -> Reading:
    out = tuple(index(f"i{axis}", size) for axis, size in enumerate(node.result.shape))
    extents = node.op.over(*(v.type for v in node.inputs), **node.attributes) if node.op.over else ()
    over = tuple(index(f"r{axis}", size) for axis, size in enumerate(extents))
    body, accesses = _element(node, out, over)
    return Reading(out, over, accesses, body)


def from_coordinates(value: Value, coordinates: Sequence[Expr]) -> Expr | None:
    """The element of `value` at `coordinates` where it is made of coordinates alone,
    with no data read; else None."""
    return _element(value.made_by, tuple(coordinates), ())[0] if is_computed(value) else None


def _element(node: Node, out: tuple[Expr, ...], over: tuple[Expr, ...]) -> tuple[Expr, tuple[Access, ...]]:
    """What the node's rule makes of these coordinates, and what it reads for that."""
    assert node.op.at is not None
    reads: dict[Access, int] = {}
    fitting = frozenset(zip(node.result.shape, out, strict=True))
    operands = [_Recorder(k, value, reads, fitting) for k, value in enumerate(node.inputs)]
    return node.op.at(out, over, *operands, **node.attributes), tuple(reads)


_computed: WeakKeyDictionary[Value, bool] = WeakKeyDictionary()  # whether it is


def is_computed(value: Value) -> bool:
    """Is `value` made by fills, ranges, movements, look-ups and pointwise operators alone, from no data?
    Looks a bounded number of nodes back."""
    if value.producer is None:
        return False
    known = _computed.get(value)
    if known is None:
        known = _computed[value] = _is_computed(value)
    return known


def _is_computed(value: Value) -> bool:
    stack, seen = [value], set()
    while stack:
        node = stack.pop().producer
        if node is None or node.op.at is None or node.op.kind not in _COMPUTING:
            return False
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
        if len(seen) > _FARTHEST:
            return False
    return True
