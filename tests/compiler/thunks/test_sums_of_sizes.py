"""Dims of which one is the sum of others, as the mask over a cache of keys: found without a word about it,
checked at run time, one compile for all sizes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.errors import RequestError
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store


class Masked(nn.Module):
    def forward(self, past: torch.Tensor, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, x], 1) * mask


class Cached(nn.Module):
    """Attention over cached keys and values and those of new tokens."""

    def forward(
        self, q: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        k, v = torch.cat([past_k, q * 0.5], 2), torch.cat([past_v, q + 1], 2)
        scores = q @ k.transpose(-1, -2) * 0.3 + mask
        return scores.softmax(-1) @ v, k, v


Shapes = dict[str, tuple[int | str, ...]]
MODULES = {"masked": Masked, "cached": Cached}
CASES: dict[str, tuple[str, Shapes]] = {
    "masked": ("masked", {"past": (2, "p", 4), "x": (2, "s", 4), "mask": (2, "t", 1)}),
    "masked, nothing declared": ("masked", {"past": (2, "?", 4), "x": (2, "?", 4), "mask": (2, "?", 1)}),
    "cached": (
        "cached",
        {
            "q": ("b", 3, "s", 4), "past_k": ("b", 3, "p", 4), "past_v": ("b", 3, "p", 4),
            "mask": ("b", 1, "s", "t"),
        },
    ),
    "cached, nothing declared": (
        "cached",
        {
            "q": (2, 3, "?", 4), "past_k": (2, 3, "?", 4), "past_v": (2, 3, "?", 4),
            "mask": (2, 1, "?", "?"),
        },
    ),
}  # fmt: skip


def module(name: str) -> nn.Module:
    return MODULES[name]()


def inputs_at(name: str, batch: int, past: int, new: int, total: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(past + new)
    if name == "masked":
        shapes: list[tuple[int, ...]] = [(2, past, 4), (2, new, 4), (2, total, 1)]
    else:
        shapes = [(batch, 3, new, 4), (batch, 3, past, 4), (batch, 3, past, 4), (batch, 1, new, total)]
    return [torch.randn(shape, generator=made) for shape in shapes]


SLOW = ("masked", "cached, nothing declared")  # as the two others, by another way


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES]
)
def test_a_total_is_the_sum_of_its_parts(case: str, tmp_path: Path) -> None:
    name, shapes = CASES[case]
    source = ModelSource(
        "sums", "1", factory=f"{__name__}:module", arguments={"name": name},
        inputs=tuple(InputDeclaration(given, "float32", shape) for given, shape in shapes.items()),
    )  # fmt: skip
    store = open_store(tmp_path)
    compilation = compile_model(source, store)
    assert not compilation.report.quarantined
    assert not compilation.report.graphs
    assert all(not line.size.isdigit() for line in compilation.report.dims if line.reason != "declared")
    assert any(" + " in line.reason and "==" in line.reason for line in compilation.report.dims)
    model, eager = load_model(source, compilation.artifact_key, store), module(name)
    batches = (1, 3) if case == "cached" else (2,)
    for batch, past, new, off in itertools.product(batches, (0, 1, 4, 33), (0, 1, 2, 5), (0, 1, -1)):
        inputs = inputs_at(name, batch, past, new, max(past + new + off, 0))
        try:
            expected = eager(*inputs)
        except RuntimeError:
            with pytest.raises(RequestError):
                model.call(*inputs)
            continue
        for found, wanted in zip(
            model.call(*inputs), expected if name == "cached" else [expected], strict=True
        ):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4, equal_nan=True)
