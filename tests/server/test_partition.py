"""Which requests of different sizes run together, held against every other way of running them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcb.server.model import Admission
from dlcb.server.partition import Bounds, rounded, together


def admission(*lengths: int, rows: int = 1, most_rows: int = 32) -> Admission:
    return Admission(rows, "group", lengths, most_rows=most_rows)


def chosen(waiting: Sequence[Admission], bounds: Bounds) -> list[int]:
    return together(waiting, bounds, lambda one, rows, lengths: True)


def cost_of(run: Sequence[Admission], bounds: Bounds) -> float:
    """Infinite where the run may not be."""
    rows = sum(one.rows for one in run)
    total = rows * math.prod(map(max, zip(*(one.lengths for one in run), strict=True)))
    own = sum(one.positions for one in run)
    if len(run) > 1 and (
        rows > min(one.most_rows for one in run)
        or total > bounds.positions
        or total - own > bounds.padding * total
    ):
        return math.inf
    return bounds.worth + total


def partitions(numbers: list[int]) -> Iterator[list[list[int]]]:
    if not numbers:
        yield []
        return
    for rest in partitions(numbers[1:]):
        yield [[numbers[0]], *rest]
        for place, run in enumerate(rest):
            yield [*rest[:place], [numbers[0], *run], *rest[place + 1 :]]


def run_all(waiting: Sequence[Admission], bounds: Bounds) -> float:
    """The cost of taking the first and those beside it, until none is left."""
    left, cost = list(waiting), 0.0
    while left:
        run = chosen(left, bounds)
        assert run[0] == 0
        cost += cost_of([left[number] for number in run], bounds)
        left = [one for number, one in enumerate(left) if number not in run]
    return cost


# a busy machine is no failure
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
WORTHS = st.sampled_from([0, 3, 30, 300, 1e9])


@unhurried
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6), worth=WORTHS, most_rows=st.integers(2, 8)
)
def test_no_way_of_running_all_is_cheaper(lengths: list[int], worth: float, most_rows: int) -> None:
    waiting = [admission(length, most_rows=most_rows) for length in lengths]
    bounds = Bounds(worth)
    ways = partitions(list(range(len(waiting))))
    best = min(sum(cost_of([waiting[number] for number in run], bounds) for run in way) for way in ways)
    assert run_all(waiting, bounds) == best


@unhurried
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=12
    ),
    worth=WORTHS,
    padding=st.sampled_from([0.0, 0.25, 1.0]),
    most_rows=st.integers(1, 8),
)
def test_every_run_keeps_its_bounds(
    sizes: list[tuple[int, int, int]], worth: float, padding: float, most_rows: int
) -> None:
    waiting = [admission(*lengths, rows=rows, most_rows=most_rows) for *lengths, rows in sizes]
    bounds = Bounds(worth, padding, positions=200)
    assert run_all(waiting, bounds) < math.inf


@pytest.mark.parametrize(
    ("worth", "run"),
    [
        (5, [0, 2]),  # a processor's: four positions of padding are worth a run, and hundreds are not
        (300, [0, 2]),
        (500, [0, 1, 2, 3, 4, 5]),  # here one run of all costs less than two
        (math.inf, [0, 1, 2, 3, 4, 5]),  # a GPU's that is not full: positions cost nothing
    ],
)
def test_padding_goes_as_far_as_runs_of_their_own_would_cost(worth: float, run: list[int]) -> None:
    waiting = [admission(length) for length in (10, 256, 14, 200, 255, 250)]
    assert chosen(waiting, Bounds(worth)) == run


def test_many_that_waste_a_little_each_run_apart_when_that_is_cheaper_for_all() -> None:
    waiting = [admission(100), *(admission(90) for _ in range(16))]
    assert chosen(waiting, Bounds(50)) == [0]  # each alone would waste less than a run costs
    assert chosen(waiting, Bounds(200)) == list(range(17))


def test_what_is_bounded_stays_so() -> None:
    waiting = [admission(length) for length in (100, 60, 90)]
    assert chosen(waiting, Bounds(math.inf, padding=0.1)) == [0, 2]
    assert chosen(waiting, Bounds(math.inf, positions=200)) == [0, 2]
    assert chosen([admission(9, rows=9, most_rows=4), admission(9)], Bounds(math.inf)) == [0]


def test_sizes_of_several_axes_merge_only_where_the_merged_run_fits() -> None:
    waiting = [admission(4, 16), admission(16, 4), admission(4, 15)]
    asked: list[tuple[int, tuple[int, ...]]] = []

    def fits(one: Admission, rows: int, lengths: tuple[int, ...]) -> bool:
        asked.append((rows, lengths))
        return False

    assert together(waiting, Bounds(math.inf), fits) == [0, 2]
    assert asked == [(3, (16, 16))] and chosen(waiting, Bounds(math.inf)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("worth", "longest", "rows", "lengths"),
    [
        (1000, (250,), 16, (256,)),  # a GPU's, that starts a run in the time of a thousand positions
        (1000, (97,), 16, (104,)),
        (1000, (97,), 2, (104,)),  # an eighth of a run is the most that is added
        (1000, (50, 49), 1, (50, 50)),
        (60, (250,), 16, (250,)),  # a processor's
        (60, (249,), 4, (250,)),
        (math.inf, (250,), 16, (256,)),
        (math.inf, (193,), 16, (208,)),
    ],
)
def test_lengths_are_as_round_as_costs_next_to_nothing(
    worth: float, longest: tuple[int, ...], rows: int, lengths: tuple[int, ...]
) -> None:
    own = rows * math.prod(longest)
    assert rounded(longest, rows, own, Bounds(worth), lambda chosen: True) == lengths


def test_rounding_keeps_bounds() -> None:
    own = 16 * 250
    assert rounded((250,), 16, own, Bounds(1e6, padding=0.01), lambda chosen: True) == (252,)
    assert rounded((250,), 16, own, Bounds(1e6, positions=4020), lambda chosen: True) == (250,)
    assert rounded((250,), 16, own, Bounds(1e6), lambda chosen: chosen[0] <= 255) == (252,)
