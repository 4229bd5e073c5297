"""A compiled program of which it is not known that the model takes the same way at sizes that were not
traced. It serves shapes at which its answers were seen to be eager PyTorch's; elsewhere PyTorch answers, and
the two are compared. What disagrees stays PyTorch's, and soon the whole model.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

import torch

from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.agreement import (
    Deviation,
    Reference,
    deviations,
    random_inputs,
    relative_error,
    without_cudnn,
    without_tf32,
)
from dlcb.compiler.bridge.far_values import far_deviations
from dlcb.compiler.disagreement import beyond_chance, in_words, write_reproduction
from dlcb.compiler.errors import GuardError, IndexRangeError, RequestError
from dlcb.compiler.runtime.executor import Ran, Shapes
from dlcb.compiler.runtime.shape_cache import ShapeCache
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.compiler.thunks.eager import EagerThunk
from dlcb.compiler.thunks.graphs import GraphsThunk
from dlcb.compiler.thunks.thunk import Forecast

_REMEMBERED = 4096  # tuples of shapes: a few integers each
_MOST_REFUTED = 3  # distinct ones, from which on PyTorch serves the model
_DRAWS = 4  # of inputs, where the first misses by little: rounding decides on few numbers
_CLOSE = 100.0  # times the error that is no error: answers to a caller, whose values may be anything
_ROUNDED = 0.05  # of a result's norm: what half types come to in a deep model, and more
logger = logging.getLogger(__name__)


class Unconfirmed(Exception):
    """PyTorch has to answer at these shapes. `ours` are the program's outputs, for a comparison; None where
    there is nothing to compare. `wrong` is an index that the program found out of range."""

    def __init__(
        self,
        thunk: UnprovenThunk,
        ours: Sequence[torch.Tensor] | None = None,
        wrong: IndexRangeError | None = None,
    ) -> None:
        super().__init__("not confirmed")
        self.thunk, self.ours, self.wrong = thunk, ours, wrong

    def settle(self, inputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> None:
        """PyTorch gave `eager`: decide who serves the shapes of `inputs` from now on."""
        if self.ours is not None:
            self.thunk.known.settle(self.thunk, inputs, self.ours, eager)


class Confirmations:
    """Where the programs of one artifact are known to be the model, and where they are known not to be.

    `eager` is the model as PyTorch runs it. It and a float64 copy are loaded when they are first needed."""

    def __init__(self, source: ModelSource, artifact: Artifact, eager: EagerThunk) -> None:
        self._source, self._artifact, self._eager = source, artifact, eager
        self._reference: Reference | None = None
        self._known: ShapeCache[bool] = ShapeCache(_REMEMBERED)
        self.refuted: dict[tuple, list[Deviation]] = {}
        self.confirmed = 0  # since the model was loaded
        for shapes in artifact.confirmed or ():
            self._known.put(shapes, True)

    @property
    def quarantined(self) -> bool:
        """Whether so many shapes were refuted that PyTorch serves all."""
        return len(self.refuted) >= _MOST_REFUTED

    def hold(self, shapes: Shapes) -> bool:
        """Whether the program serves these shapes."""
        return self._known.get(shapes) is not None and not self.quarantined

    def may_hold(self, shapes: Shapes) -> bool:
        """Whether a comparison can still show that it does."""
        return not self.quarantined and shapes not in self.refuted

    def settle(
        self,
        thunk: UnprovenThunk,
        inputs: Sequence[torch.Tensor],
        ours: Sequence[torch.Tensor],
        eager: Sequence[torch.Tensor],
    ) -> None:
        """Decide on the shapes of `inputs`, for which the program gave `ours` and PyTorch `eager`. What
        decides are drawn inputs: a caller's zeros would hide a branch, its infinities show one where there is
        none. Where only the caller's differ, or nothing can be compared, they stay undecided."""
        shapes = tuple([tensor.shape for tensor in inputs])
        try:
            found = self._compared(thunk, shapes, inputs[0].device)
        except (RequestError, MemoryError, torch.OutOfMemoryError) as error:
            logger.info("%s: %s are not compared: %s", self._source.name, self._named(shapes), error)
            return
        if found:
            self._refute(shapes, found)
        elif self._close(shapes, ours, eager):
            self._known.put(shapes, True)
            self.confirmed += 1

    def _compared(self, thunk: UnprovenThunk, shapes: Shapes, place: torch.device) -> list[Deviation]:
        """The deviations at drawn inputs of these shapes that rounding does not explain."""
        rows: list[Deviation] = []
        found: list[Deviation] = []
        for seed in range(_DRAWS):
            inputs = list(random_inputs(self._source, self._named(shapes), seed, place).values())
            with torch.inference_mode(False), torch.no_grad(), without_tf32(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the model's own
                ours = thunk.unchecked(inputs).outputs
                with without_cudnn():
                    eager = self._eager.run(inputs).outputs
                fresh = self._rows(shapes, ours, eager, eager)
                if not all(row.agrees for row in fresh):
                    fresh = self._rows(shapes, ours, eager, self._exact(inputs, eager))
            rows += fresh
            found = beyond_chance(rows)
            if not found:
                break
        return found or self._far(thunk, shapes, place)

    def _far(self, thunk: UnprovenThunk, shapes: Shapes, place: torch.device) -> list[Deviation]:
        """The deviations at values that normal draws do not reach."""

        def ours(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
            try:
                return thunk.unchecked(inputs).outputs
            except RequestError:
                return None

        def eager(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
            try:
                with without_cudnn():
                    return self._eager.run(inputs).outputs
            except RequestError:
                return None

        with torch.inference_mode(False), torch.no_grad(), without_tf32(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model's own
            calls = ours, eager, self._in_float64
            return far_deviations(self._source, self._named(shapes), self._outputs, place, calls)

    def _rows(
        self,
        shapes: Shapes,
        ours: Sequence[torch.Tensor],
        eager: Sequence[torch.Tensor],
        exact: Sequence[torch.Tensor],
    ) -> list[Deviation]:
        return deviations(self._named(shapes), self._outputs, ours, eager, exact)

    @property
    def _outputs(self) -> list[str]:
        return [spec.name for spec in self._artifact.signature.outputs]

    def _exact(self, inputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The results in float64; eager's own where the model names a narrower type itself, or goes another
        way in float64."""
        exact = self._in_float64(inputs)
        fits = exact is not None and len(exact) == len(eager) and all(map(_near, eager, exact))
        return exact if exact is not None and fits else eager

    def _in_float64(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """None where it does not run so, as where the model names a narrower type itself."""
        if self._reference is None:
            names = [declared.name for declared in self._source.inputs]
            self._reference = Reference(self._eager.module, names)
        try:
            return self._reference.exact(inputs)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception:  # the user's code may raise anything
            return None

    def _close(self, shapes: Shapes, ours: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> bool:
        rows = self._rows(shapes, ours, eager, eager)
        return all(row.agrees or (not row.reason and row.error <= _CLOSE * row.floor) for row in rows)

    def _refute(self, shapes: tuple, found: list[Deviation]) -> None:
        self.refuted[shapes] = found
        name = self._source.name
        every = [row for rows in self.refuted.values() for row in rows]
        path = write_reproduction(self._source, self._artifact, every)
        logger.error(
            "%s is PyTorch's at %s: %s; reproduction in %s", name, self._named(shapes), in_words(found), path
        )
        if self.quarantined:
            logger.error(
                "%s is served by eager PyTorch from now on: %d shapes disagree", name, len(self.refuted)
            )

    def _named(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        return {
            declared.name: tuple(shape) for declared, shape in zip(self._source.inputs, shapes, strict=True)
        }


def _near(eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether rounding may be all that the two differ in."""
    return eager.shape == exact.shape and relative_error(eager, exact) <= _ROUNDED


class UnprovenThunk:
    """`thunk` where `known` says that it is the model."""

    def __init__(self, thunk: ProgramThunk | GraphsThunk, known: Confirmations) -> None:
        self._thunk, self.known = thunk, known
        self.tier = thunk.tier
        self.programs = thunk.programs
        self.unchecked = thunk.run  # whatever is known

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        """Unconfirmed where PyTorch has to answer; the errors of the thunk itself come first."""
        shapes = tuple([tensor.shape for tensor in inputs])
        if self.known.hold(shapes):
            return self._thunk.run(inputs)
        if not self.known.may_hold(shapes):
            raise Unconfirmed(self)
        try:
            ours = self._thunk.run(inputs).outputs
        except IndexRangeError as wrong:
            raise Unconfirmed(self, wrong=wrong) from None
        raise Unconfirmed(self, ours)

    def forecast(self, shapes: Shapes) -> Forecast:
        if not self.known.hold(tuple(map(tuple, shapes))):
            raise GuardError("PyTorch answers first at shapes that were not met", stage="plan")
        return self._thunk.forecast(shapes)
