"""Writes into part of a tensor, in functional form: the result is put together from what stays and what is
written. Also einsum, as a matrix product of its operands' permuted axes."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.bridge.aten_shape import bound_of, diagonal_scatter
from dlcb.compiler.bridge.emit import Emit, Row, Size
from dlcb.compiler.dtype import BOOL
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, as_expr, maximum, minimum, product
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value


def _select_scatter(e: Emit, x: Value, source: Value, axis: int, index: Size) -> Value:
    axis = e.axis(axis, x.rank)
    at = as_expr(index) + x.shape[axis] if isinstance(index, int) and index < 0 else as_expr(index)
    e.require(at >= ZERO, f"index {at!r}")
    e.require(at < x.shape[axis], f"index {at!r} on an axis of {x.shape[axis]!r}")
    return _between(e, x, e.unsqueeze(e.cast(source, x.dtype), axis), axis, at)


def _slice_scatter(
    e: Emit,
    x: Value,
    source: Value,
    axis: int = 0,
    start: Size | None = None,
    stop: Size | None = None,
    step: int = 1,
) -> Value:
    if step != 1:
        raise UnsupportedOperator(f"a write with step {step}", node=e.operator)
    axis = e.axis(axis, x.rank)
    extent = x.shape[axis]
    # in the words of the slice that is written back, so that what both say of a place is one element
    first = minimum(bound_of(e, start, extent, ZERO), extent)
    last = bound_of(e, stop, extent, extent)
    length = maximum(minimum(last, extent) - first, ZERO)
    e.equal(source.shape[axis], length, f"what is written from {first!r} to {last!r}")
    return _between(e, x, e.cast(source, x.dtype), axis, first)


def _between(e: Emit, x: Value, part: Value, axis: int, first: Expr) -> Value:
    """`part` in place of as much of x along an axis, from `first` on. Each element of x is asked for once:
    put together from what is before and after, writes into writes would double with each."""
    extent, length = x.shape[axis], part.shape[axis]
    low, high = [ZERO] * x.rank, [ZERO] * x.rank
    low[axis], high[axis] = first, extent - first - length
    place = [ONE] * x.rank
    place[axis] = length
    here = e.apply(ops.expand, e.reshape(e.scalar(True, BOOL), [ONE] * x.rank), shape=tuple(place))
    around = {"low": tuple(low), "high": tuple(high), "value": 0, "mode": "constant"}
    return e.apply(ops.where, e.apply(ops.pad, here, **around), e.apply(ops.pad, part, **around), x)


def _index_put(
    e: Emit, x: Value, indices: Sequence[Value | None], source: Value, accumulate: bool = False
) -> Value:
    """`x[mask] = number`; at places that data choose otherwise PyTorch writes."""
    masks = [index for index in indices if index is not None]
    lead = len(indices) - 1
    if len(masks) != 1 or indices[-1] is None or masks[0].dtype is not BOOL or accumulate:
        raise UnsupportedOperator("a write at places that data choose", node=e.operator)
    (mask,) = masks
    if any(size is not ONE for size in source.shape):
        raise UnsupportedOperator("a write of other data to each place of a mask", node=e.operator)
    for axis, size in enumerate(mask.shape):
        e.equal(size, x.shape[lead + axis], f"axis {axis} of a mask")
    mask = e.reshape(mask, (*mask.shape, *(ONE for _ in x.shape[lead + mask.rank :])))
    return e.apply(ops.where, mask, e.reshape(e.cast(source, x.dtype), ()), x)


def _einsum(e: Emit, equation: str, operands: Sequence[Value], path: object = None) -> Value:
    """Two operands, every label once in each: batch labels are in both and in the result, inner labels in
    both only, the others in one and in the result."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    labels = terms.split(",")
    if len(operands) != 2 or len(labels) != 2 or not arrow or "." in equation:
        raise UnsupportedOperator(f"the equation {equation!r}", node=e.operator)
    (a, b), (left, right) = operands, labels
    batch = [c for c in left if c in right and c in result]
    inner = [c for c in left if c in right and c not in result]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    once = all(len(set(term)) == len(term) for term in (left, right, result))
    if not once or set(result) != {*batch, *rows, *columns}:
        raise UnsupportedOperator(f"the equation {equation!r}", node=e.operator)
    sizes = dict(zip(left, a.shape, strict=True))
    for label, size in zip(right, b.shape, strict=True):
        sizes[label] = e.equal(sizes[label], size, f"label {label}") if label in sizes else size
    lead = [sizes[c] for c in batch]
    m, k, n = (product([sizes[c] for c in group]) for group in (rows, inner, columns))
    a = e.reshape(e.permute(a, [left.index(c) for c in (*batch, *rows, *inner)]), (*lead, m, k))
    b = e.reshape(e.permute(b, [right.index(c) for c in (*batch, *inner, *columns)]), (*lead, k, n))
    made = e.reshape(e.apply(ops.matmul, a, b), [sizes[c] for c in (*batch, *rows, *columns)])
    order = [*batch, *rows, *columns]
    return e.permute(made, [order.index(c) for c in result])


ROWS: dict[str, Row] = {
    "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.index_put.default": _index_put,
    "aten.select_scatter.default": _select_scatter,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.einsum.default": _einsum,
}
