"""How much may be generated for one region, and how long. Expressions that are inlined into each other may
double with every operator, so that text without end would be made: then it is given up. What is counted is
values, or processor time, so that a busy machine changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from dlcb.compiler.errors import TooLong


@dataclass(frozen=True)
class _Limits:
    values: float = float("inf")
    until: float = float("inf")  # in processor time
    earliest: float = float("inf")  # by the clock: `until` is not reached before, and the clock costs less


_NONE = _Limits()
_limits: ContextVar[_Limits] = ContextVar("_limits", default=_NONE)


def hurry(values: int = 0) -> None:
    """Raises TooLong where the region that is generated has taken all its time, or where more `values` are
    computed for an element of it than may be."""
    limits = _limits.get()
    if values > limits.values:
        raise TooLong(
            f"an element takes more than the {limits.values:g} values that a region may compute for it",
            stage="generate",
        )
    if time.monotonic() > limits.earliest and time.thread_time() > limits.until:
        raise TooLong("", stage="generate")


@dataclass
class Allowance:
    """Seconds of processor time for the kernels of one region, and for those of all regions of a model."""

    region: float
    whole: float
    started: float = field(default_factory=time.thread_time)

    @property
    def is_spent(self) -> bool:
        return time.thread_time() > self.started + self.whole

    @contextmanager
    def spent_on(self, region: str, source_line: str, values: float = float("inf")) -> Iterator[None]:
        """What generating one region takes, with at most `values` that it computes for an element. Raises
        TooLong, with its name, where that is too much."""
        now, end = time.thread_time(), self.started + self.whole
        until = min(now + self.region, end)
        token = _limits.set(_Limits(values, until, time.monotonic() + until - now))
        try:
            yield
        except TooLong as error:
            limit, what = (
                (self.region, "a region") if now + self.region <= end else (self.whole, "all regions")
            )
            late = f"generating kernels took more than the {limit:g} s of processor time that {what} may take"
            raise TooLong(
                error.message or late, stage="generate", node=region, source_line=source_line
            ) from error
        finally:
            _limits.reset(token)
