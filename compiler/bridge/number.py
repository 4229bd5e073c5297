"""Python numbers that a program takes out of tensors (`x.item()`). They stay tensors of rank 0: arithmetic on
them becomes operators, and calls that take one as a number are PyTorch's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dlcb.compiler.bridge import aten
from dlcb.compiler.bridge.emit import Emit
from dlcb.compiler.dtype import BOOL, FLOAT64, INT64
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, product
from dlcb.compiler.ir.graph import Value

TAKEN = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})


@dataclass(frozen=True)
class Number:
    """A number as a tensor of rank 0, of type float64, int64 or bool as Python's own types are."""

    value: Value


def taken(e: Emit, x: Value) -> Number:
    """`x.item()`."""
    e.equal(product(x.shape), ONE, "one element, which becomes a number")
    kind = FLOAT64 if x.dtype.is_float else BOOL if x.dtype is BOOL else INT64
    return Number(e.cast(e.reshape(x, ()), kind))


def calculated(e: Emit, function: Callable[..., Any], operands: Sequence[Any]) -> Number:
    """Python's `function` of numbers. UnsupportedOperator for what is not in the table."""
    if function is torch.sym_float:
        return Number(e.cast(operands[0].value, FLOAT64))
    row, _ = aten.find(_OPERATORS.get(function, ""))
    if row is None:
        raise UnsupportedOperator(f"{function.__name__} of a number taken from a tensor has no counterpart")
    values = [each.value if isinstance(each, Number) else each for each in operands]
    choice = values[:1] if function is torch.sym_ite else []
    values = values[len(choice) :]
    inexact = function is operator.truediv or any(_is_float(value) for value in values)
    return Number(row(e, *choice, *e.operands(*values, kind=FLOAT64 if inexact else INT64)))


def _is_float(value: Any) -> bool:
    return value.dtype.is_float if isinstance(value, (Value, Expr)) else isinstance(value, float)


_OPERATORS: dict[Callable[..., Any], str] = {
    operator.add: "aten.add.Tensor",
    operator.sub: "aten.sub.Tensor",
    operator.mul: "aten.mul.Tensor",
    operator.truediv: "aten.div.Tensor",
    operator.lt: "aten.lt.Tensor",
    operator.le: "aten.le.Tensor",
    operator.eq: "aten.eq.Tensor",
    operator.ne: "aten.ne.Tensor",
    operator.gt: "aten.gt.Tensor",
    operator.ge: "aten.ge.Tensor",
    torch.sym_ite: "aten.where.self",
}
