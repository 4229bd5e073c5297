"""A model whose generated code the compiler refuses, or whose kernels take too long to generate, is served by
PyTorch, and says so. A region that is too large for one kernel is several; one operator is PyTorch's call."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler import driver
from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.errors import ToolchainError, TooLong
from dlcb.compiler.kgen import KernelSet, regions
from dlcb.compiler.kgen.generate import generate
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

INPUTS = (InputDeclaration("x", "float32", ("n", 4)),)
SOURCE = ModelSource("refused", "1", factory=f"{__name__}:Doubled", inputs=INPUTS)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


class Neighbours(nn.Module):
    """Each step reads two elements of what the one before it made, beside layers that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(x)
        for _ in range(6):
            y = torch.where(y > 0, torch.cat((x[:1], y))[:-1], y * 0.5 + 1)
        return y, self.norm(y).softmax(1)


class Rolled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x * 2 + 1).relu()
            x = x.roll(1, 0)
            x = x.softmax(1)
        return x


def compiler(folder: Path, *words: str) -> CompileOptions:
    """The machine's C++ compiler, with further options."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\nexec "${{CXX:-g++}}" {" ".join(words)} "$@"\n')
    path.chmod(0o755)
    return CompileOptions(compiler=str(path))


def test_pytorch_serves_what_the_compiler_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, x = open_store(tmp_path / "store"), torch.randn(3, 4)
    options = compiler(tmp_path, "-Dbuffers=1")  # a name in all generated code becomes a number
    compilation = compile_model(SOURCE, store, options)
    assert re.search(r"refused generated code: .*<stdin>.*error", compilation.report.quarantined)
    assert "refused is served by eager PyTorch" in caplog.text
    assert compilation.signature.batch is None
    (found,) = load_model(SOURCE, compilation.artifact_key, store).call(x)
    assert torch.equal(found, Doubled()(x))


def test_pytorch_serves_what_takes_too_long_to_generate(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    report = compile_model(SOURCE, store, CompileOptions(generate_seconds=0)).report
    assert report.tier == "eager"
    assert "more than the 0 s of processor time that all regions may take" in report.quarantined
    assert "test_refused_code.py" in report.quarantined


def test_pytorch_runs_the_line_of_an_operator_that_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of three equal layers has it; the rest is generated, and sizes stay free."""

    def slow(group: Group, *others: object) -> KernelSet:
        if any(node.op.name == "roll" for node in group.nodes):
            raise TooLong("it takes too long")
        return generate(group, *others)

    monkeypatch.setattr(regions, "generate", slow)
    store = open_store(tmp_path / "store")
    source = replace(SOURCE, factory=f"{__name__}:Rolled")
    compilation = compile_model(source, store, CompileOptions(optimisation="-O0"))
    report = compilation.report
    assert (report.tier, report.quarantined) == ("dynamic", "")
    called = [line for line in report.calls if line.tier == "eager"]
    assert [(line.operator, line.count, line.reason) for line in called] == [
        ("aten.roll.default", 3, "roll: it takes too long")
    ]
    assert report.kernels
    assert "PyTorch runs the calls of test_refused_code.py:" in caplog.text
    model = load_model(source, compilation.artifact_key, store)
    for rows in (0, 1, 2, 5, 33):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(model.call(x), (Rolled()(x),))


def test_a_model_in_which_too_many_lines_take_too_long_is_pytorchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_MOST_LEFT", 0)
    report = compile_model(SOURCE, open_store(tmp_path / "store"), CompileOptions(region_seconds=0)).report
    assert report.tier == "eager"
    assert "more than the 0 s of processor time that a region may take" in report.quarantined


def test_a_region_that_is_too_large_is_several_kernels(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    source = replace(SOURCE, factory=f"{__name__}:Neighbours")
    compilation = compile_model(source, store, CompileOptions(region_values=12))
    report = compilation.report
    assert (report.tier, report.eager_nodes, report.quarantined) == ("dynamic", 0, "")
    said = [note for note in report.notes if "several kernels" in note]
    assert said
    assert all("an element takes more than the 12 values" in note for note in said)
    assert all(__name__ in note for note in said)
    model = load_model(source, compilation.artifact_key, store)
    for rows in (1, 2, 5, 33):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(model.call(x), list(Neighbours()(x)))


def test_a_compiler_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    options = compiler(tmp_path, "-no-such-option")
    with pytest.raises(ToolchainError, match=r"failed: .*no-such-option"):
        compile_model(SOURCE, open_store(tmp_path / "store"), options)
