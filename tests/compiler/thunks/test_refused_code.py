"""A model whose generated code the compiler refuses, or whose kernels take too long to generate, is served by
PyTorch, and says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.errors import ToolchainError
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

INPUTS = (InputDeclaration("x", "float32", ("n", 4)),)
SOURCE = ModelSource("refused", "1", factory=f"{__name__}:Doubled", inputs=INPUTS)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


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
    report = compile_model(SOURCE, store, CompileOptions(region_seconds=0)).report
    assert report.tier == "eager"
    assert "more than the 0 s of processor time that a region may take" in report.quarantined
    assert "test_refused_code.py" in report.quarantined


def test_a_compiler_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    options = compiler(tmp_path, "-no-such-option")
    with pytest.raises(ToolchainError, match=r"failed: .*no-such-option"):
        compile_model(SOURCE, open_store(tmp_path / "store"), options)
