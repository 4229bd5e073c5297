"""Single operators and small groups of them, as models are made of them, at a small and a large size: what is
slower here than in eager PyTorch shows which kernel, or which call of a library, to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dlcb.compiler.source import InputDeclaration, ModelSource

Sizes = tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class Kind:
    """Inputs of a certain form, and the sizes that operators on them are measured at."""

    inputs: tuple[InputDeclaration, ...]
    sizes: Sizes


_SEQUENCES = ({"batch": 1, "length": 16}, {"batch": 8, "length": 128})
_IMAGES = ({"batch": 1, "height": 28, "width": 28}, {"batch": 4, "height": 56, "width": 64})


def _kind(sizes: Sizes, *inputs: InputDeclaration) -> Kind:
    return Kind(inputs, sizes)


ROWS = _kind(_SEQUENCES, InputDeclaration("x", "float32", ("batch", "length", 256)))
HALVES = _kind(_SEQUENCES, InputDeclaration("x", "bfloat16", ("batch", "length", 256)))
SQUARES = _kind(_SEQUENCES, InputDeclaration("x", "float32", ("batch", "length", "length")))
HEADS = _kind(_SEQUENCES, InputDeclaration("x", "float32", ("batch", 4, "length", 64)))
IMAGES = _kind(_IMAGES, InputDeclaration("x", "float32", ("batch", 32, "height", "width")))
SIGNALS = _kind(_SEQUENCES, InputDeclaration("x", "float32", ("batch", 32, "length")))
INDICES = _kind(_SEQUENCES, InputDeclaration("x", "int64", ("batch", "length"), (0, 64)))
MASKED = _kind(
    _SEQUENCES,
    InputDeclaration("x", "float32", ("batch", "length", 256)),
    InputDeclaration("mask", "int64", ("batch", "length"), (0, 2)),
)
CHOSEN = _kind(
    _SEQUENCES,
    InputDeclaration("x", "float32", ("batch", "length", 256)),
    InputDeclaration("places", "int64", ("batch", "length", 16), (0, 256)),
)


class Stated(nn.Module):
    """A module that is one function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function(*inputs)


def _rotary(x: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings of a position's number, by halves."""
    places = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    angles = torch.outer(places, 10000 ** -(torch.arange(128, device=x.device) / 128))
    left, right = x[..., :128], x[..., 128:]
    turned = torch.cat([-right, left], -1)
    return x * angles.cos().repeat(1, 2) + turned * angles.sin().repeat(1, 2)


def _interleaved(x: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * 0.5 - odd, odd * 0.5 + even], -1).flatten(-2)


def _causal(x: torch.Tensor) -> torch.Tensor:
    later = torch.ones_like(x[0], dtype=torch.bool).triu(1)
    return x.masked_fill(later, float("-inf")).softmax(-1)


