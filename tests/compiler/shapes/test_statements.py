"""Every rule of statements is sound: random true statements about hidden sizes are never refused, what
follows from them holds for the hidden sizes, and sizes that pass the guards have everything that was
concluded."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply, as_expr, const, equal, evaluate, maximum, minimum, not_equal, size
from dlcb.compiler.shapes.nearest import holds
from dlcb.compiler.shapes.rules import STATEMENTS
from dlcb.compiler.shapes.system import System

NAMES = ("n", "m", "k", "b")
VARIABLES = tuple(map(size, NAMES))
HIDDEN = (0, 1, 2, 3, 4, 6, 7, 12, 64)


def term(random: Random, depth: int = 2) -> Expr:
    if depth == 0 or random.random() < 0.35:
        return random.choice((*VARIABLES, *VARIABLES, const(random.choice((1, 2, 3, 12)))))
    a, b = term(random, depth - 1), term(random, depth - 1)
    match random.randrange(7):
        case 0 | 1:
            return a + b
        case 2 | 3:
            return a * b
        case 4:
            return a // random.choice((2, 3, 4))
        case 5:
            return a - b
        case _:
            return random.choice((minimum, maximum))(a, b)


def true_statement(random: Random, hidden: dict[str, int]) -> Expr:
    """A condition that holds for the hidden sizes."""
    e = term(random)
    value = evaluate(e, hidden)
    other = term(random)
    match random.randrange(8):
        case 0 | 1:
            return equal(e, other + (value - evaluate(other, hidden)))
        case 2:
            return equal(e, value)
        case 3:
            return as_expr(value - random.choice((0, 0, 1, 5))) <= e
        case 4:
            return e <= value + random.choice((0, 0, 1, 5))
        case 5:
            divisor = random.choice([d for d in (1, 2, 3, 4, 12) if value % d == 0])
            return equal(e % divisor, 0)
        case 6:
            return not_equal(e, value + random.choice((-1, 1, 3)))
        case _:
            wrong = apply("eq", other, evaluate(other, hidden) + 1)
            return equal(e, value) | wrong


def concluded(system: System, values: dict[str, int]) -> list[str]:
    """What the system concluded that does not hold for `values`."""
    wrong = []
    for v in VARIABLES:
        if evaluate(system.simplify(v), values) != values[v.value]:
            wrong.append(f"{v!r} = {system.simplify(v)!r}")
        if values[v.value] not in system.bounds(v):
            wrong.append(f"{v!r} in {system.bounds(v)!r}")
        divisor = system.divisor(v)
        if values[v.value] % divisor if divisor else values[v.value]:
            wrong.append(f"{divisor} divides {v!r}")
    wrong += [f"{truth!r}" for truth in system.facts.truths if not holds(truth, values)]
    return wrong


def systems(seed: int, count: int) -> list[tuple[System, dict[str, int], list[Expr]]]:
    random = Random(seed)
    made = []
    for _ in range(count):
        system = System(budget=20_000)
        for name in NAMES:
            system.fresh(name)
        hidden = {name: random.choice(HIDDEN) for name in NAMES}
        stated = []
        for _ in range(random.randint(1, 5)):
            statement = true_statement(random, hidden)
            stated.append(statement)
            system.require(statement)
            assert not concluded(system, hidden), (stated, hidden)
        made.append((system, hidden, stated))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_truth_is_never_refused_and_conclusions_hold(seed: int) -> None:
    for system, hidden, stated in systems(seed, 60):
        assert system.solve().report.stopped == "fixed point"
        for statement in stated:
            assert system.known(statement) is not False
        for guard in system.solve().guards:
            assert holds(guard.condition, hidden)


@pytest.mark.parametrize("seed", range(4))
def test_guards_imply_every_conclusion(seed: int) -> None:
    random, passed = Random(seed), 0
    for system, hidden, stated in systems(seed + 100, 40):
        guards = [guard.condition for guard in system.solve().guards]
        for _ in range(60):
            values = {name: random.choice((hidden[name], random.choice(HIDDEN))) for name in NAMES}
            if all(holds(guard, values) for guard in guards):
                passed += 1
                assert not concluded(system, values), (stated, values)
                for statement in stated:
                    assert holds(statement, values), (statement, guards, values)
    assert passed > 200


def test_every_rule_is_tried() -> None:
    fired: Counter[str] = Counter()
    for system, _, _ in systems(5, 120):
        fired.update(system.solve().report.fired)
    system = System()
    n, m, k, b = (system.fresh(name) for name in NAMES)
    for statement in (
        (b <= 9) & (k <= 15),
        equal(n * 3, m * 2),
        equal(k % 4, 0),
        equal(k // 4, 3),
        b * n >= 1,
        equal(b * m, b * 6),
        equal(b, 3) | equal(b, 5),
        not_equal(b, 3),
    ):
        system.require(statement)
    with pytest.raises(ShapeError):
        system.require(equal(b * 2, b * 2 + k - 3))
    fired.update(system._engine.fired)
    # a contradiction raises: it is never counted
    assert {rule.name for rule in STATEMENTS} - set(fired) <= {"contradiction"}
