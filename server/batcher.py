"""The clock of batching: requests wait here in bounded queues, leave together as jobs for a worker, and each
gets its own answer, error or deadline exactly once. A job is made of slot descriptors; stacking and splitting
are `batch`'s.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dlcb.compiler import IndexRangeError
from dlcb.server.batch import Placed, owner_of_row, place, split, stack
from dlcb.server.errors import (
    BadRequest,
    DeadlineExceeded,
    ModelFailed,
    NotReady,
    QueueFull,
    RequestRefused,
    ServerError,
    TooLarge,
)
from dlcb.server.lookout import LOOK_SECONDS, Habit
from dlcb.server.metrics import Metrics
from dlcb.server.model import QUICK, Admission, ServedModel
from dlcb.server.slots import Slot, SlotPool
from dlcb.server.types import InferRequest, RawRequest
from dlcb.server.waiting import Deliver, Pending, Waiting, lengths_of, padding_ratio

LAST = 2**63  # the priority of requests that name none
FORESEEN = 0.8  # of a deadline may be gone when a request is forecast to be answered
DEATHS_ALLOWED = 1
RETRY_AFTER = 5  # seconds, said when no worker runs
QUARANTINE_KEPT = 1024

log = logging.getLogger("dlcb.batcher")


@dataclass(eq=False, slots=True)
class Job:
    """Requests that run together, with their inputs in a slot."""

    number: int
    model: ServedModel
    requests: list[Pending]
    lengths: Mapping[str, int]  # by symbol, what they are padded to
    slot: Slot
    placed: list[Placed]
    size: int
    started: float
    input_seconds: float
    brisk: bool  # quick, alone, and close behind the last one
    looked_for: bool  # neither its answer nor the next job is slept for


class Lane(Protocol):
    """A worker, as the batcher sees it: jobs go in, and are settled or lost in the order they went."""

    jobs: deque[Job]

    def start(self, job: Job) -> None:
        """Send the job. OSError when the worker is gone; the supervisor then reports its jobs as lost."""

    def view(self, slot: int, offset: int, size: int) -> memoryview:
        """Bytes the worker has written."""

    def release(self, slots: list[int]) -> None:
        """The worker may write to these slots again."""

    def forget(self, slot: int) -> None:
        """A slot of ours is gone; the worker should drop its mapping."""


@dataclass(eq=False, slots=True)
class Receiving:
    """A body that is still coming: what there is of it counts as in flight."""

    batcher: Batcher
    model: ServedModel
    size: int = 0

    def grow(self, size: int) -> None:
        """So many bytes are there now. QueueFull when that is more than all requests may have."""
        self.batcher.inflight_bytes += size - self.size
        self.size = size
        self.batcher.room(self.model, 0)

    def end(self) -> None:
        """The body is whole, or will never be."""
        self.batcher.inflight_bytes -= self.size
        self.size = 0


@dataclass
class Batcher:
    """All queues of a front. Everything runs in the event loop's thread. `outage` says why nothing can run
    for now; requests are then refused."""

    metrics: Metrics
    inflight_limit: int
    pool: SlotPool = field(default_factory=SlotPool)
    lanes: list[Lane] = field(default_factory=list)
    inflight_bytes: int = 0
    outage: str = ""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = Waiting()
        self._sequence = 0
        self._jobs = 0
        self._scheduled = False
        self._alarm: asyncio.TimerHandle | None = None
        self._quarantine: dict[bytes, None] = {}
        self._habit = Habit()
        self._last_reply = 0.0

    # Requests in

    def room(self, model: ServedModel, size: int) -> None:
        """QueueFull when one more request of `size` bytes cannot wait, NotReady when no worker is to be
        expected soon: asked before its tensors are decoded."""
        if self.outage:
            raise NotReady(self.outage, RETRY_AFTER)
        if model.waiting >= model.limits.queue_requests:
            raise QueueFull(
                f"{model.waiting} requests wait for model '{model.name}', its limit is "
                f"{model.limits.queue_requests}",
                retry_after=max(1, round(model.waiting * model.run_seconds)),
            )
        if self.inflight_bytes + size > self.inflight_limit:
            raise QueueFull(
                f"{self.inflight_bytes} bytes of requests are unanswered, {size} more would pass the limit "
                f"of {self.inflight_limit}"
            )

    def submit(
        self,
        model: ServedModel,
        request: InferRequest | RawRequest,
        admission: Admission,
        respond: Callable[[Any], Any],
        deliver: Deliver,
        size: int,
    ) -> Pending:
        """Queue a request; `deliver` gets what `respond` makes of the outputs, or the error,
        from a later turn of the loop. QueueFull, NotReady or RequestRefused at once."""
        self.room(model, size)
        if self._quarantine and _digest(model, request) in self._quarantine:
            raise RequestRefused(
                f"request {request.id or 'without id'} is refused: workers died on it before"
            )
        self._sequence += 1
        now = time.perf_counter()
        order = (request.priority or LAST, self._sequence)
        pending = Pending(model, request, admission, respond, deliver, now, order, size)
        timeout = request.timeout
        if timeout is None and model.limits.timeout_ms is not None:
            timeout = model.limits.timeout_ms / 1e3
        if timeout is not None:
            if not request.priority:  # the others pass by those who wait
                self._foresee(model, timeout)
            pending.timer = self._loop.call_later(timeout, self._expire, pending, timeout)
        model.unanswered += 1
        self.inflight_bytes += size
        self._enqueue(pending)
        return pending

    def _foresee(self, model: ServedModel, timeout: float) -> None:
        """QueueFull for a request whose turn would come after its deadline: under overload those accepted are
        answered in time, and the others know at once."""
        before = model.waiting + sum(len(lane.jobs) for lane in self.lanes)
        wait = before * model.turn_seconds / max(1, len(self.lanes))
        if model.waiting and wait + model.run_seconds > FORESEEN * timeout:
            raise QueueFull(
                f"{model.waiting} requests wait for model '{model.name}', about {wait * 1e3:.0f} ms; the "
                f"deadline is {timeout * 1e3:g} ms",
                retry_after=max(1, round(wait)),
            )

    def cancel(self, pending: Pending, cause: str) -> None:
        """The client is gone: leave the queue, or let a running job's answer fall away."""
        if not pending.done:
            self._left(pending, cause)

    def wake(self) -> None:
        """A worker has come: give it what waits."""
        self.outage = ""
        self._schedule()

    def refuse_all(self, reason: str) -> None:
        """Refuse what waits and what comes, until a worker is there."""
        self.outage = reason
        for pending in self._waiting.all():
            self._fail(pending, NotReady(reason, RETRY_AFTER))

    # On the way to a worker

    def _enqueue(self, pending: Pending) -> None:
        self._waiting.add(pending)
        self._schedule()

    def _schedule(self) -> None:
        """Flush once this turn of the loop has run: requests that arrived together leave together."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting:
            lane = self._free_lane()
            if lane is None:
                return  # the next settled job flushes again
            taken, wait = self._waiting.take(time.perf_counter())
            if not taken:
                if self._alarm is not None:
                    self._alarm.cancel()
                self._alarm = self._loop.call_later(wait, self._schedule)
                return
            self._start(lane, taken)

    def _free_lane(self) -> Lane | None:
        best = None
        for lane in self.lanes:
            jobs = lane.jobs
            if not jobs:
                return lane
            if best is None and len(jobs) == 1 and jobs[0].model.is_quick():
                best = lane
        return best

    def _start(self, lane: Lane, requests: list[Pending]) -> None:
        model = requests[0].model
        self._jobs += 1
        first, began = requests[0].request, time.perf_counter()
        lengths: Mapping[str, int] = {}
        if isinstance(first, RawRequest):
            size = len(first.body)
            slot = self.pool.take(size)
            slot.view[:size] = first.body
            placed: list[Placed] = []
        else:
            bodies = [pending.request for pending in requests if isinstance(pending.request, InferRequest)]
            lengths = lengths_of(requests)
            placed, size = place(bodies, model.signature, model.padding, lengths)
            slot = self.pool.take(size)
            stack(bodies, placed, model.signature.batch, slot.view, model.padding)
        spent = time.perf_counter() - began
        brisk = len(requests) == 1 and bool(placed) and self._is_brisk(model, began)
        looked_for = brisk and self._habit.looks
        job = Job(self._jobs, model, requests, lengths, slot, placed, size, began, spent, brisk, looked_for)
        lane.jobs.append(job)
        try:
            lane.start(job)
        except OSError:
            log.warning("a worker did not take its job", extra={"fields": {"model": model.name}})
        if looked_for:
            self._loop.call_soon(self._look, requests[0], time.perf_counter() + LOOK_SECONDS)

    def _is_brisk(self, model: ServedModel, now: float) -> bool:
        """Whether a request that leaves alone is the only one there is, follows the last answer as in a
        conversation, and will be answered as soon."""
        if now - self._last_reply > LOOK_SECONDS or model.run_seconds > LOOK_SECONDS or self._waiting:
            return False
        return not any(lane.jobs for lane in self.lanes)

    def _look(self, pending: Pending, until: float) -> None:
        """Let the loop turn, and not sleep, until the worker has answered or that moment has come."""
        if not pending.done and time.perf_counter() < until:
            os.sched_yield()
            self._loop.call_soon(self._look, pending, until)

    # Answers out

    def settle(self, lane: Lane, reply: dict[str, Any]) -> None:
        """Take a worker's reply to its oldest job."""
        job = lane.jobs.popleft()
        if job.number != reply["batch"]:
            raise ServerError(f"a worker answered job {reply['batch']}, job {job.number} was due")
        self._free(job.slot)
        if "error" in reply:
            self._settle_error(job, reply["error"])
        else:
            self._settle_outputs(lane, job, reply)
            lane.release(reply["slots"])
        if self._waiting:
            self._schedule()

    def lost(self, jobs: list[Job], begun: int) -> None:
        """A worker died. Its requests run again, in their old order; only those of the job that it had begun
        are held to have killed it, and run alone from now on."""
        for job in jobs:
            self._free(job.slot)
        for job in jobs:
            for pending in job.requests:
                if pending.done:
                    continue
                pending.deaths += job.number == begun
                if pending.deaths > DEATHS_ALLOWED:
                    self._refuse(pending)
                else:
                    self._enqueue(pending)

    def _settle_outputs(self, lane: Lane, job: Job, reply: dict[str, Any]) -> None:
        model, came = job.model, time.perf_counter()
        if job.brisk:
            self._habit.took(came - self._last_reply)
        self._last_reply = came
        rows = [pending.admission.rows for pending in job.requests]
        try:
            if "body" in reply:
                answers: list[Any] = [(lane.view(*reply["body"]), reply["json_length"])]
            else:
                outputs = {
                    name: (tuple(shape), lane.view(slot, offset, size))
                    for name, slot, offset, size, shape in reply["outputs"]
                }
                own = [pending.admission.outputs for pending in job.requests]
                answers = split(outputs, rows, model.signature, own)
        except ServerError as error:
            for pending in job.requests:
                self._fail(pending, error)
            return
        for pending, answer in zip(job.requests, answers, strict=True):
            if pending.done:
                continue
            try:
                made = pending.respond(answer)
            except ServerError as error:
                self._fail(pending, error)
                continue
            self._answered(pending)
            pending.deliver(made, None)
        # The loop writes the answers first: nobody waits for the books.
        self._loop.call_soon(self._account, job, reply, came, time.perf_counter() - came)

    def _settle_error(self, job: Job, error: dict[str, Any]) -> None:
        """An error of one request fails that request alone; its neighbours run again without it."""
        requests = job.requests
        if error["kind"] == "index" and self._settle_index(job, error):
            return
        if len(requests) > 1:
            for pending in requests:
                if not pending.done:
                    pending.admission = replace(pending.admission, group=None)
                    self._enqueue(pending)
            return
        kinds: dict[str, type[ServerError]] = {
            "request": BadRequest, "index": BadRequest, "large": TooLarge, "deadline": DeadlineExceeded,
            "changed": NotReady,
        }  # fmt: skip
        self._fail(requests[0], kinds.get(error["kind"], ModelFailed)(error["message"]))

    def _settle_index(self, job: Job, error: dict[str, Any]) -> bool:
        """Fail the request whose row holds the bad index. False when the row cannot be told."""
        batch = job.model.signature.batch
        axis = None if batch is None else batch.input_axes.get(error["input"])
        if axis is None or len(job.requests) == 1:
            return False
        rows = [pending.admission.rows for pending in job.requests]
        position = list(error["position"])
        culprit, position[axis] = owner_of_row(position[axis], rows)
        own = IndexRangeError(error["input"], tuple(position), error["value"], error["low"], error["high"])
        for index, pending in enumerate(job.requests):
            if index == culprit:
                self._fail(pending, BadRequest(own.message))
            elif not pending.done:
                self._enqueue(pending)
        return True

    def _account(self, job: Job, reply: dict[str, Any], came: float, output_seconds: float) -> None:
        """Book a job whose reply came then, and whose answers took the front so long."""
        model, seconds, requests = job.model, reply["seconds"], job.requests
        count, started, statistics = len(requests), job.started, model.statistics
        weight = 0.2 if statistics.executions else 1.0
        model.run_seconds += weight * (seconds - model.run_seconds)
        model.front_seconds += weight * (job.input_seconds + output_seconds - model.front_seconds)
        turn = (seconds if seconds < QUICK else came - started) / count
        model.turn_seconds += weight * (turn - model.turn_seconds)
        model.cost.observe(job.size, seconds)
        self.metrics.shape_cache.cell(model.name, reply["tier"], reply["result"]).value += 1
        cells, rows, queued = model.cells, 0, 0.0
        for pending in requests:
            rows += pending.admission.rows
            waited = started - pending.arrived
            queued += waited
            cells.queue.observe(waited)
            cells.total.observe(came - pending.arrived)
        cells.execute.observe(seconds, count)
        cells.rows.observe(rows)
        cells.requests.observe(count)
        cells.padding.observe(padding_ratio(requests, job.lengths))
        cells.ok.value += count
        statistics.last_inference_ms = int(time.time() * 1e3)
        statistics.inferences += rows
        statistics.executions += 1
        statistics.queue.add(count, queued)
        statistics.compute_infer.add(count, seconds * count)
        statistics.compute_input.add(count, job.input_seconds * count)
        statistics.compute_output.add(count, reply["output_seconds"] * count)
        statistics.success.add(count, queued + count * (came - started))
        (statistics.cache_hit if reply["result"] == "hit" else statistics.cache_miss).add(count, seconds)
        statistics.batch(rows).add(1, seconds)

    def _fail(self, pending: Pending, error: ServerError) -> None:
        if pending.done:
            return
        pending.model.statistics.fail.add(1, time.perf_counter() - pending.arrived)
        self._left(pending, None)
        pending.deliver(None, error)

    def _expire(self, pending: Pending, timeout: float) -> None:
        """The deadline has passed: the client is told now; a running job's answer for it falls away."""
        if pending.done:
            return
        stage = "waiting" if pending.waiting else "running"
        pending.model.statistics.fail.add(1, time.perf_counter() - pending.arrived)
        self._left(pending, "deadline")
        pending.deliver(None, DeadlineExceeded(f"the timeout of {timeout * 1e3:g} ms passed while {stage}"))

    def _left(self, pending: Pending, cause: str | None) -> None:
        """Settle the books of a request that got no answer."""
        if pending.waiting:
            self._waiting.remove(pending)
            if cause:
                self.metrics.dropped.cell(pending.model.name, cause).add()
        self._answered(pending)

    def _answered(self, pending: Pending) -> None:
        pending.done = True
        pending.model.unanswered -= 1
        self.inflight_bytes -= pending.size
        if pending.timer is not None:
            pending.timer.cancel()

    def _refuse(self, pending: Pending) -> None:
        identity = pending.request.id or "without id"
        log.error(
            "a request killed its worker twice",
            extra={"fields": {"id": identity, "model": pending.model.name}},
        )
        if len(self._quarantine) >= QUARANTINE_KEPT:
            del self._quarantine[next(iter(self._quarantine))]
        self._quarantine[_digest(pending.model, pending.request)] = None
        self._fail(pending, RequestRefused(f"request {identity} is refused: two workers died on it"))

    def _free(self, slot: Slot) -> None:
        if not self.pool.give_back(slot):
            for lane in self.lanes:
                lane.forget(slot.number)


def _digest(model: ServedModel, request: InferRequest | RawRequest) -> bytes:
    digest = hashlib.blake2b(f"{model.name}\0{model.version}".encode(), digest_size=16)
    if isinstance(request, RawRequest):
        digest.update(request.body)
    else:
        for name, tensor in sorted(request.inputs.items()):
            digest.update(f"\0{name}\0{tensor.datatype.name}\0{tensor.shape}\0".encode())
            digest.update(tensor.data)
    return digest.digest()
