"""Several programs of one model as one thunk: a model whose graph changes with the sizes has one for each of
a few ranges. The first whose guards hold at a shape serves it, and is remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from dlcb.compiler.errors import GuardError
from dlcb.compiler.runtime.executor import Ran, Shapes
from dlcb.compiler.runtime.shape_cache import ShapeCache
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.compiler.thunks.thunk import Forecast

Result = TypeVar("Result")


class GraphsThunk:
    """`programs` in the order in which they are tried; `capacity` bounds the shapes that are remembered."""

    def __init__(self, programs: Sequence[ProgramThunk], capacity: int = 512) -> None:
        self.programs = tuple(programs)
        self.tier = self.programs[0].tier
        self._serving: ShapeCache[ProgramThunk] = ShapeCache(capacity)

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        shapes = tuple([tensor.shape for tensor in inputs])
        serving = self._serving.get(shapes)
        if serving is not None:
            return serving.run(inputs)
        ran, serving = self._first(lambda program: program.run(inputs))
        self._serving.put(shapes, serving)
        return ran

    def forecast(self, shapes: Shapes) -> Forecast:
        return self._first(lambda program: program.forecast(shapes))[0]

    def _first(self, ask: Callable[[ProgramThunk], Result]) -> tuple[Result, ProgramThunk]:
        """What the first program says that serves these shapes; the first one's GuardError where none
        does."""
        refusals: list[GuardError] = []
        for program in self.programs:
            try:
                return ask(program), program
            except GuardError as error:
                refusals.append(error)
        raise refusals[0]
