"""Programs that are not known to be the model at every size: PyTorch answers first, what agrees is compiled
from then on, what does not stays PyTorch's."""

import dataclasses
import json
import logging
from pathlib import Path

import numpy
import pytest
import torch
from test_model import LOOKUP, TWICE, array, lookup_model, store, twice_model

from dlcb.compiler import InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.errors import ContractError, GuardError, IndexRangeError
from dlcb.compiler.thunks import unproven
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import open_store

__all__ = ["store"]


@pytest.fixture(autouse=True)
def _reproductions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path))


def but(*rows: int) -> ModelSource:
    return dataclasses.replace(TWICE, factory="thunk_models:twice_but", arguments={"rows": list(rows)})


def served(model: CompiledModel, rows: int, times: int = 2) -> tuple[str, str]:
    x = array(rows, 5)
    outcome = model.run({"x": x})
    numpy.testing.assert_allclose(outcome.outputs["out"], times * x, rtol=1e-6)
    return outcome.tier, outcome.result


def test_pytorch_answers_first_and_what_agrees_is_compiled(store) -> None:
    model = twice_model(store, but(), confirmed=())
    assert model.plan({"x": (3, 5)}).tier == "eager"
    assert [served(model, 3) for _ in range(3)] == [("eager", "miss"), ("dynamic", "hit"), ("dynamic", "hit")]
    assert model.plan({"x": (3, 5)}).tier == "dynamic"
    assert served(model, 4) == ("eager", "miss")
    counters = model.counters
    assert (counters.confirmed, counters.refuted, counters.guard_failures) == (2, 0, 0)


def test_what_the_load_check_saw_is_confirmed(store) -> None:
    model = twice_model(store, but(), confirmed=(((3, 5),),))
    assert served(model, 3)[0] == "dynamic"
    assert served(model, 4)[0] == "eager"


def test_what_disagrees_stays_pytorchs_and_is_kept(store, tmp_path: Path, caplog) -> None:
    model = twice_model(store, but(7), confirmed=())
    assert [served(model, 7, 3)[0] for _ in range(3)] == ["eager"] * 3
    assert [served(model, 8)[0] for _ in range(2)] == ["eager", "dynamic"]
    counters = model.counters
    assert (counters.confirmed, counters.refuted, counters.quarantined) == (1, 1, False)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "twice is PyTorch's at {'x': (7, 5)}" in said
    kept = json.loads((tmp_path / "reproductions" / "twice-1.json").read_text())
    assert kept["deviations"][0]["shapes"] == {"x": [7, 5]}


def test_after_a_few_disagreements_pytorch_serves_the_model(store, caplog) -> None:
    model = twice_model(store, but(7, 9, 11, 13), confirmed=())
    assert [served(model, 8)[0] for _ in range(2)] == ["eager", "dynamic"]
    for rows in (7, 9, 11):
        served(model, rows, 3)
    assert model.counters.quarantined and model.counters.refuted == 3
    assert "from now on" in caplog.text
    assert served(model, 8)[0] == served(model, 13, 3)[0] == served(model, 14)[0] == "eager"
    assert model.plan({"x": (8, 5)}).tier == "eager"
    assert model.counters.refuted == 3  # nothing is compared any more


def test_a_callers_zeros_confirm_nothing(store) -> None:
    model = twice_model(store, but(7), confirmed=())
    model.run({"x": numpy.zeros((7, 5), "float32")})
    assert model.counters.refuted == 1
    assert served(model, 7, 3)[0] == "eager"


def test_a_callers_infinities_refute_nothing(store) -> None:
    model = twice_model(store, but(7), confirmed=())
    x = numpy.full((6, 5), numpy.inf, "float32")
    assert model.run({"x": x}).tier == "eager"
    assert model.counters.refuted == 0


@pytest.mark.parametrize("operation", ("clamped", "defined", "ended", "nonzero", "untied"))
def test_what_differs_at_far_values_alone_is_seen(store, operation: str) -> None:
    source = dataclasses.replace(
        TWICE, factory="thunk_models:twice_elsewhere", arguments={"operation": operation}
    )
    model = twice_model(store, source, confirmed=())
    assert [served(model, 7)[0] for _ in range(2)] == ["eager", "eager"]
    assert [served(model, 8)[0] for _ in range(2)] == ["eager", "dynamic"]
    assert (model.counters.confirmed, model.counters.refuted) == (1, 1)


def test_the_load_check_confirms_only_what_agrees_at_far_values(tmp_path: Path) -> None:
    source = dataclasses.replace(
        TWICE,
        factory="thunk_models:twice_elsewhere",
        arguments={"operation": "clamped"},
        dims={"rows": (7, 7)},
    )
    local = open_store(tmp_path)
    compiled = compile_model(source, local)
    assert compiled.report.unproven
    model = load_model(source, compiled.artifact_key, local)
    x = numpy.full((7, 5), 100, "float32")
    for _ in range(2):
        assert model.run({"x": x}).outputs["out"].max() == 20


def test_confirmed_shapes_are_bounded(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unproven, "_REMEMBERED", 2)
    model = twice_model(store, but(), confirmed=())
    assert [served(model, rows)[0] for rows in (1, 2, 3)] == ["eager"] * 3
    assert [served(model, rows)[0] for rows in (3, 2, 1)] == ["dynamic", "dynamic", "eager"]


def test_contract_and_guards_come_first(store) -> None:
    model = twice_model(store, but(), confirmed=())
    with pytest.raises(ContractError, match="declared as 1 to 64"):
        model.run({"x": array(2, 65)})
    assert served(model, 600)[0] == "eager"  # beyond a guard of the program
    assert (model.counters.guard_failures, model.counters.confirmed) == (1, 0)
    refusing = twice_model(store, confirmed=())
    with pytest.raises(GuardError, match="n <= 512 must hold"):
        refusing.run({"x": array(600, 3)})


def test_an_index_is_bad_where_both_say_so(store) -> None:
    source = dataclasses.replace(LOOKUP, factory="thunk_models:lookup_but")
    model = lookup_model(store, source, confirmed=())
    ids = numpy.array([[1, 12]])
    (found,) = model.run({"ids": ids}).outputs.values()  # the program's table is shorter
    assert found[0, 1].tolist() == [48.0, 49.0, 50.0, 51.0]
    with pytest.raises(IndexRangeError) as caught:
        model.run({"ids": numpy.array([[1, 2], [3, 12]])})
    assert caught.value.position == (1, 1)
    counters = model.counters
    assert (counters.confirmed, counters.refuted) == (0, 0)


def test_ranks_that_are_first_met_are_confirmed_too(tmp_path: Path) -> None:
    inputs = (InputDeclaration("x", "float32", None),)
    source = dataclasses.replace(but(7), inputs=inputs, dims={}, jit="wait")
    local = open_store(tmp_path)
    model = load_model(source, compile_model(source, local).artifact_key, local)
    assert [served(model, 30)[0] for _ in range(2)] == ["eager", "jit"]
    assert [served(model, 7, 3)[0] for _ in range(2)] == ["eager", "eager"]
    counters = model.counters
    assert (counters.confirmed, counters.refuted, counters.compiles_requested) == (1, 1, 1)


def test_what_is_proven_pays_nothing(store) -> None:
    model = twice_model(store)
    assert type(model._program) is ProgramThunk
    assert served(model, 3)[0] == "dynamic"
    assert torch.equal(model.call(torch.ones(2, 2))[0], torch.full((2, 2), 2.0))
