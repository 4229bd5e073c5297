"""Sizes of results that are 1 where the program is traced first: PyTorch's own code takes them for the number
1, and the graph must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_programs import assert_agrees, captured
from torch import Tensor, nn
from torch.nn import functional as F

from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.probes import Prober
from dlcb.compiler.bridge.search import Search
from dlcb.compiler.bridge.symbolic import holds

_SIZES = ((11, 32), (13, 9), (8, 8), (15, 16), (16, 15), (31, 40), (40, 24), (57, 90))
_LIKE = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))
_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")

Function = Callable[[Tensor], Tensor]


def _patches(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 8)


def _by_size(mode: str) -> Function:
    return lambda x: _patches(x) + F.interpolate(_LIKE, size=_patches(x).shape[-2:], mode=mode)


def _by_scale(mode: str) -> Function:
    return lambda x: F.interpolate(_patches(x), scale_factor=2.0, mode=mode)


_STRIDED = {
    "convolution": lambda x: F.conv2d(x, torch.ones(2, 3, 8, 8) / 64, stride=8),
    "depthwise": lambda x: F.conv2d(x, torch.ones(3, 1, 5, 5) / 25, stride=4, groups=3),
    "pooling": lambda x: F.max_pool2d(x, 8) - F.avg_pool2d(x, 8),
    "pooling_of_pooling": lambda x: F.avg_pool2d(F.max_pool2d(x, 2), 4).softmax(-1),
    "steps": lambda x: x[..., ::8, ::8] * 2 + x[..., 4::8, 4::8].mean(),
    "a_part": lambda x: x[..., : x.shape[2] // 8, : x.shape[3] // 8].cumsum(-1),
    "unfold": lambda x: x.unfold(2, 8, 8).mean(-1) + 1,
    "unfolded": lambda x: F.unfold(x, 8, stride=8).softmax(-1),
    "chunk": lambda x: x[:, :, ::8].chunk(2, 3)[0] + 1,
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 8, 1)).flatten(1),
    "normalised": lambda x: F.layer_norm(_patches(x).movedim(1, 3), (3,)).flatten(1, 2),
    "summed": lambda x: _patches(x) + _patches(x).sum(2, keepdim=True),
    "flattened": lambda x: (_patches(x) + F.interpolate(_LIKE, _patches(x).shape[-2:], mode="bicubic"))
    .flatten(2)
    .transpose(1, 2),
}  # fmt: skip
_PROGRAMS: dict[str, Function] = {
    **_STRIDED,
    **{f"{mode} by size": _by_size(mode) for mode in _MODES},
    **{f"{mode} by scale": _by_scale(mode) for mode in _MODES},
}


class _OneInput(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class _TwoInputs(_OneInput):
    def forward(self, x: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.function(x), text.softmax(-1)


def _assert_serves(program: Captured, module: nn.Module, *text: Tensor) -> int:
    """At each size a graph agrees with PyTorch, or none refuses the size. How many a graph serves."""
    served = 0
    for h, w in _SIZES:
        inputs = (torch.randn(2, 3, h, w, generator=torch.Generator().manual_seed(h)), *text)
        sizes = {
            dim: size
            for given, x in zip(program.inputs, inputs, strict=True)
            for dim, size in zip(given.shape or (), x.shape, strict=True)
            if isinstance(dim, str)
        }
        graphs = (program, *program.others)
        serving = [each for each in graphs if all(holds(c, sizes) for c in _conditions(each))]
        if serving:
            served += 1
            names = [value.name for value in program.graph.inputs]
            assert_agrees(serving[0], module, dict(zip(names, inputs, strict=True)))
            continue
        module(*inputs)
        broken = [c for c in _conditions(program) if not holds(c, sizes)]
        limited = {v.size for v in program.verdicts if v.beyond == "eager"}
        assert all({symbol.value for symbol in c.free} & limited for c in broken), (sizes, broken)
    return served


def _conditions(program: Captured) -> list:
    return [guard.condition for guard in program.graph.system.solve().guards]


@pytest.mark.parametrize("name", _PROGRAMS)
def test_one_input(name: str) -> None:
    module = _OneInput(_PROGRAMS[name]).eval()
    assert _assert_serves(captured(module, ("b", 3, "h", "w")), module) == len(_SIZES)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_two_inputs(name: str) -> None:
    module = _TwoInputs(_PROGRAMS[name]).eval()
    program = captured(module, ("b", 3, "h", "w"), ("t", "n"))
    assert _assert_serves(program, module, torch.randn(3, 7)) == len(_SIZES)


@pytest.mark.parametrize("moved", (True, False))
@pytest.mark.parametrize("name", _PROGRAMS)
def test_traced_where_all_sizes_of_results_are_one(
    name: str, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first trace is moved; where it is not, another graph serves what this one refuses, or PyTorch."""
    small = {"b": 8, "h": 11, "w": 13, "t": 7, "n": 5}
    monkeypatch.setattr(Prober, "first", lambda self: {dim.name: small[dim.name] for dim in self.free})
    monkeypatch.setattr(Search, "_roomier", lambda self, first: first)
    if not moved:
        monkeypatch.setattr(Search, "_apart", lambda self, first: first, raising=False)
    module = _TwoInputs(_PROGRAMS[name]).eval()
    program = captured(module, ("b", 3, "h", "w"), ("t", "n"))
    served = _assert_serves(program, module, torch.randn(3, 7))
    assert served == len(_SIZES) if moved else served > 0
