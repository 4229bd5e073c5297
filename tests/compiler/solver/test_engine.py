"""The engine apart from our rules: priorities, worklist, fixed point, budget, report."""

from __future__ import annotations

import pytest

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply, const, size
from dlcb.compiler.solver.engine import Engine, Report
from dlcb.compiler.solver.pattern import Name, any_of, number
from dlcb.compiler.solver.pattern import apply as p
from dlcb.compiler.solver.rule import Rule

n, m = size("n"), size("m")
x, y, c = Name("x"), Name("y"), number("c")


def row(name: str, match: object, result: object, **options: object) -> Rule:
    return Rule(name, match, result, **options)


# a toy worklist: a sum is taken apart into its terms, zeros vanish
TAKE_APART = (
    row("split", p("add", x, y), lambda context, x, y: (x, y)),
    row("zero", number("c"), lambda context, c: (), given=lambda context, c: c.value == 0),
)


def test_worklist_runs_to_a_fixed_point_in_order() -> None:
    engine, settled = Engine(TAKE_APART), []
    engine.run([n + m * 2 + 3, const(0), m], None, settled.append)
    assert settled == [m * 2, n, const(3), m] or set(settled) == {n, m * 2, const(3), m}
    assert settled[-1] is m  # a replacement comes before what was waiting
    report = engine.report()
    assert report.stopped == "fixed point"
    assert report.fired == {"split": 2, "zero": 1}
    assert report.steps == 7


def test_lower_priority_goes_first_and_the_table_decides_ties() -> None:
    engine = Engine(
        (
            row("late", p("add", x, c), lambda context, x, c: const(1), priority=2),
            row("first", p("add", x, c), lambda context, x, c: const(2), priority=1),
            row("second", p("add", x, c), lambda context, x, c: const(3), priority=1),
        )
    )
    assert engine.rewrite(n + 5, None) is const(2)


def test_a_rule_that_declines_lets_the_next_try() -> None:
    engine = Engine(
        (
            row("declines", p("add", x, c), lambda context, x, c: None),
            row("changes nothing", p("add", x, c), lambda context, x, c: x + c),
            row("given", p("add", x, c), lambda context, x, c: n, given=lambda context, x, c: c.value > 100),
            row("last", p("add", x, c), lambda context, x, c: c),
        )
    )
    assert engine.rewrite(m + 7, None) is const(7)
    assert engine.report().fired == {"last": 1}


def test_budget() -> None:
    endless = (row("grow", any_of("x", "add"), lambda context, x: (x + m,)),)
    engine, settled = Engine(endless, budget=50), []
    engine.run([n + 1], None, settled.append)
    assert engine.report().stopped == "budget"
    assert engine.report().steps == 50
    assert len(settled) == 1  # what is left over settles as it is


def test_one_use_has_a_limit_of_its_own() -> None:
    endless = (row("grow", any_of("x", "add"), lambda context, x: (x + m,)),)
    engine = Engine(endless, budget=70, at_once=20)
    for steps in (20, 40, 60, 70, 70):
        engine.run([n + 1], None, lambda item: None)
        assert engine.report().steps == steps
    assert engine.report().stopped == "budget"


def test_rules_that_ask_each_other_in_a_circle_end() -> None:
    def ask(engine: Engine, x: Expr) -> Expr | None:
        with engine.use():
            return engine.rewrite(x, engine)

    engine = Engine((row("ask", any_of("x", "add"), ask),))
    assert engine.rewrite(n + 1, engine) is None
    assert engine.report().stopped == "budget"
    assert engine.steps < 100


def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="split"):
        Engine((*TAKE_APART, TAKE_APART[0]))


def test_reports_add_up() -> None:
    a, b = Report("fixed point", {"split": 1}, 3, 0.5), Report("budget", {"split": 2, "zero": 1}, 4, 0.25)
    assert a + b == Report("budget", {"split": 3, "zero": 1}, 7, 0.75)


# ---- patterns


def found(pattern: object, node: Expr) -> list[dict[str, Expr]]:
    return list(pattern.match(node, {}))


def test_a_name_twice_is_one_node() -> None:
    assert found(p("sub", x, x), (n + 1) - (m + 1)) == []
    assert found(p("min", x, p("max", x, y)), apply("min", n, apply("max", m, n))) == [{"x": n, "y": m}]


def test_commutative_operands_match_in_either_order() -> None:
    assert {(b["x"], b["y"]) for b in found(x + y, n + m)} == {(n, m), (m, n)}
    assert found(x - y, n - m) == [{"x": n, "y": m}]
    assert found(c + x, n + 3) == [{"c": const(3), "x": n}]


def test_infix_spelling_and_literals() -> None:
    assert found((x * 2) // y, n * 2 // m) == [{"x": n, "y": m}]
    assert found(x % 4, n % 8) == []
    assert found(p("where", x < y, 1, 0), apply("where", n < m, 1, 0)) == [{"x": n, "y": m}]


def test_tests_and_heads() -> None:
    assert found(any_of("x", "size", "const"), n + 1) == []
    assert found(Name("x", lambda e: e.is_const), const(3)) == [{"x": const(3)}]
    assert (x + y).heads == {"add"}
    assert x.heads is None
