"""Programs that draw random numbers: each draw is a call of PyTorch's, at each run anew, and the rest is
compared with PyTorch's answers at the same numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captured_programs import Program, captured
from torch import Tensor, nn

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler import artifact as artifacts
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.bridge.chance import Recording, Repeating, draws
from dlcb.compiler.check import Answers, check, prepared
from dlcb.compiler.ir import text
from dlcb.compiler.parameters import load_parameters
from dlcb.compiler.report import Report
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import Store, open_store

aten = torch.ops.aten
X = torch.randn(4)


@pytest.mark.parametrize(
    ("call", "drawn"),
    [
        (lambda: (aten.dropout.default, (X, 0.5, True), {}), True),
        (lambda: (aten.dropout.default, (X, 0.5, False), {}), False),
        (lambda: (aten.dropout.default, (X, 0.0), {"train": True}), False),
        (lambda: (aten.bernoulli.p, (X, 0.0), {}), True),
        (lambda: (aten.rrelu.default, (X,), {}), False),
        (lambda: (aten.rrelu.default, (X, 0.1, 0.3, True), {}), True),
        (lambda: (aten.scaled_dot_product_attention.default, (X, X, X), {}), False),
        (lambda: (aten.scaled_dot_product_attention.default, (X, X, X, None, 0.1), {}), True),
        (lambda: (aten.randn.default, ([3],), {}), True),
        (lambda: (aten.normal_.default, (X,), {}), True),
        (lambda: (aten.relu.default, (X,), {}), False),
    ],
)
def test_which_calls_draw(call: Callable[[], tuple], drawn: bool) -> None:
    assert draws(*call()) is drawn


def test_what_one_run_drew_another_draws_again_in_any_type() -> None:
    def run(kind: torch.dtype) -> tuple[Tensor, ...]:
        x = torch.ones(3, 5, dtype=kind)
        kept = F.dropout(x, 0.5, training=True)
        return torch.randn(3, 5, dtype=kind) * kept, torch.randn_like(x), x.new_empty(2).uniform_()

    with Recording() as recording:
        narrow = run(torch.float32)
    with Repeating(recording.drawn):
        wide = run(torch.float64)
    for one, other in zip(narrow, wide, strict=True):
        assert torch.equal(one.double(), other)
    assert not recording.drawn.seeded


def test_equal_draws_are_two() -> None:
    program = captured(lambda x: torch.randn_like(x) - torch.randn_like(x), ("n", 4))
    drawing = [node for node in program.graph.nodes if "draw" in node.attributes]
    assert len(drawing) == 2
    assert program.draws.startswith("aten.randn_like.default at test_chance.py:")
    printed = text.show(program.graph)
    assert text.show(text.parse(printed)) == printed


# ---- the whole way -------------------------------------------------------------------------------------


def noisy(x: Tensor) -> tuple[Tensor, ...]:
    h = (x * 2).softmax(-1)
    return h + torch.randn_like(h) - torch.randn_like(h), h + torch.rand(8, device=x.device)


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x * 0 + 1, 0.5, training=True)


def chosen(x: Tensor) -> Tensor:
    return torch.multinomial((x * 3).softmax(-1), 4)


def masked(x: Tensor) -> Tensor:
    """Half of the places, by chance."""
    kept = torch.rand(x.shape[0], x.shape[1], device=x.device).argsort(1)[:, : x.shape[1] // 2]
    return x.gather(1, kept).relu()


def filled(x: Tensor) -> Tensor:
    return x.new_empty(x.shape).normal_() * x.exp()


def written(x: Tensor) -> tuple[Tensor, ...]:
    """Into memory that is read again, and into what nobody reads."""
    torch.nn.Linear(3, 2)
    y = x.relu()
    y[:, :2].normal_(std=0.1)
    z = torch.empty_like(x).bernoulli_(0.25) + 1
    return y, z, y[:, 1:3] + z[:, :2].exponential_()


def attending(x: Tensor) -> Tensor:
    q = x[:, None].expand(-1, 3, -1)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return x.relu() + torch.randn_like(x)


def forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return seeded(x)


def own(x: Tensor) -> Tensor:
    return x.relu() + torch.randn(x.shape, generator=torch.Generator().manual_seed(7))


def seeded_in_part(x: Tensor) -> Tensor:
    return forked(x) + torch.randn_like(x)


def seeding_later(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    torch.manual_seed(7)
    return x.relu() + noise


def of_numpy(x: Tensor) -> Tensor:
    return x.relu() + torch.from_numpy(np.random.rand(8).astype("float32"))


def of_python(x: Tensor) -> Tensor:
    return x.relu() + random.random()


def keyed(x: Tensor) -> Tensor:
    return x.relu() * {13: 2.0}.get(x.shape[0], 1.0) + torch.randn_like(x)


FUNCTIONS = {
    each.__name__: each
    for each in (
        *(noisy, dropped, chosen, masked, filled, attending, written, keyed),
        *(seeded, forked, own, seeded_in_part, seeding_later, of_numpy, of_python),
    )
}


def make(name: str) -> nn.Module:
    return Program(FUNCTIONS[name])


def put(name: str, folder: Path) -> tuple[ModelSource, Store, str]:
    """A compiled model: its source, the store that holds it, and its key there."""
    declared = InputDeclaration("x", "float32", ("batch", 8))
    source = ModelSource(name, "1", f"{__name__}:make", arguments={"name": name}, inputs=(declared,))
    store = open_store(folder)
    return source, store, compile_model(source, store, CompileOptions(optimisation="-O0")).artifact_key


def compiled(name: str, folder: Path) -> tuple[Report, CompiledModel]:
    source, store, key = put(name, folder)
    return artifacts.load(key, store).report, load_model(source, key, store)


@pytest.mark.parametrize("name", ["noisy", "dropped", "chosen", "masked", "filled", "attending", "written"])
def test_draws_are_calls_of_pytorchs_within_the_program(name: str, tmp_path: Path) -> None:
    report, model = compiled(name, tmp_path)
    assert report.tier == "dynamic"
    assert "random numbers" in {line.reason for line in report.calls if line.tier == "eager"}
    assert any("draws random numbers, at each call anew" in note for note in report.notes)
    x = torch.randn(200, 8)
    first, again = model.call(x), model.call(x)
    for one, other in zip(first, again, strict=True):
        assert not torch.equal(one, other)
    for rows in (0, 1, 2, 13):
        wanted = FUNCTIONS[name](torch.randn(rows, 8))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        assert [t.shape for t in model.call(torch.randn(rows, 8))] == [t.shape for t in wanted]


def test_each_draw_has_its_own_numbers(tmp_path: Path) -> None:
    _, model = compiled("noisy", tmp_path)
    x = torch.zeros(4000, 8)
    noise, shifted = model.call(x)
    assert 1.3 < float(noise.std()) < 1.5  # of two normal ones: the root of 2
    assert torch.equal(shifted[0], shifted[-1])


def test_what_is_written_is_drawn_where_it_is_written(tmp_path: Path) -> None:
    report, model = compiled("written", tmp_path)
    assert [line.count for line in report.calls if line.reason == "random numbers"] == [1, 1, 1]
    x = torch.randn(4000, 8)
    y, z, both = model.call(x)
    assert torch.equal(y[:, 2:], x[:, 2:].relu())
    assert 0.08 < float(y[:, :2].std()) < 0.12
    assert set(z[:, 2:].unique().tolist()) == {1.0, 2.0}
    torch.testing.assert_close(both, y[:, 1:3] + z[:, :2])


def test_dropout_that_is_asked_for_drops(tmp_path: Path) -> None:
    _, model = compiled("dropped", tmp_path)
    (kept,) = model.call(torch.randn(500, 8))
    assert set(kept.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("seeded", "itself says which random numbers it draws"),
        ("forked", "itself says which random numbers it draws"),
        ("seeded_in_part", "itself says which random numbers it draws"),
        ("seeding_later", "itself says which random numbers it draws"),
        ("of_numpy", "another answer at each call"),
        ("of_python", "another answer at each call"),
        ("own", "a generator of the program's own"),
        ("keyed", "draws random numbers .*, so that PyTorch's answers cannot tell"),
    ],
)
def test_what_cannot_be_compared_is_pytorchs_and_says_so(name: str, why: str, tmp_path: Path) -> None:
    report, model = compiled(name, tmp_path)
    assert report.tier == "eager"
    assert re.search(why, report.quarantined)
    x = torch.randn(3, 8)
    if name in ("seeded", "forked", "own"):
        torch.testing.assert_close(model.call(x)[0], FUNCTIONS[name](x))


def test_a_model_that_seeds_does_not_make_others_repeat(tmp_path: Path) -> None:
    (_, seeding), (_, drawing) = compiled("seeded", tmp_path), compiled("noisy", tmp_path)
    x = torch.zeros(3, 8)
    drawn = []
    torch.seed()  # where it was compiled its seed may be left
    for _ in range(2):
        seeding.call(x)
        drawn.append(drawing.call(x)[0])
    assert not torch.equal(*drawn)
    torch.testing.assert_close(seeding.call(x), seeding.call(x))


def drawing_factory(seed: int | None = None) -> nn.Module:
    """A module of random weights, of each generator some, after it has seeded them if it is told to."""
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    module.bias.data += random.random() + np.random.rand()
    return module


@pytest.mark.parametrize("seed", [None, 1])
def test_a_factory_draws_the_same_everywhere_and_nobody_notices(seed: int | None) -> None:
    source = ModelSource("drawing", "1", f"{__name__}:drawing_factory", {"seed": seed})

    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    modules, numbers = [], []
    for _ in range(2):
        modules.append(load_module(source))
        numbers.append(drawn())
    assert torch.equal(modules[0].weight, modules[1].weight)
    assert torch.equal(modules[0].bias, modules[1].bias)
    assert not set(numbers[0]) & set(numbers[1])
    torch.manual_seed(7)
    wanted = torch.rand(4)
    torch.manual_seed(7)
    load_module(source)
    assert torch.equal(torch.rand(4), wanted) and torch.initial_seed() == 7


@pytest.mark.parametrize(("factor", "agrees"), [(1.0, True), (1.01, False)])
def test_the_load_check_sees_through_noise(factor: float, agrees: bool, tmp_path: Path) -> None:
    """Noise of ten times the answer would hide an error of a hundredth, were it not the same for both."""
    source, store, key = put("noisy", tmp_path)
    artifact = artifacts.load(key, store)
    module = Program(lambda x: tuple(y + (x * 2).softmax(-1) * (factor - 1) for y in noisy(x)))
    eager = prepared(source, module, "cpu")
    answers = Answers(source, module, eager, artifact.signature, "", "cpu", 4, draws=True)
    verdict = check(artifact, key, answers, store, load_parameters(artifact, source, store))
    assert (verdict.quarantined == "") is agrees, verdict.quarantined
