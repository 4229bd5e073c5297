"""The interpreter binds sizes, checks guards with words that help, chooses variants and fills in launch
numbers."""

import random
from dataclasses import replace

import handmade
import pytest

from dlcb.compiler.dtype import FLOAT64, INDEX
from dlcb.compiler.errors import CompilerError, ContractError, GuardError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import (
    apply,
    as_expr,
    cast,
    ceildiv,
    const,
    equal,
    evaluate_all,
    maximum,
    minimum,
    size,
    where,
)
from dlcb.compiler.host.evaluator import Choice, Spread, compile_expressions
from dlcb.compiler.host.interpreter import Interpreter
from dlcb.compiler.host.magic import divide, magic
from dlcb.compiler.host.program import Definition, Guard, Launch, Program

n, m = size("n"), size("m")
UNIT = "0" * 64


def one_launch(*variants, inputs=(("x", n, m),), guards=()) -> Program:
    return handmade.program(
        [handmade.given(*entry) for entry in inputs],
        [handmade.buffer("out", n, "result", 0, 1)],
        [Launch(variants or (handmade.variant("twice", ["x", "out"], n),))],
        [handmade.tensor("out", n)],
        ["out"],
        UNIT,
        guards=guards,
    )


def test_sizes_are_read_off_the_inputs() -> None:
    interpreter = Interpreter(one_launch(inputs=[("x", n, m), ("y", m, 3, n + m)]))
    assert interpreter.bind([(2, 5), (5, 3, 7)]) == {"n": 2, "m": 5}


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(2,), (5, 3, 7)], r"input 'x' has rank 1, shape \[2\]; expected rank 2, shape \[n, m\]"),
        (
            [(2, 5), (6, 3, 7)],
            r"axis 0 of input 'y' is 6, expected m = 5 \(m is axis 1 of input 'x'\); nearest",
        ),
        ([(2, 5), (5, 4, 7)], r"axis 1 of input 'y' is 4, expected 3, which is fixed; nearest legal size 3"),
        ([(2, 5), (5, 3, 8)], r"axis 2 of input 'y' is 8, expected .* = 7 \(.*\); nearest legal size 7"),
    ],
)
def test_a_dim_that_does_not_fit_is_named(shapes, words) -> None:
    with pytest.raises(ContractError if "rank" in words else GuardError, match=words):
        Interpreter(one_launch(inputs=[("x", n, m), ("y", m, 3, n + m)])).bind(shapes)


def test_a_dim_that_the_program_defines_as_a_number_is_said_to_be_fixed() -> None:
    found = one_launch(inputs=[("x", n, size("q"))])
    with pytest.raises(GuardError, match=r"axis 1 of input 'x' is 4, expected 11, which is fixed; nearest"):
        Interpreter(replace(found, definitions=(Definition("q", as_expr(11)),))).bind([(2, 4)])


def test_a_declared_guard_is_the_contract_and_a_derived_one_is_not() -> None:
    for declared, kind in ((True, ContractError), (False, GuardError)):
        guard = Guard(equal(n % 100, 0), declared, "view, model.py:7")
        interpreter = Interpreter(one_launch(guards=[guard]))
        assert interpreter.plan({"n": 2100, "m": 1}).sizes["n"] == 2100
        with pytest.raises(kind) as caught:
            interpreter.plan({"n": 2099, "m": 1})
        assert "n % 100 == 0 must hold (view, model.py:7)" in str(caught.value)
        assert "n = 2099 (axis 0 of input 'x')" in str(caught.value)
        assert "nearest legal n: 2100" in str(caught.value)


