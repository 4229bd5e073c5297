"""How long kernels may be generated. Expressions that are inlined into each other may double with every
operator, so that text without end would be made: then it is given up. What is counted is processor time, so
that a busy machine changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from dlcb.compiler.errors import TooLong

_deadline: ContextVar[float] = ContextVar("_deadline", default=float("inf"))


def hurry() -> None:
    """Raises TooLong where the region that is generated has taken all its time."""
    if time.thread_time() > _deadline.get():
        raise TooLong("the time to generate kernels is over", stage="generate")


@dataclass
class Allowance:
    """Seconds of processor time for the kernels of one region, and for those of all regions of a model."""

    region: float
    whole: float
    started: float = field(default_factory=time.thread_time)

    @contextmanager
    def spent_on(self, region: str, source_line: str) -> Iterator[None]:
        """The time that generating one region takes. Raises TooLong, with its name, where it is over."""
        now, end = time.thread_time(), self.started + self.whole
        token = _deadline.set(min(now + self.region, end))
        try:
            yield
        except TooLong as error:
            limit, what = (
                (self.region, "a region") if now + self.region <= end else (self.whole, "all regions")
            )
            raise TooLong(
                f"generating kernels took more than the {limit:g} s of processor time that {what} may take",
                stage="generate",
                node=region,
                source_line=source_line,
            ) from error
        finally:
            _deadline.reset(token)
