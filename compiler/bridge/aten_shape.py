"""ATen's operators that move, cut and join tensors, or read them at indices, as rows over our own. Sizes are
integers, or expressions where the traces showed that they follow an input; views become their functional
forms."""

from __future__ import annotations

from collections.abc import Sequence
from operator import gt
from typing import Any

import torch

from dlcb.compiler.bridge.emit import Emit, Row, Size, from_torch
from dlcb.compiler.bridge.groups import resolve
from dlcb.compiler.dtype import BOOL, INT64
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, as_expr, equal, maximum, minimum, not_equal, product
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value

_END = 1 << 40  # exported slices to the end carry the largest integer

# ---- reshape ---------------------------------------------------------------------------------------


def _reshape(e: Emit, x: Value, shape: Sequence[Size]) -> Value:
    return e.reshape(x, resolve(e, x.shape, shape))


def _flatten(e: Emit, x: Value, first: int = 0, last: int = -1) -> Value:
    if x.rank == 0:
        return e.reshape(x, (1,))
    first, last = e.axis(first, x.rank), e.axis(last, x.rank)
    e.merge(x.shape[first : last + 1])
    return e.reshape(x, (*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def _unflatten(e: Emit, x: Value, axis: int, sizes: Sequence[Size]) -> Value:
    axis = e.axis(axis, x.rank)
    return e.reshape(x, (*x.shape[:axis], *resolve(e, (x.shape[axis],), sizes), *x.shape[axis + 1 :]))


def _unsqueeze(e: Emit, x: Value, axis: int) -> Value:
    return e.unsqueeze(x, axis % (x.rank + 1))


def _squeeze_axes(e: Emit, x: Value, axes: int | Sequence[int]) -> Value:
    """Drops axes of size 1. One whose size is free was larger in every trace: it stays, and must not
    become 1."""
    dropped = []
    for axis in e.axes(axes, x.rank) if x.rank else ():
        if e.is_one(x.shape[axis]):
            dropped.append(axis)
        elif e.system.known(equal(x.shape[axis], ONE)) is None:
            e.require(not_equal(x.shape[axis], ONE), f"squeeze of axis {axis}")
    return e.drop(x, dropped) if dropped else x


def _squeeze(e: Emit, x: Value) -> Value:
    return _squeeze_axes(e, x, tuple(range(x.rank)))


def _pixel_shuffle(e: Emit, x: Value, factor: int) -> Value:
    *lead, channels, height, width = x.shape
    kept = e.quotient((channels,), (factor * factor,))
    n = len(lead)
    parts = e.reshape(x, (*lead, kept, factor, factor, height, width))
    parts = e.permute(parts, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return e.reshape(parts, (*lead, kept, height * factor, width * factor))


def _pixel_unshuffle(e: Emit, x: Value, factor: int) -> Value:
    *lead, channels, height, width = x.shape
    n = len(lead)
    e.require(as_expr(1) <= product(x.shape), "an element: PyTorch leaves a tensor of none as it is")
    rows, columns = e.quotient((height,), (factor,)), e.quotient((width,), (factor,))
    parts = e.reshape(x, (*lead, channels, rows, factor, columns, factor))
    parts = e.permute(parts, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return e.reshape(parts, (*lead, channels * (factor * factor), rows, columns))


# ---- order of axes and broadcast -------------------------------------------------------------------


def _permute(e: Emit, x: Value, order: Sequence[int]) -> Value:
    return e.permute(x, [e.axis(axis, x.rank) for axis in order])


def _transpose(e: Emit, x: Value, a: int, b: int) -> Value:
    if x.rank == 0:
        return x
    order = list(range(x.rank))
    a, b = e.axis(a, x.rank), e.axis(b, x.rank)
    order[a], order[b] = order[b], order[a]
    return e.permute(x, order)


def _transpose_matrix(e: Emit, x: Value) -> Value:
    return _transpose(e, x, -1, -2) if x.rank > 1 else x


def _movedim(e: Emit, x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    froms = [source] if isinstance(source, int) else list(source)
    tos = [destination] if isinstance(destination, int) else list(destination)
    placed = dict(
        zip((e.axis(axis, x.rank) for axis in tos), (e.axis(axis, x.rank) for axis in froms), strict=True)
    )
    rest = iter(axis for axis in range(x.rank) if axis not in placed.values())
    return e.permute(x, [placed[axis] if axis in placed else next(rest) for axis in range(x.rank)])


def _expand(e: Emit, x: Value, sizes: Sequence[Size], *, implicit: bool = False) -> Value:
    lead = len(sizes) - x.rank
    shape = []
    for axis, size in enumerate(sizes):
        own = x.shape[axis - lead] if axis >= lead else ONE
        if isinstance(size, int) and size == -1:
            shape.append(own)
        elif e.is_one(own):
            shape.append(as_expr(size))
        else:  # a size that is not 1 can only stay what it is
            shape.append(e.equal(own, as_expr(size), f"axis {axis} of {x!r}"))
    return x if tuple(shape) == x.shape else e.apply(ops.expand, x, shape=tuple(shape))


def _expand_as(e: Emit, x: Value, other: Value) -> Value:
    return _expand(e, x, other.shape)


def _broadcast_tensors(e: Emit, xs: Sequence[Value]) -> list[Value]:
    like = xs[0]
    for other in xs[1:]:  # the shape that all meet in, from a sum that nothing reads
        like = e.apply(ops.add, *e.operands(like, other, kind=INT64))
    return [x if x.shape == like.shape else e.apply(ops.expand, x, shape=like.shape) for x in xs]


def _repeat(e: Emit, x: Value, counts: Sequence[Size]) -> Value:
    x = e.reshape(x, ((1,) * (len(counts) - x.rank)) + x.shape)
    if all(isinstance(count, int) and count == 1 for count in counts):
        return x
    return e.apply(ops.repeat, x, counts=tuple(as_expr(count) for count in counts))


def _tile(e: Emit, x: Value, counts: Sequence[Size]) -> Value:
    return _repeat(e, x, (*(1,) * (x.rank - len(counts)), *counts))


def _repeat_interleave(
    e: Emit, x: Value, count: Size, axis: int | None = None, *, output_size: Any = None
) -> Value:
    """Each element `count` times in a row: a new axis, expanded and merged."""
    if axis is None:
        x, axis = _flatten(e, x), 0
    axis = e.axis(axis, x.rank)
    wide = e.unsqueeze(x, axis + 1)
    shape = (*x.shape[: axis + 1], as_expr(count), *x.shape[axis + 1 :])
    wide = e.apply(ops.expand, wide, shape=shape)
    return e.reshape(wide, (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


# ---- cut and join ----------------------------------------------------------------------------------


def bound_of(e: Emit, position: Size | None, extent: Expr, otherwise: Expr) -> Expr:
    """One end of a slice as a position from the front. An end that the traces never saw clamped must not
    be clamped, where it follows an input or is the first or last element; other constants are clamped as
    Python clamps them."""
    if position is None or (isinstance(position, int) and position >= _END):
        return otherwise
    if isinstance(position, int) and position < 0:
        if extent.is_const:
            return as_expr(max(extent.value + position, 0))
        if min(e.observed(extent) or (-position,)) < -position:
            return maximum(extent + position, ZERO)
        e.require(extent >= -position, f"position {position} on an axis of {extent!r}")
        return extent + position
    place = as_expr(position)
    if e.system.known(place <= extent) is True or (place.is_const and place.value > 1):
        return place
    if extent.is_const and place.is_const:
        return as_expr(min(place.value, extent.value))
    ends, extents = e.observed(place), e.observed(extent)
    if ends is not None and extents is not None and any(map(gt, ends, extents)):
        return minimum(place, extent)
    e.require(place <= extent, f"position {place!r} on an axis of {extent!r}")
    return place


def slice_of(
    e: Emit, x: Value, axis: int = 0, start: Size | None = None, stop: Size | None = None, step: int = 1
) -> Value:
    axis = e.axis(axis, x.rank)
    extent = x.shape[axis]
    first, last = bound_of(e, start, extent, ZERO), bound_of(e, stop, extent, extent)
    if first is ZERO and last is extent and step == 1:
        return x
    return e.apply(
        ops.slice, x, axis=axis, start=first, stop=last, step=e.literal(step, "the step of a slice")
    )


def _narrow(e: Emit, x: Value, axis: int, start: Size, length: Size) -> Value:
    return slice_of(e, x, axis, start, as_expr(start) + length)


def _select(e: Emit, x: Value, axis: int, index: Size) -> Value:
    axis = e.axis(axis, x.rank)
    if isinstance(index, int) and index < 0:
        index = x.shape[axis] + index
    return e.apply(ops.select, x, axis=axis, index=as_expr(index))


def _windows(e: Emit, x: Value, axis: int, size: Size, step: Size) -> Value:
    size, step = e.literal(size, "the size of a window"), e.literal(step, "the step of windows")
    if x.rank == 0 or size == 0:
        raise UnsupportedOperator("windows of nothing", node=e.operator)
    return e.apply(ops.windows, x, axis=e.axis(axis, x.rank), size=size, step=step)


def _image_windows(
    e: Emit,
    x: Value,
    window: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """What a convolution multiplies: a row for each channel and place in the window, a column for each
    window."""
    if x.rank == 3:
        return e.drop(_image_windows(e, e.unsqueeze(x, 0), window, dilation, padding, stride), (0,))
    high, wide = padding
    x = _pad(e, x, (wide, wide, high, high), "constant", 0) if high or wide else x
    for k in range(2):
        x = e.apply(ops.windows, x, axis=2 + k, size=window[k], step=stride[k], dilation=dilation[k])
    images, channels, rows, columns, *_ = x.shape
    x = e.permute(x, (0, 1, 4, 5, 2, 3))
    return e.reshape(x, (images, channels * (window[0] * window[1]), rows * columns))


def _channel_shuffle(e: Emit, x: Value, groups: int) -> Value:
    images, channels, *rest = x.shape
    parts = e.reshape(x, (images, groups, e.quotient((channels,), (groups,)), *rest))
    return e.reshape(_transpose(e, parts, 1, 2), x.shape)


def _rot90(e: Emit, x: Value, times: int = 1, axes: Sequence[int] = (0, 1)) -> Value:
    match times % 4:
        case 0:
            return x
        case 1:
            return _transpose(e, _flip(e, x, axes[1:]), *axes)
        case 2:
            return _flip(e, x, axes)
    return _transpose(e, _flip(e, x, axes[:1]), *axes)


def _diagonal(e: Emit, x: Value, offset: int = 0, rows: int = 0, columns: int = 1) -> Value:
    return e.apply(ops.diagonal, e.permute(x, _last_two(e, x, rows, columns)), offset=offset)


def _diag(e: Emit, x: Value, offset: int = 0) -> Value:
    return _diagonal(e, x, offset) if x.rank == 2 else _diag_embed(e, x, offset)


def _diag_embed(e: Emit, x: Value, offset: int = 0, rows: int = -2, columns: int = -1) -> Value:
    size = x.shape[-1] + abs(offset)
    order = _last_two(e, x, rows, columns, rank=x.rank + 1)
    nothing = e.apply(ops.expand, e.scalar(0, x.dtype), shape=(*x.shape[:-1], size, size))
    made = on_diagonal(e, nothing, x, offset)
    return e.permute(made, [order.index(axis) for axis in range(made.rank)])


def diagonal_scatter(
    e: Emit, x: Value, source: Value, offset: int = 0, rows: int = 0, columns: int = 1
) -> Value:
    order = _last_two(e, x, rows, columns)
    made = on_diagonal(e, e.permute(x, order), e.cast(source, x.dtype), offset)
    return e.permute(made, [order.index(axis) for axis in range(x.rank)])


def on_diagonal(e: Emit, x: Value, part: Value, offset: int) -> Value:
    """`part` in place of a diagonal of x's last two axes."""
    rows, before = x.shape[-2], max(-offset, 0)
    lead = [ZERO] * (part.rank - 1)
    low, high = (*lead, as_expr(before)), (*lead, rows - before - part.shape[-1])
    column = e.apply(ops.pad, part, low=low, high=high, value=0, mode="constant")
    wide = e.apply(ops.expand, e.unsqueeze(column, column.rank), shape=x.shape)
    ones = e.apply(ops.expand, e.scalar(True, BOOL), shape=x.shape[-2:])
    here = e.apply(ops.triu, e.apply(ops.tril, ones, diagonal=offset), diagonal=offset)
    return e.apply(ops.where, here, wide, x)


def _last_two(e: Emit, x: Value, rows: int, columns: int, rank: int | None = None) -> list[int]:
    """The order of axes that puts these two behind the others."""
    rank = x.rank if rank is None else rank
    pair = [e.axis(rows, rank), e.axis(columns, rank)]
    return [*(axis for axis in range(rank) if axis not in pair), *pair]


def _cat(e: Emit, xs: Sequence[Value], axis: int = 0) -> Value:
    rank = max(x.rank for x in xs)
    parts = [x for x in xs if x.rank == rank]  # PyTorch lets an empty rank-1 tensor join anything
    kind = parts[0].dtype if len(parts) == 1 else from_torch(_common(e, parts))
    return e.concat([e.cast(x, kind) for x in parts], e.axis(axis, rank))


def _common(e: Emit, xs: Sequence[Value]) -> torch.dtype:
    kind = getattr(torch, xs[0].dtype.name)
    for x in xs[1:]:
        kind = torch.promote_types(kind, getattr(torch, x.dtype.name))
    return kind


def _stack(e: Emit, xs: Sequence[Value], axis: int = 0) -> Value:
    axis %= xs[0].rank + 1
    return _cat(e, [e.unsqueeze(x, axis) for x in xs], axis)


def _flip(e: Emit, x: Value, axes: Sequence[int]) -> Value:
    return e.apply(ops.flip, x, axes=e.axes(axes, x.rank))


def _roll(e: Emit, x: Value, shifts: Sequence[Size], axes: Sequence[int] = ()) -> Value:
    if not axes:
        flat = e.apply(ops.roll, _flatten(e, x), axis=0, shift=shifts[0])
        return e.reshape(flat, x.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        x = e.apply(ops.roll, x, axis=e.axis(axis, x.rank), shift=shift)
    return x


def _pad(
    e: Emit, x: Value, amounts: Sequence[Size], mode: str = "constant", value: float | None = None
) -> Value:
    low: list[Size] = [0] * x.rank  # the amounts come from the last axis on
    high: list[Size] = [0] * x.rank
    for k in range(len(amounts) // 2):
        low[x.rank - 1 - k], high[x.rank - 1 - k] = amounts[2 * k], amounts[2 * k + 1]
    if all(isinstance(amount, int) and amount == 0 for amount in amounts):
        return x
    return e.apply(ops.pad, x, low=tuple(low), high=tuple(high), value=value or 0, mode=mode)


def _constant_pad(e: Emit, x: Value, amounts: Sequence[Size], value: float = 0) -> Value:
    return _pad(e, x, amounts, "constant", value)


def _edge_pad(mode: str) -> Row:
    return lambda e, x, amounts: _pad(e, x, amounts, mode)


def _tril(e: Emit, x: Value, diagonal: int = 0) -> Value:
    return e.apply(ops.tril, x, diagonal=diagonal)


def _triu(e: Emit, x: Value, diagonal: int = 0) -> Value:
    return e.apply(ops.triu, x, diagonal=diagonal)


def _meshgrid(e: Emit, xs: Sequence[Value], *, indexing: str = "ij") -> list[Value]:
    if indexing != "ij":
        raise UnsupportedOperator(f"meshgrid with indexing {indexing!r}", node=e.operator)
    shape = tuple(x.shape[0] if x.rank else ONE for x in xs)
    return [
        e.apply(
            ops.expand, e.reshape(x, [shape[k] if k == axis else 1 for axis in range(len(xs))]), shape=shape
        )
        for k, x in enumerate(xs)
    ]


# ---- read at indices -------------------------------------------------------------------------------


def _beyond(ids: Value) -> Expr | None:
    """A size that every one of these indices is below, where they are positions counted from 0; else None."""
    while ids.producer is not None and ids.producer.op.name in ("reshape", "expand", "permute", "cast"):
        ids = ids.producer.inputs[0]
    if ids.producer is None:
        return None
    if ids.producer.op.name == "arange" and ids.producer.attributes["start"] is ZERO:
        return ids.producer.attributes["stop"]
    if ids.producer.op.name == "add":
        a, b = ids.producer.inputs
        offset = (
            b.producer.attributes["value"]
            if b.producer is not None and b.producer.op.name == "full"
            else None
        )
        if isinstance(offset, int) and offset >= 0 and (stop := _beyond(a)) is not None:
            return stop + offset
    return None


def _embedding(e: Emit, table: Value, ids: Value, *training: Any) -> Value:
    if (stop := _beyond(ids)) is not None:
        e.require(stop <= table.shape[0], f"positions below {stop!r} in a table of {table.shape[0]!r} rows")
    return e.apply(ops.embedding, table, ids)


def _gather(e: Emit, x: Value, axis: int, index: Value, *, sparse_grad: bool = False) -> Value:
    return e.apply(ops.gather, x, index, axis=e.axis(axis, x.rank))


def _index_select(e: Emit, x: Value, axis: int, index: Value) -> Value:
    return e.apply(ops.index_select, x, index, axis=e.axis(axis, x.rank))


def _index(e: Emit, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[i, :, j]: index tensors broadcast together; a mask's result size is known at run time only, so
    PyTorch runs it."""
    axes = tuple(axis for axis, index in enumerate(indices) if index is not None)
    tensors = [index for index in indices if index is not None]
    if any(index.dtype in (BOOL, from_torch(torch.uint8)) for index in tensors):
        raise UnsupportedOperator("indexing with a boolean mask", node=e.operator)
    return e.apply(ops.advanced_index, x, *(e.cast(index, INT64) for index in tensors), axes=axes)


def _one_hot(e: Emit, x: Value, classes: Size = -1) -> Value:
    if isinstance(classes, int) and classes < 0:
        raise UnsupportedOperator("one_hot without a number of classes", node=e.operator)
    return e.apply(ops.one_hot, x, classes=as_expr(classes))


ROWS: dict[str, Row] = {
    "aten.view.default": _reshape,
    "aten.reshape.default": _reshape,
    "aten._unsafe_view.default": _reshape,
    "aten.view_as.default": lambda e, x, other: _reshape(e, x, other.shape),
    "aten.reshape_as.default": lambda e, x, other: _reshape(e, x, other.shape),
    "aten.flatten.using_ints": _flatten,
    "aten.ravel.default": _flatten,
    "aten.unflatten.int": _unflatten,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.default": _squeeze,
    "aten.squeeze.dim": _squeeze_axes,
    "aten.squeeze.dims": _squeeze_axes,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.swapaxes.default": _transpose,
    "aten.swapdims.default": _transpose,
    "aten.t.default": _transpose_matrix,
    "aten.numpy_T.default": lambda e, x: e.permute(x, range(x.rank)[::-1]),
    "aten.mT.default": _transpose_matrix,
    "aten.adjoint.default": _transpose_matrix,
    "aten.movedim.int": _movedim,
    "aten.movedim.intlist": _movedim,
    "aten.expand.default": _expand,
    "aten.broadcast_to.default": _expand,
    "aten.expand_as.default": _expand_as,
    "aten.broadcast_tensors.default": _broadcast_tensors,
    "aten.repeat.default": _repeat,
    "aten.tile.default": _tile,
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.slice.Tensor": slice_of,
    "aten.narrow.default": _narrow,
    "aten.select.int": _select,
    "aten.unfold.default": _windows,
    "aten.im2col.default": _image_windows,
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.native_channel_shuffle.default": _channel_shuffle,
    "aten.rot90.default": _rot90,
    "aten.diagonal.default": _diagonal,
    "aten.diag.default": _diag,
    "aten.diag_embed.default": _diag_embed,
    "aten.cat.default": _cat,
    "aten.concat.default": _cat,
    "aten.stack.default": _stack,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.pad.default": _pad,
    "aten.constant_pad_nd.default": _constant_pad,
    **{
        f"aten.{name}_pad{axes}d.default": _edge_pad(mode)
        for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
        for axes in (1, 2, 3)
    },
    "aten.tril.default": _tril,
    "aten.triu.default": _triu,
    "aten.meshgrid.default": _meshgrid,
    "aten.meshgrid.indexing": _meshgrid,
    "aten.embedding.default": _embedding,
    "aten.gather.default": _gather,
    "aten.index_select.default": _index_select,
    "aten.index.Tensor": _index,
    "aten.one_hot.default": _one_hot,
}

RESIZINGS = frozenset(  # calls whose second argument has the result's last sizes
    f"aten.upsample_{way}.vec"
    for way in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
)

REPEATS = frozenset({"aten.repeat.default", "aten.tile.default", "aten.repeat_interleave.self_int"})
# Results that are alike along an axis of the size that they are given
UNIFORM = frozenset(
    f"aten.{name}.default"
    for name in ("expand", "broadcast_to", "full", "new_full", "zeros", "new_zeros", "ones", "new_ones")
)
RANGES = frozenset({"aten.arange.start", "aten.arange.start_step"})

# Which arguments of an operator are sizes or positions that may follow an input (by place): with one trace
# only these are matched to sizes in the graph, and the ends of ranges.
SIZE_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "aten.expand.default": (1,),
    "aten.broadcast_to.default": (1,),
    "aten.slice.Tensor": (2, 3),
    "aten.narrow.default": (3,),
    "aten.split_with_sizes.default": (1,),
    **dict.fromkeys(REPEATS, (1,)),
    "aten.full.default": (0,),
    "aten.new_full.default": (1,),
    "aten.zeros.default": (0,),
    "aten.new_zeros.default": (1,),
    "aten.ones.default": (0,),
    "aten.new_ones.default": (1,),
    "aten.arange.default": (0,),
    "aten.eye.default": (0,),
    "aten.eye.m": (0, 1),
    "aten.one_hot.default": (1,),
    "aten.linspace.default": (2,),
    "aten.logspace.default": (2,),
    **dict.fromkeys(RESIZINGS, (1,)),
}
