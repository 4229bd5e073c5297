"""Numbers in calls as the symbolic forward saw them, and sympy's expressions as ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch
from torch.utils._sympy import functions

from dlcb.compiler.bridge.seen import Seen, numbers
from dlcb.compiler.bridge.symbolic import Untranslatable, condition, number
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, evaluate, size
from dlcb.compiler.shapes.system import System

N, K = size("n"), sympy.Symbol("k", integer=True, nonnegative=True)
LINE = ("model.py", 3)
AT = (11, 40)  # what n was in two traces


def observed(e: Expr) -> list[int]:
    return [evaluate(e, {"n": n}) for n in AT]


def test_numbers_go_by_where_they_stand() -> None:
    found = numbers(("x", 3, [4, True, (5.0,)]), {"alpha": 2, "dtype": torch.float32})
    assert found == {(1,): 3, (2, 0): 4, (2, 2, 0): 5.0, ("alpha",): 2}


def test_a_call_is_recognised_by_the_values_of_all_its_numbers() -> None:
    seen = Seen()
    seen.add("mul", LINE, {(1,): N // 64})
    seen.add("mul", LINE, {(1,): 0})
    seen.add("mul", LINE, {(1,): N // 100})
    seen.add("view", LINE, {(1, 0): N, (1, 1): None})
    reader = seen.reader()
    zero, four = [{(1,): 0}] * 2, [{(1,): 4}] * 2
    assert reader.next("mul", LINE, four, observed) is None
    assert reader.next("mul", ("other.py", 3), zero, observed) is None
    # in their order, though all three have the same values in these traces
    found = [reader.next("mul", LINE, zero, observed) for _ in range(4)]
    assert found == [{(1,): N // 64}, {(1,): 0}, {(1,): N // 100}, None]
    both = [{(1, 0): n, (1, 1): 7} for n in AT]
    assert reader.next("view", LINE, both, observed) == {(1, 0): N, (1, 1): None}


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        (functions.FloorDiv(K - 9, 2), lambda n: (n - 9) // 2),
        (functions.IntTrueDiv(K, sympy.Integer(3)), lambda n: n / 3),
        (functions.TruncToInt(functions.IntTrueDiv(K - 9, sympy.Integer(2))), lambda n: int((n - 9) / 2)),
        (functions.FloatPow(functions.ToFloat(K), sympy.Float(-0.5)), lambda n: n**-0.5),
        (functions.CeilToInt(functions.IntTrueDiv(K, sympy.Integer(2))), lambda n: -(-n // 2)),
        (functions.RoundToInt(functions.IntTrueDiv(K, sympy.Integer(10))), lambda n: round(n / 10)),
        (functions.TruncToInt(functions.FloatTrueDiv(functions.ToFloat(K), sympy.Float(1.5))), None),
        (sympy.Max(K, 4) + 2 * K**2, lambda n: max(n, 4) + 2 * n * n),
    ],
    ids=lambda value: str(value) if isinstance(value, sympy.Expr) else "",
)
def test_numbers_mean_the_same(expression: sympy.Expr, meaning: object) -> None:
    ours = number(expression, {K: N})
    expected = meaning or (lambda n: int(n / 1.5))
    for n in (1, 2, 5, 15, 25, 64, 999):
        assert evaluate(ours, {"n": n}) == pytest.approx(expected(n), rel=1e-15)


def test_what_has_no_counterpart_is_said() -> None:
    with pytest.raises(Untranslatable, match="sin"):
        number(sympy.sin(K), {K: N})
    with pytest.raises(Untranslatable, match="sin"):
        condition(sympy.sin(K) < 1, True, {K: N})


@pytest.mark.parametrize(
    ("expression", "answer", "meaning"),
    [
        (functions.IntTrueDiv(K, sympy.Integer(3)) < 2.5, True, lambda n: n / 3 < 2.5),
        (functions.OpaqueUnaryFn_sqrt(functions.ToFloat(K)) <= 3, False, lambda n: not n**0.5 <= 3),
        (sympy.Eq(functions.IntTrueDiv(K, sympy.Integer(2)), 3.5), True, lambda n: n / 2 == 3.5),
        (functions.IntTrueDiv(K, sympy.Integer(2)), sympy.Float(3.5), lambda n: n / 2 == 3.5),
        (functions.CeilToInt(functions.IntTrueDiv(K, sympy.Integer(4))) > 2, True, lambda n: -(-n // 4) > 2),
    ],
)
def test_a_condition_on_numbers_made_of_sizes(
    expression: sympy.Expr, answer: object, meaning: Callable[[int], bool]
) -> None:
    system = System()
    system.age(N)
    for ours in (
        condition(expression, answer, {K: N}),
        system.simplify(condition(expression, answer, {K: N})),
    ):
        assert [bool(evaluate(ours, {"n": n})) for n in range(40)] == [meaning(n) for n in range(40)]


def test_the_last_bits_of_a_size_may_decide() -> None:
    ours = condition(functions.BitwiseFn_bitwise_and(K, sympy.Integer(7)), sympy.Integer(3), {K: N})
    assert [n for n in range(20) if evaluate(ours, {"n": n})] == [3, 11, 19]
    for bits in (sympy.Integer(5), K + 1):
        with pytest.raises(Untranslatable):
            condition(functions.BitwiseFn_bitwise_and(K, bits), sympy.Integer(1), {K: N})


def test_a_condition_is_what_was_answered() -> None:
    assert condition(K < 10, sympy.false, {K: N}) is (as_expr(10) <= N)
    assert evaluate(condition(K % 4, sympy.Integer(3), {K: N}), {"n": 7})
