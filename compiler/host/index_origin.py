"""Where an index value comes from: followed backwards through operators that only move elements, to the input
and the place in it, so that an error can name what the caller sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, size, substitute
from dlcb.compiler.host.program import POSITION
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.passes.access import read


def origin(indices: Value) -> tuple[str, tuple[Expr, ...] | None]:
    """Where the element of `indices` at row-major `POSITION` comes from: an input and coordinates in it, or
    the value's own name and None where it is computed from several elements."""
    value, coordinates = indices, _unravel(size(POSITION), indices.shape)
    while value.kind == "node":
        node = value.producer
        if node is None or node.op.at is None or node.op.fold is not None or len(node.inputs) != 1:
            return indices.name, None
        reading = read(node)
        if len(reading.accesses) != 1 or not reading.accesses[0].guard.is_const:
            return indices.name, None
        replace = dict(zip(reading.out, coordinates, strict=True))
        coordinates = tuple(substitute(c, replace) for c in reading.accesses[0].coordinates)
        value = node.inputs[0]
    return value.name, coordinates


def _unravel(position: Expr, shape: Sequence[Expr]) -> tuple[Expr, ...]:
    coordinates: list[Expr] = []
    step: Expr = ONE
    for axis in range(len(shape) - 1, -1, -1):
        quotient = position // step
        coordinates.append(quotient % shape[axis] if axis else quotient)
        step = step * shape[axis]
    return tuple(reversed(coordinates))
