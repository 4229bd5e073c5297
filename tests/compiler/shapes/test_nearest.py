"""The nearest legal sizes for sizes that break a guard."""

from __future__ import annotations

import pytest

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import equal, size
from dlcb.compiler.shapes.nearest import nearest_legal

n, m, k = size("n"), size("m"), size("k")


@pytest.mark.parametrize(
    ("conditions", "sizes", "nearest"),
    [
        ([equal(n % 100, 0)], {"n": 2099}, {"n": 2100}),
        ([equal(n % 100, 0)], {"n": 2101}, {"n": 2100}),
        ([equal(n % 100, 0)], {"n": 2050}, {"n": 2100}),  # larger where both are as near
        ([n >= 2, n <= 64], {"n": 200}, {"n": 64}),
        ([equal(n, m)], {"n": 4, "m": 7}, {"n": 4, "m": 4}),
        ([equal(n, m), equal(n % 8, 0)], {"n": 8, "m": 9}, {"n": 8, "m": 8}),
        ([equal(n, m), equal(n % 8, 0)], {"n": 7, "m": 9}, {"n": 8, "m": 8}),
        ([equal(n, m)], {"n": 3, "m": 3}, {"n": 3, "m": 3}),
        ([equal(n % m, 0)], {"n": 5, "m": 0}, {"n": 5, "m": 1}),
    ],
)
def test_nearest(conditions: list[Expr], sizes: dict[str, int], nearest: dict[str, int]) -> None:
    assert nearest_legal(conditions, sizes) == nearest


def test_only_movable_sizes_move() -> None:
    assert nearest_legal([equal(n, m)], {"n": 4, "m": 7}, movable=("n",)) == {"n": 7, "m": 7}


def test_nothing_near() -> None:
    assert nearest_legal([n >= 10_000], {"n": 3}) is None
    assert nearest_legal([equal(n, 3), equal(n, 4)], {"n": 3}) is None


def test_other_guards_are_kept() -> None:
    assert nearest_legal([equal(n % 4, 0), n <= k], {"n": 7, "k": 7}) == {"n": 4, "k": 7}
