"""Calls that PyTorch runs by name in files with free sizes have results of the sizes that the file says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from captured_programs import assert_agrees
from torch import Tensor, nn
from torch.export import Dim

from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.driver import compile_model
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store


class Called(nn.Module):
    """Calls that PyTorch runs by name."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


@pytest.mark.filterwarnings("ignore:The tensor attributes self.m._flat_weights")
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Called(lambda s, x: s.m(x)[0], m=nn.GRU(6, 8, batch_first=True)), "batch, 7, 8"),
        (Called(lambda s, x: s.m(x)[0], m=nn.LSTM(6, 8, 2, batch_first=True)), "batch, 7, 8"),
        (Called(lambda s, x: s.m(x)[1].transpose(0, 1), m=nn.RNN(6, 8, batch_first=True)), "batch, 1, 8"),
        (Called(lambda s, x: x.sort(dim=1)[0]), "batch, length, 6"),
        (Called(lambda s, x: s.m(x.mT), m=nn.ConvTranspose1d(6, 4, 3, stride=2)), "batch, 4, length * 2 + 1"),
    ],
    ids=["gru", "lstm", "rnn", "sort", "conv_transpose"],
)
def test_what_pytorch_runs_in_a_file_has_the_sizes_that_the_file_says(
    module: nn.Module, shape: str, tmp_path: Path
) -> None:
    free = {0: Dim("batch", min=1, max=16)}
    if "length" in shape:  # else PyTorch exports the steps one by one
        free[1] = Dim("length", min=2, max=64)
    program = torch.export.export(module.eval(), (torch.randn(3, 7, 6),), dynamic_shapes=(free,))
    torch.export.save(program, tmp_path / "m.pt2")
    length = "length" if "length" in shape else 7
    inputs = (InputDeclaration("x", "float32", ("batch", length, 6)),)
    source = ModelSource("m", "1", program=str(tmp_path / "m.pt2"), inputs=inputs, outputs=("y",))
    captured = generalize(source)
    assert repr(captured.graph.outputs[0].shape) == f"({shape})"
    assert_agrees(captured, module, {"x": torch.randn(5, 4 if length == "length" else 7, 6)})
    store = open_store(tmp_path / "cache")
    signature = compile_model(source, store, CompileOptions(check_shapes=2)).signature
    assert signature.batch is not None and signature.batch.symbol == "batch"
