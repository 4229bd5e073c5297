"""What a run of a model costs, learnt from the runs there were: seconds as a fixed part and a part for each
byte of input. It forecasts a run, says how much padding is cheaper than starting another run, and from which
size on a batch gains nothing by growing.
"""

from __future__ import annotations

import math

MEMORY = 0.99  # weight that a run keeps when the next one is seen: the last hundred count
LEAST_RUNS = 8
RECENT = 100  # runs
BEYOND = 2  # times the most bytes that were seen of late: of more a forecast would be a guess
NEAR_BEST = 0.05  # of a byte's cost, which a larger batch would still save


class Cost:
    """A straight line through (bytes, seconds), by least squares over runs that are forgotten slowly."""

    __slots__ = ("_before", "_bytes", "_now", "_products", "_runs", "_seconds", "_squares", "_weight")

    def __init__(self) -> None:
        self._runs = 0
        self._before: tuple[int, int] | None = None  # least and most bytes of the hundred runs before these
        self._now: tuple[int, int] | None = None
        self._weight = self._bytes = self._seconds = self._squares = self._products = 0.0

    def observe(self, size: int, seconds: float) -> None:
        """A run over inputs of `size` bytes took so long."""
        if self._runs % RECENT == 0:
            self._before, self._now = self._now, None
        self._runs += 1
        self._now = _around(self._now, (size, size))
        self._weight = self._weight * MEMORY + 1.0
        self._bytes = self._bytes * MEMORY + size
        self._seconds = self._seconds * MEMORY + seconds
        self._squares = self._squares * MEMORY + size * size
        self._products = self._products * MEMORY + size * seconds

    def line(self) -> tuple[float, float]:
        """Seconds of an empty run, and seconds a byte; neither is negative. Zeros before there were runs."""
        if not self._weight:
            return 0.0, 0.0
        if not self._is_spread():
            return self._seconds / self._weight, 0.0
        slope = (self._weight * self._products - self._bytes * self._seconds) / self._spread()
        slope = max(slope, 0.0)
        fixed = (self._seconds - slope * self._bytes) / self._weight
        if fixed < 0.0:
            return 0.0, self._products / self._squares
        return fixed, slope

    def _spread(self) -> float:
        return self._weight * self._squares - self._bytes**2

    def _is_spread(self) -> bool:
        """Whether runs differed in size: else nothing shows what a byte costs."""
        return self._spread() > 1e-9 * self._squares * self._weight

    def seen(self) -> tuple[int, int] | None:
        """The least and the most bytes of the last hundred runs or more; None before there were runs."""
        return self._now and _around(self._before, self._now)

    def forecast(self, size: int) -> float | None:
        """Seconds of a run over `size` bytes; None until a few have been seen, and far above all of them."""
        seen = self.seen()
        if seen is None or self._runs < LEAST_RUNS or size > BEYOND * seen[1]:
            return None
        fixed, slope = self.line()
        return fixed + slope * size

    def padding_worth(self) -> float | None:
        """Bytes of padding that cost as much as one more run, infinite where bytes cost nothing; None while
        that cannot be told."""
        if self._runs < LEAST_RUNS or not self._is_spread():
            return None
        fixed, slope = self.line()
        return fixed / slope if slope else math.inf

    def preferred(self) -> float | None:
        """Bytes of a batch that is as good as any larger one; None while that cannot be told, or where larger
        is always better."""
        worth = self.padding_worth()
        return None if worth is None or worth == math.inf else worth / NEAR_BEST


def _around(range_: tuple[int, int] | None, other: tuple[int, int]) -> tuple[int, int]:
    return other if range_ is None else (min(range_[0], other[0]), max(range_[1], other[1]))
