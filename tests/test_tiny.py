"""One small model through everything: captured, solved, fused, compiled, stored, explained, loaded, run at
many shapes, refused where it must be, bundled, and started again from the bundle with no compiler."""

from pathlib import Path

import numpy
import pytest
import torch
from rich.console import Console
from torch import nn

from dlcb.compiler import (
    CompileOptions,
    ContractError,
    IndexRangeError,
    InputDeclaration,
    ModelSource,
    compile_model,
    load_model,
)
from dlcb.compiler.build.toolchain import calls
from dlcb.compiler.explain import explain
from dlcb.kernel_cache import bundle, ls, open_store


class Tiny(nn.Module):
    """Token ids and a mask to one vector a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.norm, self.out = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.tanh(self.words(ids)))
        weights = mask.unsqueeze(-1).float()
        mean = (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
        return torch.softmax(self.out(mean), dim=-1)


def tiny() -> nn.Module:
    return Tiny()


SOURCE = ModelSource(
    "tiny",
    "1",
    factory=f"{__name__}:tiny",
    inputs=(
        InputDeclaration("ids", "int64", ("batch", "length"), (0, 20)),
        InputDeclaration("mask", "bool", ("batch", "length")),
    ),
    outputs=("scores",),
    dims={"batch": (1, 64)},
)


def test_one_model_through_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path / "cache"))
    store = open_store(tmp_path / "store")
    stages: list[str] = []
    compilation = compile_model(
        SOURCE, store, CompileOptions(optimisation="-O1"), lambda stage, share: stages.append(stage)
    )

    # what was decided
    assert stages[0] == "capture" and stages[-1] == "check"
    assert compilation.report.tier == "dynamic" and not compilation.report.quarantined
    assert compilation.report.free_dims == ("batch", "length")
    assert compilation.report.compiler_calls == 1 and compilation.report.eager_nodes == 0
    assert compilation.signature.batch is not None and compilation.signature.batch.symbol == "batch"
    console = Console(width=120)
    with console.capture() as shown:
        console.print(explain(compilation.report, "tiny"))
    assert "batch" in shown.get() and "linear" in shown.get()

    # one binary, any shape
    model, eager, before = load_model(SOURCE, compilation.artifact_key, store), Tiny().eval(), calls.total
    for batch, length in ((1, 1), (2, 7), (64, 3), (5, 40), (2, 7)):
        ids, mask = torch.randint(0, 20, (batch, length)), torch.rand(batch, length) < 0.7
        assert model.plan({"ids": ids.shape, "mask": mask.shape}).output_shapes == {"scores": (batch, 4)}
        outcome = model.run({"ids": ids.numpy(), "mask": mask.numpy()})
        with torch.no_grad():
            numpy.testing.assert_allclose(
                outcome.outputs["scores"], eager(ids, mask).numpy(), rtol=2e-5, atol=1e-6
            )
        assert outcome.tier == "dynamic"
    assert outcome.result == "hit" and calls.total == before

    # what is not legal
    with pytest.raises(ContractError, match="'mask'"):
        model.run({"ids": numpy.zeros((2, 3), numpy.int64), "mask": numpy.ones((2, 4), bool)})
    with pytest.raises(IndexRangeError, match="ids"):
        model.run({"ids": numpy.full((2, 3), 20), "mask": numpy.ones((2, 3), bool)})

    # warm, and from a bundle
    assert compile_model(SOURCE, store, CompileOptions(optimisation="-O1")).report.from_cache
    bundle.write(store, [entry.key for entry in ls(store)], tmp_path / "tiny.bundle")
    elsewhere = open_store(tmp_path / "elsewhere", bundle=tmp_path / "tiny.bundle")
    compilation = compile_model(SOURCE, elsewhere, CompileOptions(optimisation="-O1"))
    assert compilation.report.from_cache
    again = load_model(SOURCE, compilation.artifact_key, elsewhere)
    ids, mask = torch.randint(0, 20, (3, 9)), torch.ones(3, 9, dtype=torch.bool)
    assert torch.equal(again.call(ids, mask)[0], model.call(ids, mask)[0])
    assert calls.total == before
