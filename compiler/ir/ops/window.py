"""Pooling and resizing: output elements that look at a window of the input's last axes.

Windows read through guards: what hangs over the input adds the fold's identity. Output sizes are PyTorch's,
with `ceil_mode` included. Pooling works over the last len(window) axes whatever stands before them."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.dtype import FLOAT32, FLOAT64, INT64, DType
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, apply, as_expr, ceildiv, const, product
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.op import Inference, Op, Operand, Shape, Type, given_dtype, same_dtype
from dlcb.compiler.ir.ops import elementwise, reduce
from dlcb.compiler.ir.ops.reduce import narrowed, scalar, widened
from dlcb.compiler.ir.ops.rules import (
    Coordinates,
    computed,
    identity,
    read,
    require_positive,
    window_coordinates,
    window_size,
)

# ---- pooling by a fold over windows


def _pool_shape(
    infer: Inference,
    x: Type,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> Shape:
    rank = len(window)
    sizes = [
        window_size(x.shape[k - rank], window[k], stride[k], padding[k], dilation[k], ceil_mode)
        for k in range(rank)
    ]
    require_positive(infer, sizes, f"at least one window of {tuple(window)}")
    return (*x.shape[:-rank], *sizes)


def _pool(name: str, fold: str) -> Op:
    """out[.., p] = x[.., p * stride + q * dilation - padding] folded over q, the places of the window."""

    def at(
        i: Coordinates,
        r: Coordinates,
        x: Operand,
        window: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool = False,
    ) -> Expr:
        rank = len(window)
        places, guard = window_coordinates(
            i[-rank:], r, x.shape[-rank:], stride, padding, dilation, ceil_mode
        )
        return read(x, [*i[:-rank], *places], guard, identity(fold, x.dtype))

    def over(x: Type, window: Sequence[int], **attributes: object) -> Shape:
        return tuple(as_expr(extent) for extent in window)

    return Op(name, "reduce", _pool_shape, same_dtype, at, over, fold)


max_pool = _pool("max_pool", "max")
sum_pool = _pool("sum_pool", "sum")


# ---- avg_pool: sum_pool over the count of each window


def _window_count_shape(infer: Inference, sizes: Shape, places: Shape, **attributes: object) -> Shape:
    return places


def _window_count(
    i: Coordinates,
    r: Coordinates,
    sizes: Shape,
    places: Shape,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    count_include_pad: bool,
    dtype: DType,
) -> Expr:
    counts = []
    for k, place in enumerate(i):
        start = place * stride[k] - padding[k]
        # the window is cut at the end of the right padding in either case
        stop = node.minimum(start + window[k], sizes[k] + padding[k])
        if not count_include_pad:
            start, stop = node.maximum(start, 0), node.minimum(stop, sizes[k])
        counts.append(stop - start)
    return node.cast(product(counts), computed(dtype))


window_count = Op("window_count", "create", _window_count_shape, given_dtype, _window_count)


def _avg_pool_shape(
    infer: Inference,
    x: Type,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Shape:
    return _pool_shape(infer, x, window, stride, padding, (1,) * len(window), ceil_mode)


def _avg_pool(
    build: GraphBuilder,
    x: Value,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    rank, wide = len(window), widened(build, x)
    total = build.apply(
        sum_pool,
        wide,
        window=window,
        stride=stride,
        padding=padding,
        dilation=(1,) * rank,
        ceil_mode=ceil_mode,
    )
    whole = not ceil_mode and (count_include_pad or not any(padding))  # every window counts all its places
    if divisor is not None or whole:
        count = scalar(build, divisor if divisor is not None else product(window), wide.dtype)
    else:
        count = build.apply(
            window_count, sizes=x.shape[-rank:], places=total.shape[-rank:], window=window, stride=stride,
            padding=padding, count_include_pad=count_include_pad, dtype=wide.dtype,
        )  # fmt: skip
    return narrowed(build, build.apply(elementwise.div, total, count), x.dtype)


avg_pool = Op("avg_pool", "composite", _avg_pool_shape, same_dtype, expand=_avg_pool)


# ---- adaptive_avg_pool: window k of an axis is floor(k * n / m) up to ceil((k + 1) * n / m)


def _adaptive_bounds(place: Expr, extent: Expr, output: Expr) -> tuple[Expr, Expr]:
    return place * extent // output, ceildiv((place + 1) * extent, output)


def _adaptive_shape(infer: Inference, x: Type, output: Shape) -> Shape:
    require_positive(infer, x.shape[-len(output) :], "the pooled axes")
    return (*x.shape[: -len(output)], *output)


def _adaptive_sum(i: Coordinates, r: Coordinates, x: Operand, output: Shape) -> Expr:
    rank, places, guard = len(output), [], TRUE
    for k, inner in enumerate(r):
        start, stop = _adaptive_bounds(i[k - rank], x.shape[k - rank], output[k])
        places.append(start + inner)
        guard = guard & (start + inner < stop)
    return x.inside([*i[:-rank], *places], guard, identity("sum", x.dtype))


def _adaptive_over(x: Type, output: Shape) -> Shape:
    # stop - start is at most ceil(n / m) + 1
    return tuple(
        ceildiv(extent, size) + 1 for extent, size in zip(x.shape[-len(output) :], output, strict=True)
    )


adaptive_sum_pool = Op(
    "adaptive_sum_pool", "reduce", _adaptive_shape, same_dtype, _adaptive_sum, _adaptive_over, "sum"
)


def _adaptive_count(i: Coordinates, r: Coordinates, sizes: Shape, output: Shape, dtype: DType) -> Expr:
    bounds = [_adaptive_bounds(place, sizes[k], output[k]) for k, place in enumerate(i)]
    return node.cast(product(stop - start for start, stop in bounds), computed(dtype))


adaptive_count = Op(
    "adaptive_count", "create", lambda infer, sizes, output, dtype: output, given_dtype, _adaptive_count
)


def _adaptive_avg_pool(build: GraphBuilder, x: Value, output: Shape) -> Value:
    rank = len(output)
    if all(extent is ONE for extent in output):
        return build.apply(reduce.mean, x, axes=tuple(range(x.rank - rank, x.rank)), keepdim=True)
    if x.shape[-rank:] == output:
        return x
    wide = widened(build, x)
    total = build.apply(adaptive_sum_pool, wide, output=output)
    count = build.apply(adaptive_count, sizes=x.shape[-rank:], output=output, dtype=wide.dtype)
    return narrowed(build, build.apply(elementwise.div, total, count), x.dtype)


adaptive_avg_pool = Op(
    "adaptive_avg_pool", "composite", _adaptive_shape, same_dtype, expand=_adaptive_avg_pool
)


# ---- resizing: PyTorch computes source places in floating point, and so must we


def _resized(infer: Inference, x: Type, output: Shape, **attributes: object) -> Shape:
    require_positive(infer, (*x.shape[-len(output) :], *output), "the resized axes")
    return (*x.shape[: -len(output)], *output)


def _step(extent: Expr, output: Expr, scale: float | None, dtype: DType) -> Expr:
    """How far the source moves for one output place."""
    if scale is not None:
        return const(1.0 / scale, dtype)
    return node.cast(extent, dtype) / node.cast(output, dtype)


def _place_type(dtype: DType) -> DType:
    return FLOAT64 if dtype is FLOAT64 else FLOAT32


def _nearest(
    i: Coordinates, r: Coordinates, x: Operand, output: Shape, scales: Sequence[float | None] | None = None
) -> Expr:
    rank, dtype, places = len(output), _place_type(x.dtype), []
    for k in range(rank):
        extent, place = x.shape[k - rank], i[k - rank]
        scale = scales[k] if scales else None
        if extent is output[k] and (rank == 2 or scale is None):
            places.append(place)
            continue
        step = _step(extent, output[k], scale, dtype)
        source = node.cast(apply("floor", node.cast(place, dtype) * step), INT64)
        if rank == 2:  # PyTorch copies equal sizes of images, whatever the scale, but not of signals
            source = node.where(node.equal(extent, output[k]), place, source)
        places.append(node.minimum(source, extent - 1))
    return x[[*i[:-rank], *places]]


upsample_nearest = Op("upsample_nearest", "move", _resized, same_dtype, _nearest)


def _bilinear(
    i: Coordinates,
    r: Coordinates,
    x: Operand,
    output: Shape,
    align_corners: bool,
    scales: Sequence[float | None] | None = None,
) -> Expr:
    # the weighted sum over the 2 ** rank neighbours of the source place
    rank, dtype = len(output), _place_type(x.dtype)
    neighbours: list[tuple[tuple[Expr, ...], Expr]] = [((), const(1.0, dtype))]
    for k in range(rank):
        extent, place = x.shape[k - rank], node.cast(i[k - rank], dtype)
        if align_corners:
            steps = node.cast(node.maximum(output[k] - 1, 1), dtype)
            source = place * (node.cast(extent - 1, dtype) / steps)
        else:
            step = _step(extent, output[k], scales[k] if scales else None, dtype)
            source = node.maximum((place + 0.5) * step - 0.5, 0)
        # equal sizes are copied, whatever the scale: no neighbour is read there, which may be NaN
        source = node.where(node.equal(extent, output[k]), place, source)
        low = node.minimum(node.cast(source, INT64), extent - 1)
        high = node.minimum(low + node.cast(node.not_equal(extent, output[k]), INT64), extent - 1)
        share = node.minimum(node.maximum(source - node.cast(low, dtype), 0), 1)
        neighbours = [
            ((*places, at), weight * part)
            for places, weight in neighbours
            for at, part in ((low, 1 - share), (high, share))
        ]
    common = computed(x.dtype)
    total: Expr | None = None
    for places, weight in neighbours:
        term = node.cast(weight, common) * x[[*i[:-rank], *places]]
        total = term if total is None else total + term
    assert total is not None
    return total


upsample_bilinear = Op("upsample_bilinear", "move", _resized, same_dtype, _bilinear)
