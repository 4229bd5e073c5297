"""The programs of the cases, as factories that a model source names. Each is as small as its case allows."""

from __future__ import annotations

import functools
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
def nothing_found(x):
    return torch.full((1, 3), -1.0) if x.shape[0] == 0 else x * 2


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
def rows_of_three(x):
    return F.pad(x, (0, 0, 0, (3 - x.shape[0] % 3) % 3)).view(-1, 3, 4) * 2


@_module
def chunks_of_eight(x):
    return F.pad(x, (0, 0, 0, -x.shape[1] % 8)).view(x.shape[0], -1, 8, x.shape[2]).amax(2)


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


@_module
def means_of_bags(x, index):
    return F.embedding_bag(index, x, mode="mean")


@_module
def losses_by_class(x, index):
    return F.cross_entropy(x, index, reduction="none")


@_module
def losses_but_of_one_class(x, index):
    return F.nll_loss(x, index, ignore_index=7, reduction="none")


@_module
def filled(x, index):
    return x.index_fill(0, index, 0.5)


@_module
def put(x, index):
    return x.put(index, index.float())


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


# ---- sizes as keys, text and numbers of Python's own


@_module
def key_of_a_dictionary(x):
    return x * {13: 2.0}.get(x.shape[0], 1.0)


@_module
def member_of_a_set(x):
    return x * 2 if x.shape[0] in {7, 129} else x


@_module
def its_digits(x):
    return x * 2 if f"{x.shape[0]}".endswith("7") else x


@_module
def its_hash(x):
    return x * 2 if hash(x.shape[0]) % 50 == 3 else x


@_module
def half_as_a_number(x):
    return x * int(x.shape[0] * 0.5)


@_module
def blocks_as_a_number(x):
    return x + int(x.shape[0] / 64)


@_module
def place_in_a_list(x):
    return x * ([1.0] * 20 + [2.0] * 200)[x.shape[0]]


@_module
def caught(x):
    try:
        return x * {13: 2.0}[x.shape[0]]
    except (KeyError, TypeError):
        return x


@_module
def refused_and_caught(x):
    try:
        return x * (torch.ones(1, 13) @ x).sum()
    except RuntimeError:
        return x


@_module
def broadcast_or_caught(x):
    try:
        return x + torch.ones(13, 1)
    except RuntimeError:
        return x * 2


@_module
def rows_counted(x):
    return x * 2 if len(list(zip(x, range(14), strict=False))) == 13 else x


@_module
def pieces_counted(x):
    return x * len(x.split(50))


@_module
def second_half(x):
    return x.chunk(2)[-1] * 2


@_module
def divides_a_number(x):
    return x * 2 if 260 % x.shape[0] == 0 else x


@functools.lru_cache
def _factor(n: int) -> float:
    return 2.0 if n == 13 else 1.0


@_module
def remembered(x):
    return x * _factor(x.shape[0])


class Tables(nn.Module):
    """A table for every length, made when that is first met."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] not in self.known:
            self.known[x.shape[0]] = torch.arange(x.shape[0], dtype=torch.float32)[:, None]
        return x + self.known[x.shape[0]]


def tables() -> nn.Module:
    return Tables()


# ---- graphs that change with the sizes


@_module
def three_ways(x):
    if x.shape[0] < 16:
        return x + 1
    return x * 2 if x.shape[0] < 100 else torch.cos(x)


@_module
def without_ones(x):
    return (x * 2).squeeze() + 1


@_module
def many_ways(x):
    return (x + x.shape[0] // 10, -x, x * 2, x.exp(), x.sin(), x.cos(), x.abs(), x.tanh())[x.shape[0] // 10]


class Windows(nn.Module):
    """Attention within windows of 4 x 4, the image padded where they do not fit, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, height, width, channels = x.shape
        below, right = (4 - height % 4) % 4, (4 - width % 4) % 4
        y = F.pad(self.norm(x), (0, 0, 0, right, 0, below))
        rows, columns = (height + below) // 4, (width + right) // 4
        y = y.view(b, rows, 4, columns, 4, channels).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)
        q, k, v = (t.reshape(-1, 16, 2, 4).transpose(1, 2) for t in self.qkv(y).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 16, channels)
        y = self.out(y).view(b, rows, columns, 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(b, rows * 4, columns * 4, channels)
        if below > 0 or right > 0:
            y = y[:, :height, :width, :].contiguous()
        return x + y


def windows() -> nn.Module:
    return Windows()


class CausalBlock(nn.Module):
    """Causal attention as in GPT-2: a single row needs no mask tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (t.reshape(b, s, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        if b == 1:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(s, s, dtype=torch.bool).tril().expand(b, 1, s, s)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(y.transpose(1, 2).reshape(b, s, 32))


def causal_block() -> nn.Module:
    return CausalBlock()


class RelativeEncoder(nn.Module):
    """Attention with a bias by distance, in logarithmic buckets, as in T5; one position alone needs none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bias, self.qkv, self.out = nn.Embedding(16, 4), nn.Linear(32, 96), nn.Linear(32, 32)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        q, k, v = (t.reshape(b, s, 4, 8).transpose(1, 2) for t in self.qkv(normed).chunk(3, dim=-1))
        scores = q @ k.transpose(2, 3)
        if s > 1:
            places = torch.arange(s)
            distance = places[None, :] - places[:, None]
            far = 4 + (torch.log(distance.abs().clamp(min=1).float() / 4) / 2.0 * 4).long()
            near = torch.where(distance.abs() < 4, distance.abs(), far.clamp(max=7))
            scores = scores + self.bias(near + (distance > 0).long() * 8).permute(2, 0, 1)
        y = torch.softmax(scores, dim=-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(b, s, 32))


def relative_encoder() -> nn.Module:
    return RelativeEncoder()


class NarrowNumbers(nn.Module):
    """Numbers in types that do not hold them exactly, and then what those types hold."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, half = x.shape[0], torch.float16
        tenth = torch.full((n,), 0.1, dtype=half)
        return (
            tenth.float() * x,
            (torch.full((n,), 0.1, dtype=torch.bfloat16) * 3).float() + x,
            (torch.full((), 1 / 3, dtype=half).double() + x.double()).float(),
            (torch.ones(n, dtype=half) / 3).double(),
            (torch.full((n,), 16777217.0).double() - 16777216).float() + x,
            (torch.zeros(n, dtype=half) + 70000.0).float() + x,
            (torch.arange(n, dtype=half) * 0.1).float(),
            torch.exp(torch.full((n,), 2.5, dtype=half)).float(),
            torch.full((n,), 300).to(torch.uint8).float() + x,
            (x.half() * 0.1).int(),
        )


def narrow_numbers() -> nn.Module:
    return NarrowNumbers()
