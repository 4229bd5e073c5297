"""What models of few lines become on a GPU: programs that draw random numbers, with complex numbers, that
write in place; before and after their plans are recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import test_complex
import torch
from captured_programs import Program
from torch import Tensor, nn

from dlcb.compiler import InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.loading import options_for
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import open_store

pytestmark = pytest.mark.device


def repeated(x: Tensor) -> Tensor:
    """The names of a loop are bound anew at each turn."""
    for k in range(3):
        y = x.relu() + k
        x = torch.cat([y, x[:, :1]], 1)
    return x


def moved(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.mT.contiguous()
    y[:2] += 1
    return y.mT.softmax(-1), y.flip(0).roll(1, 0)


def woven(x: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even - odd, even * odd], -1).flatten(-2)


STATED = {each.__name__: each for each in (repeated, moved, woven)}
FUNCTIONS: dict[str, tuple[Callable[..., object] | nn.Module, tuple[str | int, ...]]] = {
    **{f"complex, {name}": stated for name, stated in test_complex.IN_PARTS.items()},
    **{f"complex by PyTorch, {name}": stated for name, stated in test_complex.BY_PYTORCH.items()},
    **{name: (function, ("batch", 8)) for name, function in STATED.items()},
}
SIZES = ((1, 1), (2, 8), (5, 40))
RUNS = 4  # of a shape, after which its plan may be recorded


def make(name: str) -> nn.Module:
    function = FUNCTIONS[name][0]
    return function if isinstance(function, nn.Module) else Program(function)


def compiled(
    name: str, factory: str, shape: Sequence[str | int], folder: Path, dtype: str = "float32"
) -> CompiledModel:
    declared = InputDeclaration("x", dtype, tuple(shape))
    source = ModelSource("model", "1", factory, arguments={"name": name}, inputs=(declared,))
    store = open_store(folder)
    made = compile_model(source, store, options_for("cuda"))
    return load_model(source, made.artifact_key, store, device="cuda")


def drawn(shape: Sequence[str | int], sizes: Sequence[int]) -> Tensor:
    free = iter(sizes)
    return torch.randn([next(free) if isinstance(dim, str) else dim for dim in shape], device="cuda")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_agrees_with_eager_on_the_device(name: str, tmp_path: Path) -> None:
    shape = FUNCTIONS[name][1]
    model = compiled(name, f"{__name__}:make", shape, tmp_path)
    assert model.report.tier == "dynamic"
    module = make(name).to("cuda")
    for sizes in SIZES[name == "complex by PyTorch, both axes" :]:
        for _ in range(RUNS):
            x = drawn(shape, sizes)
            wanted = module(x.clone())  # at one row the transposed is what it was, and is written to
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            torch.testing.assert_close(model.call(x), wanted, atol=1e-4, rtol=1e-4, equal_nan=True)
        while model.promote():
            pass


@pytest.mark.parametrize("name", ["noisy", "dropped", "chosen", "masked", "filled", "attending", "written"])
def test_each_replay_draws_anew(name: str, tmp_path: Path) -> None:
    model = compiled(name, "test_chance:make", ("batch", 8), tmp_path)
    assert model.report.tier == "dynamic"
    x = torch.randn(200, 8, device="cuda")
    for _ in range(RUNS):
        model.call(x)
    while model.promote():
        pass
    answers = [model.call(x) for _ in range(3)]
    for one, other in pairwise(answers):
        for mine, its in zip(one, other, strict=True):
            assert not torch.equal(mine, its)
    torch.manual_seed(3)
    first = model.call(x)
    torch.manual_seed(3)
    for mine, its in zip(model.call(x), first, strict=True):
        assert torch.equal(mine, its)
