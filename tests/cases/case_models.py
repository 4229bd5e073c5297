"""The programs of the cases, as factories that a model source names. Each is as small as its case allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def _module(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: Function(function)


# ---- guards


@_module
def hundreds(x):
    return x.view(100, -1)


@_module
def add(x, y):
    return x + y


@_module
def pinned(x):
    return x.view(8, 4)


@_module
def plain(x):
    return x * 2 + 1


@_module
def below_ten(x):
    if x.shape[0] < 10:
        return x * 2 + 1
    return x * 3 - 1


@_module
def parity(x):
    return x + 1 if x.shape[0] % 2 else x - 1


@_module
def mean_by_hand(x):
    return x / x.shape[0]


@_module
def loop_over_a_size(x):
    total = x[0] * 0
    for k in range(x.shape[0]):
        total = total + x[k] * (k + 1)
    return total


# ---- values and shapes


@_module
def repeat_and_flip(x):
    return torch.flip(x.transpose(0, 1).flatten().repeat_interleave(2), (0,))


@_module
def round_to_tens(x):
    return torch.ones(round(x.shape[0], -1)) * x.sum()


@_module
def upsampled(x):
    return F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest")


@_module
def negative_places(x):
    places = torch.arange(x.shape[0]) - 9
    return places // 2 + x.long(), places % 2 + x.long()


@_module
def negative_sizes(x):
    return x * ((x.shape[0] - 9) // 2), x * ((x.shape[0] - 9) % 2)


@_module
def every_second(x):
    return torch.arange(0, x.shape[0], 2) + x[:1].long()


@_module
def permuted(x):
    y = x.permute(0, 3, 1, 2)
    return (
        y.unsqueeze(1) * 2,
        F.interpolate(y, scale_factor=2.0, mode="nearest"),
        torch.empty_like(y).fill_(3.0),
    )


@_module
def pool_and_sum(x):
    return F.max_pool2d(torch.relu(x), 2).sum(dim=(2, 3))


@_module
def smoothed(x):
    return torch.softmax(x, dim=-1) + x.mean(dim=-1, keepdim=True)


@_module
def sizes_back(x):
    y = x.unsqueeze(0)
    return y * y.shape[0], y * y.shape[1], y * y.shape[2]


@_module
def joined_and_reshaped(x, y):
    return torch.cat([x, y], dim=1).reshape(-1, 2)


@_module
def gathered(x, rows, columns):
    return x.gather(0, rows).gather(1, columns)


class TransposedProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.product(x)
        return y.t(), torch.atan(y)


def transposed_product() -> nn.Module:
    return TransposedProduct()


# ---- one binary


@_module
def add_four(a, b, c, d):
    return a + b * c - d


@_module
def ignores_second(x, unused):
    return torch.exp(x)


class RootMeanSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (48,), self.weight)


def root_mean_square() -> nn.Module:
    return RootMeanSquare()


@_module
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@_module
def masked_attention(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])


# ---- empty and huge


@_module
def least(x):
    return torch.argmin(x, dim=-1)


@_module
def mean_and_sum(x):
    return x.mean(dim=-1), x.sum(dim=-1)


@_module
def largest(x):
    return x.amax(dim=-1)


@_module
def outer_five(a, b, c, d, e):
    whole = a[:, None, None, None, None] * b[:, None, None, None] * c[:, None, None] * d[:, None] * e
    return torch.softmax(whole, dim=4) + torch.cumsum(whole, dim=3)


# ---- indices


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.table.weight.data.copy_(torch.linspace(-1, 1, 60).view(10, 6))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.table(ids)).sum(dim=-1)


def lookup() -> nn.Module:
    return Lookup()


@_module
def gather(x, index):
    return x.gather(1, index) * 2


@_module
def index_select(x, index):
    return x.index_select(1, index) * 2


@_module
def take_along(x, index):
    return torch.take_along_dim(x, index, 1) * 2


@_module
def index_add(x, index, source):
    return torch.relu(x).index_add(0, index, source)


# ---- fusion and storms


class Encoder(nn.Module):
    """One transformer block over width 32, its length free."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (t.reshape(b, s, 4, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, 32)
        x = self.first(x + self.out(context))
        return self.second(x + self.down(F.gelu(self.up(x))))


def encoder() -> nn.Module:
    return Encoder()


class ConvolutionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x) + x)
        return F.max_pool2d(x, 2).mean(dim=(2, 3))


def convolution_net() -> nn.Module:
    return ConvolutionNet()


@_module
def heads(x):
    b, s, _ = x.shape
    return torch.softmax(x.reshape(b, s, 4, 8).transpose(1, 2), dim=-1).flip(2) * 0.5
