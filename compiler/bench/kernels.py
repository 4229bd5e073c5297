"""Single kernels that memory bounds: what each must read and write, over the bandwidth of a copy, is the
least time it can take, so that "times the floor" compares operators, types and machines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from dlcb.compiler.source import InputDeclaration, ModelSource

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(dim=-1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "row_sum": lambda x: x.sum(dim=1),
    "column_sum": lambda x: x.sum(dim=0),
    "transpose": lambda x: x.transpose(0, 1).contiguous(),
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x, y: torch.relu(x * y + 1.0) * 0.5,
    "gather": lambda table, index: table[index],
}
DTYPES = ("float32", "float16")
WIDTH = 1024
_ROWS = {"cpu": 8192, "cuda": 65536}
_TABLE_ROWS = 4096


class Unary(nn.Module):
    def __init__(self, operator: str) -> None:
        super().__init__()
        self._run = UNARY[operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x)


class Binary(nn.Module):
    def __init__(self, operator: str) -> None:
        super().__init__()
        self._run = BINARY[operator]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._run(x, y)


def kernel_module(operator: str) -> nn.Module:
    """A module that is one operator, without weights."""
    return Unary(operator) if operator in UNARY else Binary(operator)


def kernel_source(operator: str, dtype: str) -> ModelSource:
    """The operator registered for a dtype. Rows and columns are free, but for the norm's width and the
    gather's table."""
    matrix = InputDeclaration("x", dtype, ("rows", WIDTH if operator == "layer_norm" else "columns"))
    inputs = {
        "pointwise": (matrix, InputDeclaration("y", dtype, ("rows", "columns"))),
        "gather": (
            InputDeclaration("x", dtype, (_TABLE_ROWS, WIDTH)),
            InputDeclaration("y", "int64", ("rows",), (0, _TABLE_ROWS)),
        ),
    }
    return ModelSource(
        f"{operator} {dtype.replace('float', 'fp')}",
        "1",
        factory=f"{__name__}:kernel_module",
        arguments={"operator": operator},
        inputs=inputs.get(operator, (matrix,)),
        outputs=("output",),
    )


def kernel_sizes(operator: str, device: str) -> dict[str, int]:
    """Sizes far beyond the caches."""
    sizes = {"rows": _ROWS[device]}
    return sizes if operator in ("layer_norm", "gather") else {**sizes, "columns": WIDTH}
