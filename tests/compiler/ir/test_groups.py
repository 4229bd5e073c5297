"""How a reshape cuts axes into groups, and that it reads every element once."""

from __future__ import annotations

import pytest

from dlcb.compiler.expr.node import as_expr, size
from dlcb.compiler.ir.ops.rules import groups

n, m, h = size("n"), size("m"), size("h")


def shape(*sizes: object) -> list:
    return [as_expr(s) for s in sizes]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((n, m, 384), (n, m, 12, 32), [((0, 1), (0, 1)), ((1, 2), (1, 2)), ((2, 3), (2, 4))]),
        ((n, m, 12, 32), (n, m, 384), [((0, 1), (0, 1)), ((1, 2), (1, 2)), ((2, 4), (2, 3))]),
        ((n, m, 384), (n * m, 384), [((0, 2), (0, 1)), ((2, 3), (1, 2))]),
        ((n, m), (m, n), [((0, 2), (0, 2))]),
        ((n, 1, m), (n, m), [((0, 1), (0, 1)), ((1, 2), (1, 1)), ((2, 3), (1, 2))]),
        ((n, h, m), (n // 2, 2 * h, m), [((0, 2), (0, 2)), ((2, 3), (2, 3))]),  # cut from the right
        ((2, n, m), (2, n + 1, m), [((0, 1), (0, 1)), ((1, 2), (1, 2)), ((2, 3), (2, 3))]),
        ((), (1, 1), [((0, 0), (0, 1)), ((0, 0), (1, 2))]),
        ((2, 0, 3), (0,), [((0, 3), (0, 1))]),
        ((), (), []),
    ],
)
def test_groups(before: tuple, after: tuple, expected: list) -> None:
    found = [((a.start, a.stop), (b.start, b.stop)) for a, b in groups(shape(*before), shape(*after))]
    assert found == expected
