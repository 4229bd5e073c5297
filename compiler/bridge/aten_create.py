"""ATen's operators that create tensors: of one number, of steps, of a diagonal, as rows over our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dlcb.compiler.bridge.emit import Emit, Row, Size, from_torch
from dlcb.compiler.dtype import BOOL, INT64, DType
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value


def _kind(kind: torch.dtype | None, otherwise: DType) -> DType:
    return otherwise if kind is None else from_torch(kind)


def _number_kind(value: Any) -> DType:
    if isinstance(value, bool):
        return BOOL
    whole = isinstance(value, int) or (isinstance(value, Expr) and not value.dtype.is_float)
    return INT64 if whole else from_torch(torch.get_default_dtype())


def _filled(e: Emit, shape: Sequence[Size], value: Any, kind: DType) -> Value:
    if not kind.is_float and isinstance(value, float):
        value = int(value)
    if kind.is_float and kind.bits < 32 and not isinstance(value, Expr):
        value = kind.held(value)  # one of rank 0 is not taken for a plain number, which is not rounded
    return e.apply(ops.full, shape=tuple(as_expr(size) for size in shape), value=value, dtype=kind)


def _full(
    e: Emit, shape: Sequence[Size], value: Any, *, dtype: torch.dtype | None = None, **place: Any
) -> Value:
    return _filled(e, shape, value, _kind(dtype, _number_kind(value)))


def _constant(value: int) -> tuple[Row, Row, Row]:
    """zeros or ones, by shape, like another tensor, and of another tensor's type."""
    default = from_torch(torch.float32)

    def plain(e: Emit, shape: Sequence[Size], *, dtype: torch.dtype | None = None, **place: Any) -> Value:
        return _filled(e, shape, value, _kind(dtype, default))

    def like(e: Emit, x: Value, *, dtype: torch.dtype | None = None, **place: Any) -> Value:
        return _filled(e, x.shape, value, _kind(dtype, x.dtype))

    def new(
        e: Emit, x: Value, shape: Sequence[Size], *, dtype: torch.dtype | None = None, **place: Any
    ) -> Value:
        return _filled(e, shape, value, _kind(dtype, x.dtype))

    return plain, like, new


def _full_like(e: Emit, x: Value, value: Any, *, dtype: torch.dtype | None = None, **place: Any) -> Value:
    return _filled(e, x.shape, value, _kind(dtype, x.dtype))


def _new_full(
    e: Emit, x: Value, shape: Sequence[Size], value: Any, *, dtype: torch.dtype | None = None, **place: Any
) -> Value:
    return _filled(e, shape, value, _kind(dtype, x.dtype))


def _fill(e: Emit, x: Value, value: Any) -> Value:
    if isinstance(value, Value):
        return e.apply(ops.expand, e.cast(value, x.dtype), shape=x.shape)
    return _filled(e, x.shape, value, x.dtype)


def _arange(
    e: Emit, start: Any, stop: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **place: Any
) -> Value:
    given = (start, stop, step)
    if any(
        x.dtype.is_float if isinstance(x, Expr) else isinstance(x, float) and not x.is_integer()
        for x in given
    ):
        raise UnsupportedOperator("a range with fractional bounds", node=e.operator)
    whole = all(isinstance(x, (int, Expr)) for x in given)
    kind = _kind(dtype, INT64 if whole else from_torch(torch.get_default_dtype()))
    start, stop, step = (x if isinstance(x, Expr) else int(x) for x in given)
    step = e.literal(step, "the step of a range")
    return e.apply(ops.arange, start=as_expr(start), stop=as_expr(stop), step=step, dtype=kind)


def _arange_to(e: Emit, stop: Any, **keywords: Any) -> Value:
    return _arange(e, 0 if isinstance(stop, (int, Expr)) else 0.0, stop, **keywords)


def _eye(
    e: Emit, rows: Size, columns: Size | None = None, *, dtype: torch.dtype | None = None, **place: Any
) -> Value:
    columns = rows if columns is None else columns
    return e.apply(
        ops.eye, rows=as_expr(rows), columns=as_expr(columns), dtype=_kind(dtype, from_torch(torch.float32))
    )


_zeros, _zeros_like, _new_zeros = _constant(0)
_ones, _ones_like, _new_ones = _constant(1)


ROWS: dict[str, Row] = {
    "aten.full.default": _full,
    "aten.full_like.default": _full_like,
    "aten.new_full.default": _new_full,
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
    "aten.zero.default": lambda e, x: _fill(e, x, 0),
    "aten.zeros.default": _zeros,
    "aten.zeros_like.default": _zeros_like,
    "aten.new_zeros.default": _new_zeros,
    "aten.ones.default": _ones,
    "aten.ones_like.default": _ones_like,
    "aten.new_ones.default": _new_ones,
    "aten.scalar_tensor.default": lambda e, value, **keywords: _full(
        e, (), value, **{"dtype": torch.get_default_dtype(), **keywords}
    ),
    "aten.arange.default": _arange_to,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
}
