"""Products summed over a shared axis: matmul, linear, convolution. Libraries run them; their coordinate
rules serve the oracle and the proofs about which input elements an output element depends on.

Also attention, whose expansion is the plain softmax(q k^T * scale + mask) v."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dlcb.compiler.dtype import BOOL, DType
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import const
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.op import Inference, Op, Operand, Shape, Type, broadcast_shape, promoted
from dlcb.compiler.ir.ops import create, elementwise, move, reduce
from dlcb.compiler.ir.ops.rules import Coordinates, computed, read, window_coordinates, window_size

# ---- matmul, with torch.matmul's ranks


def _matmul_shape(infer: Inference, a: Type, b: Type) -> Shape:
    if not (a.rank and b.rank):
        raise ShapeError(f"matmul: both operands need an axis, found {a!r} and {b!r}")
    infer.equal(a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0], "the axis summed over")
    batch: Shape = ()
    if a.rank > 2 or b.rank > 2:
        batch = broadcast_shape(infer, Type(a.shape[:-2], a.dtype), Type(b.shape[:-2], b.dtype))
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.rank > 1 else ()))


def _matmul(i: Coordinates, r: Coordinates, a: Operand, b: Operand) -> Expr:
    # out[batch, n, m] = sum over k of a[batch, n, k] * b[batch, k, m]
    common = computed(promoted(a.type, b.type))
    place = list(i)
    column = [place.pop()] if b.type.rank > 1 else []
    row = [place.pop()] if a.type.rank > 1 else []
    left = a.along([*place, *row, *r]) if a.type.rank > 1 else a[list(r)]
    right = b.along([*place, *r, *column]) if b.type.rank > 1 else b[list(r)]
    return node.cast(left, common) * node.cast(right, common)


matmul = Op("matmul", "contract", _matmul_shape, promoted, _matmul, lambda a, b: a.shape[-1:], "sum")


# ---- linear: x @ w transposed + bias, clipped at zero where `relu` says so


def _linear_shape(infer: Inference, x: Type, w: Type, bias: Type | None = None, relu: bool = False) -> Shape:
    infer.equal(x.shape[-1], w.shape[1], "the features")
    if bias is not None:
        infer.equal(bias.shape[0], w.shape[0], "the bias")
    return (*x.shape[:-1], w.shape[0])


def _linear(
    i: Coordinates, r: Coordinates, x: Operand, w: Operand, bias: Operand | None = None, relu: bool = False
) -> Expr:
    common = computed(promoted(x.type, w.type))
    return node.cast(x[[*i[:-1], *r]], common) * node.cast(w[[i[-1], *r]], common)


def _finished(
    i: Coordinates, total: Expr, x: Operand, w: Operand, bias: Operand | None = None, relu: bool = False
) -> Expr:
    total = total if bias is None else total + node.cast(bias[[i[-1]]], total.dtype)
    return node.maximum(total, const(0, total.dtype)) if relu else total


def _linear_expanded(
    build: GraphBuilder, x: Value, w: Value, bias: Value | None = None, relu: bool = False
) -> Value:
    y = build.apply(matmul, x, build.apply(move.permute, w, order=(1, 0)))
    y = y if bias is None else build.apply(elementwise.add, y, bias)
    return build.apply(elementwise.relu, y) if relu else y


def _weights_dtype(x: Type, w: Type, bias: Type | None = None, **attributes: Any) -> DType:
    return promoted(x, w)


linear = Op(
    "linear", "contract", _linear_shape, _weights_dtype, _linear,
    lambda x, w, bias=None, relu=False: x.shape[-1:], "sum", expand=_linear_expanded, finish=_finished,
)  # fmt: skip


# ---- convolution: x[n, c, ..], w[out, c / groups, ..]


def _convolution_shape(
    infer: Inference,
    x: Type,
    w: Type,
    bias: Type | None = None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> Shape:
    if x.rank != w.rank or len(stride) != w.rank - 2:
        raise ShapeError(f"convolution: {x!r} does not fit the weights {w!r} with strides {tuple(stride)}")
    infer.equal(x.shape[1], w.shape[1] * groups, f"channels, in {groups} groups")
    if bias is not None:
        infer.equal(bias.shape[0], w.shape[0], "the bias")
    sizes = []
    for k, (extent, window) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True)):
        padded, span = extent + 2 * padding[k], (window - 1) * dilation[k] + 1
        if infer.known(padded >= span) is not True:
            infer.require(padded >= span, f"axis {k + 2}: the padded input holds the window")
        sizes.append(window_size(extent, window, stride[k], padding[k], dilation[k]))
    return (x.shape[0], w.shape[0], *sizes)


def _convolution(
    i: Coordinates,
    r: Coordinates,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> Expr:
    # out[n, o, p] = sum over c, q of x[n, c of o's group, p * stride + q * dilation - padding] * w[o, c, q]
    common = computed(promoted(x.type, w.type))
    channel = r[0]
    if groups != 1:
        channel = channel + i[1] // (w.shape[0] // groups) * w.shape[1]
    places, guard = window_coordinates(i[2:], r[1:], x.shape[2:], stride, padding, dilation)
    element = read(x, [i[0], channel, *places], guard, const(0, computed(x.dtype)))
    return node.cast(element, common) * node.cast(w[[i[1], *r]], common)


def _add_channel(
    i: Coordinates, total: Expr, x: Operand, w: Operand, bias: Operand | None = None, **attributes: Any
) -> Expr:
    return total if bias is None else total + node.cast(bias[[i[1]]], total.dtype)


convolution = Op(
    "convolution", "contract", _convolution_shape, _weights_dtype, _convolution,
    lambda x, w, bias=None, **attributes: w.shape[1:], "sum", finish=_add_channel,
)  # fmt: skip


# ---- relu(convolution + residual), which libraries do in one call; the residual may be missing


def _clipped_shape(
    infer: Inference, x: Type, w: Type, bias: Type, *residual: Type, **attributes: Any
) -> Shape:
    shape = _convolution_shape(infer, x, w, bias, **attributes)
    for added in residual:
        for axis, (a, b) in enumerate(zip(added.shape, shape, strict=True)):
            infer.equal(a, b, f"axis {axis} of the residual")
    return shape


def _clipped_expanded(
    build: GraphBuilder, x: Value, w: Value, bias: Value, *residual: Value, **attributes: Any
) -> Value:
    y = build.apply(convolution, x, w, bias, **attributes)
    for added in residual:
        y = build.apply(elementwise.add, y, added)
    return build.apply(elementwise.relu, y)


convolution_relu = Op(
    "convolution_relu", "composite", _clipped_shape,
    lambda x, w, *rest, **attributes: promoted(x, w), expand=_clipped_expanded,
)  # fmt: skip


# ---- convolution over channels-last images, with what libraries do in the same call:
# y[n, h, w, o] = relu(sum of x[n, .., c] * w[o, .., c] + bias[o] + residual[n, h, w, o]), at most `ceiling`

_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def _nhwc_shape(
    infer: Inference,
    x: Type,
    w: Type,
    *rest: Type,
    residual: bool = False,
    relu: bool = False,
    ceiling: float | None = None,
    **attributes: Any,
) -> Shape:
    first = [Type(tuple(t.shape[axis] for axis in _CHANNELS_FIRST), t.dtype) for t in (x, w)]
    bias = rest[: len(rest) - residual]
    n, o, h, width = _convolution_shape(infer, *first, *bias, **attributes)
    if residual:
        for axis, (a, b) in enumerate(zip(rest[-1].shape, (n, h, width, o), strict=True)):
            infer.equal(a, b, f"axis {axis} of the residual")
    return n, h, width, o


def _nhwc_expanded(
    build: GraphBuilder,
    x: Value,
    w: Value,
    *rest: Value,
    residual: bool = False,
    relu: bool = False,
    ceiling: float | None = None,
    **attributes: Any,
) -> Value:
    def first(value: Value) -> Value:
        return build.apply(move.permute, value, order=_CHANNELS_FIRST)

    bias = rest[: len(rest) - residual]
    y = build.apply(convolution, first(x), first(w), *bias, **attributes)
    y = build.apply(move.permute, y, order=_CHANNELS_LAST)
    y = build.apply(elementwise.add, y, rest[-1]) if residual else y
    y = build.apply(elementwise.relu, y) if relu else y
    if ceiling is None:
        return y
    return build.apply(elementwise.minimum, y, reduce.scalar(build, ceiling, y.dtype))


convolution_nhwc = Op(
    "convolution_nhwc", "composite", _nhwc_shape,
    lambda x, w, *rest, **attributes: promoted(x, w), expand=_nhwc_expanded,
)  # fmt: skip


# ---- depthwise convolution over channels-last images: every channel has a window of its own, so
# that the sum over it is a few products a result, bound by memory, and is compiled by coordinates:
# y[n, h, w, c] = sum of x[n, .., c] * w[.., c]


def _depthwise_shape(
    infer: Inference,
    x: Type,
    w: Type,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Shape:
    infer.equal(x.shape[3], w.shape[2], "channels")
    sizes = []
    for k, (extent, window) in enumerate(zip(x.shape[1:3], w.shape[:2], strict=True)):
        padded, span = extent + 2 * padding[k], (window - 1) * dilation[k] + 1
        if infer.known(padded >= span) is not True:
            infer.require(padded >= span, f"axis {k + 1}: the padded input holds the window")
        sizes.append(window_size(extent, window, stride[k], padding[k], dilation[k]))
    return (x.shape[0], *sizes, x.shape[3])


def _depthwise(
    i: Coordinates,
    r: Coordinates,
    x: Operand,
    w: Operand,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Expr:
    common = computed(promoted(x.type, w.type))
    places, guard = window_coordinates(i[1:3], r, x.shape[1:3], stride, padding, dilation)
    element = read(x, [i[0], *places, i[3]], guard, const(0, computed(x.dtype)))
    return node.cast(element, common) * node.cast(w[[*r, i[3]]], common)


depthwise_nhwc = Op(
    "depthwise_nhwc", "reduce", _depthwise_shape, _weights_dtype, _depthwise,
    lambda x, w, **attributes: w.shape[:2], "sum",
)  # fmt: skip


# ---- attention


def _attention_shape(
    infer: Inference,
    q: Type,
    k: Type,
    v: Type,
    mask: Type | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Shape:
    infer.equal(q.shape[-1], k.shape[-1], "the width of queries and keys")
    infer.equal(k.shape[-2], v.shape[-2], "the length of keys and values")
    batch = broadcast_shape(infer, *(Type(t.shape[:-2], t.dtype) for t in (q, k, v)))
    if mask is not None:
        scores = Type((*batch, q.shape[-2], k.shape[-2]), q.dtype)
        broadcast_shape(infer, scores, mask)
    return (*batch, q.shape[-2], v.shape[-1])


def _attention_dtype(q: Type, k: Type, v: Type, mask: Type | None = None, **attributes: Any) -> DType:
    return promoted(q, k, v)


def _attention(
    build: GraphBuilder,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Value:
    # a row whose keys are all masked gives zeros, as PyTorch's scaled_dot_product_attention does
    def apply(op: Op, *values: Value, **attributes: Any) -> Value:
        return build.apply(op, *values, **attributes)

    wide_q, wide_k, wide_v = (reduce.widened(build, x) for x in (q, k, v))
    dtype = wide_q.dtype
    order = (*range(k.rank - 2), k.rank - 1, k.rank - 2)
    scores = apply(matmul, wide_q, apply(move.permute, wide_k, order=order))
    factor = (
        reduce.scalar(build, scale, dtype)
        if scale is not None
        else apply(elementwise.rsqrt, reduce.scalar(build, q.shape[-1], dtype))
    )
    scores = apply(elementwise.mul, scores, factor)
    nothing = reduce.scalar(build, -math.inf, dtype)
    if causal:
        square = apply(create.full, shape=(q.shape[-2], k.shape[-2]), value=1, dtype=BOOL)
        scores = apply(elementwise.where, apply(move.tril, square, diagonal=0), scores, nothing)
    if mask is not None and mask.dtype is BOOL:
        scores = apply(elementwise.where, mask, scores, nothing)
    elif mask is not None:
        scores = apply(elementwise.add, scores, reduce.narrowed(build, mask, dtype))
    last = (scores.rank - 1,)
    top = apply(reduce.max, scores, axes=last, keepdim=True, empty=True)
    masked = apply(elementwise.eq, top, nothing)
    top = apply(elementwise.where, masked, reduce.scalar(build, 0, dtype), top)
    weights = apply(elementwise.exp, apply(elementwise.sub, scores, top))
    total = apply(reduce.sum, weights, axes=last, keepdim=True)
    total = apply(elementwise.where, masked, reduce.scalar(build, 1, dtype), total)
    result = apply(matmul, apply(elementwise.div, weights, total), wide_v)
    return reduce.narrowed(build, result, promoted(q.type, k.type, v.type))


attention = Op("attention", "composite", _attention_shape, _attention_dtype, expand=_attention)
