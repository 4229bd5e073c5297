"""The worker processes as a whole: started with every model, replaced by a spare when one dies, and told of
models that come and go. Jobs of a dead worker go back to the batcher, which runs them again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dlcb.compiler import ChangedCode, CompilerError, ModelSource
from dlcb.server.asked import Asked
from dlcb.server.batcher import RETRY_AFTER, Batcher
from dlcb.server.cache import describe
from dlcb.server.errors import BadRequest, NotReady, ServerError
from dlcb.server.memory import available_on_host, resident_bytes
from dlcb.server.metrics import Metrics
from dlcb.server.model import ServedModel
from dlcb.server.placement import exchange, least_used
from dlcb.server.process import CompileService, WorkerProcess
from dlcb.server.settings import Settings
from dlcb.server.types import State

RESTART_PAUSE = 0.5  # seconds before a worker that died while starting is tried again; doubled each time
RESTART_PAUSE_LIMIT = 30.0
REPLACEMENT_SECONDS = 20.0  # that requests wait for a new worker when none is left
DRAIN_STEP = 0.01  # seconds between looks at a worker that is going
COMPILED_AGAIN = 2  # times that an artifact which a worker does not find is made anew
NO_WORKER = "no worker is running; a new one is being started"

log = logging.getLogger("dlcb.supervisor")


class WorkerError(ServerError):
    """A worker could not be started, or could not load a model."""


class ArtifactGone(WorkerError):
    """A worker found no artifact, or only a part of one: somebody emptied the cache."""


class OldCode(WorkerError):
    """A worker has run a factory's code before it changed, and sees no change."""

    status = 409


