"""Hot plans as CUDA graphs: what was many launches becomes one. Graphs are recorded when the caller says that
the queue is idle, on a stream of their own; they share one memory pool that is bounded in bytes and dropped
as a whole, since freeing one graph may free nothing. What is faster for a recorded plan is measured after it,
a moment at a time, and the plan recorded again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.runtime.executor import Executor
from dlcb.compiler.runtime.memory import SharedArena
from dlcb.compiler.runtime.plan import Plan
from dlcb.compiler.runtime.types import TORCH

_WARM_RUNS = 2  # the first of a hot plan is when libraries plan their calls
_MEASURED_AT_ONCE = 0.02  # seconds for which a request may find the GPU taken
_COPIED_A_LAUNCH = 7 << 20  # bytes; a fast GPU copies them while a host launches one kernel, 3 to 4 us
_COPIED_ANYWAY = 32 << 20  # bytes, 16 us: a run of few launches costs the host more
_COMPARED = 8  # calls, of a plan whose copies may take as long as what a graph saves

logger = logging.getLogger(__name__)


class RecordedPlan:
    """One graph with inputs and outputs at fixed addresses. The next replay overwrites them, so results are
    copied."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        plan: Plan,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        block: torch.Tensor,
    ) -> None:
        self._graph, self._plan = graph, plan
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._block = block  # the arena that its launches know by address

    def run(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """As `Plan.run` and `Plan.show`, on the current stream."""
        self._plan.expect()
        shown = self.replay(inputs)
        self._plan.verify()
        return shown

    def replay(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The same without a look at indices."""
        for fixed, given in zip(self._inputs, inputs, strict=True):
            fixed.copy_(given, non_blocking=True)
        self._graph.replay()
        return tuple([tensor.clone() for tensor in self._outputs])


class Recorder:
    """Records plans of any number of executors on one device.

    A plan is worth it after `least_runs` runs, and when the inputs and outputs that each replay copies are no
    larger than `copied_bytes`, nor take longer than the launches that it saves, which is measured where it is
    close. When the pool has grown
    beyond `limit_bytes`, all its graphs are dropped.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        least_runs: int = 8,
        least_launches: int = 3,
        copied_bytes: int = 64 << 20,
        limit_bytes: int = 2 << 30,
    ) -> None:
        self._device, self._least_runs, self._least_launches = device, least_runs, least_launches
        self._copied_bytes, self._limit_bytes = copied_bytes, limit_bytes
        self._stream = torch.cuda.Stream(device)
        self._recorded: WeakSet[Plan] = WeakSet()
        self._unmeasured: WeakKeyDictionary[Plan, Executor] = WeakKeyDictionary()
        # graphs have an arena of their own, so that a larger shape served meanwhile does not undo them
        self._memory = SharedArena(device)
        self._pool = torch.cuda.MemPool()
        self.bytes = 0  # of the pool
        self.drops = 0  # of whole pools

    @property
    def graphs(self) -> int:
        """How many plans are recorded now."""
        return len(self._recorded)

    def promote(self, executor: Executor) -> bool:
        """Record the hottest plan that deserves it, or measure what would be faster for one that is recorded;
        False when there is neither. Call it when nothing waits to run."""
        promoted = self._promote(executor)
        if self.bytes > self._limit_bytes:
            self.drop()
        return promoted

    def _promote(self, executor: Executor) -> bool:
        plan = executor.hottest(self._least_runs, self._least_launches)
        if plan is None:
            return self._improve(executor)
        read = sum([tensor.nbytes for tensor in self._inputs(executor, plan, "meta")])
        copied = read + executor.output_bytes(plan.concrete)
        worth_copying = max(_COPIED_ANYWAY, plan.launches * _COPIED_A_LAUNCH)
        if copied > min(self._copied_bytes, worth_copying):
            plan.recordable = False
            return self._promote(executor)
        effort = Effort()
        try:
            self._record(executor, plan, effort, measured=copied > _COPIED_A_LAUNCH)
        except (
            RuntimeError
        ) as error:  # an operator that waits for the device, or no memory: it runs as before
            plan.recordable = False
            logger.warning("a plan of %s cannot be recorded: %s", executor.program.name, error)
            return False
        if plan.recorded is None:  # it runs faster without
            plan.recordable = False
            return True
        self._recorded.add(plan)
        if effort.postponed:
            self._unmeasured[plan] = executor
        return True

    def _improve(self, executor: Executor) -> bool:
        """Measure for a moment, for one recorded plan; when all is known that could be faster, record it
        again. False when there is no such plan."""
        plan = next((plan for plan, owner in self._unmeasured.items() if owner is executor), None)
        if plan is None:
            return False
        effort = Effort(_MEASURED_AT_ONCE)
        try:
            self._record(executor, plan, effort)
        except RuntimeError as error:
            logger.warning("a plan of %s stays as it was recorded: %s", executor.program.name, error)
        else:
            if effort.postponed:
                return True
        self._unmeasured.pop(plan, None)
        return True

    def drop(self) -> None:
        """Drop every graph and the pool; plans run as before, and may be recorded again."""
        for plan in self._recorded:
            plan.recorded, plan.runs = None, 0
        self._recorded = WeakSet()
        self._unmeasured = WeakKeyDictionary()
        self._memory, self._pool = SharedArena(self._device), torch.cuda.MemPool()
        self.bytes = 0
        self.drops += 1

    def _record(self, executor: Executor, plan: Plan, effort: Effort, measured: bool = False) -> None:
        """Let a graph stand for the plan, if it is the faster one where that is to be `measured`; for one
        that is recorded if all was measured and something gained."""
        before = torch.cuda.memory_reserved(self._device)
        try:
            inputs = self._inputs(executor, plan, self._device)
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.no_grad(), torch.cuda.stream(self._stream):
                twin = executor.twin(plan, self._memory, effort)  # launches belong to a stream
                for _ in range(_WARM_RUNS):
                    twin.start(inputs)
                    twin.show()
                self._stream.synchronize()
                twin.disregard()  # inputs of zeros may be bad indices
                if plan.recorded is None or (effort.gained and not effort.postponed):
                    recorded = self._capture(twin, inputs)
                    if not measured or self._is_faster(recorded, twin, inputs):
                        plan.give_way(recorded)
        finally:  # what has failed may have grown the pool as well
            self.bytes += max(0, torch.cuda.memory_reserved(self._device) - before)

    def _is_faster(self, recorded: RecordedPlan, twin: Plan, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether replays with their copies take less time than the plan itself, call after call."""

        def launched() -> None:
            twin.start(inputs)
            twin.show()

        def seconds(call: Callable[[], object]) -> float:
            began = time.perf_counter()
            for _ in range(_COMPARED):
                call()
            self._stream.synchronize()
            return (time.perf_counter() - began) / _COMPARED

        calls: tuple[Callable[[], object], ...] = (launched, partial(recorded.replay, inputs))
        rounds = [[seconds(call) for call in calls] for _ in range(3)]
        twin.disregard()
        return min(replayed for _, replayed in rounds) < min(direct for direct, _ in rounds)

    def _inputs(self, executor: Executor, plan: Plan, device: torch.device | str) -> list[torch.Tensor]:
        shapes = executor.input_shapes(plan.concrete)
        return [
            torch.zeros(shape, dtype=TORCH[given.dtype], device=device)
            for shape, given in zip(shapes, executor.program.inputs, strict=True)
        ]

    def _capture(self, twin: Plan, inputs: Sequence[torch.Tensor]) -> RecordedPlan:
        graph = torch.cuda.CUDAGraph()
        # cuBLAS keeps a workspace a stream, and any other part of the process may free it (torch.compile
        # does); a graph that knew its address would then write to memory of others. Cleared before and after,
        # the workspace that the graph knows lies in the graphs' own pool.
        torch._C._cuda_clearCublasWorkspaces()
        # other threads may go on using the device meanwhile
        pool: Any = self._pool.id  # a pair, which PyTorch declares under a private name
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            twin.start(inputs)
            outputs = twin.show()
        finally:
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()
        return RecordedPlan(graph, twin, inputs, outputs, self._memory.block)
