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
BLOCK = 16  # turns that are judged together
WORTH = 0.9  # of the time of turns with sleep: looking takes processor time, and must gain something
LONGEST_SLEEP = 512  # blocks, until looking is tried again that was in vain
LONGEST_LOOK = 256  # blocks, until sleep is measured again


class Habit:
    """Whether to look, by how long turns take: tried after ever longer sleep, and ended by the first block of
    turns that gained nothing. Where cores are wanted most turns may gain, and a few wait for milliseconds: so
    the mean with looks is held against the median with sleep."""

    def __init__(self) -> None:
        self.looks = False
        self._asleep = 0.0  # seconds of a turn with sleep
        self._sleep = 1  # blocks that the last one took
        self._left = BLOCK  # turns until the next decision
        self._looked = 0  # blocks
        self._seconds: list[float] = []

    def took(self, seconds: float) -> None:
        """A turn is over, which took so long."""
        self._left -= 1
        if self._left < BLOCK:
            self._seconds.append(seconds)
        if self._left:
            return
        blocks = 1
        if not self.looks:
            self._asleep, self._looked, self.looks = statistics.median(self._seconds), 0, True
        elif statistics.fmean(self._seconds) > WORTH * self._asleep:
            blocks = self._sleep = min(2 * self._sleep, LONGEST_SLEEP)
            self.looks = False
        else:
            self._sleep = max(1, self._sleep // 2)
            self._looked += 1
            self.looks = self._looked < LONGEST_LOOK
        self._left = blocks * BLOCK
        self._seconds.clear()


def look(found: Callable[[], object], until: float) -> None:
    """Until `found` gives something, or that moment has come. Whoever else waits for the core gets it."""
    while not found() and time.perf_counter() < until:
        os.sched_yield()
