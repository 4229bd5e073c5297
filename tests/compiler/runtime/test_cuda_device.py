"""The CUDA device: launches on PyTorch's stream, bad indices that leave the device usable, graphs that change
nothing."""

from functools import partial
from pathlib import Path
from typing import Any

import compiled_graphs
import pytest
import torch

from dlcb.compiler.dtype import FLOAT32, INT64
from dlcb.compiler.errors import ArtifactError, IndexRangeError
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder
from dlcb.compiler.runtime import graphs
from dlcb.compiler.runtime.graphs import Recorder
from dlcb.compiler.thunks import measured
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.kernel_cache import LayeredStore, open_store

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LayeredStore:
    return open_store(tmp_path_factory.mktemp("store"))


def text_model() -> Graph:
    """Embedding, a linear layer and attention over its heads, GELU: kernels between library calls."""
    build = GraphBuilder("text_model")
    batch, length = build.system.fresh("batch"), build.system.fresh("length")
    ids = build.input("ids", (batch, length), INT64)
    table, w = build.parameter("table", (100, 64), FLOAT32), build.parameter("w", (64, 64), FLOAT32)
    x = build.apply(ops.embedding, table, ids)
    split = (batch, length, as_expr(2), as_expr(32))
    heads = build.apply(ops.reshape, build.apply(ops.linear, x, w), shape=split)
    heads = build.apply(ops.permute, heads, order=(0, 2, 1, 3))
    attended = build.apply(ops.attention, heads, heads, heads, scale=0.5, causal=False)
    merged = build.apply(ops.permute, attended, order=(0, 2, 1, 3))
    merged = build.apply(ops.reshape, merged, shape=(batch, length, as_expr(64)))
    return build.build(build.apply(ops.gelu, build.apply(ops.add, merged, x), approximate="none"))


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return {"table": torch.randn(100, 64), "w": torch.randn(64, 64) / 8}


@pytest.fixture
def thunk(store: LayeredStore, weights: dict[str, torch.Tensor]) -> ProgramThunk:
    return compiled_graphs.compiled(text_model(), weights, store, cuda=True)


def eager(ids: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    table, w = weights["table"].to(ids.device), weights["w"].to(ids.device)
    x = torch.nn.functional.embedding(ids, table)
    heads = torch.nn.functional.linear(x, w).unflatten(-1, (2, 32)).transpose(1, 2)
    attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, scale=0.5)
    return torch.nn.functional.gelu(attended.transpose(1, 2).flatten(2) + x)


def draw(*shape: int) -> torch.Tensor:
    return torch.randint(0, 100, shape, device="cuda")


def test_alternating_shapes_over_poisoned_memory(thunk: ProgramThunk, weights) -> None:
    for shape in [(2, 7), (1, 1), (16, 33), (2, 7), (0, 5), (64, 128), (1, 1)] * 2:
        ids = draw(*shape)
        thunk.executor.around.memory.block.fill_(0xFF)
        torch.testing.assert_close(thunk.run([ids]).outputs[0], eager(ids, weights), atol=1e-4, rtol=1e-4)


def test_another_stream_is_followed(thunk: ProgramThunk, weights) -> None:
    ids = draw(4, 9)
    thunk.run([ids])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = thunk.run([ids]).outputs[0]
    side.synchronize()
    torch.testing.assert_close(out, eager(ids, weights), atol=1e-4, rtol=1e-4)


def test_a_bad_index_leaves_the_device_usable(thunk: ProgramThunk, weights) -> None:
    ids = draw(3, 5)
    for place, bad in (((1, 2), 100), ((2, 4), -1)):
        broken = ids.clone()
        broken[place] = bad
        for _ in range(2):
            with pytest.raises(IndexRangeError) as caught:
                thunk.run([broken])
            assert (caught.value.input, caught.value.position, caught.value.value) == ("ids", place, bad)
        torch.testing.assert_close(thunk.run([ids]).outputs[0], eager(ids, weights), atol=1e-4, rtol=1e-4)


