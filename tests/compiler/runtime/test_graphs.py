"""The bound on the bytes of recorded plans, without a GPU: what recording one takes is made up, which plans
are recorded, measured and dropped is not."""

from __future__ import annotations

from pathlib import Path

import compiled_graphs
import pytest
import torch

from dlcb.compiler.dtype import FLOAT32
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.runtime.executor import Executor
from dlcb.compiler.runtime.graphs import Recorder
from dlcb.compiler.runtime.plan import Plan
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.kernel_cache import open_store


class Replayed:
    """Stands for a graph; a thunk on the CPU has none."""

    def run(self, inputs: object) -> tuple[torch.Tensor, ...]:
        raise AssertionError("nothing runs")


class Growing(Recorder):
    """Each recording, and each measurement after it, takes the next number of bytes; a negative one fails
    when it has taken them. There is something to measure until they are used up."""

    sizes: list[int]

    def _record(self, executor: Executor, plan: Plan, effort: Effort, measured: bool = False) -> None:
        size = self.sizes.pop(0)
        self.bytes += abs(size)
        if size < 0:
            raise RuntimeError("out of memory")
        effort.postponed = bool(self.sizes)
        if plan.recorded is None:
            plan.give_way(Replayed())


@pytest.fixture
def thunk(tmp_path: Path) -> ProgramThunk:
    build = GraphBuilder("one_kernel")
    x = build.input("x", (build.system.fresh("n"),), FLOAT32)
    graph = build.build(build.apply(ops.add, x, x))
    return compiled_graphs.compiled(graph, {}, open_store(tmp_path))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Growing:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "MemPool", object)
    return Growing(torch.device("cpu"), least_runs=1, least_launches=1, limit_bytes=100)


@pytest.mark.parametrize(
    ("sizes", "dropped_after"),
    [
        ([101], 0),
        ([60, 60], 1),
        ([60, 0, 41, 0], 2),  # while it is measured
        ([60, -60], 1),  # recording it again fails
        ([-101], 0),
        ([60, 0, 40], None),
    ],
)
def test_the_bound_holds_after_whatever_may_have_grown_the_pool(
    sizes: list[int], dropped_after: int | None, thunk: ProgramThunk, recorder: Growing
) -> None:
    recorder.sizes = list(sizes)
    thunk.run([torch.ones(3)])
    (plan,) = thunk.executor.cache
    for number in range(len(sizes)):
        recorder.promote(thunk.executor)
        assert recorder.drops == (number == dropped_after)
        if number == dropped_after:
            assert recorder.bytes == recorder.graphs == 0
            assert plan.recorded is None and plan.runs == (1 if sizes[0] < 0 else 0)
            return
        assert recorder.graphs == 1 and recorder.bytes == sum(sizes[: number + 1])
    assert not recorder.promote(thunk.executor)
