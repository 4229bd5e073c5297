"""Whether graphs cover every size: against a scan of all sizes near and far."""

from __future__ import annotations

import itertools

import pytest

from dlcb.compiler.bridge.coverage import covered
from dlcb.compiler.bridge.symbolic import opposite
from dlcb.compiler.dtype import FLOAT64
from dlcb.compiler.expr.node import cast, const, equal, evaluate, not_equal, size

N, M = size("n"), size("m")
ODD, EVEN = equal(N % 2, 1), equal(N % 2, 0)


@pytest.mark.parametrize(
    ("graphs", "whole"),
    [
        ([[]], True),
        ([[N < 10], [N >= 10]], True),
        ([[N < 10], [N > 10]], False),
        ([[N < 10]], False),
        ([[ODD], [EVEN]], True),
        ([[ODD], [EVEN, N >= 6]], False),
        ([[not_equal(N, 1)], [equal(N, 1)]], True),
        ([[not_equal(N, 1), not_equal(M, 1)], [equal(N, 1)], [equal(M, 1)]], True),
        ([[not_equal(N, 1), not_equal(M, 1)], [equal(N, 1), M >= 2], [equal(M, 1)]], False),
        ([[equal(N % 3, 0), N < 50], [equal(N % 3, 1)], [equal(N % 3, 2)], [N >= 50]], True),
        ([[equal(N % 3, 0), N < 50], [equal(N % 3, 1)], [equal(N % 3, 2)], [N >= 60]], False),
    ],
)
def test_against_a_scan(graphs: list[list], whole: bool) -> None:
    assert covered(graphs, {}) is whole
    sizes = [{"n": n, "m": m} for n, m in itertools.product(range(130), range(4))]
    assert whole is all(any(all(evaluate(c, at) for c in graph) for graph in graphs) for at in sizes)


def test_the_declared_range_counts() -> None:
    assert covered([[N < 10]], {"n": (0, 9)})
    assert not covered([[N < 10]], {"n": (0, 10)})
    assert covered([[N >= 10]], {"n": (10, None)})


def test_a_short_range_is_tried_whole() -> None:
    thirds = const(4.5, FLOAT64) <= cast(N, FLOAT64) / 3.0
    assert covered([[thirds]], {"n": (14, 600)})
    assert not covered([[thirds]], {"n": (13, 600)})
    assert not covered([[thirds]], {"n": (14, None)})  # which is true, and not proven
    assert not covered([[N // M < 10], [N // M >= 10]], {"n": (0, 9), "m": (0, 9)})  # by 0 it is neither


def test_both_sides_of_a_branch_are_all() -> None:
    half = const(3.0, FLOAT64) < cast(N, FLOAT64) / 2.0
    product, quotient = N * M < 10, N // 2 < 4
    assert covered([[half], [opposite(half)]], {})
    assert covered([[product], [N * M >= 10]], {})
    assert covered([[quotient, half], [N // 2 >= 4], [opposite(half)]], {})
    assert covered([[product | half], [opposite(half), opposite(product)]], {})
    assert not covered([[half], [opposite(half), N < 5]], {})
    assert not covered([[product], [N * M >= 11]], {})
    assert not covered([[quotient], [opposite(half)]], {})


def test_what_is_not_understood_is_not_proven() -> None:
    assert not covered([[N * M < 10], [N * M > 9]], {})  # all of them, in other words
    assert not covered([[N < M], [N > M]], {})
