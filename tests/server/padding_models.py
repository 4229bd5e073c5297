"""Models whose lengths may be padded, and one whose may not, for the tests of padding by proof."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Tagger(nn.Module):
    """Labels for each token by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm, self.out = nn.Embedding(100, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(functional.gelu(self.norm(self.embedding(ids)))).softmax(-1)


class Decoder(nn.Module):
    """One causal layer with learnt positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(100, 32), nn.Embedding(64, 32)
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length))
        q, k, v = self.qkv(self.norm(x)).reshape(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).reshape(batch, length, 32))


class Stem(nn.Module):
    """A convolution that ends where its input does: fewer positions come out than went in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(4, 8, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x).relu()


class Pooler(nn.Module):
    """The mean of all positions."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids.float().mean(1)


class Centred(nn.Module):
    """Less the mean of all rows."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids.float().cumsum(1) - ids.float().mean(0, keepdim=True)
