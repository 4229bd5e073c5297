"""ATen operators by name, with plain arguments; nothing else can be called."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlcb.compiler.bridge import agreement
from dlcb.compiler.errors import ArtifactError, ChangedCode, GuardError
from dlcb.compiler.thunks import eager

CPU = torch.device("cpu")


def test_placeholders_types_and_keywords_are_decoded() -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 3)

    def call(target: str, arguments: tuple, *operands: torch.Tensor) -> Any:
        return eager.binder(target, arguments, CPU)(operands, None)()

    cat = eager.binder("aten.cat.default", (("$1", "$0"), 1), CPU)
    assert torch.equal(cat([a, b], None)(), torch.cat([b, a], 1))
    assert torch.equal(cat([b, a], None)(), torch.cat([a, b], 1))  # bound once more
    arguments = ((2, 3), 7, ("dtype=", "dtype:int32"), ("device=", "device"))
    assert torch.equal(call("aten.full.default", arguments), torch.full((2, 3), 7, dtype=torch.int32))
    values, order = call("aten.topk.default", ("$0", "#1"), a, torch.tensor(2))
    assert torch.equal(a.gather(1, order), values)
    assert torch.equal(call("aten.clamp.Tensor", ("$0", ("max=", "$1")), a, b), a.clamp(max=b))


@pytest.mark.parametrize(
    "target",
    [
        "os.system.default",
        "aten.relu",
        "aten.relu.default.extra",
        "aten.__class__.x",
        "aten.nothing.default",
        "prims.add.default",
        "os:prims.add.default",
        "torch:aten.no_such.default",
        "torch.nn:prims.add",
    ],
)
def test_other_names_are_refused(target) -> None:
    with pytest.raises(ArtifactError, match="operator"):
        eager.resolve(target)


class Picky(torch.nn.Module):
    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + ids, "both": [x, ids]}


def test_a_module_takes_its_inputs_by_name_and_loads_once() -> None:
    loads = []

    def load() -> torch.nn.Module:
        loads.append(1)
        return Picky()

    thunk = eager.EagerThunk(load, ["x", "ids"], CPU)
    assert not loads
    x, ids = torch.randn(3), torch.tensor([1, 2, 3])
    for _ in range(2):
        ran = thunk.run([x, ids])
        assert [t.dtype for t in ran.outputs] == [torch.float32, torch.float32, torch.int64]
        assert torch.equal(ran.outputs[0], x + ids)
        assert not ran.hit
    assert len(loads) == 1


def test_an_answer_for_which_other_code_was_loaded_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, refuses = [1], []
    monkeypatch.setattr(eager.modules, "loads", lambda: len(loads))

    def check() -> None:
        if refuses:
            raise ChangedCode("another")

    thunk, given = (
        eager.EagerThunk(Picky, ["x", "ids"], CPU, check),
        [torch.randn(3), torch.tensor([1, 2, 3])],
    )
    thunk.run(given)
    refuses.append(1)
    thunk.run(given)  # nothing was loaded for it
    loads.append(2)
    for _ in range(2):
        with pytest.raises(ChangedCode):
            thunk.run(given)


class Counting(torch.nn.Module):
    """Says how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = SimpleNamespace(calls=0, met=[])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.settings.calls += 1
        self.settings.met.append(x.shape[0])
        return x + self.settings.calls + len(self.settings.met)


class Shrinking(torch.nn.Module):
    """A window that a small image makes smaller, for good."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.nn.Identity()
        self.part.window = 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.window = min(self.part.window, x.shape[0])
        if x.shape[0] == 13:
            raise ValueError("13")
        return x * self.part.window


class Growing(torch.nn.Module):
    """A table that is made anew only for more rows, and then holds other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, torch.Tensor] = {"rows": torch.zeros(1, 1)}
        self.register_buffer("places", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.tables["rows"]) < len(x):
            self.tables["rows"] = torch.linspace(0, 1, len(x))[:, None]
            self.register_buffer("places", torch.ones(1) * len(x))
        return x + self.tables["rows"][: len(x)] + self.places.sum()


@pytest.mark.parametrize("kind", [Counting, Shrinking, Growing])
def test_no_answer_depends_on_those_before_it(kind: type[torch.nn.Module]) -> None:
    thunk, reference = eager.EagerThunk(kind, ["x"], CPU), agreement.Reference(kind())
    for rows in (5, 2, 13, 9, 5):
        x = torch.randn(rows, 3)
        try:
            expected = kind()(x)
        except ValueError:
            with pytest.raises(GuardError, match="13"):
                thunk.run([x])
            continue
        assert torch.equal(thunk.run([x]).outputs[0], expected)
        assert torch.equal(reference.eager([x])[0], expected)
        torch.testing.assert_close(reference.exact([x])[0].float(), expected)


class Narrow(torch.nn.Module):
    """Names narrower types than float64: such a sum is a half one, such a product does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.zeros(x.shape, dtype=torch.float16)
        kept += x / 3
        return kept, self.layer(x.to(torch.float32))


def test_the_exact_answer_is_in_float64_whatever_types_a_module_names() -> None:
    module, x = Narrow(), torch.randn(5, 3)
    reference = agreement.Reference(module)
    for _ in range(2):
        kept, made = reference.exact([x])
    assert kept.dtype is made.dtype is torch.float64
    torch.testing.assert_close(kept, x.double() / 3)
    torch.testing.assert_close(made, module.double().layer(x.double()))
    assert torch.zeros(2, dtype=torch.float16).dtype is torch.float16


def test_what_pytorch_refuses_is_the_callers_fault_in_its_words() -> None:
    thunk = eager.EagerThunk(Picky, ["x", "ids"], CPU)
    with pytest.raises(GuardError, match=r"refuses inputs 'x' \[3\], 'ids' \[4\]: The size of tensor"):
        thunk.run([torch.randn(3), torch.ones(4)])
