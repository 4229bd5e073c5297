"""What is refuted is negative at sizes for which all facts hold; where no such sizes are tried, none is."""

from __future__ import annotations

import pytest

from dlcb.compiler.expr.bounds import Interval
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, equal, index, size
from dlcb.compiler.solver.refute import Refuter
from dlcb.compiler.solver.simplify import Facts, Simplifier

n, m = size("n"), size("m")
i = index("i", n)
LIMIT = as_expr(2**31 - 1)


def refuted(e: Expr, facts: Facts | None = None) -> bool:
    facts = facts or Facts()
    return Refuter(facts).negative(Simplifier(facts).polynomial(e))


@pytest.mark.parametrize("e", [LIMIT - n * m, n - 1, i - 1, n - i - 2, (n // 2) - i, n % 2 - 1], ids=repr)
def test_what_is_negative_somewhere_is_refuted(e: Expr) -> None:
    assert refuted(e)


@pytest.mark.parametrize("e", [n, n - i - 1, i, n * m, n // (m + 1), n - n % 3], ids=repr)
def test_what_is_never_negative_is_not(e: Expr) -> None:
    assert not refuted(e)


def test_facts_bound_the_sizes_that_are_tried() -> None:
    small = Facts(ranges={n: Interval(8, 512), m: Interval(0, 64)}, multiples={n: 8})
    assert not refuted(LIMIT - n * m, small)
    assert not refuted(n - 8, small)
    assert refuted(n - 9, small)
    assert refuted(as_expr(511) - n, small)


def test_where_a_statement_fails_nothing_is_refuted() -> None:
    assert refuted(m - n + 1, Facts(ranges={n: Interval(2)}))
    assert not refuted(m - n + 1, Facts(ranges={n: Interval(2)}, truths={equal(n, m + 1): None}))


def test_a_fact_that_changes_what_is_tried_is_not_forgotten() -> None:
    facts = Facts()
    refuter, knowledge = Refuter(facts), Simplifier(facts)
    p = knowledge.polynomial(n - 9)
    assert refuter.negative(p)
    facts.ranges[m] = Interval(4)  # says nothing about n
    refuter.forget(m)
    assert refuter.negative(p)
    facts.ranges[n] = Interval(9)
    refuter.forget(n)
    assert not refuter.negative(p)
    facts.substitution[n], facts.ranges = m, {m: facts.ranges[m]}
    refuter.forget(n)
    assert refuter.negative(p)
    facts.truths[as_expr(9) <= m] = None
    refuter.state(as_expr(9) <= m)
    assert not refuter.negative(knowledge.polynomial(m - 9))


def test_a_size_that_stands_for_others_has_their_value() -> None:
    assert not refuted(n - m, Facts(substitution={n: m + 1}))
    assert refuted(m - n, Facts(substitution={n: m + 1}))
