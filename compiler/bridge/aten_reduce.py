"""ATen's reductions and what is made of them (norms of vectors, logsumexp, softmax), running sums and the
differences that undo them, as rows over our own operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dlcb.compiler.bridge.aten_shape import slice_of
from dlcb.compiler.bridge.emit import Emit, Row, Size, from_torch
from dlcb.compiler.dtype import BOOL, INT64
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value

Axes = int | Sequence[int] | None


def _sum(
    e: Emit, x: Value, axes: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    return e.apply(ops.sum, e.summed(x, dtype), axes=e.axes(axes, x.rank), keepdim=keepdim)


def _mean(
    e: Emit, x: Value, axes: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    x = x if dtype is None else e.cast(x, from_torch(dtype))
    return e.apply(ops.mean, x, axes=e.axes(axes, x.rank), keepdim=keepdim)


def _prod(
    e: Emit, x: Value, axis: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    return e.apply(ops.prod, e.summed(x, dtype), axes=e.axes(axis, x.rank), keepdim=keepdim)


def _var(
    e: Emit,
    x: Value,
    axes: Axes = None,
    unbiased: Any = True,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Value:
    """`var(x)`, `var(x, unbiased)`, `var(x, axes, unbiased, keepdim)` and the form with a correction."""
    if isinstance(axes, bool):
        axes, unbiased = None, axes
    if correction is None:
        correction = int(unbiased)
    if int(correction) != correction:
        raise UnsupportedOperator(f"variance with correction {correction}", node=e.operator)
    return e.apply(ops.var, x, axes=e.axes(axes, x.rank), keepdim=keepdim, correction=int(correction))


def _std(e: Emit, x: Value, *arguments: Any, **keywords: Any) -> Value:
    return e.apply(ops.sqrt, _var(e, x, *arguments, **keywords))


def _var_correction(
    e: Emit, x: Value, axes: Axes = None, *, correction: Any = 1, keepdim: bool = False
) -> Value:
    return _var(e, x, axes, keepdim=keepdim, correction=1 if correction is None else correction)


def _std_correction(
    e: Emit, x: Value, axes: Axes = None, *, correction: Any = 1, keepdim: bool = False
) -> Value:
    return e.apply(ops.sqrt, _var_correction(e, x, axes, correction=correction, keepdim=keepdim))


def _var_mean_correction(
    e: Emit, x: Value, axes: Axes = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    return _var_correction(e, x, axes, correction=correction, keepdim=keepdim), _mean(e, x, axes, keepdim)


def _extremum(name: str) -> tuple[Row, Row, Row]:
    """max (or min) of all, over one axis with positions, and over several axes."""
    op, place = getattr(ops, name), getattr(ops, f"arg{name}")

    def whole(e: Emit, x: Value) -> Value:
        return e.apply(op, x, axes=e.axes(None, x.rank), keepdim=False)

    def along(e: Emit, x: Value, axis: int, keepdim: bool = False) -> tuple[Value, Value]:
        axis = e.axis(axis, x.rank)
        if x.rank == 0:
            return x, e.scalar(0, INT64)
        return e.apply(op, x, axes=(axis,), keepdim=keepdim), e.apply(place, x, axis=axis, keepdim=keepdim)

    def over(e: Emit, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
        return e.apply(op, x, axes=e.axes(axes, x.rank), keepdim=keepdim)

    return whole, along, over


def _position(name: str) -> Row:
    op = getattr(ops, name)

    def row(e: Emit, x: Value, axis: int | None = None, keepdim: bool = False) -> Value:
        if axis is None or x.rank == 0:
            if keepdim and x.rank:
                raise UnsupportedOperator(f"{name} of all axes that keeps them", node=e.operator)
            return e.apply(op, e.reshape(x, (math.prod(x.shape, start=1),)), axis=0, keepdim=False)
        return e.apply(op, x, axis=e.axis(axis, x.rank), keepdim=keepdim)

    return row


def _truth(name: str) -> Row:
    op = getattr(ops, name)
    return lambda e, x, axes=None, keepdim=False: e.apply(op, x, axes=e.axes(axes, x.rank), keepdim=keepdim)


def _count_nonzero(e: Emit, x: Value, axes: Axes = None) -> Value:
    return e.apply(ops.sum, e.cast(e.boolean(x), INT64), axes=e.axes(axes, x.rank), keepdim=False)


def _vector_norm(
    e: Emit,
    x: Value,
    order: float = 2,
    axes: Axes = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x = x if dtype is None else e.cast(x, from_torch(dtype))
    over = {"axes": e.axes(axes, x.rank), "keepdim": keepdim}
    if order == 2:
        return e.apply(ops.sqrt, e.apply(ops.sum, e.apply(ops.mul, x, x), **over))
    size = e.apply(ops.abs, x)
    if order == 1:
        return e.apply(ops.sum, size, **over)
    if abs(order) == math.inf:
        return e.apply(ops.max if order > 0 else ops.min, size, **over)
    raise UnsupportedOperator(f"vector norm of order {order}", node=e.operator)


def _norm(
    e: Emit, x: Value, order: float | None = 2, axes: Axes = None, keepdim: bool = False, **kind: Any
) -> Value:
    return _vector_norm(e, x, 2 if order is None else order, axes, keepdim, **kind)


def _matrix_or_vector_norm(
    e: Emit, x: Value, order: Any = None, axes: Axes = None, keepdim: bool = False, **kind: Any
) -> Value:
    """Of matrices only the plain one, which is that of all their elements."""
    count = x.rank if axes is None else 1 if isinstance(axes, int) else len(axes)
    if order is not None and (count != 1 or not isinstance(order, int | float)):
        raise UnsupportedOperator(f"norm of order {order} over {count} axes", node=e.operator)
    return _norm(e, x, order, axes, keepdim, **kind)


def _cosine_similarity(e: Emit, a: Value, b: Value, axis: int = 1, eps: float = 1e-8) -> Value:
    a, b = e.operands(a, b)
    both = e.apply(ops.mul, *(_unit(e, x, max(a.rank, b.rank), axis, eps) for x in (a, b)))
    return e.apply(ops.sum, both, axes=e.axes(axis, both.rank), keepdim=False)


def _unit(e: Emit, x: Value, rank: int, axis: int, eps: float) -> Value:
    """`x` by its length along an axis of `rank` ones; one that is missing, or broadcast, would count
    otherwise."""
    axis = e.axis(axis, rank) - rank + x.rank
    if axis < 0 or e.is_one(x.shape[axis]):
        raise UnsupportedOperator("similarity along an axis that is broadcast", node=e.operator)
    length = _vector_norm(e, x, 2, (axis,), keepdim=True)
    return e.apply(ops.div, x, e.apply(ops.maximum, length, e.scalar(eps, x.dtype)))


def _pairwise_distance(
    e: Emit, a: Value, b: Value, order: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> Value:
    a, b = e.operands(a, b)
    difference = e.apply(ops.sub, a, b)
    return _vector_norm(e, e.apply(ops.add, difference, e.scalar(eps, a.dtype)), order, -1, keepdim)


def _aminmax(e: Emit, x: Value, *, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    return _amin(e, x, dim, keepdim), _amax(e, x, dim, keepdim)


def _logsumexp(e: Emit, x: Value, axes: Axes, keepdim: bool = False) -> Value:
    # the greatest element is taken out first, unless it is infinite
    over = e.axes(axes, x.rank)
    top = e.apply(ops.max, x, axes=over, keepdim=True, empty=True)
    top = e.apply(ops.where, e.apply(ops.isinf, top), e.scalar(0.0, x.dtype), top)
    total = e.apply(ops.sum, e.apply(ops.exp, e.apply(ops.sub, x, top)), axes=over, keepdim=True)
    result = e.apply(ops.add, e.apply(ops.log, total), top)
    return result if keepdim else e.drop(result, over)


def _softmax(name: str) -> Row:
    op = getattr(ops, name)

    def row(e: Emit, x: Value, axis: int, dtype: torch.dtype | bool | None = None) -> Value:
        x = e.cast(x, from_torch(dtype)) if isinstance(dtype, torch.dtype) else e.floating(x)
        return e.apply(op, x, axis=e.axis(axis, x.rank))

    return row


def _cumsum(e: Emit, x: Value, axis: int, *, dtype: torch.dtype | None = None) -> Value:
    return e.apply(ops.cumsum, e.summed(x, dtype), axis=e.axis(axis, x.rank))


def _diff(
    e: Emit,
    x: Value,
    order: Size = 1,
    axis: int = -1,
    prepend: Value | None = None,
    append: Value | None = None,
) -> Value:
    """Differences of neighbours, `order` times; two booleans differ where they are not equal."""
    axis = e.axis(axis, x.rank)
    parts = [part for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        x = e.concat(e.operands(*parts), axis)
    for _ in range(e.literal(order, "the order of a difference")):
        later, earlier = slice_of(e, x, axis, 1), slice_of(e, x, axis, None, -1)
        x = e.apply(ops.ne if x.dtype is BOOL else ops.sub, later, earlier)
    return x


_max, _max_along, _amax = _extremum("max")
_min, _min_along, _amin = _extremum("min")

ROWS: dict[str, Row] = {
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.prod.default": _prod,
    "aten.prod.dim_int": _prod,
    "aten.var.default": _var,
    "aten.var.dim": _var,
    "aten.var.correction": _var_correction,
    "aten.std.default": _std,
    "aten.std.dim": _std,
    "aten.std.correction": _std_correction,
    "aten.var_mean.correction": _var_mean_correction,
    "aten.var_mean.dim": lambda e, x, axes=None, unbiased=True, keepdim=False: (
        _var(e, x, axes, unbiased, keepdim),
        _mean(e, x, axes, keepdim),
    ),
    "aten.max.default": _max,
    "aten.max.dim": _max_along,
    "aten.amax.default": _amax,
    "aten.min.default": _min,
    "aten.min.dim": _min_along,
    "aten.amin.default": _amin,
    "aten.argmax.default": _position("argmax"),
    "aten.argmin.default": _position("argmin"),
    **{f"aten.{name}.{form}": _truth(name) for name in ("any", "all") for form in ("default", "dim", "dims")},
    "aten.count_nonzero.default": _count_nonzero,
    "aten.count_nonzero.dim_IntList": _count_nonzero,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.norm.ScalarOpt_dim": _norm,
    "aten.norm.Scalar": _norm,
    "aten.linalg_norm.default": _matrix_or_vector_norm,
    "aten.cosine_similarity.default": _cosine_similarity,
    "aten.pairwise_distance.default": _pairwise_distance,
    "aten.aminmax.default": _aminmax,
    "aten.logsumexp.default": _logsumexp,
    "aten.softmax.int": _softmax("softmax"),
    "aten._softmax.default": _softmax("softmax"),
    "aten.log_softmax.int": _softmax("log_softmax"),
    "aten._log_softmax.default": _softmax("log_softmax"),
    "aten.cumsum.default": _cumsum,
    "aten.diff.default": _diff,
}
