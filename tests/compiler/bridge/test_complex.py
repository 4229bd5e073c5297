"""Programs with complex numbers against eager PyTorch: put together of real ones they become operators on
both parts; what PyTorch alone makes is handed from call to call; sizes stay free either way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from captured_programs import Program, assert_agrees, captured
from torch import Tensor, nn

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge.generalize import Captured
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.kernel_cache import open_store

SIZES = ((1, 1), (2, 8), (3, 17), (5, 40))


def turned(x: Tensor) -> Tensor:
    """A rotary embedding, with angles made of the length."""
    batch, length, width = x.shape
    places, planes = (torch.arange(size, device=x.device).float() for size in (length, width // 2))
    angles = torch.outer(places, planes / 3)
    turns = torch.polar(torch.ones_like(angles), angles).view(1, length, width // 2)
    pairs = torch.view_as_complex(x.contiguous().view(batch, length, width // 2, 2))
    return torch.view_as_real(pairs * turns).flatten(2)


class Table(nn.Module):
    """The same with angles out of a table, a complex buffer."""

    def __init__(self, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(64.0), torch.arange(3.0))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(2).type_as(x)


def moved(x: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, x.flip(-1))
    w = torch.stack([torch.cat([z, -z.conj()], 1)[:, ::2], z * z], -1).transpose(1, 2)
    flat = w.reshape(x.shape[0], -1)
    back = flat[:, torch.arange(flat.shape[1]).flip(0)]
    return back.real, torch.view_as_real(back), w.mean(1).imag, z[:, :1].expand_as(z).real


def mixed(x: Tensor) -> tuple[Tensor, ...]:
    """Real tensors and numbers of both kinds beside complex ones."""
    z = torch.complex(x, x[:, :1] * 2)
    return (z + x).real, (x - z).imag, (z * x).imag, (z * 2 - 1).real, (z * 1j + (3 - 2j)).imag


IN_PARTS: dict[str, tuple[Callable[..., object] | nn.Module, tuple[str | int, ...]]] = {
    "turned": (turned, ("batch", "length", 6)),
    "by a table": (Table(), ("batch", "length", 6)),
    "by a finer table": (Table(torch.complex128), ("batch", "length", 6)),
    "moved": (moved, ("batch", "length", 6)),
    "mixed": (mixed, ("batch", "length")),
}


def filtered(x: Tensor) -> Tensor:
    """A product in the frequencies of an axis, with weights that start as real numbers."""
    weights = torch.view_as_complex(torch.linspace(-1, 1, 12, device=x.device).view(6, 2))
    return torch.fft.irfft(torch.fft.rfft(x, dim=1) * weights, n=x.shape[1], dim=1)


def written(x: Tensor) -> Tensor:
    """The lowest frequencies alone, written into zeros."""
    found = torch.fft.rfft(x)
    kept = torch.zeros_like(found)
    kept[..., :1] = found[..., :1] * 2
    return torch.fft.irfft(kept, n=x.shape[-1])


def spectrum(x: Tensor, **options: object) -> Tensor:
    found = torch.stft(x, 8, return_complex=True, **options)
    return torch.log1p(found.abs() ** 2).transpose(1, 2).relu()


BY_PYTORCH: dict[str, tuple[Callable[..., object], tuple[str | int, ...]]] = {
    "both axes": (lambda x: torch.fft.fftn(x, dim=(1, 2)).real.relu(), ("batch", "length", 6)),
    "one by one": (lambda x: torch.fft.fft(torch.fft.fft(x), dim=1).real * 2, ("batch", "length", 6)),
    "filtered": (filtered, ("batch", "length", 6)),
    "written": (written, ("batch", "length")),
    "a number to the power": (lambda x: torch.exp(1j * x).imag + 1, ("batch", "length")),
    "size and angle": (lambda x: torch.polar((z := torch.fft.fft(x)).abs(), z.angle()).real, ("batch", "n")),
}
SPECTRA = (
    {"window": torch.hann_window(8)},
    {"hop_length": 3, "win_length": 5, "normalized": True},
    {"hop_length": 2, "window": torch.hann_window(6), "win_length": 6, "onesided": False, "center": False},
)


def agrees(program: Captured, module: nn.Module, sizes: tuple[int, int], further: tuple[int, ...]) -> None:
    x = torch.randn(*sizes, *further)
    assert_agrees(program, module, {"x0": x})
    assert_agrees(program, module, {"x0": x.mT.contiguous().mT})


@pytest.mark.parametrize("name", IN_PARTS)
def test_what_is_put_together_becomes_our_own_operators(name: str) -> None:
    function, shape = IN_PARTS[name]
    program = captured(function, shape)
    assert not any(node.op.name == "eager" for node in program.graph.nodes)
    assert all(not dim.is_const for dim in program.graph.inputs[0].shape[:2])
    assert all(not tensor.is_complex() for tensor in program.parameters.values())
    module = function if isinstance(function, nn.Module) else Program(function)
    for sizes in SIZES:
        agrees(program, module, sizes, tuple(shape[2:]))


@pytest.mark.parametrize("name", BY_PYTORCH)
def test_what_pytorch_makes_is_handed_from_call_to_call(name: str) -> None:
    function, shape = BY_PYTORCH[name]
    program = captured(function, shape)
    assert any(value.dtype.is_complex for value in program.graph.values())
    assert any(node.op.name != "eager" for node in program.graph.nodes) or name == "written"
    assert all(not dim.is_const for dim in program.graph.inputs[0].shape[:2])
    for sizes in SIZES[1:]:
        agrees(program, Program(function), sizes, tuple(shape[2:]))


@pytest.mark.parametrize("options", SPECTRA, ids=",".join)
def test_a_short_time_transform_has_as_many_frames_as_the_sound_says(options: dict[str, object]) -> None:
    function = partial(spectrum, **options)
    program = captured(function, ("batch", "samples"))
    assert all(not dim.is_const for dim in program.graph.outputs[0].shape[:2])
    for sizes in ((1, 9), (2, 31), (3, 100)):
        agrees(program, Program(function), sizes, ())


def test_infinite_parts_spread_as_in_pytorch() -> None:
    def function(x: Tensor) -> Tensor:
        z = torch.complex(torch.where(x > 0, torch.inf, x), x)
        return torch.view_as_real((z * x + 1) * 2)

    program = captured(function, ("n", "m"))
    x = torch.tensor([[1.0, -1.0, 0.0], [2.0, -0.5, -0.0]])
    wanted = function(x)
    assert wanted.isnan().any()
    assert_agrees(program, Program(function), {"x0": x})


ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda z, w: z + w,
    "sum by alpha": lambda z, w: torch.add(z, w, alpha=3),
    "sum by a complex alpha": lambda z, w: torch.add(z, w, alpha=2 - 1j),
    "difference by alpha": lambda z, w: torch.sub(z, w, alpha=2.5),
    "sum with real ones": lambda z, w: z + w.real,
    "sum of real ones": lambda z, w: w.real - z,
    "sum with numbers": lambda z, w: (z + 2) - (1 - 0.1j) + z.shape[0],
    "product": lambda z, w: z * w,
    "product with real ones": lambda z, w: z * w.real,
    "product with numbers": lambda z, w: z * 2 * (1 - 3j),
    "combination": lambda z, w: z * 0.5 - w.conj() * 1j,
    "total": lambda z, w: torch.stack([z, w]).sum(0),
    "mean": lambda z, w: torch.stack([z, w, w]).mean(0),
    "mean of nothing": lambda z, w: z[:0].mean(0) + w,
    "quotient": lambda z, w: z / w,
    "size": lambda z, w: torch.complex(z.abs(), w.angle()),
}
PARTS = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 1.0, -2.5])


@pytest.mark.parametrize("name", ARITHMETIC)
def test_infinite_and_undefined_parts_spread_as_in_pytorch(name: str) -> None:
    """Every pair of numbers whose parts are of these."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.view_as_real(
            ARITHMETIC[name](torch.view_as_complex(x), torch.view_as_complex(y)).contiguous()
        )

    ways = torch.cartesian_prod(PARTS, PARTS, PARTS, PARTS)
    program = captured(function, ("n", 2), ("n", 2))
    assert_agrees(program, Program(function), {"x0": ways[:, :2].clone(), "x1": ways[:, 2:].clone()})


