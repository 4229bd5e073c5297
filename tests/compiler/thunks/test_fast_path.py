"""PyTorch's inference fast path of attention layers writes zeros at padded positions; every tier gives what
the forward as it is written gives, and the load check draws masks as padding has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dlcb.compiler import InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge.agreement import random_inputs, without_fast_path
from dlcb.kernel_cache import open_store

HERE = Path(__file__).stem


class Tagger(nn.Module):
    """An encoder as PyTorch's defaults make it, with a mask of ones where there is a token."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.by_hand = by_hand

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.layers(x, src_key_padding_mask=mask == 0)
        return y * 2 if self.by_hand and bool(y.isnan().any()) else y  # a branch on values: eager


def tagger(by_hand: bool) -> nn.Module:
    return Tagger(by_hand).eval()


@pytest.mark.parametrize("tier", ["dynamic", "eager"])
def test_padded_positions_are_those_of_the_forward_as_written(tier: str, tmp_path: Path) -> None:
    source = ModelSource(
        "tagger",
        "1",
        factory=f"{HERE}:tagger",
        arguments={"by_hand": tier == "eager"},
        inputs=(
            InputDeclaration("x", "float32", ("batch", "length", 16)),
            InputDeclaration("mask", "int64", ("batch", "length"), (0, 2)),
        ),
    )
    store = open_store(tmp_path)
    compilation = compile_model(source, store)
    assert compilation.report.tier == tier
    model, module = load_model(source, compilation.artifact_key, store), tagger(False)
    for lengths in ([5, 1, 3], [2], [4, 4]):
        x = torch.randn(len(lengths), max(lengths), 16)
        mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
        with torch.no_grad(), without_fast_path():
            wanted = module(x, mask)
        torch.testing.assert_close(model.call(x, mask)[0], wanted, atol=1e-5, rtol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_masks_are_drawn_as_padding_has_them() -> None:
    source = ModelSource(
        "masked", "1", factory="m:f", inputs=(InputDeclaration("mask", "bool", ("batch", "length")),)
    )
    kept, hidden = (random_inputs(source, {"mask": (6, 9)}, seed)["mask"].int() for seed in (1, 2))
    assert bool((kept.diff() <= 0).all()) and 0 < int(kept.sum()) < kept.numel()
    assert bool((hidden.diff() >= 0).all()) and 0 < int(hidden.sum()) < hidden.numel()
