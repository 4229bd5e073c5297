"""Operators without operands: constants, sizes as values, ranges and the identity matrix."""

from __future__ import annotations

from typing import Any

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, ceildiv
from dlcb.compiler.ir.op import Inference, Op, Shape, given_dtype
from dlcb.compiler.ir.ops.rules import Coordinates, computed, number


def _full_shape(infer: Inference, shape: Shape, value: Any, dtype: DType) -> Shape:
    return shape


def _full(i: Coordinates, r: Coordinates, shape: Shape, value: Expr | float, dtype: DType) -> Expr:
    return number(value, dtype)


full = Op("full", "create", _full_shape, given_dtype, _full)


def _arange_shape(infer: Inference, start: Expr, stop: Expr, step: int, dtype: DType) -> Shape:
    span = as_expr(stop) - as_expr(start) if step > 0 else as_expr(start) - as_expr(stop)
    if infer.known(span >= 0) is not True:
        infer.require(span >= 0, f"range from {start!r} to {stop!r} by {step}")
    return (ceildiv(span, abs(step)) if abs(step) != 1 else span,)


def _arange(i: Coordinates, r: Coordinates, start: Expr, stop: Expr, step: int, dtype: DType) -> Expr:
    return node.cast(i[0] * step + start, computed(dtype))


arange = Op("arange", "create", _arange_shape, given_dtype, _arange)


def _eye_shape(infer: Inference, rows: Expr, columns: Expr, dtype: DType) -> Shape:
    return as_expr(rows), as_expr(columns)


def _eye(i: Coordinates, r: Coordinates, rows: Expr, columns: Expr, dtype: DType) -> Expr:
    return node.cast(node.equal(i[0], i[1]), computed(dtype))


eye = Op("eye", "create", _eye_shape, given_dtype, _eye)
