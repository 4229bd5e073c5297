"""Expressions as the front of a server reads them: text that Python computes alike."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler.describe import python_text
from dlcb.compiler.dtype import FLOAT64, INT64
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply, cast, const, evaluate, size, where
from dlcb.compiler.host.evaluator import compile_expressions
from dlcb.compiler.signature import compile_expression

n, m = size("n"), size("m")
_SIZES = st.sampled_from((n, m, const(-3), const(0), const(7)))
_OF_FLOATS = ("floor", "ceil", "trunc", "round", "sqrt", "log2", "exp", "abs")
_COMPARISONS = ("lt", "le", "eq", "ne")


def _larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    compared = st.builds(apply, st.sampled_from(_COMPARISONS), inner, inner)
    joined = st.builds(apply, st.sampled_from(("and", "or", "xor")), compared, compared)
    turned = st.builds(lambda condition: apply("not", condition), joined)
    return st.one_of(
        st.builds(apply, st.sampled_from(("add", "sub", "mul", "min", "max")), inner, inner),
        st.builds(apply, st.sampled_from(("floordiv", "mod")), inner, st.sampled_from((const(2), const(64)))),
        st.builds(apply, st.sampled_from(("abs", "neg")), inner),
        st.builds(where, st.one_of(joined, turned), inner, inner),
        st.builds(_by_way_of_floats, st.sampled_from(_OF_FLOATS), inner, st.sampled_from((0.75, 2.0, -0.1))),
        st.builds(lambda condition: cast(condition, INT64), st.one_of(compared, joined)),
    )


def _by_way_of_floats(operator: str, inner: Expr, factor: float) -> Expr:
    """As `int(math.sqrt(n * 0.75))` is."""
    scaled = apply("div", cast(inner, FLOAT64), const(factor, FLOAT64))
    return cast(apply("max", apply("min", apply(operator, scaled), const(1e6, FLOAT64)), scaled), INT64)


@given(st.recursive(_SIZES, _larger, max_leaves=12), st.integers(0, 300), st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_sizes_are_what_the_expression_says(e: Expr, a: int, b: int) -> None:
    (wanted,) = compile_expressions((e,), ("n", "m"))(a, b)
    assert compile_expression(python_text(e))({"n": a, "m": b}) == wanted


def test_what_is_not_a_number_stays_that() -> None:
    e = _by_way_of_floats("sqrt", n, -0.1)
    (wanted,) = compile_expressions((e,), ("n",))(1)
    assert compile_expression(python_text(e))({"n": 1}) == wanted == 0


def test_conditions_deep_inside_are_python_s() -> None:
    """As a reduction that is split at some sizes has them in the bytes it needs."""
    e = apply("max", n * 4, where((n <= 170) & (const(256) <= m), n * 384, const(0)) + m)
    text = python_text(e)
    assert "&" not in text
    for sizes in ({"n": 1, "m": 300}, {"n": 1, "m": 3}, {"n": 171, "m": 300}):
        assert compile_expression(text)(sizes) == evaluate(e, sizes)
    assert python_text(n * 4 + m // 2) == repr(n * 4 + m // 2)
