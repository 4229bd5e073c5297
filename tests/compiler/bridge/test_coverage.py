"""Whether graphs cover every size: against a scan of all sizes near and far."""

from __future__ import annotations

import itertools

import pytest

from dlcb.compiler.bridge.coverage import covered
from dlcb.compiler.expr.node import equal, evaluate, not_equal, size

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


def test_what_is_not_understood_is_not_proven() -> None:
    assert not covered([[N * M < 10], [N * M >= 10]], {})
    assert not covered([[N < M], [M <= N]], {})
