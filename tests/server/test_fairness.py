"""The batcher itself under a flood, with a worker that runs one job whenever the test says so: nobody who
waits is passed by more than those who came before."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import numpy

from dlcb.compiler import BatchAxes, Dim, InputDeclaration, ModelSource, Signature, TensorSpec
from dlcb.server.batcher import Batcher, Job
from dlcb.server.datatypes import DATATYPES
from dlcb.server.metrics import Metrics
from dlcb.server.model import Cells, ServedModel
from dlcb.server.settings import Batching, Limits
from dlcb.server.types import InferRequest, Tensor

ROWS = 8


class Lane:
    """A worker that echoes, one job at each `step`."""

    def __init__(self, batcher: Batcher) -> None:
        self.jobs: deque[Job] = deque()
        self.batcher = batcher
        self.ran: list[list[str | None]] = []  # ids of each job's requests

    def start(self, job: Job) -> None:
        self.ran.append([pending.request.id for pending in job.requests])

    def view(self, slot: int, offset: int, size: int) -> memoryview:
        return self.echoed[offset : offset + size]

    def release(self, slots: list[int]) -> None: ...

    def forget(self, slot: int) -> None: ...

    def step(self) -> None:
        job = self.jobs[0]
        (entry,) = job.placed
        self.echoed = memoryview(bytes(job.slot.view[: entry.size]))
        outputs = [("y", 1, 0, entry.size, entry.shape)]
        timing = {"seconds": 0.01, "output_seconds": 0.0, "tier": "dynamic", "result": "hit"}
        self.batcher.settle(self, {"batch": job.number, "outputs": outputs, "slots": [1], **timing})


def model(metrics: Metrics, padding: dict[str, str]) -> ServedModel:
    dims = (Dim("batch", 0, None), Dim("length", 0, None))
    spec, answer = TensorSpec("x", "float32", dims), TensorSpec("y", "float32", dims)
    batch = BatchAxes("batch", {"x": 0}, {"y": 0})
    signature = Signature(
        (spec,), (answer,), {"y": ("batch", "length")}, batch=batch, padding={"batch": "", **padding}
    )
    declared = InputDeclaration("x", "float32", ("batch", "length"))
    source = ModelSource("m", "1", inputs=(declared,), outputs=("y",))
    served = ServedModel(1, source, Batching(max_rows=ROWS), Limits(), Cells(metrics, "m"))
    served.compiled(signature, "", {})
    return served


class Crowd:
    """Requests of one model, and what became of them."""

    def __init__(self, padding: dict[str, str]) -> None:
        metrics = Metrics()
        self.batcher = Batcher(metrics, 1 << 30)
        self.lane = Lane(self.batcher)
        self.batcher.lanes.append(self.lane)
        self.model = model(metrics, padding)
        self.answered: list[str] = []
        self.count = 0

    def ask(self, length: int, name: str = "") -> None:
        self.count += 1
        name = name or f"common {self.count}"
        x = numpy.full((1, length), self.count, "float32")
        request = InferRequest({"x": Tensor("x", DATATYPES["FP32"], x.shape, x.tobytes())}, id=name)

        def deliver(answer: Any, error: Exception | None) -> None:
            assert error is None
            assert bytes(answer["y"].data) == x.tobytes()  # its own values, at its own length
            self.answered.append(name)

        admission = self.model.admit(request)
        self.batcher.submit(self.model, request, admission, lambda outputs: outputs, deliver, x.nbytes)

    async def run_one(self) -> None:
        await asyncio.sleep(0)  # the batcher flushes once the turn of the loop is over
        self.lane.step()


def test_a_rare_shape_waits_for_those_before_it_and_for_nobody_after() -> None:
    async def flood() -> None:
        crowd = Crowd({})
        for _ in range(10 * ROWS):
            crowd.ask(16)
        crowd.ask(500, "rare")
        for _ in range(200):  # the common shape comes faster than it can be served
            for _ in range(ROWS + 2):
                crowd.ask(16)
            await crowd.run_one()
            if "rare" in crowd.answered:
                break
        position = next(number for number, ids in enumerate(crowd.lane.ran) if "rare" in ids)
        assert position <= 11  # ten batches were before it, and one may have left already
        assert crowd.lane.ran[position] == ["rare"]

    asyncio.run(flood())


def test_lengths_that_are_padded_do_not_starve_the_one_that_fits_with_none() -> None:
    """Short ones of all lengths share batches; the long one leads its own when it is the oldest."""

    async def flood() -> None:
        crowd = Crowd({"length": ""})
        assert crowd.model.padding is not None
        for number in range(5 * ROWS):
            crowd.ask(16 + number % 4)
        crowd.ask(4000, "long")
        for number in range(100):
            for more in range(ROWS + 2):
                crowd.ask(16 + (number + more) % 4)
            await crowd.run_one()
            if "long" in crowd.answered:
                break
        position = next(number for number, ids in enumerate(crowd.lane.ran) if "long" in ids)
        assert position <= 10  # five batches were before it; younger ones of near lengths may fill some up
        assert crowd.lane.ran[position] == ["long"]
        assert max(map(len, crowd.lane.ran)) == ROWS

    asyncio.run(flood())


def test_every_request_of_a_mixed_crowd_is_answered_once() -> None:
    async def crowded() -> None:
        crowd = Crowd({"length": ""})
        draw = numpy.random.default_rng(0)
        for _ in range(60):
            for _ in range(int(draw.integers(0, 9))):
                crowd.ask(int(draw.integers(0, 40)))
            await asyncio.sleep(0)
            if crowd.lane.jobs:
                crowd.lane.step()
        while len(crowd.answered) < crowd.count:
            await crowd.run_one()
        assert len(set(crowd.answered)) == crowd.count
        assert crowd.model.waiting == crowd.model.unanswered == crowd.batcher.inflight_bytes == 0

    asyncio.run(crowded())
