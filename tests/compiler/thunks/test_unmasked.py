"""A mask that lets everything through: a second program serves such calls, and only such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dlcb.compiler import artifact as artifacts
from dlcb.compiler import driver
from dlcb.compiler.artifact import Artifact
from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import open_store


class Attention(nn.Module):
    """Attention with a mask of one value a key, and the mean over what it lets through."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        shown = mask.bool() if self.kind != "inverted" else mask == 0
        y = nn.functional.scaled_dot_product_attention(heads, heads, heads, shown[:, None, None])
        weight = mask.to(x.dtype)[:, None, :, None]
        return (y * weight).sum(2) / weight.sum(2).clamp(min=1)


def attention(kind: str) -> nn.Module:
    return Attention(kind)


@pytest.fixture(autouse=True)
def on_the_cpu_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "UNMASKED_TARGETS", {"cpp"})


def compiled(folder: Path, dtype: str, kind: str = "plain", values: tuple | None = (0, 2)) -> CompiledModel:
    source = ModelSource(
        "attention", "1", factory=f"{__name__}:attention", arguments={"kind": kind}, outputs=("y",),
        inputs=(InputDeclaration("x", "float32", ("batch", "length", 8)),
                InputDeclaration("mask", dtype, ("batch", "length"), values)),
    )  # fmt: skip
    store = open_store(folder)
    key = compile_model(source, store).artifact_key
    artifact = artifacts.load(key, store)
    assert Artifact.from_json(artifact.to_json()) == artifact
    return load_model(source, key, store)


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_calls_without_padding_run_without_a_mask(dtype: str, tmp_path: Path) -> None:
    model = compiled(tmp_path, dtype, values=(0, 2) if dtype == "int64" else None)
    assert model.mask == "mask" and not model.report.quarantined
    assert any("without a mask" in note for note in model.report.notes)
    masked, unmasked = (program.executor.cache for program in model._programs())
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)
    whole = np.ones((3, 5), dtype)
    padded = whole.copy()
    padded[1, 3:] = 0
    for mask, lengths in ((whole, (0, 1)), (padded, (1, 1)), (whole, (1, 1))):
        outcome = model.run({"x": x, "mask": mask})
        expected = Attention("plain")(torch.from_numpy(x), torch.from_numpy(mask))
        np.testing.assert_allclose(outcome.outputs["y"], expected.numpy(), rtol=1e-5, atol=1e-6)
        assert (len(masked), len(unmasked)) == lengths and outcome.tier == "dynamic"


@pytest.mark.parametrize(
    ("dtype", "kind", "values"),
    [("int64", "plain", (0, 9)), ("int64", "plain", None), ("int64", "inverted", (0, 2))],
    ids=["other values", "values not declared", "ones hide"],
)
def test_no_second_program(dtype: str, kind: str, values: tuple | None, tmp_path: Path) -> None:
    assert compiled(tmp_path, dtype, kind, values).mask == ""