def test_recorded_plans_give_the_same_and_find_bad_indices(thunk: ProgramThunk, weights) -> None:
    recorder = Recorder(torch.device("cuda", 0), least_runs=2, least_launches=1)
    assert not recorder.promote(thunk.executor)
    shapes = [(2, 7), (4, 4)]
    for shape in shapes * 2:
        thunk.run([draw(*shape)])
    assert recorder.promote(thunk.executor)
    assert recorder.promote(thunk.executor)
    assert recorder.graphs == 2
    assert promoted(recorder, thunk) == 2  # their products are measured
    assert recorder.graphs == 2
    kept = []
    for shape in shapes * 3:
        ids = draw(*shape)
        ran = thunk.run([ids])
        assert ran.hit
        kept.append((ran.outputs[0], eager(ids, weights)))
    for found, expected in kept:  # a later replay did not write over an earlier result
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    ids[0, 1] = 1000
    with pytest.raises(IndexRangeError, match=r"input 'ids' holds 1000 at position \[0, 1\]"):
        thunk.run([ids])
    ids[0, 1] = 0
    torch.testing.assert_close(thunk.run([ids]).outputs[0], eager(ids, weights), atol=1e-4, rtol=1e-4)


def test_a_plan_is_recorded_again_where_something_is_faster(
    thunk: ProgramThunk, weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here everything is faster than PyTorch's call, and each measurement takes all the time there is."""
    monkeypatch.setattr(measured, "_measured", {})
    monkeypatch.setattr(measured, "_SHORT", 0.0)
    monkeypatch.setattr(measured, "_seconds", lambda run, repeats: float(isinstance(run, partial)))
    monkeypatch.setattr(graphs, "_MEASURED_AT_ONCE", 1e-9)
    recorder = Recorder(torch.device("cuda", 0), least_runs=2, least_launches=1)
    ids = draw(3, 8)
    for _ in range(2):
        thunk.run([ids])
    assert recorder.promote(thunk.executor)
    (plan,) = thunk.executor.cache
    recorded = plan.recorded
    assert promoted(recorder, thunk) >= 1
    assert any(algorithm is not None for algorithm in measured._measured.values())
    assert plan.recorded is not recorded
    for _ in range(3):
        ids = draw(3, 8)
        torch.testing.assert_close(thunk.run([ids]).outputs[0], eager(ids, weights), atol=1e-4, rtol=1e-4)
    ids[2, 7] = 100
    with pytest.raises(IndexRangeError, match=r"holds 100 at position \[2, 7\]"):
        thunk.run([ids])


def promoted(recorder: Recorder, thunk: ProgramThunk) -> int:
    """How often there was something to promote."""
    for count in range(100):
        if not recorder.promote(thunk.executor):
            return count
    raise AssertionError("there is always something to promote")


@pytest.mark.parametrize("recorded", [False, True])
def test_checks_that_are_made_later_find_what_was_bad(thunk: ProgramThunk, weights, recorded: bool) -> None:
    checks = thunk.executor.around.device.checks
    ids, other = draw(3, 5), draw(6, 2)
    for each in (ids, other, ids, other):
        thunk.run([each])
    if recorded:
        recorder = Recorder(torch.device("cuda", 0), least_runs=2, least_launches=1)
        assert recorder.promote(thunk.executor)
        assert recorder.promote(thunk.executor)
    broken = ids.clone()
    broken[1, 4] = 100
    checks.later = True
    try:
        for _ in range(3):
            made = [thunk.run([ids]).outputs[0] for _ in range(20)]
            checks.settle()
            for out in made:
                torch.testing.assert_close(out, eager(ids, weights), atol=1e-4, rtol=1e-4)
            thunk.run([broken])
            thunk.run([ids])
            with pytest.raises(IndexRangeError, match=r"holds 100 at position \[1, 4\]"):
                checks.settle()
            thunk.run([broken])
            with pytest.raises(IndexRangeError, match=r"holds 100 at position \[1, 4\]"):
                thunk.run([other])
            torch.testing.assert_close(
                thunk.run([other]).outputs[0], eager(other, weights), atol=1e-4, rtol=1e-4
            )
    finally:
        checks.later = False
        checks.settle()


def test_the_pool_of_graphs_is_bounded(thunk: ProgramThunk, weights) -> None:
    recorder = Recorder(torch.device("cuda", 0), least_runs=1, least_launches=1, limit_bytes=0)
    ids = draw(5, 6)
    for _ in range(3):
        thunk.run([ids])
        recorder.promote(thunk.executor)
    assert recorder.drops >= 1
    assert recorder.bytes == 0
    torch.testing.assert_close(thunk.run([ids]).outputs[0], eager(ids, weights), atol=1e-4, rtol=1e-4)


def test_a_plan_whose_copies_take_longer_than_its_launches_is_not_recorded(store: LayeredStore) -> None:
    build = GraphBuilder("one_kernel")
    x = build.input("x", (build.system.fresh("n"),), FLOAT32)
    graph = build.build(build.apply(ops.gelu, build.apply(ops.add, x, x), approximate="none"))
    thunk = compiled_graphs.compiled(graph, {}, store, cuda=True)
    recorder = Recorder(torch.device("cuda", 0), least_runs=1, least_launches=1, copied_bytes=1 << 40)
    given = torch.randn(1 << 26, device="cuda")
    for _ in range(2):
        thunk.run([given])
    assert not recorder.promote(thunk.executor)
    assert recorder.graphs == 0
    torch.testing.assert_close(thunk.run([given]).outputs[0], torch.nn.functional.gelu(given + given))


@pytest.mark.parametrize("faster", [False, True])
def test_a_plan_with_much_to_copy_is_recorded_if_that_is_faster(
    faster: bool, store: LayeredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = GraphBuilder("some_kernels")
    x = build.input("x", (build.system.fresh("n"), 2048), FLOAT32)
    for _ in range(4):
        x = build.apply(ops.softmax, build.apply(ops.flip, x, axes=(0,)), axis=0)
    thunk = compiled_graphs.compiled(build.build(x), {}, store, cuda=True)
    recorder = Recorder(torch.device("cuda", 0), least_runs=1)
    compared: list[bool] = []
    measure = Recorder._is_faster

    def judge(self: Recorder, *given: Any) -> bool:
        compared.append(measure(self, *given))
        return faster

    monkeypatch.setattr(Recorder, "_is_faster", judge)
    given = torch.randn(1024, 2048, device="cuda")  # 16 MiB in and out
    (expected,) = thunk.run([given]).outputs
    while recorder.promote(thunk.executor):
        pass
    assert len(compared) == 1
    assert recorder.graphs == faster
    for _ in range(2):
        torch.testing.assert_close(thunk.run([given]).outputs[0], expected)


def test_growth_of_the_arena_does_not_disturb_a_recorded_plan(thunk: ProgramThunk, weights) -> None:
    recorder = Recorder(torch.device("cuda", 0), least_runs=1, least_launches=1)
    small, large = draw(2, 3), draw(64, 200)
    thunk.run([small])
    assert recorder.promote(thunk.executor)
    thunk.run([large])
    for _ in range(2):
        torch.testing.assert_close(thunk.run([small]).outputs[0], eager(small, weights), atol=1e-4, rtol=1e-4)


def test_a_binary_that_is_gone_or_broken_is_said(
    store: LayeredStore, thunk: ProgramThunk, tmp_path: Path
) -> None:
    other = open_store(tmp_path)
    device = thunk.executor.around.device
    with pytest.raises(ArtifactError, match="no kernels under"):
        device.load(["a" * 64], other)
    other.put("a" * 64, b"no cubin")
    with pytest.raises(ArtifactError, match="do not load here"):
        device.load(["a" * 64], other)
