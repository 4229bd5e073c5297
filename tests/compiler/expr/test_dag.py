"""Equal means identical, digests come from content, and no walk is deeper than Python's stack or visits a
node twice."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dlcb.compiler.dtype import FLOAT32, FLOAT64, INDEX, INT32, INT64
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import (
    ONE,
    apply,
    cast,
    const,
    evaluate,
    index,
    reduce,
    size,
    substitute,
    where,
)  # fmt: skip

n, m = size("n"), size("m")


def test_equal_is_identical() -> None:
    assert (n + 1) * m is (n + 1) * m
    assert n + m is m + n
    assert size("n") is n
    assert const(0.0, FLOAT32) is not const(-0.0, FLOAT32)
    assert const(float("nan"), FLOAT32) is const(float("nan"), FLOAT32)
    assert const(1) is not const(True, cast(n, FLOAT32).dtype)


def test_digest_is_the_same_in_another_process() -> None:
    program = (
        "from dlcb.compiler.expr.node import size, where; n, m = size('n'), size('m');"
        "print(where(n < m, (n + 1) * m, 3).digest.hex())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == where(n < m, (n + 1) * m, 3).digest.hex()


def test_threads_make_one_node() -> None:
    def build(_: int) -> list[Expr]:
        made: list[Expr] = [n]
        for step in range(300):
            made.append(apply("max", made[-1] // 3, m * 7 + step))
        return made

    with ThreadPoolExecutor(8) as pool:
        chains = list(pool.map(build, range(8)))
    assert all(node is first for chain in chains for node, first in zip(chain, chains[0], strict=True))


def test_free_variables() -> None:
    i = index("i", n)
    assert (i * m).free == {i, n, m}
    assert reduce("sum", (i,), cast(i * m, FLOAT32)).free == {n, m}


def test_deep_chain() -> None:
    deep: Expr = n
    for step in range(5_000):
        deep = apply("max", deep // 3, m + step)
    assert evaluate(deep, {"n": 5, "m": 1}) == 5_000
    assert substitute(deep, {n: m}).free == {m}
    assert len(deep.digest) == 16


def test_diamond_ladder_takes_linear_time() -> None:
    rung: Expr = n
    for _ in range(2_000):
        rung = apply("min", rung + 1, rung + 2)  # 2**2000 paths
    assert sum(1 for _ in toposort([rung])) < 3 * 2_000 + 10
    assert evaluate(rung, {"n": 0}) == 2_000
    assert substitute(rung, {n: ONE}).is_const


def test_negative_numerators_round_down() -> None:
    assert const(-7) // 2 is const(-4)
    assert const(-7) % 2 is ONE
    assert evaluate(n // m, {"n": -7, "m": 2}) == -4


def test_division_by_zero_has_no_value() -> None:
    with pytest.raises(ZeroDivisionError):
        evaluate(const(1) // const(0), {})


def test_an_integer_made_of_infinity_has_no_value() -> None:
    logarithm = cast(apply("log", cast(n, FLOAT64)), INDEX)
    assert evaluate(logarithm, {"n": 8}) == 2
    with pytest.raises(ZeroDivisionError):
        evaluate(logarithm, {"n": 0})


def test_expressions_do_not_pickle() -> None:
    with pytest.raises(TypeError, match="text"):
        n.__reduce__()


@pytest.mark.parametrize(
    ("kind", "number", "target", "held"),
    [
        (FLOAT32, 2**24 + 1, INT64, 2**24),
        (FLOAT32, 0.1, FLOAT64, float(np.float32(0.1))),
        (INT64, 2**31 + 5, INT32, 5 - 2**31),
    ],
)
def test_constants_are_cast_from_what_their_type_holds(kind, number, target, held) -> None:
    assert cast(const(number, kind), target).value == held
