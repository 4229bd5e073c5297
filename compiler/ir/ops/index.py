"""Operators that read at places found in a tensor of indices.

Index values come from outside: every one is checked against the axis it reads, and a read happens only where
the check holds, so a bad index is reported and never read through. Only `advanced_index` lets negative
values count from the end."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.dtype import INT64, DType
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, all_of, const
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.op import Inference, Op, Operand, Shape, Type, broadcast_shape, same_dtype
from dlcb.compiler.ir.ops import move
from dlcb.compiler.ir.ops.rules import Coordinates, computed, linear, positions, replaced, trailing, within


def _checked(index: Operand, coordinates: Coordinates, extent: Expr, low: Expr = ZERO) -> Expr:
    """The index value at `coordinates`, recorded under the operand's name where not low <= value < extent."""
    value = node.cast(index[coordinates], INT64)
    return node.check(value, low, extent, index.name, linear(coordinates, index.shape))


def _read(x: Operand, coordinates: Coordinates, guard: Expr) -> Expr:
    nothing = const(0, computed(x.dtype))
    element = x.inside(coordinates, guard, nothing)
    # where every element is the same, the result still speaks of the index, so that it is checked
    return node.where(guard, element, const(1, nothing.dtype)) if element is nothing else element


# ---- embedding: out[.., c] = table[ids[..], c]


def _first_dtype(table: Type, ids: Type) -> DType:
    return table.dtype


def _embedding(i: Coordinates, r: Coordinates, table: Operand, ids: Operand) -> Expr:
    row = _checked(ids, i[:-1], table.shape[0])
    return _read(table, [row, i[-1]], within(row, table.shape[0]))


embedding = Op(
    "embedding", "index", lambda infer, table, ids: (*ids.shape, table.shape[1]), _first_dtype, _embedding
)


# ---- gather: out[i] = x[i with index[i] on the axis]


def _gather_shape(infer: Inference, x: Type, index: Type, axis: int) -> Shape:
    if x.rank != index.rank:
        raise ShapeError(f"gather: {x!r} and the index {index!r} differ in rank")
    for k, (extent, other) in enumerate(zip(x.shape, index.shape, strict=True)):
        if k != axis and infer.known(other <= extent) is not True:
            infer.require(other <= extent, f"axis {k}")
    return index.shape


def _gather(i: Coordinates, r: Coordinates, x: Operand, index: Operand, axis: int) -> Expr:
    place = _checked(index, i, x.shape[axis])
    return _read(x, replaced(i, axis, place), within(place, x.shape[axis]))


gather = Op("gather", "index", _gather_shape, lambda x, index, axis: x.dtype, _gather)


# ---- take_along: gather, with the other axes broadcast


def _all_but(axis: int, shape: Shape, extent: Expr) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _take_along_shape(infer: Inference, x: Type, index: Type, axis: int) -> Shape:
    if x.rank != index.rank:
        raise ShapeError(f"take_along: {x!r} and the index {index!r} differ in rank")
    others = broadcast_shape(
        infer,
        Type(_all_but(axis, x.shape, ONE), x.dtype),
        Type(_all_but(axis, index.shape, ONE), index.dtype),
    )
    return _all_but(axis, others, index.shape[axis])


def _take_along(build: GraphBuilder, x: Value, index: Value, axis: int) -> Value:
    shape = _take_along_shape(build.infer(take_along, (x, index)), x.type, index.type, axis)
    wide_x = build.apply(move.expand, x, shape=_all_but(axis, shape, x.shape[axis]))
    wide_index = build.apply(move.expand, index, shape=shape)
    return build.apply(gather, wide_x, wide_index, axis=axis)


take_along = Op(
    "take_along", "composite", _take_along_shape, lambda x, index, axis: x.dtype, expand=_take_along
)


# ---- index_select: out[.., i, ..] = x[.., index[i], ..]


def _index_select_shape(infer: Inference, x: Type, index: Type, axis: int) -> Shape:
    if index.rank > 1:
        raise ShapeError(f"index_select: the index needs one axis, found {index!r}")
    return (*x.shape[:axis], index.shape[0] if index.rank else ONE, *x.shape[axis + 1 :])


def _index_select(i: Coordinates, r: Coordinates, x: Operand, index: Operand, axis: int) -> Expr:
    place = _checked(index, [i[axis]] if index.type.rank else [], x.shape[axis])
    return _read(x, replaced(i, axis, place), within(place, x.shape[axis]))


index_select = Op("index_select", "index", _index_select_shape, lambda x, index, axis: x.dtype, _index_select)


# ---- advanced_index: x[:, a, b], tensors of indices on the axes `axes`, broadcast against each other


def _lead(axes: Sequence[int]) -> int:
    """The first output axis of the indices' own shape: in place of the axes where these adjoin, else at the
    front."""
    return axes[0] if list(axes) == list(range(axes[0], axes[0] + len(axes))) else 0


def _advanced_index_shape(infer: Inference, x: Type, *indices: Type, axes: Sequence[int]) -> Shape:
    kept = [extent for axis, extent in enumerate(x.shape) if axis not in axes]
    lead = _lead(axes)
    return (*kept[:lead], *broadcast_shape(infer, *indices), *kept[lead:])


def _advanced_index(
    i: Coordinates, r: Coordinates, x: Operand, *indices: Operand, axes: Sequence[int]
) -> Expr:
    lead, rank = _lead(axes), max(index.type.rank for index in indices)
    place, kept = i[lead : lead + rank], iter([*i[:lead], *i[lead + rank :]])
    chosen, guards = {}, [TRUE]
    for axis, index in zip(axes, indices, strict=True):
        extent = x.shape[axis]
        own = trailing(place, index.shape)
        value = _checked(index, own, extent, low=-extent)
        chosen[axis] = node.where(value < 0, value + extent, value)
        guards.append((value >= -extent) & (value < extent))
    return _read(
        x, [chosen[axis] if axis in chosen else next(kept) for axis in range(x.type.rank)], all_of(guards)
    )


def _indexed_dtype(x: Type, *indices: Type, axes: Sequence[int]) -> DType:
    return same_dtype(x)


advanced_index = Op("advanced_index", "index", _advanced_index_shape, _indexed_dtype, _advanced_index)


# ---- one_hot: out[.., c] = ids[..] == c


def _one_hot(i: Coordinates, r: Coordinates, ids: Operand, classes: Expr) -> Expr:
    return node.cast(node.equal(_checked(ids, i[:-1], classes), i[-1]), INT64)


one_hot = Op("one_hot", "index", lambda infer, ids, classes: (*ids.shape, classes), positions, _one_hot)
