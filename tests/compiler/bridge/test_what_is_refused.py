"""Sizes are refused only where PyTorch itself refuses them; a model that it can serve loads."""

from __future__ import annotations

import pytest
import torch
from captured_programs import captured, source
from torch import Tensor, nn

from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.source import InputDeclaration


class _Causal(nn.Module):
    """Beyond 64 the mask is too small, which is not looked at where it is said to be causal."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("mask", torch.triu(torch.ones(64, 64), 1).bool())

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.layers(x, mask=self.mask[:n, :n], is_causal=True)


class _Advantages(nn.Module):
    """A loop over t holds it, and t1 has to be t + 1."""

    def forward(self, rewards: Tensor, values: Tensor) -> Tensor:
        result = torch.zeros_like(rewards)
        last = torch.zeros_like(rewards[:, 0])
        for t in reversed(range(rewards.shape[1])):
            last = rewards[:, t] + 0.9 * values[:, t + 1] - values[:, t] + 0.8 * last
            result[:, t] = last
        return result + values[:, :-1]


def test_a_bound_that_pytorch_does_not_know_refuses_nothing() -> None:
    program = captured(_Causal(), ("b", "t", 12))
    (verdict,) = [v for v in program.verdicts if v.axis == 1]
    assert verdict.beyond == "eager"


def test_a_bound_that_pytorch_knows_refuses() -> None:
    table = torch.randn(64, 12)
    program = captured(lambda x: x + table[: x.shape[1]], ("b", "t", 12))
    (verdict,) = [v for v in program.verdicts if v.axis == 1]
    assert (verdict.high, verdict.beyond) == (64, "refused")


def test_a_dim_that_another_holds_is_held_and_not_refused() -> None:
    program = captured(_Advantages(), ("b", "t"), ("b", "t1"))
    beyond = {v.symbol: (v.size, v.beyond) for v in program.verdicts}
    assert beyond["t"][1] == beyond["t1"][1] == "eager"
    assert isinstance(beyond["t1"][0], int)
    assert beyond["b"][0] == "b"


def test_what_torch_func_transforms_is_named() -> None:
    weights = torch.randn(4, 6, 6)
    declared = source(InputDeclaration("x", "float32", ("b", 6)))

    class Mapped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(lambda w: x @ w)(weights).mean(0)

    with pytest.raises(CaptureError) as raised:
        generalize(declared, Mapped().eval())
    assert "torch.func" in raised.value.message
    assert "0x" not in raised.value.message
