"""Which requests of different sizes run together: those that wait are parted into the runs that cost least in
all, by what a run has been seen to cost. Pure arithmetic; the queue is in `waiting`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlcb.server.model import Admission

BOUNDLESS = 1e12  # positions: a run that costs so much is never begun to save padding
STEPS = (64, 32, 16, 8, 4, 2)  # lengths are rounded up to multiples of one of these
ROUNDING = 1 / 8  # most of a run's positions, and of what starting it takes, that rounding may add

Fits = Callable[
    [Admission, int, tuple[int, ...]], bool
]  # whether so many rows, padded to these lengths, may run

FitsLengths = Callable[[tuple[int, ...]], bool]  # whether a run may be padded to these lengths


@dataclass(frozen=True, slots=True)
class Bounds:
    """A run costs its positions, padding included, and `worth` more, which is what starting it takes.
    `padding` is the most of a run's positions that may be padding, `positions` the most that it may have."""

    worth: float
    padding: float = 1.0
    positions: float = math.inf


def together(waiting: Sequence[Admission], bounds: Bounds, fits: Fits) -> list[int]:
    """Numbers of those that run with the first of `waiting`, ascending and itself among them, in the cheapest
    way of running all.

    In order of their sizes a run is a stretch: those between two of its requests cost it no more padding. So
    the cheapest way to run the first k follows from those of fewer. (Where several axes are padded, sizes
    have no such order; by their product it is a good way, and need not be the best.)
    """
    order = sorted(range(len(waiting)), key=lambda number: (_area(waiting[number]), waiting[number].lengths))
    ordered = [waiting[number] for number in order]
    counts, limits = [one.rows for one in ordered], [one.most_rows for one in ordered]
    several, bounded = len(waiting[0].lengths) > 1, bounds.padding < 1
    worth = min(bounds.worth, BOUNDLESS)
    least, begins = [0.0], []
    for end, last in enumerate(ordered):
        area, longest = _area(last), last.lengths
        cheapest, begin = least[end] + counts[end] * area, end
        rows, limit = 0, limits[end]
        for first in range(end, -1, -1):
            rows += counts[first]
            limit = min(limit, limits[first])
            if several:
                longest = tuple(map(max, longest, ordered[first].lengths))
                area = math.prod(longest)
            total = rows * area
            if rows > limit or total > bounds.positions:
                break
            cost = least[first] + total
            if cost > cheapest:
                continue
            if bounded and total - _own(ordered[first : end + 1]) > bounds.padding * total:
                continue
            merged = several and longest not in (last.lengths, ordered[first].lengths)
            if merged and not fits(last, rows, longest):
                continue
            cheapest, begin = cost, first
        least.append(cheapest + worth)
        begins.append(begin)
    return _run_of(0, order, begins)


def rounded(
    longest: tuple[int, ...], rows: int, own: int, bounds: Bounds, fits: FitsLengths
) -> tuple[int, ...]:
    """Lengths a little above those of the longest request, for a run of so many rows that has `own`
    positions without padding: shapes then come again, and what is prepared for them serves more runs. They
    are as round as costs next to nothing."""
    area = rows * math.prod(longest)
    most = min(
        area + ROUNDING * min(area, bounds.worth), bounds.positions, own / max(1 - bounds.padding, 1e-9)
    )
    for step in STEPS:
        lengths = tuple(-(-length // step) * step for length in longest)
        if rows * math.prod(lengths) <= most and fits(lengths):
            return lengths
    return longest


def _own(run: Sequence[Admission]) -> int:
    """Positions of a run that are no padding."""
    return sum(one.positions for one in run)


def _area(one: Admission) -> int:
    """Positions of a row."""
    return math.prod(one.lengths)


def _run_of(number: int, order: Sequence[int], begins: Sequence[int]) -> list[int]:
    """The run that holds a request, of runs of which each begins where the one of its last says."""
    place = order.index(number)
    end = len(order)
    while end > place:
        begin = begins[end - 1]
        if begin <= place:
            return sorted(order[begin:end])
        end = begin
    raise AssertionError("the runs hold every request")
