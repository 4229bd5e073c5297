"""The run of a freshly loaded model before it serves: it is made at sizes that the model takes, and a size
that it refuses ends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.kernel_cache import open_store
from dlcb.server.probing import probe


class Pooled(nn.Module):
    """Takes rows and columns from 8 on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.max_pool2d(self.first(image).relu(), 2))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_file_is_probed_at_sizes_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    path = tmp_path / "pooled.pt2"
    free = {0: Dim("batch"), 2: Dim.AUTO, 3: Dim.AUTO}
    sample = (torch.randn(4 if dynamic else 1, 3, 32, 32),)
    exported = torch.export.export(Pooled().eval(), sample, dynamic_shapes=(free,) if dynamic else None)
    torch.export.save(exported, path)
    shape = ("batch", 3, "height", "width")
    source = ModelSource(
        "file", "1", program=str(path), inputs=(InputDeclaration("image", "float32", shape),)
    )
    store = open_store(tmp_path / "store")
    model = load_model(source, compile_model(source, store, CompileOptions()).artifact_key, store)
    tiers = []
    run = model.run

    def watched(arrays: Mapping[str, numpy.ndarray]) -> object:
        outcome = run(arrays)
        tiers.append(outcome.tier)
        return outcome

    monkeypatch.setattr(model, "run", watched)
    probe(model, source)
    assert tiers == ["dynamic"]
    assert model.run({"image": numpy.ones((5, 3, 11, 12), "float32")}).tier == "dynamic"
    assert model.counters.guard_failures == 0


class Picky(nn.Module):
    """PyTorch serves it, and it refuses all sizes but one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) < 0 or x.shape[0] != 5:
            raise ValueError("five rows")
        return x


def picky() -> nn.Module:
    return Picky()


def test_a_model_that_refuses_every_probe_loads_all_the_same(tmp_path: Path) -> None:
    source = ModelSource(
        "picky",
        "1",
        factory="tests.server.test_probing:picky",
        inputs=(InputDeclaration("x", "float32", ("rows",)),),
        outputs=("y",),
        dims={"rows": (1, 7)},
    )
    store = open_store(tmp_path / "store")
    model = load_model(source, compile_model(source, store, CompileOptions()).artifact_key, store)
    probe(model, source)
    assert model.run({"x": numpy.ones(5, "float32")}).tier == "eager"
