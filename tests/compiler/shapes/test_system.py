"""The system of sizes: what statements lead to, what they refuse, and what is left for run time to check."""

from __future__ import annotations

import pytest

from dlcb.compiler.bench.sizes import program, solve_programs
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.bounds import Interval
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import (
    FALSE,
    ONE,
    TRUE,
    ceildiv,
    const,
    equal,
    evaluate,
    minimum,
    not_equal,
    where,
)
from dlcb.compiler.shapes.system import Guard, Provenance, System

WHY = Provenance("add", "model.py:3", "%x: float32[n], %y: float32[m]")
OTHER = Provenance("linear", "model.py:9", "%w: float32[768]")


@pytest.fixture
def system() -> System:
    return System()


def conditions(system: System) -> list[Expr]:
    return [guard.condition for guard in system.solve().guards]


# ---- equality


def test_older_variable_represents(system: System) -> None:
    n, m, k = (system.fresh(hint) for hint in "nmk")
    assert system.equal(k, m, WHY) is m
    assert system.equal(m, n, WHY) is n
    assert system.simplify(k) is n
    assert conditions(system) == [equal(m, k), equal(n, m)]
    assert system.solve().apply(k * m) is n * n


def test_a_class_of_equal_sizes_has_one_representative(system: System) -> None:
    """Joined as a union of trees: each size stands for the oldest, in steps linear in the sizes."""
    sizes = [system.fresh(f"s{k}") for k in range(128)]
    step = 1
    while step < len(sizes):
        for k in range(0, len(sizes), 2 * step):
            system.equal(sizes[k + step], sizes[k + 2 * step - 1], WHY)
            system.equal(sizes[k + step - 1], sizes[k + step], WHY)
        step *= 2
    assert {system.simplify(symbol) for symbol in sizes} == {sizes[0]}
    assert len(conditions(system)) <= 2 * len(sizes)
    assert system.solve().report.steps < 60 * len(sizes)


def test_names_are_unique(system: System) -> None:
    assert [system.fresh("n").value for _ in range(3)] == ["n", "n_1", "n_2"]