def _patches(x: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = x.shape
    parts = x.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1)
    return parts.reshape(batch, height // 2 * (width // 2), 4 * channels)


def _squeezed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def _pooled(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


_FUNCTIONS: Mapping[str, tuple[Kind, Callable[..., torch.Tensor]]] = {
    # elements
    "gelu and add": (ROWS, lambda x: functional.gelu(x) + x),
    "gated by silu": (ROWS, lambda x: functional.silu(x[..., :128]) * x[..., 128:]),
    "exp": (ROWS, torch.exp),
    "log1p": (ROWS, lambda x: x.abs().log1p()),
    "sine times cosine": (ROWS, lambda x: x.sin() * x.cos()),
    "remainder": (ROWS, lambda x: torch.remainder(x, 0.3)),
    "power": (ROWS, lambda x: x.abs() ** 1.7),
    "half gelu and add": (HALVES, lambda x: functional.gelu(x) + x),
    "to half": (ROWS, lambda x: x.to(torch.float16)),
    "integers": (INDICES, lambda x: (x // 7) * 3 + x % 5),
    # reductions
    "softmax": (ROWS, lambda x: x.softmax(-1)),
    "softmax of columns": (ROWS, lambda x: x.softmax(1)),
    "causal softmax": (SQUARES, _causal),
    "half softmax": (HALVES, lambda x: x.softmax(-1)),
    "sum of columns": (ROWS, lambda x: x.sum(1)),
    "sum of all": (ROWS, torch.sum),
    "greatest of columns": (ROWS, lambda x: x.amax(1)),
    "argmax": (ROWS, lambda x: x.argmax(-1)),
    "variance": (ROWS, lambda x: x.var(-1)),
    "normalised after a clamp": (ROWS, lambda x: functional.normalize(x.clamp(-1, 1), dim=-1)),
    "root-mean-square norm": (ROWS, lambda x: functional.rms_norm(x, (256,))),
    "masked mean": (MASKED, _pooled),
    "distances": (ROWS, lambda x: (x[:, :, None, :16] - x[:, None, :, :16]).square().sum(-1)),
    "cumulative sum": (ROWS, lambda x: x.cumsum(1)),
    # movements
    "transpose and add": (ROWS, lambda x: x.transpose(1, 2).contiguous() + 1),
    "heads apart": (ROWS, lambda x: x.view(*x.shape[:2], 4, 64).transpose(1, 2).contiguous()),
    "heads together": (HEADS, lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[2], 256)),
    "concatenation of rows": (ROWS, lambda x: torch.cat([x, x * 2], -1)),
    "stacked last": (ROWS, lambda x: torch.stack([x, -x], -1)),
    "rotary": (ROWS, _rotary),
    "rotary, interleaved": (ROWS, _interleaved),
    "roll": (ROWS, lambda x: x.roll((1, 3), (1, 2))),
    "flip": (ROWS, lambda x: x.flip(-1)),
    "padding": (ROWS, lambda x: functional.pad(x, (1, 2, 3, 1))),
    "reflection": (IMAGES, lambda x: functional.pad(x, (1, 2, 3, 1), mode="reflect")),
    "triangle": (SQUARES, lambda x: x.tril() * 2),
    "differences": (ROWS, lambda x: x[:, 1:] - x[:, :-1]),
    "patches": (IMAGES, _patches),
    "windows": (IMAGES, lambda x: functional.unfold(x, 3, padding=1)),
    "pixel shuffle": (IMAGES, lambda x: functional.pixel_shuffle(x, 2)),
    "channel shuffle": (IMAGES, lambda x: functional.channel_shuffle(x, 4)),
    "one hot": (INDICES, lambda x: functional.one_hot(x, 64).float()),
    "gather": (CHOSEN, lambda x, places: x.gather(-1, places)),
    "where positive": (ROWS, lambda x: x[x > 0]),
    "sort": (ROWS, lambda x: x.sort(-1).values),
    # images
    "greatest of windows": (IMAGES, lambda x: functional.max_pool2d(x, 3, 2, 1)),
    "mean of windows": (IMAGES, lambda x: functional.avg_pool2d(x, 2)),
    "mean of 7 by 7": (IMAGES, lambda x: functional.adaptive_avg_pool2d(x, 7)),
    "bilinear": (IMAGES, lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear")),
    "nearest": (IMAGES, lambda x: functional.interpolate(x, scale_factor=2.0)),
    "squeeze and excitation": (IMAGES, _squeezed),
    # products
    "attention": (HEADS, lambda x: functional.scaled_dot_product_attention(x, x, x)),
    "causal attention": (HEADS, lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True)),
    "products of a batch": (ROWS, lambda x: x @ x.transpose(1, 2)),
}

_MODULES: Mapping[str, tuple[Kind, Callable[[], nn.Module]]] = {
    "layer norm": (ROWS, lambda: nn.LayerNorm(256)),
    "group norm": (IMAGES, lambda: nn.GroupNorm(8, 32)),
    "instance norm": (IMAGES, lambda: nn.InstanceNorm2d(32)),
    "embedding": (INDICES, lambda: nn.Embedding(64, 256)),
    "linear": (ROWS, lambda: nn.Linear(256, 256)),
    "convolution": (IMAGES, lambda: nn.Conv2d(32, 32, 3, padding=1)),
    "depthwise convolution": (IMAGES, lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32)),
    "transposed convolution": (IMAGES, lambda: nn.ConvTranspose2d(32, 16, 2, stride=2)),
    "convolution of signals": (SIGNALS, lambda: nn.Conv1d(32, 64, 5, padding=2)),
    "encoder layer": (ROWS, lambda: nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)),
}

_KINDS: Mapping[str, Kind] = {
    name: kind for rows in (_FUNCTIONS, _MODULES) for name, (kind, _) in rows.items()
}


def operator_module(operator: str) -> nn.Module:
    """One of the operators, with fixed random weights."""
    torch.manual_seed(0)
    return _MODULES[operator][1]() if operator in _MODULES else Stated(_FUNCTIONS[operator][1])


def operator_sources() -> Iterator[tuple[ModelSource, Sizes]]:
    """Each operator, with the sizes it is measured at."""
    for name, kind in _KINDS.items():
        arguments: dict[str, Any] = {"operator": name}
        yield (
            ModelSource(
                name,
                "1",
                factory=f"{__name__}:operator_module",
                arguments=arguments,
                inputs=kind.inputs,
                outputs=("output",),
            ),
            kind.sizes,
        )
