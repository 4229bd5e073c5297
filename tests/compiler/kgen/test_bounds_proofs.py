"""What can be shown about an access, and that what cannot be shown is guarded."""

import pytest

from dlcb.compiler.dtype import INDEX, INT64
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import TRUE, cast, index, load, maximum, minimum, not_equal, substitute, where
from dlcb.compiler.kgen.affine import linear
from dlcb.compiler.kgen.verify import conditions, guard_in_bounds
from dlcb.compiler.shapes.system import System

S = System()
N, M = S.fresh("n"), S.fresh("m", low=1)
A, B, K = index("i", N), index("j", M), index("k", 3)
ID = load("ids", 0, INT64)


@pytest.mark.parametrize(
    ("size", "coordinate"),
    [
        (N, A),
        (N * M, A * M + B),
        (N + 2, A + 2),
        (N, N - A - 1),
        (N, (A * M + B) // M),
        (M, (A * M + B) % M),
        (M, where(B < 2, B, 0)),
        (M, minimum(B + 5, M - 1)),
        (M, maximum(B - 5, 0)),
        (N * 2 + 1, A * 2 + K),
        (M, cast(not_equal(M, 1), INDEX) * B),
    ],
)
def test_shown_to_be_in_bounds(size: Expr, coordinate: Expr) -> None:
    assert guard_in_bounds(S, [size], [coordinate], TRUE) is TRUE


@pytest.mark.parametrize(
    ("coordinate", "missing"),
    [
        (A + 1, [A + 1 < N]),
        (A - 1, [A - 1 >= 0]),
        (ID, [ID >= 0, ID < N]),
        (A * 2, [A * 2 < N]),
    ],
)
def test_what_is_not_shown_becomes_a_guard(coordinate: Expr, missing: list[Expr]) -> None:
    assert set(conditions(guard_in_bounds(S, [N], [coordinate], TRUE))) == set(missing)


def test_a_guard_is_a_fact() -> None:
    guard = (ID >= 0) & (ID < N)
    assert guard_in_bounds(S, [N], [ID], guard) is guard


def test_the_window_of_a_pool_stays_inside_under_its_guard() -> None:
    """2 i + k - 1 with 0 <= 2 i + k - 1 < n known."""
    place = A * 2 + K - 1
    guard = (place >= 0) & (place < N)
    assert guard_in_bounds(S, [N], [place], guard) is guard


@pytest.mark.parametrize(
    ("size", "coordinate"),
    [
        (N + 1, A - 2),
        (N + 3, A + 1),
        ((N + 1) // 2, (A - 2) // 2),
        (N, N - 1 - (A - 2)),
        (N * M, (A - 2) * M + B),
    ],
)
def test_a_shifted_read_stays_inside_under_its_guard(size: Expr, coordinate: Expr) -> None:
    """0 <= i - 2 < n known, as inside a pad."""
    guard = (A - 2 >= 0) & (A - 2 < N)
    wide = index("i", N + 4)  # what the pad made of n
    guard, coordinate = substitute(guard, {A: wide}), substitute(coordinate, {A: wide})
    assert guard_in_bounds(S, [size], [coordinate], guard) is guard


def test_an_empty_axis_cannot_be_read() -> None:
    assert guard_in_bounds(S, [N], [index("z", N) * 0], TRUE) is not TRUE
    assert guard_in_bounds(S, [M], [index("z", N) * 0], TRUE) is TRUE  # m >= 1


def test_addresses_are_sums_with_coefficients_over_sizes() -> None:
    sums = linear((A * M + B) * 4 - B + N)
    assert sums[A] is M * 4
    assert sums[B].value == 3
    assert len(sums) == 3


def test_a_choice_by_sizes_is_a_choice_of_coefficients() -> None:
    sums = linear(where(not_equal(M, 1), B, 0) * 7)
    assert set(sums) == {B}