# of real numbers, and the width that it has to be a multiple of; of others no pair begins at an even place
PAIRED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "the first pair of a row": (lambda x: x[..., :2], 2),
    "the second pair of a row": (lambda x: x[..., 2:4], 2),
    "a copy of it": (lambda x: x[..., 2:4].contiguous(), 1),
    "pairs of a part": (lambda x: x[..., : x.shape[-1] // 4 * 2].unflatten(-1, (-1, 2)), 2),
    "pairs, turned": (lambda x: x.unflatten(-1, (-1, 2)).transpose(0, 1), 2),
    "every second row": (lambda x: x[::2, :, :2], 2),
    "one pair of four": (lambda x: x.unflatten(-1, (-1, 4, 2))[:, :, :, 1], 8),
}


@pytest.mark.parametrize("name", PAIRED)
def test_numbers_that_lie_in_pairs_are_complex_ones_where_pytorch_says_so(name: str) -> None:
    cut, multiple = PAIRED[name]

    def function(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(cut(x)) * 1j)

    program = captured(function, ("batch", "length", "width"))
    assert not any(node.op.name == "eager" for node in program.graph.nodes)
    assert all(verdict.multiple == (multiple if verdict.axis == 2 else 1) for verdict in program.verdicts)
    for sizes in ((1, 1, 8), (2, 3, 16), (3, 2, 8 + multiple)):
        assert_agrees(program, Program(function), {"x0": torch.randn(sizes)})
    if multiple > 1:
        with pytest.raises(RuntimeError):
            function(torch.randn(2, 3, 9))


def test_writes_into_what_lies_in_pairs() -> None:
    def function(x: Tensor) -> Tensor:
        y = (x + 1).view(-1, 3, 2)
        z = torch.view_as_complex(y)
        z *= 1j
        torch.view_as_real(z.transpose(0, 1)).add_(1)
        return y

    program = captured(function, ("n", 6))
    assert program.verdicts[0].certainty == "proven"
    assert_agrees(program, Program(function), {"x0": torch.randn(5, 6)})


def test_a_complex_output_is_said() -> None:
    with pytest.raises(UnsupportedOperator, match="output 0 is complex"):
        captured(torch.fft.rfft, ("n", 8))


# ---- the whole way -------------------------------------------------------------------------------------


class Mixing(nn.Module):
    """A layer of FNet, and one with rotary embeddings, in half precision around them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6).to(getattr(torch, kind))
        self.table = Table()

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.fft.fft2(self.first(x).float()).real
        return self.table(mixed).to(x.dtype).relu()


class Filtering(nn.Module):
    """Frequencies weighted by complex parameters, as a global filter has them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.mixed = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        found = torch.fft.rfft(x) * self.weights.exp()
        turned = (found[:, None] @ self.mixed.mH).squeeze(1)
        return torch.fft.irfft(turned, n=6).relu() + turned.mT.conj().imag.sum() + found.t().real.t()[:, :1]


def test_complex_parameters_are_worked_on_once_at_load(tmp_path: Path) -> None:
    declared = InputDeclaration("x", "float32", ("batch", 6))
    source = ModelSource("filtering", "1", factory=f"{__name__}:Filtering", inputs=(declared,))
    store = open_store(tmp_path)
    made = compile_model(source, store, CompileOptions(optimisation="-O0"))
    assert made.report.tier == "dynamic"
    called = {line.operator for line in made.report.calls if line.tier == "eager"}
    assert called.isdisjoint({"aten.exp.default", "aten.mH.default", "aten.view_as_complex.default"})
    model = load_model(source, made.artifact_key, store)
    for rows in (1, 2, 7):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(model.call(x), (Filtering()(x),))


def outputs(x: Tensor) -> Tensor:
    return torch.fft.rfft(x)


def complex_outputs() -> nn.Module:
    return Program(outputs)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_compiled_model_agrees_and_says_why_calls_are_pytorchs(kind: str, tmp_path: Path) -> None:
    declared = InputDeclaration("x", kind, ("batch", "length", 6))
    source = ModelSource(
        "mixing", "1", factory=f"{__name__}:Mixing", arguments={"kind": kind}, inputs=(declared,)
    )
    store = open_store(tmp_path)
    made = compile_model(source, store, CompileOptions(optimisation="-O0"))
    assert made.report.tier == "dynamic"
    assert {line.operator: line.reason for line in made.report.calls if line.tier == "eager"} == {
        "aten.fft_fft2.default": "complex numbers",
        "aten.real.default": "complex numbers",
    }
    model, module = load_model(source, made.artifact_key, store), Mixing(kind)
    assert model.signature.batch is not None
    for sizes in SIZES:
        x = torch.randn(*sizes, 6).to(getattr(torch, kind))
        (found,) = model.call(x)
        torch.testing.assert_close(found, module(x))


def test_a_model_with_complex_outputs_is_refused(tmp_path: Path) -> None:
    declared = InputDeclaration("x", "float32", ("batch", 6))
    source = ModelSource("outputs", "1", factory=f"{__name__}:complex_outputs", inputs=(declared,))
    with pytest.raises(UnsupportedOperator, match="view_as_real"):
        compile_model(source, open_store(tmp_path), CompileOptions(optimisation="-O0"))


def pairs() -> nn.Module:
    return Program(lambda x: torch.view_as_real(x.contiguous().view(torch.complex64) * 1j))


def test_a_type_that_counts_bytes_has_no_answer_in_float64(tmp_path: Path) -> None:
    """Twice as many elements are as many complex ones of float64."""
    declared = InputDeclaration("x", "float32", ("batch", 6))
    source = ModelSource("pairs", "1", factory=f"{__name__}:pairs", inputs=(declared,))
    store = open_store(tmp_path)
    model = load_model(source, compile_model(source, store).artifact_key, store)
    assert model.report.tier == "dynamic"
    for rows in (0, 1, 5):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(model.call(x), (pairs()(x),))
