"""What is written reads back as the very same node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcb.compiler.dtype import BOOL, FLOAT16, FLOAT32, INT8, INT64
from dlcb.compiler.expr import text
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import TRUE, apply, cast, check, const, index, load, reduce, size, where

n, m = size("n"), size("m")
i, j = index("i", n), index("j", m * 4)
BUFFERS = {"x": FLOAT32, "ids": INT64, "layer.0.weight": FLOAT16, "%add_3": FLOAT32}

_SIZES = st.sampled_from((n, m, i, j, const(-3), const(0), const(7)))
_FLOATS = st.sampled_from(
    (
        const(0.5, FLOAT32), const(-0.0, FLOAT32), const(1e-5, FLOAT32), const(float("-inf"), FLOAT32),
        const(float("nan"), FLOAT32), load("x", i * m + j, FLOAT32), load("%add_3", i, FLOAT32, i < m),
        cast(load("layer.0.weight", j, FLOAT16), FLOAT32), cast(const(-3, INT8) + cast(i, INT8), FLOAT32),
    )
)  # fmt: skip


def _compound(
    inner: st.SearchStrategy[Expr], binary: tuple[str, ...], unary: tuple[str, ...]
) -> st.SearchStrategy[Expr]:
    compared = st.builds(apply, st.sampled_from(("lt", "le", "eq", "ne")), inner, inner)
    joined = st.builds(apply, st.sampled_from(("and", "or", "xor")), compared, compared)
    return st.one_of(
        st.builds(apply, st.sampled_from(binary), inner, inner),
        st.builds(apply, st.sampled_from(unary), inner),
        st.builds(where, joined, inner, inner),
    )


integers = st.recursive(
    _SIZES,
    lambda inner: _compound(inner, ("add", "sub", "mul", "floordiv", "mod", "min", "max"), ("abs", "neg")),
    max_leaves=12,
)
floats = st.recursive(
    _FLOATS,
    lambda inner: _compound(inner, ("add", "sub", "mul", "div", "max", "pow"), ("exp", "neg", "tanh")),
    max_leaves=8,
)
reductions = st.builds(
    lambda fold, body: reduce(fold, (j,), body), st.sampled_from(("sum", "max", "prod")), floats
)


@given(st.one_of(integers, floats, reductions))
@settings(max_examples=200, deadline=None)
def test_round_trip(e: Expr) -> None:
    assert text.parse(text.write(e), BUFFERS) is e


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ((n + m) * 2 - (m - 1), "(m + n) * 2 - (m - 1)"),
        (n - (m - 1) // (n - 3), "n - (m - 1) // (n - 3)"),
        (const(-3) * n, "n * (-3)"),
        (apply("not", (n < m) & (m <= 3)), "not(n < m & m <= 3)"),
        (i * 4 + 1, "[i:n] i * 4 + 1"),
        (cast(n, FLOAT32) + 0.5, "float32(n) + float32(0.5)"),
        (reduce("sum", (i, j), load("x", i + j, FLOAT32)), "sum[i:n, j:m * 4](x[i + j])"),
        (load("x", i, FLOAT32, i < m), "[i:n] x[i if i < m]"),
        (check(load("ids", i, INT64), 0, m, "ids", i), "[i:n] check[ids](ids[i], 0, m, i, True)"),
        (TRUE, "True"),
        (cast(n < m, INT64), "int64(n < m)"),
        (cast(n, BOOL), "bool(n)"),
        (-const(1.5, FLOAT32), "float32(-1.5)"),
    ],
)
def test_spelling(expression: Expr, written: str) -> None:
    assert text.write(expression) == written
    assert text.parse(written, BUFFERS) is expression


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "n +",
        "n m",
        "(n",
        "n)",
        "min(n",
        "0.5",
        "frobnicate(n)",
        "y[n]",
        "n ? m",
        "sum[i:n]",
        "[i:n",
        "where(n < 1,)",
        "n + )",
    ],
)
def test_wrong_text_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"column|read"):
        text.parse(wrong, BUFFERS)


def test_deep_text() -> None:
    deep: Expr = n
    for step in range(1_500):
        deep = apply("max", deep, m + step) if step % 2 else (deep + 1) // (m + 1)
    assert text.parse(text.write(deep)) is deep