def test_of_two_equal_axes_each_is_told_by_its_own_place() -> None:
    """As a file has them: `q` is the size of y's axis, and equal to `n`, x's."""
    q, r = size("q"), size("r")

    def program(condition: Expr) -> Interpreter:
        found = one_launch(inputs=[("x", n, m), ("y", q, r)], guards=[Guard(condition, False, "")])
        equal_to = (Definition("q", n), Definition("r", 2 * m + 1))
        return Interpreter(replace(found, definitions=equal_to))

    with pytest.raises(GuardError, match=r"input 'y' is 6, expected n = 2 \(n is axis 0 of input 'x'\)"):
        program(q <= 4).bind([(2, 5), (6, 11)])
    with pytest.raises(GuardError, match=r"expected m \* 2 \+ 1 = 11 \(m is axis 1 of input 'x'\)"):
        program(q <= 4).bind([(2, 5), (2, 12)])
    for condition, words in (
        (q <= 4, "q <= 4 must hold, but q = 7 (axis 0 of input 'y'); nearest legal q: 4"),
        (n <= 4, "n <= 4 must hold, but n = 7 (axis 0 of input 'x'); nearest legal n: 4"),
        (
            n * q <= 16,
            "n = 7 (axis 0 of input 'x'), q = 7 (axis 0 of input 'y'); nearest legal n: 4; nearest legal q",
        ),
        (r <= 4, "r <= 4 must hold, but m = 2 (axis 1 of input 'x'); nearest legal m: 1"),
    ):
        with pytest.raises(GuardError) as caught:
            program(condition).plan({"n": 7, "m": 2})
        assert words in str(caught.value)


def test_the_first_variant_whose_guards_hold_is_launched() -> None:
    wide = handmade.variant("twice_by_four", ["x", "out"], n, guards=[equal(n % 4, 0)], alignment=16)
    narrow = handmade.variant("twice", ["x", "out"], n)
    interpreter = Interpreter(one_launch(wide, narrow))

    def chosen(count: int, aligned: bool) -> int:
        (step,) = interpreter.plan({"n": count, "m": 1}, aligned=aligned).steps
        return step.variant

    assert chosen(8, True) == 0
    assert chosen(7, True) == 1
    assert chosen(8, False) == 1  # the caller's memory may lie anywhere


def test_no_usable_variant_is_said_and_nothing_runs() -> None:
    only = handmade.variant("twice", ["x", "out"], n, guards=[n < 4])
    with pytest.raises(CompilerError, match="no variant of twice covers these sizes"):
        Interpreter(one_launch(only)).plan({"n": 4, "m": 1})


def test_a_broken_guard_is_said_before_anything_is_computed_that_only_it_makes_possible() -> None:
    """Sizes below zero have no magic numbers, and no variant need cover what a guard excludes."""
    enough = Guard(m <= n - 1, False, "view, model.py:7")
    divided = handmade.variant("by_magic", ["out"], n, n - m, kinds=["int64", "magic"])
    few = handmade.variant("few", ["x", "out"], n, guards=[m < n])
    for variant in (divided, few):
        interpreter = Interpreter(one_launch(variant, guards=[enough]))
        assert interpreter.plan({"n": 9, "m": 2}).steps[0] is not None
        with pytest.raises(GuardError, match=r"view, model\.py:7"):
            interpreter.plan({"n": 3, "m": 5})


def test_an_empty_domain_launches_nothing() -> None:
    assert Interpreter(one_launch()).plan({"n": 0, "m": 1}).steps == (None,)


def test_magic_parameters_take_two_cells() -> None:
    magical = handmade.variant("rows_by_magic", ["out"], n, m, kinds=["int64", "magic"])
    (step,) = Interpreter(one_launch(magical)).plan({"n": 20, "m": 7}).steps
    assert step.parameters == (20, *magic(7))
    wide = handmade.variant("rows_by_magic", ["out"], n, m, kinds=["int64", "magic64"])
    (step,) = Interpreter(one_launch(wide)).plan({"n": 20, "m": 7}).steps
    assert all(-(1 << 63) <= number < 1 << 63 for number in step.parameters)


