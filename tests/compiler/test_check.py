"""What the load check asks of PyTorch before there is anything to compare with."""

import torch
from torch import nn

from dlcb.compiler.check import prepared
from dlcb.compiler.source import InputDeclaration, ModelSource

SOURCE = ModelSource("counting", "1", inputs=(InputDeclaration("x", "float16", ("n", 3)),))


class Counting(nn.Module):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        MET.append((x.dtype, tuple(x.shape)))
        if len(x) > self.most:
            raise ValueError("too long")
        return x


MET: list[tuple[torch.dtype, tuple[int, ...]]] = []


def test_pytorch_is_asked_once_in_each_precision_before_its_answers_are_needed() -> None:
    MET.clear()
    prepared(SOURCE, Counting(most=5), "cpu")
    assert not MET
    prepared(SOURCE, Counting(most=5), "cpu", {"x": (5, 3)})
    assert [(torch.float16, (5, 3)), (torch.float64, (5, 3))] == MET


def test_what_it_refuses_then_is_asked_again_later() -> None:
    reference = prepared(SOURCE, Counting(most=5), "cpu", {"x": (6, 3)})
    x = torch.ones(2, 3, dtype=torch.float16)
    assert torch.equal(reference.eager([x])[0], x)
