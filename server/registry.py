"""The models being served: their states, and the way from one to the next. A new version is compiled, loaded
and probed before the old one goes, and the old one goes when its last request is answered; a failed load
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dlcb.compiler import CompilerError
from dlcb.kernel_cache import CacheError, Store, model_owner
from dlcb.server.access import TokenBucket
from dlcb.server.batcher import Batcher
from dlcb.server.errors import NotReady, ServerError
from dlcb.server.metrics import Metrics
from dlcb.server.model import Cells, ServedModel
from dlcb.server.process import Compiled
from dlcb.server.repository import Repository, version_order
from dlcb.server.settings import Model
from dlcb.server.supervisor import NO_WORKER, Supervisor
from dlcb.server.types import State

DRAIN_STEP = 0.01  # seconds between looks at a model that is going
NOT_LOADED, UNLOADED = "not loaded", "unloaded"  # reasons

log = logging.getLogger("dlcb.registry")

Progress = Callable[[str, str, float], None]


class LoadFailed(ServerError):
    """A model did not compile or load; `cause` is the error of the stage that failed, whose status it has."""

    def __init__(self, message: str, cause: Exception) -> None:
        super().__init__(message)
        self.cause = cause
        if isinstance(cause, ServerError):
            self.status = cause.status


class Registry:
    """Loaded versions of each name."""

    def __init__(
        self,
        repository: Repository,
        supervisor: Supervisor,
        batcher: Batcher,
        metrics: Metrics,
        store: Store,
    ) -> None:
        self.repository = repository
        self._supervisor = supervisor
        self._batcher = batcher
        self._metrics = metrics
        self._store = store
        self._served: dict[str, dict[str, ServedModel]] = {}
        self._newest: dict[str, ServedModel] = {}
        self._states: dict[tuple[str, str], tuple[State, str]] = {}
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._handles = 0
        self._wanted = {(entry.name, entry.version) for entry in repository.all() if entry.load}
        self._pinned: set[tuple[str, str]] = set()
        metrics.before_scrape.append(self._refresh_gauges)

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """The version that serves, the newest when none is named. NotFound, or NotReady with the state's
        reason."""
        found = self._newest.get(name) if version is None else self._served.get(name, {}).get(version)
        if found is not None:
            return found
        if version is None:
            entry = self.repository.versions(name)[0]
        else:
            entry = self.repository.find(name, version)
        raise NotReady(self.why_not_ready(entry.name, entry.version))

    def why_not_ready(self, name: str, version: str) -> str:
        """What is said of a registered version that takes no requests, and of one that nobody has loaded how
        that is done."""
        state, reason = self.state(name, version)
        said = f"model '{name}' version '{version}' is {state.lower()}{f': {reason}' if reason else ''}"
        return f"{said}; {self.repository.how_to_load(name)}" if reason in (NOT_LOADED, UNLOADED) else said

    def served(self) -> list[ServedModel]:
        return [model for versions in self._served.values() for model in versions.values()]

    def state(self, name: str, version: str) -> tuple[State, str]:
        """The state and, when it is not READY, the reason."""
        state, reason = self._states.get((name, version), (State.UNAVAILABLE, NOT_LOADED))
        if state is State.READY and not self._batcher.lanes:
            return State.UNAVAILABLE, NO_WORKER
        return state, reason

    async def look_for_changes(self) -> None:
        """See which models are of code or files that are others by now: weights of gigabytes may have to be
        read for that, beside the event loop."""
        served = self.served()
        found = await asyncio.to_thread(lambda: [model.find_change() for model in served])
        for model, said in zip(served, found, strict=True):
            model.changed = said

    def changed(self, name: str, version: str) -> str:
        """What was seen last of a version's code and files; "" where it does not serve."""
        model = self._served.get(name, {}).get(version)
        return "" if model is None else model.changed

    def all_ready(self) -> bool:
        """Whether every model takes requests that is meant to: by the configuration, or by a later load or
        unload."""
        return all(version in self._served.get(name, {}) for name, version in self._wanted)

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Name, version, state and reason of every registered version; with `ready` of those that serve,
        whose reason says where their code or files have changed since."""
        entries = []
        for entry in self.repository.all():
            state, reason = self.state(entry.name, entry.version)
            if state is State.READY:
                reason = self.changed(entry.name, entry.version)
            if not ready or state is State.READY:
                entries.append(
                    {"name": entry.name, "version": entry.version, "state": state.value, "reason": reason}
                )
        return entries

    async def load(self, entry: Model, progress: Progress | None = None) -> ServedModel:
        """Compile, load and probe a registered version, then let it serve. LoadFailed leaves what served
        before."""
        place = (entry.name, entry.version)
        failures = self._metrics.load_failures.cell(*place)  # counted from 0 on, which the first one raises
        async with self._locks[place]:
            old = self._served.get(entry.name, {}).get(entry.version)
            if old is None:
                self._states[place] = (State.LOADING, "")
            try:
                model = await self._bring_up(entry, progress)
            except (CompilerError, ServerError) as error:
                failures.add()
                if progress is None:  # at the start the screen says it
                    log.error(
                        "a model did not load", extra={"fields": {"model": entry.name, "error": str(error)}}
                    )
                if old is None:
                    self._states[place] = (State.UNAVAILABLE, str(error))
                    await self._unpin(place)
                raise LoadFailed(
                    f"model '{entry.name}' version '{entry.version}' did not load: {error}", error
                ) from error
            self._served.setdefault(entry.name, {})[entry.version] = model
            self._settle(entry.name)
            self._states[place] = (State.READY, "")
            self._wanted.add(place)
            if old is not None:
                await self._retire(old)
            return model

    def leave_out(self, entry: Model) -> None:
        """Go on without a version that did not load; a later load may bring it."""
        self._wanted.discard((entry.name, entry.version))

    async def unload(self, name: str, version: str | None = None) -> None:
        """Stop serving a version (all of them when none is named): new requests are refused, accepted ones
        answered."""
        self.repository.versions(name)
        if version is not None:
            self.repository.find(name, version)
        for model in list(self._served.get(name, {}).values()):
            if version is not None and model.version != version:
                continue
            place = (name, model.version)
            async with self._locks[place]:
                if self._served.get(name, {}).pop(model.version, None) is None:
                    continue
                self._settle(name)
                self._states[place] = (State.UNLOADING, "")
                self._wanted.discard(place)
                await self._retire(model)
                await self._unpin(place)
                self._states[place] = (State.UNAVAILABLE, UNLOADED)

    async def close(self, keep: Collection[str] = ()) -> None:
        """Let go of what is pinned in the cache, but for what the owners in `keep` hold; the workers have
        ended."""
        for place in list(self._pinned):
            if model_owner(*place) not in keep:
                await self._unpin(place)

    async def plan(self, model: ServedModel, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """What a worker would do at these shapes (see `Supervisor.plan`)."""
        return await self._supervisor.plan(model, shapes)

    async def count(self) -> None:
        """Have the models' counters say what workers have counted until now."""
        await asyncio.gather(*self._supervisor.request_counters())

    async def _bring_up(self, entry: Model, progress: Progress | None) -> ServedModel:
        source = entry.source(self.repository.folder)
        self._handles += 1
        limits = self.repository.limits(entry)
        rate = limits.requests_per_second
        model = ServedModel(
            handle=self._handles,
            source=source,
            batching=entry.batching,
            limits=limits,
            cells=Cells(self._metrics, entry.name),
            probes=[shape for shape in entry.bench if isinstance(shape, tuple)],
            rate=None if rate is None else TokenBucket(rate),
        )
        report = None if progress is None else lambda stage, fraction: progress(entry.name, stage, fraction)
        self._pinned.add((entry.name, entry.version))  # by the compile process
        compiled: Compiled = await self._supervisor.compiler.compile(source, "load", report)
        model.compiled(compiled.signature, compiled.artifact_key, compiled.report)
        model.code, model.folder = compiled.code, compiled.folder
        model.compile_seconds = compiled.seconds
        tier = str(compiled.report["tier"])
        self._metrics.compile_seconds.cell(entry.name, tier, "load").observe(compiled.seconds)
        # there and 0: a request never compiles
        self._metrics.compile_seconds.cell(entry.name, tier, "request")
        if progress is not None:
            progress(entry.name, "load and probe", 1.0)
        model.load_seconds = await self._supervisor.load(model)
        model.state = State.READY
        if why := compiled.report.get("quarantined"):
            fields = {"model": entry.name, "version": entry.version, "reason": why}
            log.warning("PyTorch runs the model", extra={"fields": fields})
        if model.unpadded:
            fields = {"model": entry.name, "version": entry.version, "reason": model.unpadded}
            log.warning("requests are not padded", extra={"fields": fields})
        return model

    def _settle(self, name: str) -> None:
        """Choose the version that unversioned requests get."""
        versions = self._served.get(name, {})
        if versions:
            self._newest[name] = versions[max(versions, key=version_order)]
        else:
            self._newest.pop(name, None)

    async def _unpin(self, place: tuple[str, str]) -> None:
        try:
            await asyncio.to_thread(self._store.unpin, model_owner(*place))
        except CacheError as error:
            log.warning("still pinned", extra={"fields": {"model": place[0], "error": str(error)}})
        self._pinned.discard(place)

    def _refresh_gauges(self) -> None:
        for place in self._states:
            self._metrics.model_ready.cell(*place).value = self.state(*place)[0] is State.READY
            self._metrics.code_changed.cell(*place).value = bool(self.changed(*place))

    async def _retire(self, model: ServedModel) -> None:
        model.state = State.UNLOADING
        while model.unanswered:
            await asyncio.sleep(DRAIN_STEP)
        self._supervisor.unload(model)
        model.state = State.UNAVAILABLE
