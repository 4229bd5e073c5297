"""What workers were asked and have not answered, as futures: to start, to load a model, to plan a request, to
count. A worker that is gone fails them all; who waited may be gone as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, TypeVar

from dlcb.server.errors import ServerError
from dlcb.server.process import WorkerProcess

Answer = TypeVar("Answer")
Plan = dict[str, Any]


class Asked:
    """Futures by worker and question. Everything runs in the event loop's thread."""

    def __init__(self) -> None:
        self._starts: dict[WorkerProcess, asyncio.Future[None]] = {}
        self._loads: dict[tuple[WorkerProcess, int], asyncio.Future[float]] = {}
        self._plans: dict[tuple[WorkerProcess, int], asyncio.Future[Plan]] = {}
        self._counts: dict[WorkerProcess, deque[asyncio.Future[None]]] = {}
        self._tickets = count(1)

    def start(self, worker: WorkerProcess) -> asyncio.Future[None]:
        """Done when a worker that was started just now runs; to be asked before it can have answered."""
        return self._starts.setdefault(worker, _future())

    def started(self, worker: WorkerProcess, error: ServerError | None) -> None:
        _settle(self._starts.pop(worker), error)

    def load(self, worker: WorkerProcess, handle: int) -> tuple[asyncio.Future[float], bool]:
        """The seconds that loading takes, and whether nobody has asked for it yet."""
        first = (worker, handle) not in self._loads
        if first:
            self._loads[worker, handle] = _future()
        return self._loads[worker, handle], first

    def is_loading(self, worker: WorkerProcess, handle: int) -> bool:
        return (worker, handle) in self._loads

    def loaded(self, worker: WorkerProcess, handle: int, outcome: float | ServerError) -> None:
        if self.is_loading(worker, handle):
            _settle(self._loads.pop((worker, handle)), outcome)

    @contextlib.contextmanager
    def plan(self, worker: WorkerProcess) -> Iterator[tuple[int, asyncio.Future[Plan]]]:
        """A ticket, and what the worker will say to it."""
        key = worker, next(self._tickets)
        self._plans[key] = _future()
        try:
            yield key[1], self._plans[key]
        finally:
            del self._plans[key]

    def plans(self, worker: WorkerProcess) -> bool:
        """Whether it has a plan to make."""
        return any(planner is worker for planner, _ticket in self._plans)

    def planned(self, worker: WorkerProcess, ticket: int, outcome: Plan | ServerError) -> None:
        if (worker, ticket) in self._plans:
            _settle(self._plans[worker, ticket], outcome)

    def counters(self, worker: WorkerProcess) -> asyncio.Future[None]:
        """Done when its counters have come, or when it is gone."""
        self._counts.setdefault(worker, deque()).append(_future())
        return self._counts[worker][-1]

    def counted(self, worker: WorkerProcess) -> None:
        _settle(self._counts[worker].popleft(), None)

    def fail(self, worker: WorkerProcess, error: ServerError) -> None:
        """It is gone: what it was asked fails, but for counting, which is over."""
        if worker in self._starts:
            self.started(worker, error)
        for owner, handle in list(self._loads):
            if owner is worker:
                self.loaded(worker, handle, error)
        for owner, ticket in self._plans:
            if owner is worker:
                self.planned(worker, ticket, error)
        for counting in self._counts.pop(worker, ()):
            _settle(counting, None)


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _settle(future: asyncio.Future[Answer], outcome: Answer | ServerError) -> None:
    if future.done():  # whoever waited has gone
        return
    if isinstance(outcome, ServerError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
