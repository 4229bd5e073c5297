"""Random systems of constraints against brute force over all small sizes: no legal assignment is refused,
none that is illegal passes the guards, and what was concluded holds wherever the statements do."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import (
    apply,
    as_expr,
    ceildiv,
    const,
    equal,
    evaluate,
    maximum,
    minimum,
    size,
)
from dlcb.compiler.shapes.nearest import holds
from dlcb.compiler.shapes.system import System

NAMES = ("n", "m", "k")
VARIABLES = tuple(map(size, NAMES))
LARGEST = 7
NUMBERS = st.sampled_from((0, 1, 2, 3, 4, 6, 12)).map(const)
ATOMS = st.one_of(st.sampled_from(VARIABLES), NUMBERS)
DIVISORS = st.sampled_from((2, 3, 4)).map(const)


def _sums(terms: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pairs = st.tuples(terms, terms)
    parts = st.tuples(terms, DIVISORS)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: minimum(*p)),
        pairs.map(lambda p: maximum(*p)),
        parts.map(lambda p: p[0] // p[1]),
        parts.map(lambda p: p[0] % p[1]),
        parts.map(lambda p: ceildiv(*p)),
        parts.map(lambda p: p[0] + -p[0] % p[1]),
    )


TERMS = st.recursive(ATOMS, _sums, max_leaves=5)
COMPARED = st.builds(apply, st.sampled_from(("eq", "eq", "eq", "le", "lt", "ne")), TERMS, TERMS)
EXACT = st.tuples(TERMS, DIVISORS).map(lambda p: equal(p[0] % p[1], 0))
EITHER = st.tuples(COMPARED, COMPARED).map(lambda p: p[0] | p[1])
RATIOS = st.tuples(st.sampled_from(("broadcast", "quotient", "remainder")), TERMS, st.sampled_from(VARIABLES))
STATEMENTS = st.lists(st.one_of(COMPARED, COMPARED, EXACT, EITHER, RATIOS), min_size=1, max_size=5)
RANGES = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(3, LARGEST))), min_size=3, max_size=3
)


def state(system: System, statement: Expr | tuple[str, Expr, Expr]) -> None:
    if isinstance(statement, Expr):
        system.require(statement)
    elif statement[0] == "broadcast":
        system.broadcast(*statement[1:])
    elif statement[0] == "quotient":
        system.exact_quotient(*statement[1:])
    else:
        for condition in meaning_of(statement):
            system.require(condition)


def meaning_of(statement: Expr | tuple[str, Expr, Expr]) -> list[Expr]:
    """The conditions that a statement says hold."""
    if isinstance(statement, Expr):
        return [statement]
    kind, a, b = statement
    if kind == "broadcast":
        return [equal(a, b) | equal(a, 1) | equal(b, 1)]
    return [as_expr(1) <= b, equal(a % b, 0 if kind == "quotient" else 1)]


def assignments(ranges: list[tuple[int, int | None]]) -> list[dict[str, int]]:
    """All sizes within `ranges`, up to the largest tried."""
    each = [range(low, LARGEST + 1 if high is None else high + 1) for low, high in ranges]
    return [dict(zip(NAMES, values, strict=True)) for values in product(*each)]


def concluded(system: System, asked: list[Expr], values: dict[str, int]) -> list[str]:
    """What the system concluded that does not hold for `values`."""
    wrong = []
    for e in (*VARIABLES, *asked):
        simple, value = system.simplify(e), evaluate(e, values)
        if evaluate(simple, values) != value:
            wrong.append(f"{e!r} = {simple!r}")
        if value not in system.bounds(e):
            wrong.append(f"{e!r} in {system.bounds(e)!r}")
        divisor = system.divisor(e)
        if value % divisor if divisor else value:
            wrong.append(f"{divisor} divides {e!r}")
    return wrong


@given(RANGES, STATEMENTS, st.lists(TERMS, max_size=2), st.sampled_from((None, None, None, 3, 15, 60)))
@settings(max_examples=120, deadline=None)
def test_systems_against_brute_force(
    ranges: list[tuple[int, int | None]],
    statements: list[Expr | tuple[str, Expr, Expr]],
    asked: list[Expr],
    budget: int | None,
) -> None:
    system = System() if budget is None else System(budget)
    for name, (low, high) in zip(NAMES, ranges, strict=True):
        system.fresh(name, low, high)
    legal = assignments(ranges)
    for statement in statements:
        meant = meaning_of(statement)
        still = [values for values in legal if all(holds(condition, values) for condition in meant)]
        try:
            state(system, statement)
        except ShapeError:
            assert not still, f"{statement!r} refuses {still[0]} after {statements!r}"
            return
        legal = still
    guards = [guard.condition for guard in system.solve().guards]
    passing = [v for v in assignments([(0, None)] * 3) if all(holds(guard, v) for guard in guards)]
    assert passing == legal
    for values in legal:
        assert not concluded(system, asked, values), values
    if budget is None:
        assert system.solve().report.stopped == "fixed point"
