"""Operators that are defined by others: softmax and the normalisations. Each `expand` is its definition,
arranged so that no intermediate overflows or cancels; half types are computed in float32 and converted at
the end."""

from __future__ import annotations

from dlcb.compiler.expr.node import ONE, as_expr, product
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.op import Inference, Op, Shape, Type, same_dtype, same_shape
from dlcb.compiler.ir.ops import elementwise as e
from dlcb.compiler.ir.ops import move, reduce
from dlcb.compiler.ir.ops.reduce import narrowed, scalar, widened
from dlcb.compiler.ir.ops.rules import floated

# ---- softmax


def _shifted(build: GraphBuilder, x: Value, axis: int) -> Value:
    """x less its greatest element along the axis, so that exp stays below 1."""
    top = build.apply(reduce.max, x, axes=(axis,), keepdim=True, empty=True)
    return build.apply(e.sub, x, top)


def _softmax(build: GraphBuilder, x: Value, axis: int) -> Value:
    weights = build.apply(e.exp, _shifted(build, widened(build, x), axis))
    total = build.apply(reduce.sum, weights, axes=(axis,), keepdim=True)
    return narrowed(build, build.apply(e.div, weights, total), x.dtype)


def _log_softmax(build: GraphBuilder, x: Value, axis: int) -> Value:
    shifted = _shifted(build, widened(build, x), axis)
    total = build.apply(reduce.sum, build.apply(e.exp, shifted), axes=(axis,), keepdim=True)
    return narrowed(build, build.apply(e.sub, shifted, build.apply(e.log, total)), x.dtype)


softmax = Op("softmax", "composite", same_shape, floated, expand=_softmax)
log_softmax = Op("log_softmax", "composite", same_shape, floated, expand=_log_softmax)


# ---- norms


def _standardized(build: GraphBuilder, x: Value, axes: tuple[int, ...], eps: float) -> Value:
    """(x - mean) / sqrt(variance + eps) over `axes`."""
    deviation = build.apply(e.sub, x, build.apply(reduce.mean, x, axes=axes, keepdim=True))
    square = build.apply(e.mul, deviation, deviation)
    variance = build.apply(reduce.mean, square, axes=axes, keepdim=True)
    return build.apply(e.mul, deviation, _inverse_root(build, variance, eps))


def _inverse_root(build: GraphBuilder, x: Value, eps: float) -> Value:
    return build.apply(e.rsqrt, build.apply(e.add, x, scalar(build, eps, x.dtype)))


def _scaled(build: GraphBuilder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = build.apply(e.mul, x, widened(build, weight))
    return x if bias is None else build.apply(e.add, x, widened(build, bias))


def _layer_norm_shape(
    infer: Inference, x: Type, weight: Type | None = None, bias: Type | None = None, *, dims: int, eps: float
) -> Shape:
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        for k in range(dims):
            infer.equal(x.shape[k - dims], parameter.shape[k], f"the {name}'s axis {k}")
    return x.shape


def _layer_norm(
    build: GraphBuilder,
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    *,
    dims: int,
    eps: float,
) -> Value:
    axes = tuple(range(x.rank - dims, x.rank))
    normal = _standardized(build, widened(build, x), axes, eps)
    return narrowed(build, _scaled(build, normal, weight, bias), x.dtype)


layer_norm = Op("layer_norm", "composite", _layer_norm_shape, same_dtype, expand=_layer_norm)


def _rms_norm(build: GraphBuilder, x: Value, weight: Value | None = None, *, dims: int, eps: float) -> Value:
    axes, wide = tuple(range(x.rank - dims, x.rank)), widened(build, x)
    mean = build.apply(reduce.mean, build.apply(e.mul, wide, wide), axes=axes, keepdim=True)
    normal = build.apply(e.mul, wide, _inverse_root(build, mean, eps))
    return narrowed(build, _scaled(build, normal, weight, None), x.dtype)


rms_norm = Op("rms_norm", "composite", _layer_norm_shape, same_dtype, expand=_rms_norm)


def _along_channels(build: GraphBuilder, x: Value, parameter: Value) -> Value:
    """A tensor of one element a channel, shaped to broadcast along axis 1 of x."""
    wide = widened(build, parameter)
    return build.apply(move.reshape, wide, shape=(x.shape[1], *(ONE,) * (x.rank - 2)))


def _channels(infer: Inference, x: Type, *parameters: Type, **attributes: object) -> Shape:
    for parameter in parameters:
        infer.equal(x.shape[1], parameter.shape[0], "the channels")
    return x.shape


def _batch_norm(
    build: GraphBuilder,
    x: Value,
    mean: Value,
    variance: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    *,
    eps: float,
) -> Value:
    # the factor is made from one element a channel, before it meets x
    factor = _inverse_root(build, widened(build, variance), eps)
    if weight is not None:
        factor = build.apply(e.mul, factor, widened(build, weight))
    deviation = build.apply(e.sub, widened(build, x), _along_channels(build, x, mean))
    normal = build.apply(e.mul, deviation, _along_channels(build, x, factor))
    if bias is not None:
        normal = build.apply(e.add, normal, _along_channels(build, x, bias))
    return narrowed(build, normal, x.dtype)


batch_norm = Op("batch_norm", "composite", _channels, same_dtype, expand=_batch_norm)


def _group_norm_shape(infer: Inference, x: Type, *parameters: Type, groups: int, eps: float) -> Shape:
    infer.exact_quotient(x.shape[1], as_expr(groups), f"channels in {groups} groups")
    return _channels(infer, x, *parameters)


def _group_norm(
    build: GraphBuilder,
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    *,
    groups: int,
    eps: float,
) -> Value:
    batch, channels, *inner = x.shape
    split = (batch, as_expr(groups), channels // groups * product(inner))
    grouped = build.apply(move.reshape, widened(build, x), shape=split)
    normal = build.apply(move.reshape, _standardized(build, grouped, (2,), eps), shape=x.shape)
    parameters = [None if p is None else _along_channels(build, x, p) for p in (weight, bias)]
    return narrowed(build, _scaled(build, normal, *parameters), x.dtype)


group_norm = Op("group_norm", "composite", _group_norm_shape, same_dtype, expand=_group_norm)
