"""The learnt cost of a run: a fixed part and a part for each byte."""

from __future__ import annotations

import math
import random

import pytest

from dlcb.server.cost import LEAST_RUNS, RECENT, Cost


def test_it_finds_the_line_through_noisy_runs() -> None:
    draw = random.Random(1)
    cost = Cost()
    for _ in range(300):
        size = draw.randint(100, 5000)
        cost.observe(size, (0.002 + size * 1e-6) * draw.uniform(0.95, 1.05))
    assert cost.forecast(2000) == pytest.approx(0.004, rel=0.1)
    assert cost.padding_worth() == pytest.approx(2000, rel=0.25)


def test_it_knows_from_which_size_on_a_batch_gains_nothing() -> None:
    cost = Cost()
    for size in (1000, 2000, 4000) * 4:
        cost.observe(size, 0.001 + size * 1e-6)
    preferred = cost.preferred()
    assert preferred is not None
    per_byte, best = (0.001 + preferred * 1e-6) / preferred, 1e-6
    assert 1.04 * best < per_byte < 1.06 * best


def test_it_follows_a_change() -> None:
    cost = Cost()
    for seconds in (0.001, 0.002):
        for size in (1000, 2000, 3000) * 200:
            cost.observe(size, seconds)
    assert cost.forecast(2000) == pytest.approx(0.002, rel=0.05)


def test_it_says_nothing_before_a_few_runs_nor_from_one_size() -> None:
    cost = Cost()
    for count in range(LEAST_RUNS):
        assert cost.forecast(10) is None and cost.padding_worth() is None, count
        cost.observe(64, 0.5)
    assert cost.forecast(10) == pytest.approx(0.5)
    assert cost.padding_worth() is None


def test_bytes_that_cost_nothing_are_free_padding_and_no_batch_is_large_enough() -> None:
    cost = Cost()
    for size in (1000, 2000, 4000) * 4:
        cost.observe(size, 0.001)
    assert cost.padding_worth() == math.inf and cost.preferred() is None


def test_it_does_not_guess_far_above_what_ran_of_late() -> None:
    cost = Cost()
    assert cost.seen() is None
    for size in (1000, 4000) * LEAST_RUNS:
        cost.observe(size, 0.001 + size * 1e-6)
    assert cost.seen() == (1000, 4000)
    assert cost.forecast(8000) == pytest.approx(0.009, rel=0.01) and cost.forecast(8001) is None
    assert cost.forecast(0) == pytest.approx(0.001, rel=0.01)
    for _ in range(2 * RECENT):  # large ones are forgotten, as what they took is
        cost.observe(100, 0.001)
    assert cost.seen() == (100, 100) and cost.forecast(8000) is None