@pytest.mark.parametrize("bits", [32, 64])
def test_magic_division_is_exact(bits: int) -> None:
    draw = random.Random(bits)
    top = 1 << (bits - 1)
    divisors = [
        1,
        2,
        3,
        7,
        641,
        top - 1,
        *(draw.randrange(1, 1 << draw.randrange(1, bits)) for _ in range(500)),
    ]
    for divisor in (min(d, top - 1) for d in divisors):
        multiplier, shift = magic(divisor, bits)
        multiples = [draw.randrange(0, top // divisor + 1) * divisor for _ in range(5)]
        dividends = [0, 1, divisor - 1, divisor, top - 1, *(x - 1 for x in multiples), *multiples]
        for dividend in (min(max(x, 0), top - 1) for x in dividends):
            assert divide(dividend, multiplier, shift, bits) == dividend // divisor
    for divisor in (0, top):
        with pytest.raises(ValueError, match="a divisor must lie in"):
            magic(divisor, bits)


def test_compiled_expressions_agree_with_evaluation() -> None:
    roots = [
        n + m * 2 - 7,
        (n - 9) // 4,
        (n - 9) % 4,
        minimum(n, m) * maximum(n, 3),
        where(n < m, n, m * m),
        ceildiv(n * m, 5),
        equal(n, m) | (n <= 2),
        as_expr(-3) * n,
    ]
    function = compile_expressions(roots, ["n", "m"], [("unused", n * 2)])
    for sizes in ({"n": 0, "m": 3}, {"n": 5, "m": 5}, {"n": 12, "m": 1}):
        assert list(function(**{f"s{k}": v for k, v in enumerate(sizes.values())})) == evaluate_all(
            roots, sizes
        )


def test_division_by_an_empty_dim_does_not_stop_the_rest() -> None:
    assert compile_expressions((n // m, n % m, n + 1), ["n", "m"])(4, 0) == (0, 0, 5)


def test_of_a_choice_only_what_is_chosen_is_computed() -> None:
    def never(number: int) -> tuple[int, ...]:
        raise AssertionError(f"computed for {number}")

    def none_fits() -> Exception:
        return CompilerError("none fits", stage="host")

    inner = Choice(((n < 10, (n * 2, "twice")),))
    choice = Choice(((m < 1, (Spread(never, n),)), (m < 5, (Spread(lambda k: (k, -k), n), inner))), none_fits)
    function = compile_expressions((choice, n + m, choice), ["n", "m"])
    assert function(4, 2) == ((4, -4, (8, "twice")), 6, (4, -4, (8, "twice")))
    assert function(40, 2)[0] == (40, -40, None)
    with pytest.raises(CompilerError, match="none fits"):
        function(4, 5)
    with pytest.raises(AssertionError, match="computed for 4"):
        function(4, 0)


def test_what_has_no_value_is_zero() -> None:
    logarithm = cast(apply("log", cast(n, FLOAT64)), INDEX)
    evaluated = compile_expressions([n // m, n % m, logarithm], ["n", "m"])
    assert evaluated(8, 0) == [0, 0, 2]
    assert evaluated(0, 3) == [0, 0, 0]
    zero = const(0)
    assert compile_expressions([n // zero, zero % zero, zero // zero], ["n"])(7) == [0, 0, 0]


def test_a_condition_over_a_size_that_nothing_gives_is_an_error() -> None:
    """Else it would pass at all sizes, and what stands beside it would, too."""
    for unknown in (None, -1):
        with pytest.raises(KeyError, match="m"):
            compile_expressions([n * 2], ["n"], unknown=unknown, within=(n < 5) & (m < 3))


def test_nothing_is_computed_where_the_sizes_are_not_within() -> None:
    function = compile_expressions((Spread(magic, n - m),), ["n", "m"], within=m < n)
    assert function(9, 2) == magic(7)
    assert function(2, 9) is None


def test_peak_bytes_are_known_before_anything_runs() -> None:
    concrete = Interpreter(handmade.chain(UNIT, 10)).plan({"n": 16, "m": 4})
    assert concrete.result_bytes == 16 * 4 * 4
    assert concrete.arena_bytes == 2 * 16 * 4 * 4  # of nine buffers no more than two live together
    assert concrete.peak_bytes == 3 * 16 * 4 * 4
