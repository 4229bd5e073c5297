"""Small modules that the tests of the tiers register as models."""

import torch


class Twice(torch.nn.Module):
    """2 x for a matrix of at most 512 rows: PyTorch adds a table of 512 zeros and refuses more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(512, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x + self.table[: x.shape[0]]


class TwiceBut(torch.nn.Module):
    """2 x, but 3 x at some numbers of rows."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__()
        self.rows = set(rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if x.shape[0] in self.rows else x + x


class TwiceElsewhere(torch.nn.Module):
    """2 x, with one more operation at 7 rows, which changes nothing at values near 0."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation = getattr(self, operation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operation(x + x) if x.shape[0] in {7} else x + x

    def clamped(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-20, 20)

    def defined(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.isnan(), 0.0, x)

    def ended(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.isinf(), 0.0, x)

    def nonzero(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x == 0).all(), 1.0, x)

    def untied(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == x.round(), x + 1, x)


class LookupBut(torch.nn.Module):
    """The rows of a table of 10, but of one of 20 for a single list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(80.0).view(20, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        table = self.table if ids.shape[0] in {1} else self.table[:10]
        return torch.nn.functional.embedding(ids, table)


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


class Normalised(torch.nn.Module):
    """Softmax over the last axis, shifted and cut off, at any rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.softmax(x, -1) - 0.1)


class Places(torch.nn.Module):
    """Where the largest element of a column lies: integers, from rank 2 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(-1, -2).argmax(-1)


class Changing(torch.nn.Module):
    """Another type at rank 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x > 0 if x.dim() == 2 else x


def normalised() -> torch.nn.Module:
    """A graph that torch.fx recorded without a single shape."""
    return torch.fx.symbolic_trace(Normalised())


def places() -> torch.nn.Module:
    return Places()


def changing() -> torch.nn.Module:
    return Changing()


def squeezed() -> torch.nn.Module:
    return Squeezed()


class Squeezed(torch.nn.Module):
    """Without the axes of size 1: the rank follows the sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x).squeeze() * 2


def twice() -> torch.nn.Module:
    return Twice()


def lookup() -> torch.nn.Module:
    return Lookup()


def double() -> torch.nn.Module:
    return Double()


def twice_but(rows: list[int]) -> torch.nn.Module:
    return TwiceBut(rows)


def twice_elsewhere(operation: str) -> torch.nn.Module:
    return TwiceElsewhere(operation)


def lookup_but() -> torch.nn.Module:
    return LookupBut()


class Projected(torch.nn.Module):
    """A linear layer: the width of any rank's last axis is that of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3).t().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.linear(x, self.weight))


def projected() -> torch.nn.Module:
    return Projected()


class Misspelt(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abss()


def misspelt() -> torch.nn.Module:
    return Misspelt()
