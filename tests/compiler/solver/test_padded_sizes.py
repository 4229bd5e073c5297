"""Sizes that are padded to a multiple, however the program spells them: one form, known to be divisible,
found in few steps, and equal to what Python computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import TRUE, ZERO, const, equal, evaluate, index, size
from dlcb.compiler.shapes.system import System
from dlcb.compiler.solver.simplify import Simplifier

SPELLINGS: dict[str, Callable[[Any, Any], Any]] = {
    "pad by the rest of the rest": lambda n, k: n + (k - n % k) % k,
    "pad by the negative": lambda n, k: n + -n % k,
    "round up": lambda n, k: -(-n // k) * k,
    "add almost one": lambda n, k: (n + k - 1) // k * k,
    "one less, one more": lambda n, k: ((n - 1) // k + 1) * k,
    "pad the whole": lambda n, k: n + (k * 3 - n % k) % k,
}
n, k = size("n"), size("k")
STEPS = 150  # a padded size with a view of it; most take half of it


@pytest.mark.parametrize("divisor", [const(1), const(3), const(8), const(512), k], ids=str)
@pytest.mark.parametrize("name", SPELLINGS)
def test_one_form_that_is_a_multiple(name: str, divisor: Expr) -> None:
    know = Simplifier()
    padded = know.simplify(SPELLINGS[name](n, divisor))
    assert padded is know.simplify(SPELLINGS["round up"](n, divisor))
    assert know.simplify(padded % divisor) is ZERO
    assert know.simplify(padded // divisor * divisor) is padded
    assert know.simplify(n <= padded) is TRUE or divisor is k
    assert know.engine.report().stopped == "fixed point"
    assert know.engine.steps < STEPS


@given(st.sampled_from(sorted(SPELLINGS)), st.integers(0, 30), st.integers(1, 9), st.booleans())
@settings(max_examples=100, deadline=None)
def test_values_are_those_of_python(name: str, length: int, multiple: int, free: bool) -> None:
    spelling = SPELLINGS[name]
    padded = Simplifier().simplify(spelling(n, k if free else const(multiple)))
    assert evaluate(padded, {"n": length, "k": multiple}) == spelling(length, multiple)


@given(st.integers(0, 30), st.integers(1, 9), st.integers(-9, 9))
@settings(max_examples=100, deadline=None)
def test_remainders_within_remainders(length: int, multiple: int, offset: int) -> None:
    values = {"n": length, "k": multiple}
    for b in (k, const(multiple)):
        for e in (
            (n % (b * 4) * 3 + offset) % b,
            (offset - n % b) % b,
            n - (n + offset) % b,
            b * ((n % b + offset) // b) + (n + offset) % b,
        ):
            assert evaluate(Simplifier().simplify(e), values) == evaluate(e, values)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_view_of_windows_needs_no_guard(name: str) -> None:
    system = System()
    b, length, c = system.fresh("b", low=1), system.fresh("n"), system.fresh("c", low=1)
    padded = SPELLINGS[name](length, const(8))
    windows = system.exact_quotient(b * padded * c, b * 8 * c)
    assert windows is (length + 7) // 8
    report = system.solve().report
    assert (report.stopped, report.steps < STEPS) == ("fixed point", True)
    assert all(guard.declared for guard in system.solve().guards)
    # the windows' own coordinates come out of the flat position
    i, j, d = index("i", b * windows), index("j", 8), index("d", c)
    flat = (i * 8 + j) * c + d
    assert system.simplify(flat // c % padded) is i % windows * 8 + j
    assert system.simplify(flat // (padded * c)) is i // windows


def test_a_fact_that_depends_on_itself_ends() -> None:
    system = System()
    length = system.fresh("n")
    system.require(equal((length + length // 2) % 3, 0))
    for e in (length % 3, (length * 2 + 1) % 3, (length + length // 2 + 4) % 3):
        simple = system.simplify(e)
        for value in (0, 2, 4, 6):
            assert evaluate(simple, {"n": value}) == evaluate(e, {"n": value})
    assert system.solve().report.stopped == "fixed point"
    assert system.solve().report.steps < STEPS
