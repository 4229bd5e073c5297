"""A recorded position becomes a place in the caller's input."""

import pytest

from dlcb.compiler.errors import IndexRangeError
from dlcb.compiler.expr.node import ZERO, size
from dlcb.compiler.host.index_error import index_error
from dlcb.compiler.host.program import POSITION, Definition, IndexCheck

n, m, k = size("n"), size("m"), size("k")


@pytest.mark.parametrize("known", [{"n": 2, "m": 3, "k": 10}, {"n": 2, "m": 3}])
def test_the_place_is_computed_from_the_position(known) -> None:
    position = size(POSITION)
    check = IndexCheck("ids", (position % n, position // n), (m, n), ZERO, k)  # ids transposed
    error = index_error(check, 5, -1, known, [Definition("k", n * 5)])
    assert isinstance(error, IndexRangeError)
    assert (error.input, error.position, error.value, error.low, error.high) == ("ids", (1, 2), -1, 0, 10)


def test_a_computed_index_has_its_place_in_the_computed_tensor() -> None:
    error = index_error(IndexCheck("sum_3", None, (n, m), ZERO, m), 4, 9, {"n": 2, "m": 3})
    assert (error.input, error.position) == ("sum_3", (1, 1))
