"""Intervals hold every value and divisors divide every value, at random sizes and indices."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler.dtype import FLOAT32, INT8, UINT8
from dlcb.compiler.expr.bounds import ANY, NATURAL, Bounds, Interval
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply, cast, const, evaluate, index, load, maximum, minimum, size, where

n, m = size("n"), size("m")
i = index("i", n)
plain = Bounds({}, {})

_LEAVES = st.sampled_from((n, m, i, const(-5), const(0), const(1), const(3), const(12)))


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    ops = st.sampled_from(("add", "sub", "mul", "floordiv", "mod", "min", "max"))
    return st.one_of(
        st.builds(apply, ops, inner, inner),
        st.builds(lambda a, b, x, y: where(a < b, x, y), inner, inner, inner, inner),
        st.builds(apply, st.sampled_from(("abs", "sign")), inner),
    )


expressions = st.recursive(_LEAVES, _grow, max_leaves=10)
ranges = st.tuples(st.integers(0, 9), st.integers(0, 40)).map(lambda t: Interval(t[0], t[0] + t[1]))


@given(expressions, ranges, ranges, st.sampled_from((1, 2, 6)), st.data())
@settings(max_examples=300, deadline=None)
def test_every_value_is_inside(
    e: Expr, of_n: Interval, of_m: Interval, step: int, data: st.DataObject
) -> None:
    bounds = Bounds({n: of_n, m: of_m}, {m: step})
    multiples = [value for value in range(of_m.low, of_m.high + 1) if value % step == 0]
    if not multiples or of_n.high == 0:
        return
    size_n = data.draw(st.integers(max(of_n.low, 1), of_n.high))
    values = {
        "n": size_n,
        "i": data.draw(st.integers(0, size_n - 1)),
        "m": data.draw(st.sampled_from(multiples)),
    }
    try:
        value = evaluate(e, values)
    except ZeroDivisionError:
        return
    assert value in bounds.interval(e)
    divisor = bounds.divisor(e)
    assert value == 0 if divisor == 0 else value % divisor == 0


def test_what_is_known_without_facts() -> None:
    assert plain.interval(n) == NATURAL
    assert plain.interval(n - m) == ANY
    assert plain.interval(n % 4) == Interval(0, 3)
    assert plain.interval(minimum(n, 8)) == Interval(0, 8)
    assert plain.interval(maximum(n - m, 1)) == Interval(1)
    assert plain.interval(index("k", 12)) == Interval(0, 11)
    assert plain.interval(n // m) == NATURAL
    assert plain.interval(const(-7) // maximum(m, 2)) == Interval(-4, -1)
    assert plain.interval(load("x", n, UINT8)) == Interval(0, 255)
    assert plain.interval(load("x", n, FLOAT32)) == ANY


def test_narrow_types_wrap() -> None:
    byte = load("x", n, INT8)
    assert plain.interval(byte + byte) == Interval(-128, 127)
    assert plain.interval(cast(byte, const(0).dtype) + 1) == Interval(-127, 128)


def test_divisors() -> None:
    assert plain.divisor(n * 12 + m * 8) == 4
    assert plain.divisor((n * 12) // 4) == 3
    assert plain.divisor(const(0)) == 0
    assert plain.divisor(n) == 1
    assert Bounds({}, {n: 100}).divisor(n // 10) == 10


def test_interval_text_and_sets() -> None:
    assert repr(Interval(2, 64)) == "2..64"
    assert repr(ANY) == "-inf.."
    assert Interval(0, 4) & Interval(2) == Interval(2, 4)
    assert Interval(0, 4) | Interval(7, 9) == Interval(0, 9)
    assert 5 not in Interval(0, 4)
