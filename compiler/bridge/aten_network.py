"""ATen's operators of neural networks as rows over our own: products, convolutions, normalisations,
pooling, resizing and attention. Only inference forms: what would update statistics or drop elements is
refused, and PyTorch runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dlcb.compiler.bridge.emit import Emit, Row, Size
from dlcb.compiler.dtype import FLOAT32, FLOAT64
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, equal
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value

Ints = int | Sequence[int]


def _given(*values: Value | None) -> tuple[Value, ...]:
    """The values up to the first that is missing: optional operands come last."""
    kept = []
    for value in values:
        if value is None:
            break
        kept.append(value)
    return tuple(kept)


def _each(numbers: Ints, count: int) -> tuple[int, ...]:
    """One number for each axis; a single one counts for all."""
    numbers = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return numbers * count if len(numbers) == 1 else numbers


# ---- products --------------------------------------------------------------------------------------


def _linear(e: Emit, x: Value, weight: Value, bias: Value | None = None) -> Value:
    return e.apply(ops.linear, x, weight, *_given(bias))


def _matmul(e: Emit, a: Value, b: Value) -> Value:
    return e.apply(ops.matmul, a, b)


def _scaled(e: Emit, x: Value, factor: Any) -> Value:
    return x if factor == 1 else e.apply(ops.mul, *e.operands(x, factor))


def _addmm(e: Emit, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = _scaled(e, e.apply(ops.matmul, a, b), alpha)
    return product if beta == 0 else e.apply(ops.add, product, _scaled(e, bias, beta))


def _outer(e: Emit, a: Value, b: Value) -> Value:
    return e.apply(ops.mul, *e.operands(e.unsqueeze(a, 1), b))


# ---- convolution -----------------------------------------------------------------------------------


def _convolution(
    e: Emit,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Value:
    """Convolution over the last axes; `x` may come without the batch axis; "same" and "valid" are
    paddings."""
    count = weight.rank - 2
    stride, dilation = _each(stride, count), _each(dilation, count)
    unbatched = x.rank == weight.rank - 1
    x = e.unsqueeze(x, 0) if unbatched else x
    if isinstance(padding, str):
        x, padding = _pad_for(e, x, weight, padding, dilation)
    result = e.apply(
        ops.convolution,
        x,
        weight,
        *_given(bias),
        stride=stride,
        padding=_each(padding, count),
        dilation=dilation,
        groups=groups,
    )
    return e.drop(result, (0,)) if unbatched else result


def _pad_for(
    e: Emit, x: Value, weight: Value, padding: str, dilation: tuple[int, ...]
) -> tuple[Value, tuple[int, ...]]:
    """Padding by name: what is odd of "same" goes to the end and is padded beforehand."""
    if padding == "valid":
        return x, (0,) * len(dilation)
    windows = [e.literal(size, "the window of a convolution") for size in weight.shape[2:]]
    totals = [step * (window - 1) for step, window in zip(dilation, windows, strict=True)]
    if any(total % 2 for total in totals):
        high = (0, 0, *(total % 2 for total in totals))
        x = e.apply(ops.pad, x, low=(0,) * x.rank, high=high, value=0)
    return x, tuple(total // 2 for total in totals)


def _convolution_any(
    e: Emit,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    *flags: Any,
) -> Value:
    if transposed:
        raise UnsupportedOperator("transposed convolution", node=e.operator)
    return _convolution(e, x, weight, bias, stride, padding, dilation, groups)


# ---- normalisation ---------------------------------------------------------------------------------


def _layer_norm(
    e: Emit,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *cudnn: Any,
) -> Value:
    if weight is None and bias is not None:
        return e.apply(ops.add, e.apply(ops.layer_norm, x, dims=len(shape), eps=eps), bias)
    return e.apply(ops.layer_norm, x, *_given(weight, bias), dims=len(shape), eps=eps)


def _rms_norm(
    e: Emit, x: Value, shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    if eps is None:
        if x.dtype not in (FLOAT32, FLOAT64):  # PyTorch's versions differ in whose epsilon a half type takes
            raise UnsupportedOperator(f"rms_norm of {x.dtype} with no epsilon given", node=e.operator)
        eps = torch.finfo(getattr(torch, x.dtype.name)).eps
    return e.apply(ops.rms_norm, x, *_given(weight), dims=len(shape), eps=eps)


def _batch_norm(
    e: Emit,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Value:
    if mean is None and variance is None and training:
        return _own_batch_norm(e, x, weight, bias, eps)
    if training or mean is None or variance is None:
        raise UnsupportedOperator("batch normalisation that keeps what it learns of a batch", node=e.operator)
    if weight is None and bias is not None:
        weight = e.apply(ops.full, shape=bias.shape, value=1.0, dtype=bias.dtype)
    return e.apply(ops.batch_norm, x, mean, variance, *_given(weight, bias), eps=eps)


def _own_batch_norm(e: Emit, x: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    """With the statistics of the batch itself, or of weights, which some networks standardise so; in float32
    for half types."""
    if x.rank < 2:
        raise UnsupportedOperator("batch normalisation without channels", node=e.operator)
    wide = e.cast(x, x.dtype.accumulator)
    axes = tuple(axis for axis in range(x.rank) if axis != 1)
    mean = e.apply(ops.mean, wide, axes=axes, keepdim=True)
    variance = e.apply(ops.var, wide, axes=axes, keepdim=True, correction=0)
    spread = e.apply(ops.rsqrt, e.apply(ops.add, variance, e.scalar(eps, wide.dtype)))
    made = e.apply(ops.mul, e.apply(ops.sub, wide, mean), spread)
    for op, given in ((ops.mul, weight), (ops.add, bias)):
        if given is not None:
            each = e.reshape(e.cast(given, wide.dtype), (1, x.shape[1], *(1,) * (x.rank - 2)))
            made = e.apply(op, made, each)
    return e.cast(made, x.dtype)


def _batch_norm_inference(
    e: Emit,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Value]:
    return (_batch_norm(e, x, weight, bias, mean, variance, False, momentum, eps),)


def _group_norm(
    e: Emit,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *cudnn: Any,
) -> Value:
    return e.apply(ops.group_norm, x, *_given(weight, bias), groups=groups, eps=eps)


def _instance_norm(
    e: Emit,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    own_statistics: bool,
    momentum: float,
    eps: float,
    *cudnn: Any,
) -> Value:
    if not own_statistics:
        return _batch_norm(e, x, weight, bias, mean, variance, False, momentum, eps)
    groups = e.literal(x.shape[1], "the channels of an instance norm")
    return e.apply(ops.group_norm, x, *_given(weight, bias), groups=groups, eps=eps)


def _weight_norm(e: Emit, direction: Value, size: Value, axis: int = 0) -> Value:
    """The weight v * g / ||v||, whose norm runs over every axis but `axis`."""
    axes = tuple(k for k in range(direction.rank) if k != e.axis(axis, direction.rank))
    square = e.apply(ops.sum, e.apply(ops.mul, direction, direction), axes=axes, keepdim=True)
    return e.apply(ops.mul, direction, e.apply(ops.div, size, e.apply(ops.sqrt, square)))


# ---- pooling and resizing --------------------------------------------------------------------------


def _over_whole(
    e: Emit, op: Any, x: Value, *windows: tuple[Size, ...]
) -> tuple[Value, tuple[tuple[Size, ...], ...]]:
    """`x` with the axes folded by `op` that a window has whole, as its size says; of it and its strides 1 is
    left there."""
    window = windows[0]
    axes = [x.rank - len(window) + k for k, size in enumerate(window) if isinstance(size, Expr)]
    if not axes:
        return x, windows
    for axis in axes:
        size = as_expr(window[axis - x.rank])
        if e.system.known(equal(size, x.shape[axis])) is False:
            raise UnsupportedOperator(f"a window of {size!r} of {x.shape[axis]!r}", node=e.operator)
        e.equal(size, x.shape[axis], f"a window over all of axis {axis}")
        e.require(as_expr(1) <= size, f"a window over all of axis {axis}")
    rest = tuple(
        tuple(1 if x.rank - len(each) + k in axes else size for k, size in enumerate(each))
        for each in windows
    )
    return e.apply(op, x, axes=tuple(axes), keepdim=True), rest


def _max_pool(
    e: Emit,
    x: Value,
    window: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    axes: int,
) -> Value:
    window = _each(window, axes)
    x, (extents, steps) = _over_whole(e, ops.max, x, window, _each(stride, axes) if stride else window)
    return e.apply(
        ops.max_pool,
        x,
        window=extents,
        stride=steps,
        padding=_each(padding, axes),
        dilation=_each(dilation, axes),
        ceil_mode=ceil_mode,
    )


def _avg_pool(
    e: Emit,
    x: Value,
    window: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
    *,
    axes: int,
) -> Value:
    window = _each(window, axes)
    whole = ops.mean if divisor is None else ops.sum
    x, (extents, steps) = _over_whole(e, whole, x, window, _each(stride, axes) if stride else window)
    return e.apply(
        ops.avg_pool,
        x,
        window=extents,
        stride=steps,
        padding=_each(padding, axes),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor=divisor,
    )


def _over(row: Any, axes: int) -> Row:
    """A pooling row for so many axes."""
    return lambda e, *arguments, **keywords: row(e, *arguments, **keywords, axes=axes)


def _adaptive_avg_pool(e: Emit, x: Value, output: Sequence[Size]) -> Value:
    return e.apply(ops.adaptive_avg_pool, x, output=tuple(as_expr(size) for size in output))


def _resized(
    e: Emit, x: Value, output: Sequence[Size] | None, scales: Sequence[float] | None
) -> tuple[tuple[Expr, ...], tuple[float, ...] | None]:
    """Output sizes, and the scales where these were given instead of sizes."""
    if output is not None:
        return tuple(as_expr(size) for size in output), None
    assert scales is not None
    extents = x.shape[-len(scales) :]
    return tuple(_times(extent, scale) for extent, scale in zip(extents, scales, strict=True)), tuple(scales)


def _times(extent: Expr, scale: float) -> Expr:
    """floor(extent * scale), in integers where the scale is a whole number."""
    if float(scale).is_integer():
        return extent * int(scale)
    inverse = 1.0 / scale
    if inverse.is_integer():
        return extent // int(inverse)
    raise UnsupportedOperator(f"resizing by {scale}: not a whole number or the inverse of one")


def _upsample_nearest(
    e: Emit, x: Value, output: Sequence[Size] | None, scales: Sequence[float] | None = None
) -> Value:
    sizes, factors = _resized(e, x, output, scales)
    return e.apply(ops.upsample_nearest, x, output=sizes, scales=factors)


def _upsample_bilinear(
    e: Emit,
    x: Value,
    output: Sequence[Size] | None,
    align_corners: bool,
    scales: Sequence[float] | None = None,
) -> Value:
    sizes, factors = _resized(e, x, output, scales)
    return e.apply(ops.upsample_bilinear, x, output=sizes, align_corners=align_corners, scales=factors)


# ---- attention -------------------------------------------------------------------------------------


def _attention(
    e: Emit,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout:
        raise UnsupportedOperator("attention with dropout", node=e.operator)
    if enable_gqa:
        k, v = (_repeat_heads(e, x, q) for x in (k, v))
    return e.apply(ops.attention, q, k, v, *_given(mask), scale=scale, causal=is_causal)


def _repeat_heads(e: Emit, x: Value, q: Value) -> Value:
    """Each head of keys or values as often as there are query heads for it."""
    heads, wanted = x.shape[-3], q.shape[-3]
    if heads is wanted:
        return x
    count = e.quotient((wanted,), (heads,))
    *lead, _, length, width = x.shape
    wide = e.reshape(x, (*lead, heads, 1, length, width))
    wide = e.apply(ops.expand, wide, shape=(*lead, heads, count, length, width))
    return e.reshape(wide, (*lead, wanted, length, width))


ROWS: dict[str, Row] = {
    "aten.linear.default": _linear,
    "aten.matmul.default": _matmul,
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.mv.default": _matmul,
    "aten.dot.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _addmm,
    "aten.outer.default": _outer,
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
    "aten.conv1d.padding": _convolution,
    "aten.conv2d.padding": _convolution,
    "aten.conv3d.padding": _convolution,
    "aten.convolution.default": _convolution_any,
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm_inference,
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten._weight_norm.default": _weight_norm,
    "aten.max_pool1d.default": _over(_max_pool, 1),
    "aten.max_pool2d.default": _over(_max_pool, 2),
    "aten.max_pool3d.default": _over(_max_pool, 3),
    "aten.avg_pool1d.default": _over(_avg_pool, 1),
    "aten.avg_pool2d.default": _over(_avg_pool, 2),
    "aten.avg_pool3d.default": _over(_avg_pool, 3),
    "aten.adaptive_avg_pool1d.default": _adaptive_avg_pool,
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "aten.adaptive_avg_pool3d.default": _adaptive_avg_pool,
    "aten.upsample_nearest1d.vec": _upsample_nearest,
    "aten.upsample_nearest2d.vec": _upsample_nearest,
    "aten.upsample_bilinear2d.vec": _upsample_bilinear,
    "aten.scaled_dot_product_attention.default": _attention,
}
