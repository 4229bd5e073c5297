"""Programs that are the same at the edge of a branch and not beyond, lists as long as a size says, numbers
taken from tensors, and what the load check must survive: right at every size, whoever serves it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.errors import CaptureError, RequestError
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

Function = Callable[[torch.Tensor], torch.Tensor]
ROWS = (0, 1, 2, 3, 7, 8, 9, 99, 100, 101, 103, 120, 150, 299, 300, 301, 600)

FUNCTIONS: dict[str, Function] = {
    "at least 300": lambda x: x / max(x.shape[0], 300),
    "at most 300": lambda x: x / min(x.shape[0], 300),
    "from far behind": lambda x: x[-100:] * 2,
    "all but far ahead": lambda x: x[:-100] * 2,
    "a narrower type": lambda x: x.float() @ torch.eye(4, dtype=torch.float32),
    "nothing is divided": lambda x: x * (1 / x.shape[0]),
    "another result beyond": lambda x: torch.cat([x + 1, x * 2] if x.shape[0] < 300 else [x * 2, x + 1]),
    "the last of some pieces": lambda x: x.split(2)[-1] + 1,
    "the last but one": lambda x: x.split(3)[-2],
    "a piece from the front": lambda x: x.split(2)[2],
    "a third": lambda x: x.chunk(3)[0],
    "the last third": lambda x: x.chunk(3)[-1],
    "the last row": lambda x: x.unbind(0)[-1],
    "as many additions as pieces": lambda x: sum((piece.sum() for piece in x.split(3)), x),
    "pieces that differ by one": lambda x: x.tensor_split(3)[1],
    "filled with an infinity": lambda x: x + torch.full((x.shape[0], 1), -math.inf),
    "filled with no number": lambda x: x + torch.full((x.shape[0], 1), math.nan),
    "a size of a result that nobody reads": lambda x: torch.unique(x.round(), dim=0),
    "one of several results": lambda x: torch.unique(x.round(), return_inverse=True)[1],
    "how often each value came": lambda x: torch.unique_consecutive(x.round(), return_counts=True)[1],
    "a float of a tensor": lambda x: x * (x.numel() and x.max().item()),
    "an integer of a tensor": lambda x: x * (x > 0).sum().item(),
    "arithmetic on such numbers": lambda x: x * ((x > 0).sum().item() * 2 + 0.5),
    "a truth value of a tensor": lambda x: x * (x.sum() > 0).item(),
    "so many rows": lambda x: x[: (x > 0).sum().item() // 1],
    "so many that are made": lambda x: torch.ones((x > 0).sum().item(), 2) * x.sum(),
    "a multiple beyond": lambda x: x * 2 if x.shape[0] % 50 == 0 and x.shape[0] > 100 else x * 1,
    "odd and beyond": lambda x: x * 2 if x.shape[0] % 2 and x.shape[0] > 101 else x * 1,
    "a remainder within": lambda x: x * 2 if 7 < x.shape[0] < 100 and x.shape[0] % 3 == 0 else x * 1,
    "other pieces beyond": lambda x: (
        torch.cat([piece.softmax(0) for piece in x.split(50)])
        if x.shape[0] > 100 and x.shape[0] % 50 == 0
        else x.softmax(0)
    ),
    "three conditions": lambda x: (
        x * 2 if x.shape[0] > 8 and x.shape[0] % 100 and x.shape[0] > 200 and x.shape[0] < 301 else x * 1
    ),
    "a number that changes only beyond": lambda x: x * (1 if x.shape[0] < 100 else 1 + x.shape[0] // 200),
    "near a size": lambda x: x * (2 if abs(x.shape[0] - 100) < 2 else 1),
    "a branch on a run-time size": lambda x: x * 2 if x[x[:, 0] > 0].shape[0] > 2 else x - 1,
    "filled with such a number": lambda x: torch.full((x.shape[0],), x.sum().item()),
}
WHOLLY_EAGER: dict[str, Function] = {
    "a branch on a number": lambda x: x * 2 if x.sum().item() > 0 else x - 1,
    "a branch on a tensor": lambda x: x * 2 if x.sum() > 0 else x - 1,
    "numbers that leave PyTorch": lambda x: x * float(str(float(x.sum()))),
}


class Program(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = (FUNCTIONS | WHOLLY_EAGER | UNFOLLOWED)[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def program(name: str) -> nn.Module:
    return Program(name)


def source(factory: str, **arguments: object) -> ModelSource:
    return ModelSource(
        "edge", "1", factory=f"{__name__}:{factory}", arguments=arguments,
        inputs=(InputDeclaration("x", "float32", ("n", 4)),),
    )  # fmt: skip


@pytest.mark.parametrize("name", [*FUNCTIONS, *WHOLLY_EAGER])
def test_agrees_on_both_sides_of_the_edge(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path / "cache"))  # where reproductions go
    store = open_store(tmp_path)
    described = source("program", name=name)
    compilation = compile_model(described, store)
    assert bool(compilation.report.quarantined) == (name in WHOLLY_EAGER)
    assert compilation.signature.batch is None or name in FUNCTIONS
    model, eager = load_model(described, compilation.artifact_key, store), program(name)
    for rows in ROWS:
        x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
        try:
            expected = eager(x)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            with pytest.raises(RequestError):
                model.call(x)
        else:
            torch.testing.assert_close(model.call(x)[0], expected, equal_nan=True)


UNFOLLOWED: dict[str, Function] = {
    "looked up": lambda x: x * {120: 2}.get(x.shape[0], 1),
    "a float made an integer": lambda x: x * int(x.shape[0] / 64),
    "both of a division": lambda x: x * (divmod(x.shape[0], 1000)[0] + 1),
}


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_nothing_is_proven_where_the_sizes_cannot_be_followed(name: str, tmp_path: Path) -> None:
    described, store = source("program", name=name), open_store(tmp_path)
    compilation = compile_model(described, store)
    assert not compilation.report.quarantined
    assert compilation.signature.batch is None
    assert all(compilation.signature.padding.values())
    model = load_model(described, compilation.artifact_key, store)
    for rows in () if name == "looked up" else (0, 1, 63, 64, 130, 5001, 10001):
        x = torch.ones(rows, 4)
        torch.testing.assert_close(model.call(x)[0], UNFOLLOWED[name](x))


class SomeAreNone(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        return {"first": x + 1, "state": None, "second": x * 2}


class NoneFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, x + 1


class AlsoASize(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | int]:
        return {"y": x + 1, "rows": x.shape[0]}


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * 2 if x.sum() > 0 else x


class GivesCounts(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.count


MODULES = {each.__name__: each for each in (SomeAreNone, NoneFirst, AlsoASize, Counts, GivesCounts)}


def module(name: str) -> nn.Module:
    return MODULES[name]()


@pytest.mark.parametrize(
    ("name", "outputs"), [("SomeAreNone", ["first", "second"]), ("NoneFirst", ["output_0"])]
)
def test_outputs_that_are_none_are_left_out(name: str, outputs: list[str], tmp_path: Path) -> None:
    described, store = source("module", name=name), open_store(tmp_path)
    compilation = compile_model(described, store)
    assert [spec.name for spec in compilation.signature.outputs] == outputs
    assert not compilation.report.quarantined
    found = load_model(described, compilation.artifact_key, store).call(torch.ones(3, 4))
    assert [tuple(tensor.shape) for tensor in found] == [(3, 4)] * len(outputs)


def test_an_output_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="output 'rows' is of type int"):
        compile_model(source("module", name="AlsoASize"), open_store(tmp_path))


def test_a_model_whose_answers_depend_on_a_state_is_refused_though_pytorch_runs_it(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="depend on those before"):
        compile_model(source("module", name="GivesCounts"), open_store(tmp_path))
    assert compile_model(source("module", name="Counts"), open_store(tmp_path)).report.tier == "eager"
