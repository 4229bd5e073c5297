"""Cases of the group Guards: what is not legal is refused by name, and what is legal is right."""

from pathlib import Path

import numpy
import pytest
from case_running import compiled, random

from dlcb.compiler import RequestError, ShapeError
from dlcb.kernel_cache import open_store


def test_A1_a_length_must_be_a_multiple(store):
    case = compiled(store, "hundreds", {"x": ("n",)})
    (found,) = case.agrees(random(2100))
    assert found.shape == (100, 21)
    message = case.refused(random(2099))
    assert "100" in message and "2099" in message and "'x'" in message


def test_A2_two_dims_must_be_equal(store):
    case = compiled(store, "add", {"x": ("b", 3), "y": ("b", 3)})
    case.agrees(random(4, 3), random(4, 3, seed=1))
    message = case.refused(random(4, 3), random(7, 3))
    assert "'x'" in message and "'y'" in message and "4" in message and "7" in message


@pytest.fixture(scope="module")
def declared(store):
    return compiled(store, "plain", {"x": ("b", 3)}, dims={"b": (2, 64)})


@pytest.mark.parametrize(
    "array",
    [random(200, 3).numpy(), random(4, 5).numpy(), numpy.zeros((4, 3), numpy.int64), random(1, 3).numpy()],
    ids=["above", "width", "type", "below"],
)
def test_A3_declared_contracts_are_kept(declared, array):
    assert "'x'" in declared.refused(array)


def test_A3_a_transposed_view_is_computed(declared):
    declared.agrees(random(3, 4).t())


def test_A4_a_declared_dim_is_never_pinned_in_silence(store):
    with pytest.raises(ShapeError) as caught:
        compiled(store, "pinned", {"x": ("n", 4)})
    message = str(caught.value)
    assert "'n'" in message and "case_models.py" in message and "view" in message


def test_A7_equal_graphs_keep_their_own_ranges(tmp_path: Path):
    both = open_store(tmp_path)
    free = compiled(both, "plain", {"x": ("n", 3)})
    branching = compiled(both, "below_ten", {"x": ("n", 3)})
    for n in (2, 9, 10, 40):
        free.agrees(random(n, 3))
    for n in (9, 2, 5, 10, 11, 40, 0):
        branching.agrees(random(n, 3))
    assert sorted(line.serves for line in branching.report.graphs) == ["10 <= n", "n < 10"]
    assert not free.report.graphs


@pytest.mark.parametrize("factory", ["parity", "mean_by_hand", "loop_over_a_size"])
def test_A10_sizes_in_python_code(store, factory):
    case = compiled(store, factory, {"x": ("n", 4)})
    tiers = {n: case.model.plan({"x": (n, 4)}).tier for n in (1, 2, 3, 4, 7, 8, 31)}
    for n, tier in tiers.items():
        case.agrees(random(n, 4), tier=tier)
    if factory != "loop_over_a_size":  # every size of that is another graph
        assert set(tiers.values()) == {"dynamic"}


def test_A10_no_rows_at_all(store):
    case = compiled(store, "nothing_found", {"x": ("n", 3)})
    (found,) = case.agrees(random(0, 3))
    assert found.shape == (1, 3)
    for n in (1, 2, 40):
        case.agrees(random(n, 3))


def test_A8_a_smaller_batch_keeps_its_size(store):
    case = compiled(store, "plain", {"x": ("b", 5)}, dims={"b": (1, 8)})
    (found,) = case.agrees(random(3, 5))
    assert found.shape == (3, 5)
    assert case.signature.output_shapes({"x": (3, 5)}) == {"out0": (3, 5)}


def test_a_violated_guard_launches_nothing(store, monkeypatch):
    case = compiled(store, "hundreds", {"x": ("n",)})
    case.agrees(random(300))

    def launched(*arguments):
        raise AssertionError("a step ran")

    monkeypatch.setattr("dlcb.compiler.runtime.plan.Plan.run", launched)
    with pytest.raises(RequestError, match="100"):
        case.model.call(random(301))
    with pytest.raises(AssertionError, match="a step ran"):
        case.model.call(random(400))