class Supervisor:
    """Workers, spares and the compile process. Everything runs in the event loop's thread."""

    def __init__(
        self, settings: Settings, batcher: Batcher, metrics: Metrics, device: str, log_level: str
    ) -> None:
        self._settings = settings.server
        self._batcher = batcher
        self._metrics = metrics
        self._host_memory = available_on_host(self._settings.workers) if device == "cpu" else None
        self._options: dict[str, Any] = {
            "backend": settings.server.backend,
            "cache": describe(settings.cache),
            "compile": settings.server.compile,
            "folder": str(settings.folder),
            "device": device,
            "log_level": log_level,
        }
        self.when_started: asyncio.Future[None] | None = None  # models may compile before the workers run
        self._closing = False
        self.compiler = CompileService(self._options, lambda: self._closing)
        self._workers: list[WorkerProcess] = []
        self._wanted = 0
        self._settled = False
        self._count = 0
        self._loads: dict[int, dict[str, Any]] = {}
        self._models: dict[int, ServedModel] = {}
        self._asked = Asked()
        self._coming: set[WorkerProcess] = set()
        self._going: set[WorkerProcess] = (
            set()
        )  # another has taken their place; they end what they have begun
        self._succession = asyncio.Lock()
        self._replacing = 0  # workers that are to come, whether their process runs already or not
        self._outage: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.before_scrape.append(self._refresh_gauges)

    async def start(self) -> None:
        """Start the workers and wait until they run. WorkerError when one cannot."""
        self._wanted = self._settings.workers
        workers = [self._spawn() for _ in range(self._wanted)]
        await asyncio.gather(*(self._asked.start(worker) for worker in workers))
        for worker in workers:
            self._activate(worker)

    def settle(self) -> None:
        """From now on keep spare workers, and let compilations and loads give way; called once the server is
        ready, so that start-up has the machine to itself."""
        self.compiler.give_way()
        self._settled = True
        self._wanted = self._settings.workers + self._settings.spares
        self._refill()

    async def load(self, model: ServedModel) -> float:
        """Load a compiled model in every worker; seconds of the slowest. A worker that has run code which
        has changed since is replaced. WorkerError when one of them fails, NotReady when there is none."""
        if not self._workers:
            raise NotReady(NO_WORKER, RETRY_AFTER)
        if self._host_memory is not None:
            model.limit_memory(self._host_memory)
        if not self._settings.compile:
            model.probes = ()  # a new rank asks for a compilation
        message = {
            "do": "load",
            "handle": model.handle,
            "source": model.source.to_json(),
            "artifact": model.artifact_key,
            "code": dict(model.code),
            "probes": model.probes,
            "padding": None if model.padding is None else model.padding.to_json(),
        }
        self._loads[model.handle] = message
        self._models[model.handle] = model
        try:
            return await self._load_in_all(model.handle)
        except WorkerError:
            self.unload(model)
            raise

    def unload(self, model: ServedModel) -> None:
        """Drop a model from every worker; the caller has seen to it that nothing of it runs."""
        self._loads.pop(model.handle, None)
        self._models.pop(model.handle, None)
        for worker in self._workers:
            worker.models.discard(model.handle)
            self._tell(worker, {"do": "unload", "handle": model.handle})

    async def plan(self, model: ServedModel, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """What a worker's model says it would do at these shapes: tier, bytes, cached, would_compile and
        output_shapes. It answers between two jobs. NotReady without a worker, BadRequest for illegal
        shapes."""
        if not self._batcher.lanes:
            raise NotReady(NO_WORKER, RETRY_AFTER)
        worker = self._batcher.lanes[0]
        assert isinstance(worker, WorkerProcess)
        with self._asked.plan(worker) as (ticket, planned):
            self._tell(worker, {"do": "plan", "ticket": ticket, "handle": model.handle, "shapes": shapes})
            return await planned

    def request_counters(self) -> list[asyncio.Future[None]]:
        """Ask every worker for its counters; each of what is given is done when they have come, or when the
        worker is gone."""
        asked = []
        for worker in self._batcher.lanes:
            assert isinstance(worker, WorkerProcess)
            asked.append(self._asked.counters(worker))
            self._tell(worker, {"do": "counters"})
        return asked

    async def close(self) -> None:
        """End every child."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            loop.remove_reader(worker.job_channel.fileno())
            loop.remove_reader(worker.control_channel.fileno())
            worker.close()
        for worker in self._workers:
            worker.process.wait()
        self._workers.clear()
        self._batcher.lanes.clear()
        self.compiler.close()

    def kill(self) -> None:
        """End every child at once, from a signal handler."""
        for worker in self._workers:
            worker.process.kill()
        if self.compiler.process is not None:
            self.compiler.process.kill()

    @property
    def workers(self) -> list[WorkerProcess]:
        return list(self._workers)

    # Life of one worker

    def _spawn(self, gpu: int | None = None) -> WorkerProcess:
        """Start a worker: on this GPU, by default on the one that has the fewest."""
        self._count += 1
        if gpu is None:
            gpu = least_used(self._settings.gpus, self._workers)
        options = {**self._options, "gently": self._gently()}
        worker = WorkerProcess(self._count, options, self._settings.threads, gpu)
        loop = asyncio.get_running_loop()
        self._workers.append(worker)
        self._asked.start(worker)
        loop.add_reader(worker.job_channel.fileno(), self._replies, worker)
        loop.add_reader(worker.control_channel.fileno(), self._events, worker)
        return worker

    def _gently(self) -> bool:
        """Whether what is loaded now is loaded beside jobs, be they another worker's: a spare takes the same
        cores."""
        return self._settled and bool(self._batcher.lanes)

    def _activate(self, worker: WorkerProcess) -> None:
        """Let the worker take jobs, if there are fewer than wanted that do."""
        lanes = self._batcher.lanes
        if worker not in lanes and worker not in self._going and len(lanes) < self._settings.workers:
            lanes.append(worker)
            if self._outage is not None:
                self._outage.cancel()
            self._batcher.wake()

    def _refill(self) -> None:
        standing = len(self._workers) - len(self._coming) - len(self._going)
        missing = self._wanted - standing - self._replacing
        for _ in range(missing):
            self._replacing += 1
            self._background(self._bring_up())

    async def _bring_up(self) -> None:
        """Start a worker, load every model in it, and let it take jobs or stand by. Tries until it works,
        ever more rarely; meanwhile requests that no other worker serves are refused."""
        pause = RESTART_PAUSE
        while not self._closing:
            worker = self._spawn()
            self._coming.add(worker)
            try:
                await self._fill(worker)
            except WorkerError as error:
                log.error(
                    "a worker did not come up", extra={"fields": {"worker": worker.name, "error": str(error)}}
                )
                if worker in self._workers:  # else its death is counted
                    self._remove(worker)
                    worker.close()
                    self._metrics.worker_restarts.cell().add()
                self._refuse_without_worker()
                await asyncio.sleep(pause)
                pause = min(2 * pause, RESTART_PAUSE_LIMIT)
                continue
            self._coming.discard(worker)
            self._replacing -= 1
            self._activate(worker)
            self._spread()
            return

    def _spread(self) -> None:
        """Let all GPUs take jobs."""
        lanes = self._batcher.lanes
        serving = [worker for worker in self._workers if worker in lanes]
        spare = [w for w in self._staying() if w not in lanes and w.models.issuperset(self._loads)]
        while found := exchange(serving, spare):
            one, other = found  # what the one has begun it ends
            lanes[lanes.index(one)] = other
            serving[serving.index(one)], spare[spare.index(other)] = other, one
            self._batcher.wake()

    async def _load_in_all(self, handle: int) -> float:
        """Seconds that took, with those until workers that know only old code have been replaced. Beside jobs
        one worker goes first, a spare if there is one: a model that ends its process ends no other."""
        start = asyncio.get_running_loop().time()
        old: dict[WorkerProcess, OldCode] = {}
        if self._settled:
            by_turn = sorted(self._staying(), key=lambda worker: worker in self._batcher.lanes)
            old |= await self._load_in_each(by_turn[:1], handle)
        old |= await self._load_in_each(
            [worker for worker in self._staying() if worker not in old and handle not in worker.models],
            handle,
        )
        if old:
            await self._replace(old)
        return asyncio.get_running_loop().time() - start

    def _staying(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker not in self._going]

    async def _load_in_each(
        self, workers: Sequence[WorkerProcess], handle: int
    ) -> dict[WorkerProcess, OldCode]:
        """Load a model in these workers; gives those that know only old code."""
        found = await asyncio.gather(
            *(self._load_in(worker, handle) for worker in workers), return_exceptions=True
        )
        old: dict[WorkerProcess, OldCode] = {}
        for worker, outcome in zip(workers, found, strict=True):
            if isinstance(outcome, OldCode):
                old[worker] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        return old

    async def _replace(self, old: Mapping[WorkerProcess, OldCode]) -> float:
        """Start a successor of each of these workers with every model, and then let them take over; seconds
        that took. OldCode when one of them does not come up: none takes over then."""
        start = asyncio.get_running_loop().time()
        async with self._succession:  # two loads may find the same worker
            successors: dict[WorkerProcess, WorkerProcess] = {}
            try:
                for worker, error in old.items():
                    if worker not in self._workers or worker in self._going:
                        continue
                    log.warning(
                        "a worker is replaced",
                        extra={"fields": {"worker": worker.name, "reason": str(error)}},
                    )
                    successors[worker] = new = self._spawn(worker.gpu)
                    self._coming.add(new)
                    try:
                        await self._fill(new)
                    except WorkerError as failure:
                        raise OldCode(
                            f"{worker.name} cannot load it: {error}; a new worker in its place did not come "
                            f"up: {failure}; restart the server"
                        ) from failure
            except BaseException:
                for new in successors.values():
                    self._dismiss(new)
                raise
            for worker, new in successors.items():
                self._coming.discard(new)
                self._succeed(worker, new)
        return asyncio.get_running_loop().time() - start

    def _succeed(self, old: WorkerProcess, new: WorkerProcess) -> None:
        """Jobs go to the new worker from now on. The old one ends when it has done those that it has; where
        it died meanwhile it is being replaced already, and the new one is not needed."""
        if old not in self._workers:
            old = new
        self._going.add(old)
        if old in self._batcher.lanes:
            self._batcher.lanes.remove(old)
        for other in self._workers:
            if other.models.issuperset(self._loads):
                self._activate(other)
        self._refill()
        self._background(self._drain(old))

    async def _drain(self, worker: WorkerProcess) -> None:
        while worker.jobs or self._asked.plans(worker):
            await asyncio.sleep(DRAIN_STEP)
        self._dismiss(worker)
        self._going.discard(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        """End a worker that has no jobs."""
        if worker in self._workers:
            self._remove(worker)
            worker.close()
            self._background(asyncio.to_thread(worker.process.wait))
            self._asked.fail(worker, WorkerError(f"{worker.name} has ended"))

    def _refuse_without_worker(self) -> None:
        if not self._batcher.lanes and not self._closing:
            self._batcher.refuse_all(NO_WORKER)

    async def _fill(self, worker: WorkerProcess) -> None:
        """Wait until a new worker runs and holds every model. WorkerError when that fails."""
        await self._asked.start(worker)
        while missing := [handle for handle in self._loads if handle not in worker.models]:
            await asyncio.gather(*(self._load_in(worker, handle) for handle in missing))

    async def _load_in(self, worker: WorkerProcess, handle: int) -> float:
        """Seconds that loading took. What is gone from the cache is compiled again, a few times. A model that
        serves, and cannot be made again as it is, is refused by the worker, which serves all others."""
        for left in reversed(range(COMPILED_AGAIN + 1)):
            try:
                return await self._load_once(worker, handle)
            except ArtifactGone:
                if not left or handle not in self._models:
                    raise
            model = self._models[handle]
            try:
                await self._compile_again(model)
            except ChangedCode as error:
                if model.state is State.LOADING:
                    raise WorkerError(f"'{model.name}' does not compile again: {error}") from error
                return await self._load_once(worker, handle, error.message)
        raise AssertionError("the last try returns or raises")

    async def _load_once(self, worker: WorkerProcess, handle: int, refused: str = "") -> float:
        message = self._loads.get(handle)
        if message is None:  # unloaded meanwhile
            return 0.0
        if worker not in self._workers:  # died meanwhile
            raise WorkerError(f"{worker.name} has ended")
        loaded, first = self._asked.load(worker, handle)
        if first:
            serves = self._models[handle].state is not State.LOADING
            self._tell(worker, {**message, "gently": self._gently(), "serves": serves, "refused": refused})
        # else a worker that comes up is told of a model that is being loaded just now
        seconds = await asyncio.shield(loaded)
        worker.models.add(handle)
        return seconds

    async def _compile_again(self, model: ServedModel) -> None:
        """Have a model's artifact made anew, for workers to come. ChangedCode when it is of other code or
        files by now: that takes a load. WorkerError when it fails otherwise."""
        log.warning("an artifact is gone: it is compiled again", extra={"fields": {"model": model.name}})
        try:
            compiled = await self.compiler.compile(model.source, "load", code=model.code)
        except ChangedCode:
            raise
        except CompilerError as error:
            raise WorkerError(f"'{model.name}' does not compile again: {error}") from error
        if compiled.signature != model.signature:
            raise WorkerError(f"'{model.name}' has changed since it was loaded: load it anew")
        model.artifact_key = compiled.artifact_key
        if model.handle in self._loads:
            self._loads[model.handle]["artifact"] = compiled.artifact_key

    def _replies(self, worker: WorkerProcess) -> None:
        """One reply: the loop calls again while there are more, and mostly there are none."""
        try:
            reply = worker.receive()
        except BlockingIOError:
            return
        except OSError:
            reply = None
        if reply is None:
            self._died(worker)
        else:
            self._batcher.settle(worker, reply)

    def _events(self, worker: WorkerProcess) -> None:
        while worker in self._workers:
            try:
                received = worker.control_channel.receive()
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                self._died(worker)
                return
            self._event(worker, received[0])

    def _event(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind in ("started", "broken"):
            self._asked.started(worker, None if kind == "started" else WorkerError(event["error"]))
        elif kind == "loaded":
            if self._asked.is_loading(worker, event["handle"]):
                self._settle_load(worker, event)
                self._asked.loaded(worker, event["handle"], event["seconds"])
        elif kind == "failed":
            kind_of_error = {"gone": ArtifactGone, "old code": OldCode}.get(event["why"], WorkerError)
            self._asked.loaded(worker, event["handle"], kind_of_error(event["error"]))
        elif kind == "compile":
            self._background(self._compile_for(worker, event))
        elif kind == "planned":
            self._asked.planned(worker, event["ticket"], _plan_of(event))
        elif kind == "counters":
            worker.device_bytes = event["device_bytes"]
            for handle, said in event["models"].items():
                model = self._models.get(int(handle))
                if model is not None:
                    model.ranks = said["ranks"]
                    self._take_counters((worker.name, handle), model, said["counters"])
            self._asked.counted(worker)

    def _take_counters(
        self, source: tuple[str, str], model: ServedModel, counters: Mapping[str, int]
    ) -> None:
        """Counts of one worker's copy of a model; the gauges show those of the worker that spoke last."""
        model.counters = counters
        metrics = self._metrics
        metrics.guard_failures.cell(model.name).follow(source, counters.get("guard_failures", 0))
        metrics.plan_evictions.cell(model.name).follow(source, counters.get("evictions", 0))
        metrics.compiler_calls.cell(model.name).follow(source, counters.get("compiler_calls", 0))
        for verdict in ("confirmed", "refuted"):
            metrics.verdicts.cell(model.name, verdict).follow(source, counters.get(verdict, 0))

    def _settle_load(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        """Take what a worker found out about a model, and how much memory is left for every model's runs."""
        model = self._models.get(event["handle"])
        if model is not None and model.state is State.LOADING and event["unpadded"]:
            model.stop_padding(event["unpadded"])
            self._loads[model.handle]["padding"] = None
        worker.available = event["available"]
        found = [other.available for other in self._workers if other.available is not None]
        for served in self._models.values() if found else ():
            served.limit_memory(min(found))

    async def _compile_for(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        """The JIT tier of a worker met a new rank, of a request or of a probe: the compile process builds it,
        the kernel cache carries it over."""
        source = ModelSource.from_json(event["source"])
        reply: dict[str, Any] = {"do": "compiled", "ticket": event["ticket"]}
        reason = event["reason"]
        model = self._models.get(event["handle"])
        try:
            compiled = await self.compiler.compile(source, reason, code={} if model is None else model.code)
        except CompilerError as error:
            ranks = [len(declared.shape or ()) for declared in source.inputs]
            told = not self._settings.compile or isinstance(error, ChangedCode)  # by the worker
            log.log(
                logging.INFO if told else logging.ERROR,
                "a JIT compilation failed",
                extra={"fields": {"model": source.name, "ranks": ranks, "error": str(error)}},
            )
            reply["error"] = error.message
        else:
            reply["artifact"] = compiled.artifact_key
            self._metrics.compile_seconds.cell(source.name, "jit", reason).observe(compiled.seconds)
        self._tell(worker, reply)

    def _died(self, worker: WorkerProcess) -> None:
        """Replace a worker: a spare takes over at once, and the jobs run again."""
        if worker not in self._workers:
            return
        self._remove(worker)
        worker.close()
        code = worker.process.wait()
        self._asked.fail(worker, WorkerError(f"{worker.name} ended with code {code}"))
        if self._closing:
            return
        self._metrics.worker_restarts.cell().add()
        log.error(
            "a worker died", extra={"fields": {"worker": worker.name, "code": code, "jobs": len(worker.jobs)}}
        )
        jobs = list(worker.jobs)
        worker.jobs.clear()
        for other in self._workers:
            if other.models.issuperset(self._loads):
                self._activate(other)
        self._batcher.lost(jobs, worker.begun())
        if not self._batcher.lanes:
            if self._outage is not None:
                self._outage.cancel()
            loop = asyncio.get_running_loop()
            self._outage = loop.call_later(REPLACEMENT_SECONDS, self._refuse_without_worker)
        if self._wanted:
            self._refill()

    def _remove(self, worker: WorkerProcess) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(worker.job_channel.fileno())
        loop.remove_reader(worker.control_channel.fileno())
        self._workers.remove(worker)
        self._coming.discard(worker)
        self._going.discard(worker)
        if worker in self._batcher.lanes:
            self._batcher.lanes.remove(worker)

    def _tell(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        try:
            worker.tell(message)
        except OSError:
            log.warning(
                "a worker is gone", extra={"fields": {"worker": worker.name}}
            )  # `_events` finds out as well

    def _background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refresh_gauges(self) -> None:
        metrics = self._metrics
        metrics.workers_ready.cell().value = len(self._batcher.lanes)
        metrics.slot_bytes.cell().value = self._batcher.pool.bytes
        metrics.inflight_bytes.cell().value = self._batcher.inflight_bytes
        processes = {"front": os.getpid(), **{worker.name: worker.process.pid for worker in self._workers}}
        if self.compiler.process is not None:
            processes["compile"] = self.compiler.process.pid
        for gone in {labels[0] for labels in metrics.process_bytes.cells} - set(processes):
            metrics.process_bytes.forget(gone)
        for name, pid in processes.items():
            metrics.process_bytes.cell(name).value = resident_bytes(pid)
        if self._options["device"] != "cpu":
            held = sum(worker.device_bytes for worker in self._workers)
            metrics.device_bytes.cell(self._options["device"]).value = held
        for model in self._models.values():
            counters = model.counters
            model.cells.depth.value = model.waiting
            metrics.quarantined.cell(model.name).value = counters.get("quarantined", 0)
            metrics.plans.cell(model.name).value = counters.get("entries", 0)


def _plan_of(event: Mapping[str, Any]) -> dict[str, Any] | ServerError:
    if "plan" in event:
        return event["plan"]
    if "illegal" in event:
        return BadRequest(event["illegal"])
    return NotReady(event["changed"]) if "changed" in event else WorkerError(event["error"])