def test_literal_everywhere(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(n, m, WHY)
    system.equal(m, 768, OTHER)
    solution = system.solve()
    assert solution.substitution[n] is solution.substitution[m] is const(768)
    assert solution.verdicts["n"].kind == "literal"
    assert solution.verdicts["n"].reason is OTHER


def test_contradiction_names_both_sides_and_leaves_no_trace(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(n, 5, OTHER)
    before = system.solve()
    with pytest.raises(ShapeError) as found:
        system.equal(n + m, m + 7, WHY)
    message = str(found.value)
    assert "m + n must equal m + 7" in message
    assert "n is 5 by linear at model.py:9" in message
    assert "%x: float32[n]" in message
    assert found.value.source_line == "model.py:3"
    assert system.solve().guards == before.guards
    assert system.simplify(m) is m


def test_two_literals_at_construction(system: System) -> None:
    with pytest.raises(ShapeError, match=r"add: 2 does not broadcast with 4, for axis -2 of %x.*%y"):
        system.inference(WHY).broadcast(const(2), const(4), "axis -2")


@pytest.mark.parametrize("a", [8, 64])
def test_accidental_equality_never_merges(system: System, a: int) -> None:
    batch, heads = system.fresh("batch"), system.fresh("heads")
    system.equal(heads, a, OTHER)
    assert system.simplify(batch) is batch


def test_inversion(system: System) -> None:
    n, m, k = (system.fresh(hint) for hint in "nmk")
    assert system.equal(n * 2 + 1, 7, WHY) is const(7)
    assert system.simplify(n) is const(3)
    system.equal(m + k, 7, WHY)
    assert system.simplify(k) is 7 - m
    assert system.bounds(m) == Interval(0, 7)
    assert system.solve().verdicts["k"].kind == "residual"
    with pytest.raises(ShapeError, match="must be at least 8"):
        system.require(m >= 8, WHY)


def test_parity(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    with pytest.raises(ShapeError):
        system.equal(n * 2, m * 2 + 1, WHY)
    system.equal(n * 3, m * 2, WHY)
    assert (system.divisor(n), system.divisor(m)) == (2, 3)


def test_factor_is_cancelled_only_where_it_is_not_zero(system: System) -> None:
    b, h, c = system.fresh("b"), system.fresh("h"), system.fresh("c", low=1)
    system.equal(b * h, b * 12, WHY)
    assert system.simplify(h) is h  # b may be 0
    assert conditions(system)[-1] is equal(b * h, b * 12)
    system.require(b >= 1, WHY)
    assert system.simplify(h) is const(12)
    k = system.fresh("k")
    system.equal(c * k, c * 5, WHY)
    assert system.simplify(k) is const(5)


def test_product_is_a_product(system: System) -> None:
    """Reshape [a, b, c] to [b + c, a + b]: 1, 2, 3 gives 6 elements against 15."""
    a, b, c = (system.fresh(hint) for hint in "abc")
    system.equal(a * b * c, (b + c) * (a + b), WHY)
    (guard,) = conditions(system)
    assert evaluate(guard, {"a": 1, "b": 2, "c": 3}) is False
    assert evaluate(guard, {"a": 6, "b": 3, "c": 6}) is False
    assert evaluate(guard, {"a": 0, "b": 0, "c": 9}) is True
    system.equal(a, 1, WHY)  # then b + b*b + c is 0
    with pytest.raises(ShapeError, match="b must equal 2"):
        system.equal(b, 2, WHY)


def test_factors_of_a_constant(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(n * m, 6, WHY)
    assert system.bounds(n) == Interval(1, 6)
    system.equal(n, 2, WHY)
    assert system.simplify(m) is const(3)


def test_unit_product(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(n * m, 1, WHY)
    assert system.simplify(n) is system.simplify(m) is ONE


def test_zero_product_waits(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(n * m, 0, WHY)
    assert system.simplify(n) is n
    system.require(n >= 3, WHY)
    assert system.simplify(m) is const(0)


# ---- broadcast


def test_broadcast_of_free_sizes(system: System) -> None:
    a, b = system.fresh("a"), system.fresh("b")
    joined = system.broadcast(a, b, WHY)
    assert joined is where(equal(a, ONE), b, a)
    (guard,) = conditions(system)
    for x, y, fits in (
        (3, 3, True),
        (1, 3, True),
        (3, 1, True),
        (0, 1, True),
        (1, 0, True),
        (0, 3, False),
        (2, 3, False),
    ):
        assert evaluate(guard, {"a": x, "b": y}) is fits
        if fits:
            assert evaluate(joined, {"a": x, "b": y}) == (y if x == 1 else x)


def test_broadcast_again_states_nothing_new(system: System) -> None:
    a, b, c = (system.fresh(hint) for hint in "abc")
    joined = system.broadcast(a, b, WHY)
    for other in (a, b, joined, ONE):
        assert system.broadcast(joined, other, WHY) is joined
        assert system.broadcast(other, joined, WHY) is joined
    assert len(conditions(system)) == 1
    triple = system.broadcast(joined, c, WHY)
    assert system.broadcast(triple, b, WHY) is triple
    assert len(conditions(system)) == 2


def test_broadcast_collapses_when_sizes_become_equal(system: System) -> None:
    a, b = system.fresh("a"), system.fresh("b")
    joined = system.broadcast(a, b, WHY)
    system.equal(a, b, WHY)
    assert system.simplify(joined) is a


def test_broadcast_with_a_constant(system: System) -> None:
    n = system.fresh("n")
    assert system.broadcast(n, 7, WHY) is const(7)
    assert system.bounds(n) == Interval(1, 7)
    system.require(not_equal(n, 1), WHY)
    assert system.simplify(n) is const(7)


def test_broadcast_with_a_size_above_one(system: System) -> None:
    n, m = system.fresh("n", low=2), system.fresh("m")
    assert system.broadcast(m, n, WHY) is n
    system.require(m >= 2, WHY)
    assert system.simplify(m) is n


def test_broadcast_with_zero(system: System) -> None:
    n = system.fresh("n")
    assert system.broadcast(n, 0, WHY) is const(0)
    assert system.bounds(n) == Interval(0, 1)


# ---- divisibility, ranges


def test_exact_quotient(system: System) -> None:
    n, b, s = (system.fresh(hint) for hint in ("n", "b", "s"))
    assert system.exact_quotient(n, 100, WHY) is n // 100
    assert system.divisor(n) == 100
    assert system.simplify(n % 50) is const(0)
    assert system.simplify(n // 100 * 100) is n
    assert system.exact_quotient(b * s * 768, b * 64, WHY) is s * 12
    assert system.bounds(b).low == 1  # 0 elements over 0 have no one quotient
    assert conditions(system) == [equal(n % 100, 0), b >= 1]


def test_not_divisible(system: System) -> None:
    n = system.fresh("n")
    system.exact_quotient(n, 100, WHY)
    with pytest.raises(ShapeError, match=r"n must equal 2099.*multiple of 100 by add at model.py:3"):
        system.equal(n, 2099, OTHER)
    with pytest.raises(ShapeError, match="7 must be a multiple of 2"):
        system.exact_quotient(7, 2, WHY)
    with pytest.raises(ShapeError, match="0 must not be 0 where it divides n"):
        system.exact_quotient(n, 0, WHY)


def test_symbolic_divisibility(system: System) -> None:
    n, heads = system.fresh("n"), system.fresh("heads", low=1)
    quotient = system.exact_quotient(n, heads, WHY)
    assert system.simplify(quotient * heads) is n
    assert system.simplify(n * 3 % heads) is const(0)
    assert system.known(equal((n + heads) % heads, 0)) is True


def test_ranges_join_and_pin(system: System) -> None:
    n = system.fresh("n", low=2, high=64)
    assert system.known(n < 65) is True
    assert system.known(n < 64) is None
    system.bound(n, 8, 512, WHY)
    assert system.bounds(n) == Interval(8, 64)
    with pytest.raises(ShapeError, match=r"n must be greater than 64.*in 8..64 by add"):
        system.require(n > 64, WHY)
    system.require(n <= 8, WHY)
    assert system.simplify(n) is const(8)


def test_excluded_ends(system: System) -> None:
    n = system.fresh("n")
    system.require(not_equal(n, 0), WHY)
    assert system.bounds(n).low == 1
    with pytest.raises(ShapeError):
        system.equal(n, 0, WHY)


def test_only_the_strictest_range_is_a_guard(system: System) -> None:
    n = system.fresh("n")
    for low in (1, 4, 2):
        system.require(n >= low, WHY)
    assert conditions(system) == [n >= 4]


def test_declared_guards_are_marked(system: System) -> None:
    n = system.fresh("n", 2, 64)
    assert system.solve().guards == (
        Guard(n >= 2, Provenance(), declared=True),
        Guard(n <= 64, Provenance(), declared=True),
    )
    assert system.inference(WHY).fresh("count", 0, 9).value == "count"
    assert len(system.solve().guards) == 2  # what run time measures needs no check


def test_what_follows_is_no_guard(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.require(n < m, WHY)
    system.require(n <= m, WHY)
    system.require(n + 1 <= m, WHY)
    system.require(n * 2 < m * 2, WHY)
    assert conditions(system) == [n < m]
    assert system.known(m <= n) is False
    assert system.known(n + 3 < m + 3) is True


def test_later_facts_decide_earlier_statements(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.require(equal(n, 4) | equal(m, 4), WHY)
    assert system.simplify(m) is m
    system.require(n > 4, WHY)
    assert system.simplify(m) is const(4)


def test_a_later_fact_contradicts_an_earlier_statement(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(n * m, 35, WHY)
    with pytest.raises(ShapeError, match=r"m \* n must equal 35"):
        system.equal(n, 3, OTHER)


# ---- whole examples


def test_concat_then_reshape(system: System) -> None:
    n, m, k = (system.fresh(hint) for hint in "nmk")
    total = n + m + 3
    system.equal(total * k, (n + 3) * k + m * k, WHY)
    assert conditions(system) == []
    assert (
        system.exact_quotient(total * 6, 2, WHY) is n * 3 + m * 3 + 9
        or system.solve().report.stopped == "fixed point"
    )


def convolution_output(n: Expr, window: int, stride: int, padding: int, dilation: int) -> Expr:
    return (n + 2 * padding - dilation * (window - 1) - 1) // stride + 1


def test_convolution_sizes_meet(system: System) -> None:
    """Same padding keeps the size; two ways of halving agree; a dilated window is a larger one."""
    n = system.fresh("n", low=1)
    assert system.simplify(convolution_output(n, 3, 1, 1, 1)) is n
    assert system.simplify(convolution_output(n, 3, 2, 1, 1)) is system.simplify(ceildiv(n, 2))
    assert system.simplify(convolution_output(n, 3, 1, 2, 2)) is n
    assert system.equal(
        convolution_output(n, 3, 2, 1, 1), convolution_output(n, 1, 2, 0, 1), WHY
    ) is system.simplify((n + 1) // 2)
    assert [g for g in system.solve().guards if not g.declared] == []


def test_arange_lengths(system: System) -> None:
    end = system.fresh("e")
    length = system.simplify(ceildiv(end, 2))
    assert [evaluate(length, {"e": e}) for e in (1, 2, 4, 5, 9)] == [1, 1, 2, 3, 5]


def test_rounded_to_tens(system: System) -> None:
    n = system.fresh("n")
    rounded = system.simplify((n + 5) // 10 * 10)
    assert [evaluate(rounded, {"n": v}) for v in (14, 15, 16, 25)] == [10, 20, 20, 30]


def test_attention_head_split(system: System) -> None:
    b, s = system.fresh("b"), system.fresh("s")
    assert system.exact_quotient(const(768), 12, WHY) is const(64)
    system.equal(b * s * 768, b * s * 12 * 64, WHY)
    system.equal(b * 12 * s * s, b * 12 * s * s, WHY)
    assert conditions(system) == []


def test_slice_length(system: System) -> None:
    n = system.fresh("n", low=4)
    stop = minimum(n, 4)
    assert system.simplify(stop) is const(4)
    assert system.known(stop <= n) is True


def test_composition_decides_what_neither_decides(system: System) -> None:
    """A: [x] -> [x + y] with x == 2*y. B: [u] with u == 12. Joined: y is 4, x is 8."""
    x, y = system.fresh("x"), system.fresh("y")
    system.equal(x, y * 2, WHY)
    other = System()
    u = other.fresh("u")
    other.equal(u, 12, OTHER)
    assert not system.simplify(y).is_const
    mapping = system.adopt(other, {u: x + y})
    assert mapping[u] is x + y
    assert system.simplify(y) is const(4)
    assert system.simplify(x) is const(8)


def test_composition_that_contradicts(system: System) -> None:
    x = system.fresh("n")
    system.exact_quotient(x, 4, WHY)
    other = System()
    u = other.fresh("n")
    other.equal(u, 6, OTHER)
    with pytest.raises(ShapeError, match="linear"):
        system.adopt(other, {u: x})


def test_adopted_names_do_not_clash(system: System) -> None:
    system.fresh("n")
    other = System()
    u = other.fresh("n", low=3)
    mapping = system.adopt(other)
    assert mapping[u].value == "n_1"
    assert system.bounds(mapping[u]).low == 3


# ---- limits


def test_steps_grow_linearly() -> None:
    small, large = (program(n, n * 3 // 20).solve().report for n in (500, 2_000))
    assert small.stopped == large.stopped == "fixed point"
    assert large.steps < 4 * small.steps * 1.5
    assert large.steps < 20 * 2_000


def test_solving_is_the_same_every_time() -> None:
    first, second = (program(400, 60).solve() for _ in range(2))
    assert (first.report.steps, first.report.fired) == (second.report.steps, second.report.fired)
    assert first.guards == second.guards


def test_a_fact_leaves_what_is_known_of_other_sizes(system: System) -> None:
    n, m, k = (system.fresh(hint) for hint in "nmk")
    for e in ((n * 12 + 5) // 3, minimum(n, m)):
        system.simplify(e)
    before = system.simplifier.engine.steps
    system.require(k >= 2, WHY)
    spent = system.simplifier.engine.steps
    assert system.simplify((n * 12 + 5) // 3) is n * 4 + 1
    assert system.simplifier.engine.steps == spent > before
    system.require(m <= n, WHY)
    assert system.simplify(minimum(n, m)) is m


def test_the_benchmark_says_where_a_budget_ends() -> None:
    whole, cut = solve_programs([(1_000, 150)])
    assert (whole.stopped, cut.stopped) == ("fixed point", "budget")
    assert cut.steps < whole.steps and cut.residual >= whole.residual > 0


def test_what_stands_for_a_size_never_rests_on_it() -> None:
    system = System()
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(m, n * 2 + 1)
    system.simplifier.engine.budget = 0  # so that what stands for m is no longer put in
    system.simplifier.forget()
    system.equal(n, m // 3)
    assert list(system.facts.substitution) == [m]
    assert [repr(guard.condition) for guard in system.solve().guards] == ["n * 2 + 1 == m", "m // 3 == n"]


def test_an_exhausted_budget_keeps_guards_and_never_a_wrong_literal() -> None:
    whole, cut = program(160, 24), program(160, 24, budget=60)
    assert cut.solve().report.stopped == "budget"
    known = {(guard.condition, guard.why) for guard in cut.solve().guards}
    # whatever a full solution demands, the cut one demands in some form: sizes that pass its guards pass all
    for values in (
        {f"s{k}": 3 for k in range(24)},
        {f"s{k}": 1 + k % 2 for k in range(24)},
        {f"s{k}": k for k in range(24)},
    ):
        if all(_passes(condition, values) for condition, _ in known):
            assert all(_passes(guard.condition, values) for guard in whole.solve().guards)
    for name, verdict in cut.solve().verdicts.items():
        if verdict.kind == "literal":
            assert whole.solve().verdicts[name].value is verdict.value


def _passes(condition: Expr, values: dict[str, int]) -> bool:
    try:
        return bool(evaluate(condition, values))
    except ZeroDivisionError:
        return False


def test_it_stops_because_nothing_applies(system: System) -> None:
    n, m = system.fresh("n"), system.fresh("m")
    system.equal(n * 2, m + 4, WHY)
    system.broadcast(n, m, WHY)
    report = system.solve().report
    assert report.stopped == "fixed point"
    assert report.fired["invert"] == 1
    assert report.steps > 0
    assert report.seconds > 0


def test_a_question_is_asked_again_after_a_new_fact(system: System) -> None:
    n, asked = system.fresh("n"), list[Expr]()

    def is_three(system: System, e: Expr) -> bool:
        asked.append(e)
        return system.known(equal(e, 3)) is True

    assert not system.once(is_three, n) and not system.once(is_three, n)
    system.equal(n, 3)
    assert system.once(is_three, n)
    assert asked == [n, n]


def test_known(system: System) -> None:
    n = system.fresh("n")
    assert system.known(TRUE) is True
    assert system.known(FALSE) is False
    assert system.known(equal(n, 3)) is None
