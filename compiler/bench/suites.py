"""What is measured: the survey's five graphs, two of them in a longer form too, vision and language models
with random weights, and single kernels.

Everything is an ordinary factory, registered like a user's own model, so that a benchmark takes the path that
users take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dlcb.compiler.bench.kernels import kernel_sources
from dlcb.compiler.bench.operators import operator_sources
from dlcb.compiler.bridge.agreement import random_inputs
from dlcb.compiler.bridge.declared import NO_WISH
from dlcb.compiler.errors import CaptureError, UnknownName
from dlcb.compiler.source import InputDeclaration, ModelSource

_HERE = "dlcb.compiler.bench.suites"


@dataclass(frozen=True)
class Case:
    """A model and the sizes it is measured at. `floor_bytes` per element of the batch, where memory bounds
    the graph."""

    source: ModelSource
    sizes: tuple[Mapping[str, int], ...]
    dtype: str = "float32"
    masks: Mapping[str, str] = field(
        default_factory=dict
    )  # input name -> how it is filled: "padding" or "ones"
    single_kernel: bool = False  # measured at width 1 too, and not at unseen sizes


def _source(
    name: str, arguments: dict[str, Any], inputs: tuple[InputDeclaration, ...], outputs: int = 1
) -> ModelSource:
    names = tuple(f"output{k}" for k in range(outputs)) if outputs > 1 else ("output",)
    return ModelSource(
        name,
        "1",
        factory=f"{_HERE}:{arguments.pop('factory')}",
        arguments=arguments,
        inputs=inputs,
        outputs=names,
    )


def case_inputs(case: Case, sizes: Mapping[str, int], device: str, seed: int) -> dict[str, torch.Tensor]:
    """Random inputs of these sizes, masks filled as the case says."""
    shapes = {
        d.name: tuple(sizes[s.removesuffix(NO_WISH)] if isinstance(s, str) else s for s in d.shape or ())
        for d in case.source.inputs
    }
    inputs = random_inputs(case.source, shapes, seed)
    for name, fill in case.masks.items():
        inputs[name] = _padding(inputs[name], seed) if fill == "padding" else torch.ones_like(inputs[name])
    return {name: x.to(device) for name, x in inputs.items()}


def _padding(mask: torch.Tensor, seed: int) -> torch.Tensor:
    """Rows of ones of different lengths, then zeros; the first row is full."""
    batch, length = mask.shape
    lengths = torch.randint(
        max(length // 2, 1), length + 1, (batch, 1), generator=torch.Generator().manual_seed(seed)
    )
    lengths[0] = length
    return (torch.arange(length)[None] < lengths).to(mask.dtype)


# ---- the survey's graphs (fp32) ---------------------------------------------------------------------------


class ElementwiseChain(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.relu(x + y) * 0.5
        z = torch.sigmoid(z) + torch.tanh(z)
        return torch.exp(-z * z) * y


class LongChain(nn.Module):
    """One input, one result, twenty operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x * 0.5 + 0.25)
        y = torch.sigmoid(y) * y + torch.tanh(y)
        y = torch.sqrt(y.abs() + 1.0) - 0.5
        y = functional.silu(y) * torch.exp(-y)
        y = torch.clamp(y, -2.0, 2.0) / 1.5
        return functional.gelu(y + 0.1) * 0.9


