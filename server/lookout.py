"""Looking for what comes in a moment, in place of sleeping until it wakes us.

Where requests come one after another over one connection, front and worker work in turns: each sleeps while
the other works, must be woken by it, and finds its caches cold. That is half of such a request's time, where
there is a core for each. Where others want the cores, it is better to sleep; which of the two holds shows in
how long turns take.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

LOOK_SECONDS = 400e-6  # what takes longer is slept through
TRIED = 32  # turns of a trial
PERIOD = 1024  # turns from trial to trial
WORTH = 0.9  # of the time of turns with sleep: looking takes processor time, and must gain something


class Habit:
    """Whether to look: once in a while some turns are taken the other way, and the better way is kept."""

    def __init__(self) -> None:
        self.looks = False
        self._turns = PERIOD - 2 * TRIED
        self._seconds: list[float] = []
        self._usual = 0.0

    def took(self, seconds: float) -> None:
        """A turn is over, which took so long."""
        self._turns += 1
        if self._turns > PERIOD - 2 * TRIED:
            self._seconds.append(seconds)
        if self._turns == PERIOD - TRIED:
            self._usual = self._median()
            self.looks = not self.looks
        elif self._turns == PERIOD:
            tried = self._median()
            looking, asleep = (tried, self._usual) if self.looks else (self._usual, tried)
            self.looks = looking < WORTH * asleep
            self._turns = 0

    def _median(self) -> float:
        found = statistics.median(self._seconds)
        self._seconds.clear()
        return found


def look(found: Callable[[], object], until: float) -> None:
    """Until `found` gives something, or that moment has come. Whoever else waits for the core gets it."""
    while not found() and time.perf_counter() < until:
        os.sched_yield()
