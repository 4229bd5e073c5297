"""Operators that move elements without changing them: each output coordinate names the input coordinate it
is read from.

Sizes in attributes are expressions. Axes are non-negative. What may lie outside an operand is read through a
guard."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, apply, as_expr, ceildiv, const, product
from dlcb.compiler.ir.op import Inference, Op, Operand, Shape, Type, promoted, same_dtype, same_shape
from dlcb.compiler.ir.ops.rules import (
    Coordinates,
    clamped,
    computed,
    groups,
    linear,
    number,
    read,
    replaced,
    unravel,
    within,
    wrapped,
)

VIEW = frozenset({"view"})  # the result can be other strides over the same memory


# ---- reshape: out[i] = x[the same row-major position], group by group


def _reshape_shape(infer: Inference, x: Type, shape: Shape) -> Shape:
    for before, after in groups(x.shape, shape):
        old = product(x.shape[axis] for axis in before)
        new = product(shape[axis] for axis in after)
        if infer.known(node.equal(old, new)) is not True:
            infer.equal(old, new, f"elements of axes {list(before)} as axes {list(after)}")
    return shape


def _reshape(i: Coordinates, r: Coordinates, x: Operand, shape: Shape) -> Expr:
    coordinates: list[Expr] = []
    for before, after in groups(x.shape, shape):
        position = linear([i[axis] for axis in after], [shape[axis] for axis in after])
        coordinates += unravel(position, [x.shape[axis] for axis in before])
    return x[coordinates]


reshape = Op("reshape", "move", _reshape_shape, same_dtype, _reshape, traits=VIEW)


# ---- permute: out[i] = x[i taken back to x's order of axes]


def _permute_shape(infer: Inference, x: Type, order: Sequence[int]) -> Shape:
    if sorted(order) != list(range(x.rank)):
        raise ShapeError(f"permute: {tuple(order)} is not an order of the {x.rank} axes of {x!r}")
    return tuple(x.shape[axis] for axis in order)


def _permute(i: Coordinates, r: Coordinates, x: Operand, order: Sequence[int]) -> Expr:
    return x[[i[order.index(axis)] for axis in range(len(order))]]


permute = Op("permute", "move", _permute_shape, same_dtype, _permute, traits=VIEW)


# ---- expand: out[i] = x[i, with 0 where x's size is 1]


def _expand_shape(infer: Inference, x: Type, shape: Shape) -> Shape:
    if len(shape) < x.rank:
        raise ShapeError(f"expand: {x!r} has more axes than the shape {shape!r}")
    lead = len(shape) - x.rank
    for axis, extent in enumerate(x.shape):
        wanted = shape[lead + axis]
        if extent is not ONE and extent is not wanted:
            infer.equal(infer.broadcast(extent, wanted, f"axis {axis}"), wanted, f"axis {axis}")
    return shape


expand = Op("expand", "move", _expand_shape, same_dtype, lambda i, r, x, shape: x.along(i), traits=VIEW)


# ---- slice and select: out[.., i, ..] = x[.., start + i * step, ..]


def _bound(infer: Inference, position: Expr | int, extent: Expr) -> Expr:
    """`clamped`, written as simply as what is known allows."""
    position = as_expr(position)
    if infer.known(position >= 0) is True and infer.known(position <= extent) is True:
        return position
    return clamped(position, extent)


def _slice_shape(infer: Inference, x: Type, axis: int, start: Expr, stop: Expr, step: int = 1) -> Shape:
    extent = x.shape[axis]
    first, last = _bound(infer, start, extent), _bound(infer, stop, extent)
    span = last - first
    if infer.known(span >= 0) is not True:
        span = node.maximum(span, 0)
    return (*x.shape[:axis], ceildiv(span, step) if step != 1 else span, *x.shape[axis + 1 :])


def _slice(
    i: Coordinates, r: Coordinates, x: Operand, axis: int, start: Expr, stop: Expr, step: int = 1
) -> Expr:
    return x[replaced(i, axis, i[axis] * step + clamped(start, x.shape[axis]))]


slice = Op("slice", "move", _slice_shape, same_dtype, _slice, traits=VIEW)


def _select_shape(infer: Inference, x: Type, axis: int, index: Expr) -> Shape:
    place = wrapped(index, x.shape[axis])
    infer.require(within(place, x.shape[axis]), f"position {index!r} on axis {axis}")
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def _select(i: Coordinates, r: Coordinates, x: Operand, axis: int, index: Expr) -> Expr:
    return x[[*i[:axis], wrapped(index, x.shape[axis]), *i[axis:]]]


select = Op("select", "move", _select_shape, same_dtype, _select, traits=VIEW)


# ---- diagonal: out[.., i] = x[.., i, i + offset], or x[.., i - offset, i] below the main one


def _diagonal_shape(infer: Inference, x: Type, offset: int = 0) -> Shape:
    if x.rank < 2:
        raise ShapeError(f"diagonal needs two axes, found {x!r}")
    length = node.minimum(x.shape[-2] - max(-offset, 0), x.shape[-1] - max(offset, 0))
    return (*x.shape[:-2], length if infer.known(length >= 0) is True else node.maximum(length, 0))


def _diagonal(i: Coordinates, r: Coordinates, x: Operand, offset: int = 0) -> Expr:
    return x[[*i[:-1], i[-1] + max(-offset, 0), i[-1] + max(offset, 0)]]


diagonal = Op("diagonal", "move", _diagonal_shape, same_dtype, _diagonal, traits=VIEW)


# ---- windows: out[.., p, .., q] = x[.., p * step + q * dilation, ..], with q over `size` places last


def _windows_shape(
    infer: Inference, x: Type, axis: int, size: int, step: int = 1, dilation: int = 1
) -> Shape:
    room = x.shape[axis] - dilation * (size - 1) - 1
    infer.require(room >= 0, f"a window of {size} on axis {axis}")
    return (*x.shape[:axis], room // step + 1, *x.shape[axis + 1 :], as_expr(size))


def _windows(
    i: Coordinates, r: Coordinates, x: Operand, axis: int, size: int, step: int = 1, dilation: int = 1
) -> Expr:
    return x[replaced(i[:-1], axis, i[axis] * step + i[-1] * dilation)]


windows = Op("windows", "move", _windows_shape, same_dtype, _windows, traits=VIEW)


# ---- concat: the operand whose stretch of the axis holds the coordinate


def _concat_shape(infer: Inference, *xs: Type, axis: int) -> Shape:
    shape = list(xs[0].shape)
    for other in xs[1:]:
        if other.rank != xs[0].rank:
            raise ShapeError(f"concat: {xs[0]!r} and {other!r} differ in rank")
        for k, extent in enumerate(other.shape):
            shape[k] = shape[k] + extent if k == axis else infer.equal(shape[k], extent, f"axis {k}")
    return tuple(shape)


def _concat(i: Coordinates, r: Coordinates, *xs: Operand, axis: int) -> Expr:
    common = computed(promoted(*(x.type for x in xs)))
    ends = [ZERO]
    for x in xs:
        ends.append(ends[-1] + x.shape[axis])
    result: Expr | None = None
    for k, x in reversed(list(enumerate(xs))):
        place = i[axis]
        after_start = place >= ends[k] if k else TRUE
        before_end = place < ends[k + 1] if k + 1 < len(xs) else TRUE
        here = replaced(i, axis, place - ends[k])
        part = node.cast(read(x, here, after_start & before_end, const(0, computed(x.dtype))), common)
        result = part if result is None else node.where(before_end, part, result)
    assert result is not None
    return result


concat = Op("concat", "move", _concat_shape, promoted, _concat)


# ---- pad: out[i] = x[i - low]; outside, the value or what `mode` says; negative amounts crop


def _pad_shape(
    infer: Inference,
    x: Type,
    low: Sequence[int],
    high: Sequence[int],
    value: float = 0,
    mode: str = "constant",
) -> Shape:
    shape = []
    for axis, extent in enumerate(x.shape):
        padded = extent + low[axis] + high[axis]
        what = f"axis {axis} padded by {low[axis]} and {high[axis]} ({mode})"
        if mode != "constant" and (low[axis] or high[axis]):
            # a reflection leaves out the edge itself, so it reaches one element less far
            reach = max(low[axis], high[axis]) + (mode == "reflect") if mode != "replicate" else 1
            infer.require(extent >= reach, what)
        if infer.known(padded >= 0) is not True:
            infer.require(padded >= 0, what)
        shape.append(padded)
    return tuple(shape)


def _pad(
    i: Coordinates,
    r: Coordinates,
    x: Operand,
    low: Sequence[int],
    high: Sequence[int],
    value: float = 0,
    mode: str = "constant",
) -> Expr:
    here, guard = [], TRUE
    for axis, place in enumerate(i):
        coordinate, extent = place - low[axis], x.shape[axis]
        before, after = as_expr(low[axis]) is not ZERO, as_expr(high[axis]) is not ZERO
        if mode != "constant":
            here.append(_EDGES[mode](coordinate, extent) if before or after else coordinate)
            continue
        if before:
            guard = guard & (coordinate >= 0)
        if after:
            guard = guard & (coordinate < extent)
        here.append(coordinate)
    return read(x, here, guard, number(value, x.dtype))


def _reflected(coordinate: Expr, extent: Expr) -> Expr:
    last = extent - 1
    return last - apply("abs", last - apply("abs", coordinate))


_EDGES = {
    # which element stands for a coordinate outside
    "replicate": lambda coordinate, extent: node.maximum(node.minimum(coordinate, extent - 1), 0),
    "reflect": _reflected,
    "circular": lambda coordinate, extent: coordinate % extent,
}


pad = Op("pad", "move", _pad_shape, same_dtype, _pad)


# ---- flip, repeat, roll


def _flip(i: Coordinates, r: Coordinates, x: Operand, axes: Sequence[int]) -> Expr:
    return x[[x.shape[axis] - 1 - place if axis in axes else place for axis, place in enumerate(i)]]


flip = Op("flip", "move", same_shape, same_dtype, _flip)


def _repeat_shape(infer: Inference, x: Type, counts: Sequence[Expr | int]) -> Shape:
    if len(counts) < x.rank:
        raise ShapeError(f"repeat: {x!r} has more axes than the counts {tuple(counts)!r}")
    sizes = (*(ONE,) * (len(counts) - x.rank), *x.shape)
    return tuple(extent * count for extent, count in zip(sizes, counts, strict=True))


def _repeat(i: Coordinates, r: Coordinates, x: Operand, counts: Sequence[Expr | int]) -> Expr:
    lead = len(counts) - x.type.rank
    return x[
        [
            place if as_expr(count) is ONE else place % extent
            for place, extent, count in zip(i[lead:], x.shape, counts[lead:], strict=True)
        ]
    ]


repeat = Op("repeat", "move", _repeat_shape, same_dtype, _repeat)


def _roll(i: Coordinates, r: Coordinates, x: Operand, axis: int, shift: Expr | int) -> Expr:
    return x[replaced(i, axis, (i[axis] - shift) % x.shape[axis])]


roll = Op("roll", "move", same_shape, same_dtype, _roll)


# ---- triangles: x where the column lies on one side of a diagonal, else 0


def _triangle_shape(infer: Inference, x: Type, diagonal: int = 0) -> Shape:
    if x.rank < 2:
        raise ShapeError(f"tril and triu need two axes, found {x!r}")
    return x.shape


def _tril(i: Coordinates, r: Coordinates, x: Operand, diagonal: int = 0) -> Expr:
    inside = i[-1] - i[-2] <= diagonal
    return x.inside(i, inside, const(0, computed(x.dtype)))


def _triu(i: Coordinates, r: Coordinates, x: Operand, diagonal: int = 0) -> Expr:
    inside = i[-1] - i[-2] >= diagonal
    return x.inside(i, inside, const(0, computed(x.dtype)))


tril = Op("tril", "move", _triangle_shape, same_dtype, _tril)
triu = Op("triu", "move", _triangle_shape, same_dtype, _triu)
