"""The tier of models whose ranks are unknown: a new combination of ranks is compiled off the request's path
and then runs as a dynamic program. Meanwhile PyTorch serves it, or the request waits, as the model says. What
was compiled once is found in the store again, also after a restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import torch

from dlcb.compiler.bridge.ranks import specialise
from dlcb.compiler.runtime.executor import Ran, Shapes
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.thunk import Forecast, Thunk

__all__ = ["JitThunk", "RequestCompile", "in_thread", "specialise"]

RequestCompile = Callable[[ModelSource], "Future[str]"]  # a source of known ranks -> the key of its artifact
WAIT_SECONDS = 60.0  # how long requests wait for a new rank, where the model says that they wait
logger = logging.getLogger(__name__)


@dataclass
class _Rank:
    """One combination of ranks: on its way (`future`), there (`thunk`, made of the artifact `key`), or failed
    (neither). Requests wait for it until `deadline`, of `time.monotonic`."""

    future: Future[str] | None = None
    thunk: Thunk | None = None
    key: str = ""
    deadline: float = 0.0


class JitThunk:
    """Serves inputs of any rank.

    `find` gives the key of an artifact that the store already holds, `load` makes a thunk of a key,
    `request_compile` has one made (None: nothing is compiled), `otherwise` serves what is not compiled yet,
    or cannot be. At most `limit` combinations of ranks are compiled; clients choose ranks. A model that
    waits holds requests for at most `wait_seconds` after a rank was first met.
    """

    tier = "jit"

    def __init__(
        self,
        source: ModelSource,
        find: Callable[[ModelSource], str | None],
        load: Callable[[str], Thunk],
        request_compile: RequestCompile | None,
        otherwise: Thunk,
        limit: int = 16,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._source, self._find, self._load = source, find, load
        self._request_compile, self._otherwise, self._limit = request_compile, otherwise, limit
        self._wait_seconds = wait_seconds if source.jit == "wait" else 0.0
        self._ranks: dict[tuple[int, ...], _Rank] = {}
        self.requested = 0  # compilations asked for

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        thunk = self.thunk_for([tensor.dim() for tensor in inputs])
        if thunk is None:
            return self._otherwise.run(inputs)
        return thunk.run(inputs)

    def thunk_for(self, given: Sequence[int]) -> Thunk | None:
        """The compiled thunk of these ranks; None while there is none. The first question starts its
        compilation."""
        ranks = tuple(given)
        rank = self._ranks.get(ranks)
        if rank is None:
            if len(self._ranks) >= self._limit:
                return None
            rank = self._ranks[ranks] = self._start(ranks)
        if rank.thunk is None and rank.future is not None:
            self._await(ranks, rank, rank.future)
        return rank.thunk

    def forecast(self, shapes: Shapes) -> Forecast:
        rank = self._ranks.get(tuple(len(shape) for shape in shapes))
        if rank is not None and rank.thunk is not None:
            return replace(rank.thunk.forecast(shapes), tier=self.tier)
        new = rank is None and len(self._ranks) < self._limit
        stored = new and self._find(specialise(self._source, [len(shape) for shape in shapes])) is not None
        compiles = new and not stored and self._request_compile is not None
        coming = rank is not None and rank.future is not None and time.monotonic() < rank.deadline
        waits = self._wait_seconds > 0 and (compiles or coming)
        return replace(
            self._otherwise.forecast(shapes),
            tier=self.tier if stored or waits else "eager",
            would_compile=compiles,
        )

    def thunks(self) -> tuple[Thunk, ...]:
        """Those that are compiled and loaded; any thread may ask."""
        return tuple(rank.thunk for rank in list(self._ranks.values()) if rank.thunk is not None)

    def loaded(self) -> dict[tuple[int, ...], str]:
        """The ranks that are compiled and loaded, each with its artifact's key; any thread may ask."""
        return {ranks: rank.key for ranks, rank in list(self._ranks.items()) if rank.thunk is not None}

    def _start(self, ranks: tuple[int, ...]) -> _Rank:
        source = specialise(self._source, ranks)
        rank = _Rank(deadline=time.monotonic() + self._wait_seconds)
        key = self._find(source)
        if key is not None:
            rank.future = Future()
            rank.future.set_result(key)
        elif self._request_compile is not None:
            self.requested += 1
            rank.future = self._request_compile(source)
        return rank

    def _await(self, ranks: tuple[int, ...], rank: _Rank, future: Future[str]) -> None:
        """Load what was compiled, if it is there before the deadline."""
        wait([future], timeout=max(rank.deadline - time.monotonic(), 0.0))
        if not future.done():
            return
        rank.future = None
        try:
            rank.key = future.result()
            rank.thunk = self._load(rank.key)
        except Exception as error:  # whatever stopped the compile process, this process goes on serving
            logger.warning("%s at ranks %s stays eager: %s", self._source.name, ranks, error)


def in_thread(compile: Callable[[ModelSource], str]) -> RequestCompile:
    """A `request_compile` that runs `compile` on a thread of this process, one at a time."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="dlcb-compile")
    return lambda source: executor.submit(compile, source)
