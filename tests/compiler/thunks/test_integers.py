"""Integers beside sizes, and divisions towards zero: compiled modules give PyTorch's numbers to the ends of
each type, and wrap where it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clamped to a size": lambda x: x.clamp(0, x.shape[0] - 1),
    "a quotient of what wraps": lambda x: (x * x.shape[0]) // 3,
    "widened after it wraps": lambda x: (x * x.shape[0]).long(),
    "a function of a size": lambda x: torch.maximum(x + x.shape[0], x),
    "cut off": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "cut off by a size": lambda x: torch.div(x, -x.shape[0] - 1, rounding_mode="trunc"),
    "a remainder": lambda x: torch.fmod(x, 7),
    "a remainder by a size": lambda x: torch.fmod(x, -x.shape[0] - 1),
}


class Program(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in FUNCTIONS.values()]


@pytest.mark.parametrize("kind", ["int8", "int32", "int64"])
def test_integers_are_exact_to_their_ends(kind: str, tmp_path: Path) -> None:
    inputs = (InputDeclaration("x", kind, ("n", 4)),)
    source = ModelSource("integers", "1", factory=f"{__name__}:Program", inputs=inputs)
    store = open_store(tmp_path)
    compilation = compile_model(source, store)
    assert not compilation.report.quarantined
    model, dtype = load_model(source, compilation.artifact_key, store), getattr(torch, kind)
    ends = torch.iinfo(dtype)
    row = torch.tensor([ends.min, ends.max, ends.max // 2 + 2, ends.min + 1], dtype=dtype)
    for rows in (1, 3, 10):
        x = row.repeat(rows, 1)
        for name, found, expected in zip(FUNCTIONS, model.call(x), Program()(x), strict=True):
            assert torch.equal(found, expected), (name, rows)
