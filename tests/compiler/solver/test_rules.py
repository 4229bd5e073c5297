"""Every rule of expressions keeps the value: each time one fires on thousands of random expressions, what it
matched and what it made of it are evaluated at hostile sizes, indices and facts. No rule may go untried."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from random_expressions import (
    INDICES,
    SIZES,
    assignment,
    integer,
    k,
    m,
    n,
    structured,
    truth,
    value,
)

from dlcb.compiler.expr.bounds import Interval
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import TRUE, apply, check, const, equal, index
from dlcb.compiler.solver.engine import Engine
from dlcb.compiler.solver.simplify import EXPRESSIONS, Facts, Simplifier


class Witness(Engine):
    """An engine that remembers what fired on what."""

    def __init__(self, rules: Any, budget: int) -> None:
        super().__init__(rules, budget)
        self.firings: list[tuple[str, Expr, Expr]] = []

    def rewrite(self, item: Any, context: Any, terms: int = 0) -> Any | None:
        before = self.fired.copy()
        replacement = super().rewrite(item, context, terms)
        if replacement is not None:
            # a rule may ask the engine in turn: the one that fired last is the outermost
            names = [name for name, count in self.fired.items() if count > before[name]]
            self.firings.append((names[-1], item, replacement))
        return replacement


FACTS = [
    (Facts(), {}),
    (Facts(ranges={n: Interval(2, 12), m: Interval(1, None)}), {"n": (2, 3, 7, 12), "m": SIZES[1:]}),
    (Facts(multiples={n: 4, m: 12}), {"n": (0, 4, 12, 4096), "m": (0, 12, 1200)}),
    (Facts(substitution={k: m + 1}), None),
    (Facts(truths={n <= m: TRUE, equal(n % k, 0): TRUE}), None),
]


def _corpus(random: Random, count: int) -> list[Expr]:
    made = []
    for _ in range(count):
        kind = random.random()
        if kind < 0.25:
            made.append(structured(random))
        elif kind < 0.7:
            made.append(integer(random, random.randint(1, 4)))
        else:
            made.append(truth(random, random.randint(1, 3)))
    return made


@pytest.mark.parametrize("number", range(len(FACTS)))
def test_each_firing_keeps_the_value(number: int) -> None:
    facts, sizes = FACTS[number]
    random = Random(number)
    compared = 0
    for e in _corpus(random, 150):
        simplifier = Simplifier(facts)
        simplifier.engine = witness = Witness(EXPRESSIONS, 20_000)
        simple = simplifier.simplify(e)
        assert not witness.exhausted, e
        for _ in range(8):
            pairs = [*witness.firings, ("all", e, simple)]
            values = assignment(random, [x for _, a, b in pairs for x in (a, b)], sizes, facts.substitution)
            if values is None:
                continue
            if not all(value(truth, values) for truth in facts.truths):
                continue
            for name, before, after in pairs:
                expected = value(before, values)
                if expected is not None:  # without a value anything may follow
                    assert value(after, values) == expected, f"{name}: {before!r} -> {after!r} at {values}"
                    compared += 1
    assert compared > 300


def test_every_rule_is_tried() -> None:
    random, fired = Random(7), Counter()
    for facts, _ in FACTS:
        simplifier = Simplifier(facts)
        for e in _corpus(random, 120):
            simplifier.simplify(e)
        fired.update(simplifier.engine.fired)
    simplifier = Simplifier(FACTS[4][0])  # what random expressions rarely contain
    a, b, *_ = INDICES
    for e in (
        apply("where", apply("not", (a < b) ^ (b < 3)), n, m),
        apply("where", (a < b) ^ (b < 3), apply("where", (a < b) ^ (b < 3), n, m), k),
        apply("where", (a < b) ^ (b < 3), n, apply("where", (a < b) ^ (b < 3), m, k)),
        apply("where", a < b, True, False),
        apply("where", equal(n, 1), 0, a),
        apply("where", equal(n, 3), 3, n),
        (a + 1) % const(-4) + a // const(-4),
        apply("and", n <= m, equal(a, 2)),
        (a * n + b) % k,
        (k % 12) % 4,
        check(a, 0, n, "ids", a),
        apply("where", equal(n, 1), apply("min", n, 512), n),
        equal(apply("min", n, k), n),
        equal(apply("max", n, k), n),
        equal(apply("min", n, 512), 1),
        equal(apply("max", n, 5), 8),
    ):
        simplifier.simplify(e)
    fired.update(simplifier.engine.fired)
    assert {rule.name for rule in EXPRESSIONS} - set(fired) == set()


def test_a_simple_expression_stays_the_same_node() -> None:
    random = Random(11)
    for e in _corpus(random, 120):
        simple = Simplifier().simplify(e)
        assert Simplifier().simplify(simple) is simple


def test_it_stops_because_nothing_applies() -> None:
    random = Random(13)
    for facts, _ in FACTS:
        simplifier = Simplifier(facts)
        for e in _corpus(random, 80):
            simplifier.simplify(e)
        report = simplifier.engine.report()
        assert report.stopped == "fixed point"
        assert report.steps < 80 * 120


def test_an_exhausted_budget_still_gives_equal_expressions() -> None:
    random = Random(17)
    for e in _corpus(random, 150):
        simplifier = Simplifier(budget=random.randrange(1, 12))
        simple = simplifier.simplify(e)
        values = assignment(random, [e, simple])
        if values is not None and value(e, values) is not None:
            assert value(simple, values) == value(e, values)
    assert Simplifier(budget=0).simplify(n + 0 * m) is n


def test_steps_are_linear_in_the_expression() -> None:
    def steps(length: int) -> int:
        deep: Expr = n
        for step in range(length):
            deep = apply("min", deep // 2 + step % 3, m + step % 5)
        simplifier = Simplifier()
        simplifier.simplify(deep)
        assert sum(1 for _ in toposort([deep])) > length
        return simplifier.engine.steps

    assert steps(240) < 2.4 * steps(120)


def test_a_long_sum_is_brought_to_normal_form_once() -> None:
    total: Expr = n
    for number in range(500):
        total = total + index(f"i{number}", m) * (number + 1)
    simplifier = Simplifier()
    assert simplifier.simplify(total - total + n) is n
    simplifier.simplify(total)
    assert simplifier.engine.steps < 2 * 500 + 100


def test_diamonds_are_simplified_once() -> None:
    rung: Expr = n
    for _ in range(300):
        rung = apply("max", rung // 2 + 1, rung // 3 + 1)
    simplifier = Simplifier()
    simplifier.simplify(rung)
    assert simplifier.engine.steps < 300 * 50