class WrittenNormalisation(nn.Module):
    """A layer norm as it stands in papers, one operator a symbol."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.rand(width) - 0.5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = x + residual
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(variance + 1e-5) * self.weight + self.bias
        return functional.gelu(normed) + residual


class NormalisationResidual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.norm(x + residual)) + residual


class ConvolutionBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x)) + x)


class Perceptron(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))


_SURVEY: dict[str, Callable[[], nn.Module]] = {
    "chain": ElementwiseChain,
    "long chain": LongChain,
    "normalisation": lambda: NormalisationResidual(1024),
    "written normalisation": lambda: WrittenNormalisation(1024),
    "convolution": lambda: ConvolutionBlock(64),
    "perceptron": lambda: Perceptron(1024, 4096),
    "attention": lambda: SelfAttention(768, 12),
}


def survey_graph(graph: str) -> nn.Module:
    """One of the survey's graphs, with fixed random weights; the convolution's norm has statistics that are
    not the identity."""
    torch.manual_seed(0)
    module = _SURVEY[graph]()
    _randomize_norms(module)
    return module


def _randomize_norms(module: nn.Module) -> None:
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None and norm.running_var is not None  # these norms track both
            nn.init.uniform_(norm.running_mean, -0.2, 0.2)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.2, 0.2)


def _survey() -> tuple[Case, ...]:
    rows, image = ("batch", "length", 1024), ("batch", 64, "height", "width")
    return (
        _graph("chain", {"x": rows, "y": rows}, batch=16, length=4096),
        _graph("long chain", {"x": rows}, batch=16, length=4096),
        _graph("normalisation", {"x": rows, "residual": rows}, batch=16, length=4096),
        _graph("written normalisation", {"x": rows, "residual": rows}, batch=16, length=4096),
        _graph("convolution", {"x": image}, batch=16, height=56, width=56),
        _graph("perceptron", {"x": ("rows", 1024)}, rows=8192),
        _graph("attention", {"x": ("batch", "length", 768)}, batch=16, length=512),
    )


def _graph(name: str, shapes: Mapping[str, tuple[str | int, ...]], **sizes: int) -> Case:
    inputs = tuple(InputDeclaration(key, "float32", shape) for key, shape in shapes.items())
    return Case(_source(name, {"factory": "survey_graph", "graph": name}, inputs), (sizes,))


def survey_case(name: str) -> Case:
    return next(case for case in _survey() if case.source.name == name)


# ---- models with random weights --------------------------------------------------------------------------

VISION = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "vit_b_16")


def vision_model(name: str, dtype: str) -> nn.Module:
    """A torchvision model with random weights and norms that do something."""
    try:
        import torchvision  # noqa: PLC0415 - only this factory needs it; the compiler does not
    except ImportError as error:
        raise CaptureError(f"benchmark {name}: needs torchvision: {error}", stage="capture") from error
    torch.manual_seed(0)
    module = torchvision.models.get_model(name, weights=None)
    _randomize_norms(module)
    if name.startswith("vit"):
        nn.init.normal_(module.heads.head.weight, std=0.02)  # zero by default: every answer would be zero
    return module.to(getattr(torch, dtype))


class BertEncoder(nn.Module):
    """BERT base with random weights; gives the last hidden state."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel  # noqa: PLC0415 - only this factory needs it

        self.masked = masked
        configuration = BertConfig()
        configuration._attn_implementation = "sdpa"
        self.bert = BertModel(configuration, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def bert(dtype: str, masked: bool) -> nn.Module:
    torch.manual_seed(0)
    return BertEncoder(masked).to(getattr(torch, dtype))


def _vision(name: str, dtype: str) -> Case:
    shape = ("batch", 3, 224, 224) if name == "vit_b_16" else ("batch", 3, "height", "width")
    sizes = tuple({"batch": b, "height": 224, "width": 224} for b in (1, 16, 64))
    source = _source(
        name,
        {"factory": "vision_model", "name": name, "dtype": dtype},
        (InputDeclaration("x", dtype, shape),),
    )
    return Case(source, sizes, dtype)


def _bert(dtype: str, masked: bool) -> Case:
    inputs = [InputDeclaration("input_ids", "int64", ("batch", "length"), (0, 30522))]
    if masked:
        inputs.append(InputDeclaration("attention_mask", "int64", ("batch", "length"), (0, 2)))
    name = "bert" if masked else "bert_unmasked"
    source = _source(name, {"factory": "bert", "dtype": dtype, "masked": masked}, tuple(inputs))
    sizes = tuple({"batch": b, "length": 128} for b in (1, 16, 64))
    return Case(source, sizes, dtype, {"attention_mask": "padding"} if masked else {})


def models(dtype: str) -> tuple[Case, ...]:
    return (*(_vision(name, dtype) for name in VISION), _bert(dtype, True), _bert(dtype, False))


def _kernels(device: str) -> tuple[Case, ...]:
    return tuple(
        Case(source, sizes, dtype, single_kernel=True) for source, sizes, dtype in kernel_sources(device)
    )


def _operators(device: str) -> tuple[Case, ...]:
    return tuple(Case(source, sizes) for source, sizes in operator_sources())


SUITES = {
    "survey": lambda device: _survey(),
    "models": lambda device: models("float16" if device == "cuda" else "float32"),
    "kernels": _kernels,
    "operators": _operators,
}


def cases(suite: str, device: str) -> tuple[Case, ...]:
    """The cases of a suite. UnknownName lists what exists."""
    if suite not in SUITES:
        raise UnknownName(f"unknown suite {suite!r}: expected one of {', '.join((*SUITES, 'shapes'))}")
    return SUITES[suite](device)
