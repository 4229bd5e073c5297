"""Operators that are not described by coordinates: PyTorch runs them, and only their shapes and types are
known here."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import const
from dlcb.compiler.ir.op import Inference, Op, Operand, Shape, Type, given_dtype, same_shape
from dlcb.compiler.ir.ops.rules import Coordinates, accumulated, computed, replaced


def _eager_shape(
    infer: Inference,
    *xs: Type,
    target: str,
    arguments: tuple,
    shapes: Sequence[Shape],
    dtypes: Sequence[DType],
    draw: int = 0,
) -> tuple[Shape, ...]:
    return tuple(shapes)


def _eager_dtype(
    *xs: Type, target: str, arguments: tuple, shapes: Sequence[Shape], dtypes: Sequence[DType], draw: int = 0
) -> tuple[DType, ...]:
    return tuple(dtypes)


# An ATen call by name ("aten.nonzero.default") with plain arguments. The maker of the node gives every
# result's shape and type; a size that only run time knows is a fresh size variable. Calls that draw random
# numbers are numbered, from 1, so that no two of them are one.
eager = Op("eager", "opaque", _eager_shape, _eager_dtype)


def _cumsum(i: Coordinates, r: Coordinates, x: Operand, axis: int) -> Expr:
    # for the oracle and the proofs: quadratic in the axis, so nothing compiles it
    element = node.cast(x[replaced(i, axis, r[0])], computed(accumulated(x.type)))
    return node.where(r[0] <= i[axis], element, const(0, element.dtype))


cumsum = Op("cumsum", "opaque", same_shape, accumulated, _cumsum, lambda x, axis: (x.shape[axis],), "sum")


def _cast_evenly(i: Coordinates, r: Coordinates, x: Operand, dtype: DType) -> Expr:
    # for the oracle: the nearest value, of which the result is at most a neighbour
    return node.cast(x[i], computed(dtype))


# To a half type, so that the rounding errors of each row (all axes but the first) add up to nearly nothing:
# see `thunks.rounding`. A library call like the contractions, so that weights made by it are made at load.
cast_evenly = Op("cast_evenly", "contract", same_shape, given_dtype, _cast_evenly)
