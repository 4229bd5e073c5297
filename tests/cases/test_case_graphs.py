"""Models whose graph changes with the sizes: windows with padding, a causal mask that one row does without, a
sequence of length 1. Each size has a compiled graph, and the report says which serves what."""

import pytest
from case_running import compiled, random

from dlcb.compiler.build.toolchain import calls


def test_windows_with_padding_at_every_size(store):
    case = compiled(store, "windows", {"x": ("b", "h", "w", 8)})
    for b, h, w in ((1, 4, 4), (2, 5, 8), (1, 8, 7), (2, 9, 13), (1, 1, 1)):
        case.agrees(random(b, h, w, 8))
    assert case.free() == {"b", "h", "w"}


def test_a_causal_mask_at_batch_one_and_two(store):
    case = compiled(store, "causal_block", {"x": ("b", "s", 32)})
    for b, s in ((1, 7), (2, 7), (1, 1), (3, 1), (1, 40), (5, 33)):
        case.agrees(random(b, s, 32))
    assert sorted(line.serves for line in case.report.graphs) == ["b != 1", "b == 1"]
    line = next(line for line in case.report.dims if line.size == "b")
    assert line.beyond == "graph 2" and "case_models.py" in line.source_line
    assert case.signature.batch is None  # two requests of one row each would take the other graph


def test_relative_positions_from_sequence_one_on(store):
    case = compiled(store, "relative_encoder", {"x": ("b", "s", 32)})
    for b, s in ((1, 2), (2, 17), (1, 1), (2, 1), (4, 40)):
        case.agrees(random(b, s, 32))
    # both graphs keep rows apart, and the size that chooses between them is not the batch
    assert case.signature.batch is not None and case.signature.batch.symbol == "b"
    assert case.signature.output_dims["out0"] == ("b", "s", "32")


@pytest.mark.parametrize(
    ("factory", "sizes"),
    [("three_ways", (0, 5, 15, 16, 99, 100, 400)), ("parity", (1, 2, 30, 31)), ("without_ones", (1, 2, 9))],
)
def test_a_known_shape_is_a_hit_on_every_graph(store, factory, sizes):
    case = compiled(store, factory, {"x": ("n", 3)})
    assert len(case.report.graphs) > 1 and not case.report.elsewhere
    before = calls.total
    for n in sizes:
        case.agrees(random(n, 3))
        assert case.model.plan({"x": (n, 3)}).cached
    again = [case.model.run({"x": random(n, 3).numpy()}) for n in sizes]
    assert {outcome.result for outcome in again} == {"hit"}
    assert case.model.counters.guard_failures == 0 and calls.total == before


def test_the_number_of_graphs_is_bounded_and_the_rest_is_eager(store):
    case = compiled(store, "many_ways", {"x": ("n", 3)})
    assert len(case.report.graphs) == 4
    line = case.report.dims[0]
    assert line.beyond == "graphs 2 to 4, else eager PyTorch"
    assert case.report.elsewhere
    assert {guard.graph for guard in case.report.guards} == {1, 2, 3, 4}
    tiers = {n: case.model.plan({"x": (n, 3)}).tier for n in range(1, 80, 9)}
    assert set(tiers.values()) == {"dynamic", "eager"}
    for n, tier in tiers.items():
        case.agrees(random(n, 3), tier=tier)
