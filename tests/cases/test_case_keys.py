"""Sizes that Python uses as keys, text or numbers: no trace and no symbolic forward shows what follows from
them. Every answer is right at every size, and what can be compiled is, once it was seen to be right."""

from pathlib import Path

import pytest
import torch
from case_running import compiled, random

SIZES = (1, 2, 3, 7, 13, 17, 20, 53, 129)


@pytest.fixture(autouse=True)
def _reproductions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("factory", "other"),  # sizes at which the program is another
    [
        ("key_of_a_dictionary", {13}),
        ("member_of_a_set", {7, 129}),
        ("its_digits", {7, 17}),
        ("its_hash", {3, 53}),
        ("caught", {13}),
        ("refused_and_caught", {13}),  # in float64 it is refused everywhere
        ("rows_counted", {13}),
        ("remembered", {13}),
        ("tables", set()),
    ],
)
def test_sizes_are_confirmed_one_by_one(store, factory, other):
    case = compiled(store, factory, {"x": ("n", 4)})
    assert "case_models.py" in case.report.unproven
    assert case.report.dims[0].certainty == "confirmed shape by shape"
    said = case.signature.stacking["n"]
    assert said == f"confirmed shape by shape: {case.report.unproven}" or "uses it" in said
    case.model.run({"x": torch.zeros(13, 4).numpy()})  # zeros would hide a factor
    tiers = {}
    for _ in range(2):
        for n in SIZES:
            x = random(n, 4)
            outcome = case.model.run({"x": x.numpy()})
            (expected,) = case.reference.eager([x])
            assert torch.equal(torch.from_numpy(outcome.outputs["out0"]), expected)
            tiers[n] = outcome.tier
    served = case.model.counters
    assert {n for n in SIZES if tiers[n] == "eager"} == other
    assert served.refuted == len(other) and not served.quarantined
    assert served.confirmed == len(SIZES) - len(other)


def test_a_place_in_a_list_is_a_size_of_its_own(store):
    case = compiled(store, "place_in_a_list", {"x": ("n", 4)})
    for n in (5, 19, 20, 40):
        x = random(n, 4)
        assert torch.equal(case.model.call(x)[0], case.reference.eager([x])[0])


@pytest.mark.parametrize("factory", ["pieces_counted", "second_half", "divides_a_number"])
def test_what_a_size_decides_is_a_graph_of_its_own(store, factory):
    case = compiled(store, factory, {"x": ("n", 4)})
    assert not case.report.unproven
    for n in (1, 2, 3, 13, 26, 50, 51, 100, 129):
        x = random(n, 4)
        assert torch.equal(case.model.call(x)[0], case.reference.eager([x])[0])


@pytest.mark.parametrize("factory", ["half_as_a_number", "blocks_as_a_number"])
def test_a_number_made_of_a_size_stays_symbolic(store, factory):
    case = compiled(store, factory, {"x": ("n", 4)})
    assert not case.report.unproven
    for n in (2, 9, 63, 64, 129):
        x = random(n, 4)
        assert case.model.run({"x": x.numpy()}).tier == "dynamic"
        assert torch.equal(case.model.call(x)[0], case.reference.eager([x])[0])


def test_what_is_caught_may_be_broadcast(store):
    case = compiled(store, "broadcast_or_caught", {"x": ("n", 4)})
    assert "refuses is caught" in case.report.unproven
    for n in (*SIZES, *SIZES):
        x = random(n, 4)
        assert torch.equal(case.model.call(x)[0], case.reference.eager([x])[0])
