"""Single kernels that memory bounds: what each must read and write, over the bandwidth of a copy, is the
least time it can take, so that "times the floor" compares operators, types and machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

from dlcb.compiler.source import InputDeclaration, ModelSource

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(dim=-1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "row_sum": lambda x: x.sum(dim=1),
    "column_sum": lambda x: x.sum(dim=0),
    "total": lambda x: x.sum(),
    "transpose": lambda x: x.transpose(0, 1).contiguous(),
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x, y: torch.relu(x * y + 1.0) * 0.5,
    "gather": lambda table, index: table[index],
}
DTYPES = ("float32", "float16")
WIDTHS = (1024, 1023)  # columns: at 1023 most rows start off every alignment
_FIXED = ("layer_norm", "gather")  # whose width is part of the program
_LOPSIDED = ("row_sum", "column_sum", "total", "gather")  # read one large tensor, or write one
_ROWS = {"cpu": 8192, "cuda": 65536}  # of halves that one tensor holds, twice as many: 256 MiB on a GPU
_LONG = {"cpu": 1 << 21, "cuda": 1 << 24}
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


def kernel_sources(device: str) -> Iterator[tuple[ModelSource, tuple[dict[str, int], ...], str]]:
    """Each operator at each dtype, with the sizes it is measured at, far beyond the caches, and the dtype."""
    for operator in (*UNARY, *BINARY):
        for dtype in DTYPES:
            times = 2 if operator in _LOPSIDED and dtype == "float16" else 1
            rows, long = _ROWS[device] * times, _LONG[device] * times
            if operator not in _FIXED:
                yield kernel_source(operator, dtype), _free_sizes(operator, rows, long), dtype
                continue
            for odd, width in enumerate(WIDTHS):
                yield kernel_source(operator, dtype, width), ({"rows": rows + odd},), dtype


def _free_sizes(operator: str, rows: int, long: int) -> tuple[dict[str, int], ...]:
    shapes = [(rows + odd, width) for odd, width in enumerate(WIDTHS)]
    shapes += {"row_sum": [(4, long)], "column_sum": [(long, 4)]}.get(operator, [])
    return tuple({"rows": rows, "columns": columns} for rows, columns in shapes)


def kernel_source(operator: str, dtype: str, width: int = WIDTHS[0]) -> ModelSource:
    """The operator registered for a dtype. Rows and columns are free, but for the norm's width and the
    gather's table."""
    matrix = InputDeclaration("x", dtype, ("rows", width if operator == "layer_norm" else "columns"))
    inputs = {
        "pointwise": (matrix, InputDeclaration("y", dtype, ("rows", "columns"))),
        "gather": (
            InputDeclaration("x", dtype, (_TABLE_ROWS, width)),
            InputDeclaration("y", "int64", ("rows",), (0, _TABLE_ROWS)),
        ),
    }
    name = operator if width == WIDTHS[0] else f"{operator} {width}"
    return ModelSource(
        f"{name} {dtype.replace('float', 'fp')}",
        "1",
        factory=f"{__name__}:kernel_module",
        arguments={"operator": operator},
        inputs=inputs.get(operator, (matrix,)),
        outputs=("output",),
    )
