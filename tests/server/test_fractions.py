"""Models whose memory and outputs are fractions and roots of sizes: the front of the server knows them before
a run, as the compiler does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from dlcb.compiler import InputDeclaration, ModelSource, compile_model, load_model
from dlcb.kernel_cache import open_store
from dlcb.server.memory import footprint_of


class Model(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.name)(x)

    def resized(self, x: torch.Tensor) -> torch.Tensor:
        tokens = functional.interpolate(x, scale_factor=0.5, mode="nearest").flatten(2).transpose(1, 2)
        return self.linear(tokens).relu()

    def squared(self, x: torch.Tensor) -> torch.Tensor:
        side = int(math.sqrt(x.shape[3]))
        return self.linear(x[:, :, 0, : side * side].transpose(1, 2)).reshape(-1, side, side, 8).amax(2)

    def highest(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(2).transpose(1, 2)).topk(max(1, round(x.shape[3] * 0.5)), 1)[0]


def resized() -> nn.Module:
    return Model("resized")


def squared() -> nn.Module:
    return Model("squared")


def highest() -> nn.Module:
    return Model("highest")


@pytest.mark.parametrize(("name", "known"), [("resized", True), ("squared", True), ("highest", False)])
def test_the_front_reads_what_the_compiler_wrote(name: str, known: bool, tmp_path: Path) -> None:
    declared = InputDeclaration("x", "float32", ("batch", 4, "height", "width"))
    source = ModelSource(name, "1", factory=f"{__name__}:{name}", inputs=(declared,), outputs=("y",))
    store = open_store(tmp_path)
    compilation = compile_model(source, store)
    model = load_model(source, compilation.artifact_key, store)
    footprint = footprint_of(model.signature)
    assert footprint is not None
    for sizes in ((1, 4, 9), (3, 8, 30), (2, 5, 17)):
        batch, height, width = sizes
        x = torch.randn(batch, 4, height, width)
        outcome = model.run({"x": x.numpy()})
        assert outcome.tier == "dynamic"
        y = outcome.outputs["y"]
        assert model.signature.output_shapes({"x": x.shape}) == {"y": y.shape if known else None}
        assert footprint({"batch": batch, "height": height, "width": width}) >= x.nbytes + y.nbytes
