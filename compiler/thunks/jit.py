"""The tier of models whose ranks are unknown: a new combination of ranks is compiled off the request's path
and then runs as a dynamic program. Meanwhile PyTorch serves it, or the request waits, as the model says. What
was compiled once is found in the store again, also after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from dlcb.compiler.runtime.executor import Ran, Shapes
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.compiler.thunks.thunk import Forecast, Thunk

RequestCompile = Callable[[ModelSource], "Future[str]"]  # a source of known ranks -> the key of its artifact
logger = logging.getLogger(__name__)


@dataclass
class _Rank:
    """One combination of ranks: on its way (`future`), there (`thunk`), or failed (neither)."""

    future: Future[str] | None = None
    thunk: Thunk | None = None


class JitThunk:
    """Serves inputs of any rank.

    `find` gives the key of an artifact that the store already holds, `load` makes a thunk of a key,
    `request_compile` has one made (None: nothing is compiled), `otherwise` serves what is not compiled yet,
    or cannot be. At most `limit` combinations of ranks are compiled; clients choose ranks.
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
    ) -> None:
        self._source, self._find, self._load = source, find, load
        self._request_compile, self._otherwise, self._limit = request_compile, otherwise, limit
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
            rank = self._ranks[ranks] = self._start(specialise(self._source, ranks))
        if (
            rank.thunk is None
            and rank.future is not None
            and (self._source.jit == "wait" or rank.future.done())
        ):
            self._finish(ranks, rank, rank.future)
        return rank.thunk

    def forecast(self, shapes: Shapes) -> Forecast:
        rank = self._ranks.get(tuple(len(shape) for shape in shapes))
        if rank is not None and rank.thunk is not None:
            return replace(rank.thunk.forecast(shapes), tier=self.tier)
        waits = self._source.jit == "wait"
        return replace(
            self._otherwise.forecast(shapes), tier=self.tier if waits else "eager", would_compile=rank is None
        )

    def thunks(self) -> tuple[Thunk, ...]:
        """Those that are compiled and loaded."""
        return tuple(rank.thunk for rank in self._ranks.values() if rank.thunk is not None)

    def _start(self, source: ModelSource) -> _Rank:
        key = self._find(source)
        if key is not None:
            return _Rank(thunk=self._load(key))
        if self._request_compile is None:
            return _Rank()
        self.requested += 1
        return _Rank(future=self._request_compile(source))

    def _finish(self, ranks: tuple[int, ...], rank: _Rank, future: Future[str]) -> None:
        rank.future = None
        try:
            rank.thunk = self._load(future.result())
        except Exception as error:  # whatever stopped the compile process, this process goes on serving
            logger.warning("%s at ranks %s stays eager: %s", self._source.name, ranks, error)


def specialise(source: ModelSource, ranks: Sequence[int]) -> ModelSource:
    """The source with its any-rank inputs at these ranks, each of their dims free under a name of its own."""
    inputs = tuple(
        replace(declared, shape=tuple(f"{declared.name}_{axis}" for axis in range(rank)))
        if declared.shape is None
        else declared
        for declared, rank in zip(source.inputs, ranks, strict=True)
    )
    return replace(source, inputs=inputs)


def in_thread(compile: Callable[[ModelSource], str]) -> RequestCompile:
    """A `request_compile` that runs `compile` on a thread of this process, one at a time."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="dlcb-compile")
    return lambda source: executor.submit(compile, source)


def is_any_rank(inputs: Sequence[InputDeclaration]) -> bool:
    return any(declared.shape is None for declared in inputs)
