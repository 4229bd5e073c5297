"""Folds over axes, and the composites of folds: mean, var, argmax, argmin.

Sums and products of integers and bools are int64; half types are folded in float32. An empty sum is 0, an
empty mean NaN; max, min, argmax and argmin over an empty axis are refused. max and min propagate NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlcb.compiler.dtype import BOOL, FLOAT32, INT64, DType
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, product
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.op import Inference, Op, Operand, Shape, Type, same_dtype
from dlcb.compiler.ir.ops import create, elementwise, move
from dlcb.compiler.ir.ops.rules import (
    Coordinates,
    accumulated,
    byte_or_truth,
    computed,
    joined,
    positions,
    reduced,
    require_positive,
)


def _shape(infer: Inference, x: Type, axes: Sequence[int], keepdim: bool = False) -> Shape:
    return reduced(x, axes, keepdim)


def _over(x: Type, axes: Sequence[int], keepdim: bool = False, **attributes: Any) -> Shape:
    return tuple(x.shape[axis] for axis in axes)


def _fold(name: str, dtype: Callable[..., DType], inner: Callable[[Type], DType]) -> Op:
    """out[i] = the elements x[i and r] converted to `inner`, folded over r."""

    def at(i: Coordinates, r: Coordinates, x: Operand, axes: Sequence[int], keepdim: bool = False) -> Expr:
        return node.cast(x[joined(i, r, axes, keepdim, x.type.rank)], computed(inner(x.type)))

    return Op(name, "reduce", _shape, dtype, at, _over, name)


def _truth(x: Type) -> DType:
    return BOOL


sum = _fold("sum", accumulated, accumulated)
prod = _fold("prod", accumulated, accumulated)
any = _fold("any", byte_or_truth, _truth)
all = _fold("all", byte_or_truth, _truth)


def _extremum(name: str) -> Op:
    """As `_fold`; `empty` says that an empty axis yields the fold's identity instead of being refused."""

    def shape(
        infer: Inference, x: Type, axes: Sequence[int], keepdim: bool = False, empty: bool = False
    ) -> Shape:
        if not empty:
            require_positive(infer, _over(x, axes), f"{name} over axes {list(axes)}")
        return reduced(x, axes, keepdim)

    def at(
        i: Coordinates,
        r: Coordinates,
        x: Operand,
        axes: Sequence[int],
        keepdim: bool = False,
        empty: bool = False,
    ) -> Expr:
        return x[joined(i, r, axes, keepdim, x.type.rank)]

    return Op(name, "reduce", shape, same_dtype, at, _over, name)


max = _extremum("max")
min = _extremum("min")


# ---- composites


def widened(build: GraphBuilder, x: Value) -> Value:
    """`x` in the type it is computed in: float32 for the half types."""
    dtype = computed(x.dtype)
    return x if dtype is x.dtype else build.apply(elementwise.cast, x, dtype=dtype)


def narrowed(build: GraphBuilder, x: Value, dtype: DType) -> Value:
    """`x` in `dtype`."""
    return x if x.dtype is dtype else build.apply(elementwise.cast, x, dtype=dtype)


def scalar(build: GraphBuilder, value: Expr | float, dtype: DType) -> Value:
    """A rank-0 constant."""
    if isinstance(value, Expr) and value.is_const:
        value = value.value
    return build.apply(create.full, shape=(), value=value, dtype=dtype)


def _mean_type(x: Type, **attributes: Any) -> DType:
    return x.dtype if x.dtype.is_float else FLOAT32


def _count(x: Value, axes: Sequence[int]) -> Expr:
    return product(x.shape[axis] for axis in axes)


def _mean(build: GraphBuilder, x: Value, axes: Sequence[int], keepdim: bool = False) -> Value:
    # sum / count; 0 / 0 is NaN when the axes are empty
    wide = narrowed(build, x, computed(_mean_type(x.type)))
    total = build.apply(sum, wide, axes=axes, keepdim=keepdim)
    result = build.apply(elementwise.div, total, scalar(build, _count(x, axes), wide.dtype))
    return narrowed(build, result, _mean_type(x.type))


mean = Op("mean", "composite", _shape, _mean_type, expand=_mean)


def _var_shape(
    infer: Inference, x: Type, axes: Sequence[int], keepdim: bool = False, correction: int = 1
) -> Shape:
    return reduced(x, axes, keepdim)


def _var(
    build: GraphBuilder, x: Value, axes: Sequence[int], keepdim: bool = False, correction: int = 1
) -> Value:
    # the mean of squared deviations, not the difference of squares, which cancels
    wide = widened(build, x)
    deviation = build.apply(elementwise.sub, wide, _mean(build, wide, axes, keepdim=True))
    total = build.apply(sum, build.apply(elementwise.mul, deviation, deviation), axes=axes, keepdim=keepdim)
    freedom = node.maximum(_count(x, axes) - correction, 0)
    return narrowed(build, build.apply(elementwise.div, total, scalar(build, freedom, wide.dtype)), x.dtype)


var = Op("var", "composite", _var_shape, same_dtype, expand=_var)


def _arg(name: str, extremum: Op) -> Op:
    """The least position whose element equals the extremum; where that is NaN, the first NaN."""

    def shape(infer: Inference, x: Type, axis: int, keepdim: bool = False) -> Shape:
        require_positive(infer, (x.shape[axis],), f"{name} over axis {axis}")
        return reduced(x, (axis,), keepdim)

    def expand(build: GraphBuilder, x: Value, axis: int, keepdim: bool = False) -> Value:
        extent = x.shape[axis]
        best = build.apply(extremum, x, axes=(axis,), keepdim=True)
        hit = build.apply(elementwise.eq, x, best)
        if x.dtype.is_float:
            hit = build.apply(elementwise.logical_or, hit, build.apply(elementwise.isnan, x))
        line = build.apply(create.arange, start=ZERO, stop=extent, step=1, dtype=INT64)
        place = build.apply(move.reshape, line, shape=(extent, *(ONE,) * (x.rank - axis - 1)))
        places = build.apply(elementwise.where, hit, place, scalar(build, extent, INT64))
        return build.apply(min, places, axes=(axis,), keepdim=keepdim)

    return Op(name, "composite", shape, positions, expand=expand)


argmax = _arg("argmax", max)
argmin = _arg("argmin", min)
