"""Names of inputs and outputs: whatever a file calls them, each is the tensor that the module calls so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.errors import DeclarationError
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import open_store


class Both(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        return {"logits": query + 1, "hidden_states": key * 2}


class Behind(nn.Module):
    """With a parameter that has no place."""

    def forward(self, ids: Tensor, *, mask: Tensor) -> Tensor:
        return ids * 2 - mask


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.arange(3.0))

    def forward(self, input: Tensor) -> Tensor:
        input += 1
        return input * self.input


class Named(nn.Module):
    """Takes whatever names there are."""

    def forward(self, **batch: Tensor) -> Tensor:
        return batch["ids"] * 2 - batch["mask"]


@dataclass
class Parts:
    logits: Tensor
    hidden_states: Tensor
    loss: Tensor | None = None


class InParts(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Parts:
        return Parts(query + 1, key * 2)


class ByValue(InParts):
    """PyTorch runs it."""

    def forward(self, query: Tensor, key: Tensor) -> Parts:
        return super().forward(query, key) if query.sum() > -1e9 else Parts(key, query)


class Nested(InParts):
    def forward(self, query: Tensor, key: Tensor) -> list[Parts | Tensor]:
        return [super().forward(query, key), query]


MODULES = {
    "both": Both,
    "behind": Behind,
    "one": One,
    "named": Named,
    "in parts": InParts,
    "by value": ByValue,
    "nested": Nested,
}


def make(name: str) -> nn.Module:
    return MODULES[name]()


def compiled(name: str, folder: Path, inputs: list[str], outputs: list[str] = []) -> CompiledModel:  # noqa: B006
    declared = tuple(InputDeclaration(each, "float32", ("batch", 3)) for each in inputs)
    source = ModelSource(
        "named", "1", f"{__name__}:make", {"name": name}, inputs=declared, outputs=tuple(outputs)
    )
    store = open_store(folder)
    key = compile_model(source, store, CompileOptions(optimisation="-O0")).artifact_key
    return load_model(source, key, store)


A, B = torch.arange(6.0).view(2, 3), torch.ones(2, 3)


@pytest.mark.parametrize(
    "name",
    [
        "input",
        "type",
        "id",
        "max",
        "class",
        "X",
        "INPUT0",
        "INPUT__0",
        "input.1",
        "x-1",
        "1x",
        "image:0",
        "self",
    ],
)
def test_an_input_may_be_called_anything(name: str, tmp_path: Path) -> None:
    model = compiled("one", tmp_path, [name])
    assert model.report.tier == "dynamic"
    torch.testing.assert_close(model.call(A)[0], (A + 1) * torch.arange(3.0))


@pytest.mark.parametrize(
    "inputs", [["query", "key"], ["key", "query"], ["q", "k"], ["INPUT0", "INPUT1"], ["q", "key"]]
)
def test_inputs_go_by_name_or_by_place(inputs: list[str], tmp_path: Path) -> None:
    model = compiled("both", tmp_path, inputs)
    swapped = inputs[0] == "key"
    logits, hidden = model.call(*((B, A) if swapped else (A, B)))
    torch.testing.assert_close((logits, hidden), (A + 1, B * 2))


@pytest.mark.parametrize(("inputs", "meant"), [(["key", "quary"], "query"), (["qeury", "query"], "query")])
def test_a_name_of_another_place_is_no_guess(inputs: list[str], meant: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=rf"did you mean '{meant}'\?\) is no parameter of `forward`"):
        compiled("both", tmp_path, inputs)


@pytest.mark.parametrize("inputs", [["ids", "mask"], ["mask", "ids"]])
@pytest.mark.parametrize("name", ["behind", "named"])
def test_parameters_without_a_place_go_by_name(name: str, inputs: list[str], tmp_path: Path) -> None:
    model = compiled(name, tmp_path, inputs)
    given = {"ids": A, "mask": B}
    torch.testing.assert_close(model.call(*(given[name] for name in inputs))[0], A * 2 - B)


def test_outputs_go_by_key_or_are_named_anew(tmp_path: Path) -> None:
    for outputs in ([], ["logits", "hidden_states"], ["hidden_states", "logits"], ["first", "second"]):
        model = compiled("both", tmp_path, ["query", "key"], outputs)
        named = dict(zip((spec.name for spec in model.signature.outputs), model.call(A, B), strict=True))
        keys = ["logits", "hidden_states"] if outputs != ["first", "second"] else outputs
        torch.testing.assert_close(named, {keys[0]: A + 1, keys[1]: B * 2})


def test_a_key_beside_a_name_that_is_none_is_an_error(tmp_path: Path) -> None:
    said = (
        r"output 'hidden' \(did you mean 'hidden_states'\?\) is no output of the model: it has logits, hidden"
    )
    with pytest.raises(DeclarationError, match=said):
        compiled("both", tmp_path, ["query", "key"], ["hidden", "logits"])


@pytest.mark.parametrize(("name", "tier"), [("in parts", "dynamic"), ("by value", "eager")])
def test_the_fields_of_a_dataclass_are_keys(name: str, tier: str, tmp_path: Path) -> None:
    model = compiled(name, tmp_path, ["query", "key"], ["hidden_states", "logits"])
    assert model.report.tier == tier
    named = dict(zip((spec.name for spec in model.signature.outputs), model.call(A, B), strict=True))
    torch.testing.assert_close(named, {"logits": A + 1, "hidden_states": B * 2})
    with pytest.raises(DeclarationError, match="did you mean 'hidden_states'"):
        compiled(name, tmp_path, ["query", "key"], ["hidden", "logits"])


def test_dataclasses_within_lists_are_taken_apart(tmp_path: Path) -> None:
    model = compiled("nested", tmp_path, ["query", "key"])
    torch.testing.assert_close(list(model.call(A, B)), [A + 1, B * 2, A])
