"""Systems that are made to be hard to solve: the work grows with their size and no faster, and what is cut
short says nothing wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

import pytest

from dlcb.compiler.bench.hostile import FAMILIES, Family
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.node import all_of, equal, evaluate, minimum, size
from dlcb.compiler.shapes.nearest import holds
from dlcb.compiler.shapes.system import Provenance, System
from dlcb.compiler.solver.engine import STEPS_EARNED, Engine
from dlcb.compiler.solver.pattern import any_of
from dlcb.compiler.solver.rule import Rule
from dlcb.compiler.solver.simplify import Simplifier

FEW = 12
AT_ONCE = 200  # steps, so that few sizes are many


def _calls(work: Callable[[], object], events: Collection[str] = ("call",)) -> int:
    """How many Python functions `work` calls: a measure of time that is the same on any machine. `events`: of
    functions in C as well."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in events

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def _solved(family: Family, count: int) -> System:
    system = System(at_once=AT_ONCE)
    family(system, count)
    system.solve()
    return system


@pytest.mark.parametrize("name", FAMILIES)
def test_work_grows_with_the_system(name: str) -> None:
    family = FAMILIES[name]
    _solved(family, 4)
    small, large = (_calls(lambda count=count: _solved(family, count)) for count in (FEW, 2 * FEW))
    assert large < 3.6 * small  # a sum or broadcast of n sizes has n terms wherever it stands
    assert large < 2 * FEW * 14_000


@pytest.mark.parametrize("name", ["broadcasts", "known_broadcasts", "joined_lists"])
def test_each_of_many_sizes_costs_no_look_at_all_others(name: str) -> None:
    small, large = (
        _calls(lambda count=count: FAMILIES[name](System(), count), ("call", "c_call")) for count in (50, 100)
    )
    assert large < 2.3 * small


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_concluded_holds(name: str) -> None:
    system = System(budget=400)  # most are cut short
    FAMILIES[name](system, 12)
    solution = system.solve()
    names = list(solution.verdicts)
    for number in (0, 1, 2, 3, 16):
        for values in (dict.fromkeys(names, number), {v: number + k % 2 for k, v in enumerate(names)}):
            if not all(holds(guard.condition, values) for guard in solution.guards):
                continue
            for v, verdict in solution.verdicts.items():
                assert evaluate(verdict.value, values) == values[v]
                assert verdict.low <= values[v] <= (values[v] if verdict.high is None else verdict.high)
                assert values[v] % verdict.multiple == 0 if verdict.multiple else values[v] == 0


def test_a_spent_budget_keeps_each_statement_as_a_check_with_its_construct() -> None:
    system = System(budget=60)
    each = [system.fresh(f"n{k}") for k in range(30)]
    for k in range(29):
        system.equal(each[k] * 2 + each[k - 1], each[k + 1] * 3, Provenance(f"operator {k}", f"model.py:{k}"))
    solution = system.solve()
    assert solution.report.stopped == "budget"
    assert {guard.why.operator for guard in solution.guards} == {f"operator {k}" for k in range(29)}


def test_what_one_use_takes_is_missing_to_the_next() -> None:
    endless = (Rule("grow", any_of("x", "add"), lambda context, x: (x + size("m"),)),)
    engine = Engine(endless, at_once=100, earned=7)
    for steps in (100, 107, 114):
        engine.run([size("n") + 1], None, lambda item: None)
        assert engine.report().steps == steps


def test_a_step_of_many_terms_takes_from_the_uses_after_it() -> None:
    engine = Engine((), at_once=100, earned=7)
    with engine.use():
        assert engine.spend(500)  # 251 steps
        assert not engine.spend()
    for expected in [False] * 21 + [True]:
        with engine.use():
            assert engine.spend() == expected


def test_uses_add_up_to_no_more_than_they_earn() -> None:
    for name, family in FAMILIES.items():
        engine = _solved(family, FEW).simplifier.engine
        assert engine.steps < AT_ONCE + 20 * FEW * STEPS_EARNED, name


def test_a_message_is_short_where_its_expression_is_not() -> None:
    system, total = System(), size("n0")
    for k in range(60):
        total = total * total + size(f"n{k + 1}")  # as text it would have 2^60 terms
    with pytest.raises(ShapeError, match=r"\.\.\. .* must be less than 0") as refused:
        system.require(total < 0)
    assert len(refused.value.message) < 4_000


def test_many_conditions_at_once() -> None:
    system = System()
    each = [system.fresh(f"n{k}") for k in range(600)]
    system.require(all_of((each[k - 1] <= 5) | (each[k] >= 7) for k in range(600)))
    assert len(system.facts.truths) == 600
    with pytest.raises(ShapeError):
        system.require(all_of(v <= 6 for v in each) & (each[3] >= 7))


def test_products_of_many_sizes_are_not_multiplied_out() -> None:
    know = Simplifier()
    x, factors = size("x"), [size(f"f{k}") + 1 for k in range(40)]
    quotient = x
    for factor in factors:
        quotient = know.simplify(quotient // factor)
    assert _calls(lambda: know.simplify(quotient >= 1)) < 100_000


def test_a_chain_is_brought_to_normal_form_once() -> None:
    know, each = Simplifier(), [size(f"n{k}") for k in range(60)]
    least = each[0]
    for v in each[1:]:
        least = minimum(least, v)
    know.simplify(least)
    assert know.engine.fired["extreme"] == 1
    assert know.engine.steps < 3 * 60 * 60  # each pair once
    either = equal(each[0], 1)
    for v in each[1:]:
        either = either | equal(v, 1)
    before = know.engine.steps
    know.simplify(either)
    assert know.engine.steps - before < 20 * 60


def test_an_alternative_that_was_stated_is_found_in_a_longer_one() -> None:
    system = System()
    n, m, k = (system.fresh(hint) for hint in "nmk")
    system.require(equal(n, 1) | equal(m, 1))
    assert system.known(equal(k, 1) | (equal(m, 1) | equal(n, 1))) is True
    assert system.known(equal(k, 1) | equal(m, 1)) is None


def test_many_sizes_broadcast_to_the_first_that_is_not_one() -> None:
    system = System()
    each = [system.fresh(f"n{k}") for k in range(12)]
    result = each[0]
    for v in each[1:]:
        result = system.broadcast(result, v)
    for place in range(12):
        values = {v.value: 7 if k == place else 1 for k, v in enumerate(each)}
        assert evaluate(result, values) == 7
        assert all(holds(guard.condition, values) for guard in system.solve().guards)
    assert not all(
        holds(guard.condition, {v.value: k + 1 for k, v in enumerate(each)})
        for guard in system.solve().guards
    )
