"""Small modules that the tests of the tiers register as models."""

import torch


class Twice(torch.nn.Module):
    """2 x for a matrix of at most 512 rows: PyTorch adds a table of 512 zeros and refuses more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(512, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x + self.table[: x.shape[0]]


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.embed.weight.data.copy_(torch.arange(40.0).view(10, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embed(ids)


class Double(torch.nn.Module):
    """2 x at any rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def twice() -> torch.nn.Module:
    return Twice()


def lookup() -> torch.nn.Module:
    return Lookup()


def double() -> torch.nn.Module:
    return Double()
