"""The one interface of the tiers: static and dynamic programs, programs compiled for a rank when it is first
met, and eager PyTorch. (Library and eager calls inside a program are prepared by `library.bind` and
`eager.binder`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dlcb.compiler.runtime.executor import Ran, Shapes


@dataclass(frozen=True)
class Forecast:
    """What a run at some shapes would be, known before it. Output shapes are None where only the run tells,
    `bytes` are what it needs at most beside parameters and inputs."""

    tier: str
    output_shapes: tuple[tuple[int, ...] | None, ...]
    bytes: int
    cached: bool
    would_compile: bool = False


class Thunk(Protocol):
    """Runs a model at any shape it covers."""

    @property
    def tier(self) -> str:
        """ "static", "dynamic", "jit" or "eager"."""
        ...

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        """Contiguous inputs of the model's dtypes, on its device; outputs that belong to the caller.

        A RequestError where the inputs are at fault; GuardError means that a later tier may still serve them.
        """
        ...

    def forecast(self, shapes: Shapes) -> Forecast:
        """As `run` about shapes alone: the same errors, nothing is run or compiled."""
        ...
