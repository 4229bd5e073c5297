"""Small modules that the tests of the commands register."""

import torch


class Scaled(torch.nn.Module):
    """softmax(3 x) over rows of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).softmax(dim=-1)


class Double(torch.nn.Module):
    """2 x at any rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def scaled() -> torch.nn.Module:
    return Scaled()


def double() -> torch.nn.Module:
    return Double()
