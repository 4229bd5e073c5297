"""Generating kernels ends when its time is over, and says which region took it."""

from __future__ import annotations

import pytest

from dlcb.compiler.errors import TooLong
from dlcb.compiler.kgen.deadline import Allowance, hurry


def test_without_a_limit_there_is_no_end() -> None:
    hurry(10**9)


def test_a_region_may_compute_as_many_values_as_it_is_told() -> None:
    with Allowance(60.0, 60.0).spent_on("k7_add", "model.py:3", values=9):
        hurry(9)
        with pytest.raises(TooLong, match="more than the 9 values that a region may"):
            hurry(10)


@pytest.mark.parametrize(
    ("region", "whole", "said"),
    [(0.0, 60.0, "the 0 s of processor time that a region"), (60.0, 0.0, "the 0 s .* that all regions")],
)
def test_a_region_that_takes_too_long_is_named(region: float, whole: float, said: str) -> None:
    allowance = Allowance(region, whole)
    with pytest.raises(TooLong, match=said) as raised, allowance.spent_on("k7_add", "model.py:3"):
        while True:
            hurry()
    assert (raised.value.node, raised.value.source_line) == ("k7_add", "model.py:3")
    hurry(10**9)  # what comes afterwards is not held to it
