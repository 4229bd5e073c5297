"""Address arithmetic: positions that are flattened and taken apart come back as the coordinates they were
made of."""

from __future__ import annotations

import pytest

from dlcb.compiler.dtype import FLOAT32, INT64
from dlcb.compiler.expr.bounds import Interval
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import (
    FALSE,
    TRUE,
    apply,
    cast,
    ceildiv,
    check,
    const,
    equal,
    index,
    load,
    maximum,
    minimum,
    reduce,
    size,
    where,
)  # fmt: skip
from dlcb.compiler.solver.simplify import Facts, Simplifier

n, m, h, w, c = map(size, ("n", "m", "h", "w", "c"))
i, j, k = index("i", n), index("j", m), index("k", h)
x, d = index("x", 12), index("d", 32)
flat = index("flat", n * m * h)
joined = where(equal(n, 1), m, n)


@pytest.mark.parametrize(
    ("expression", "simple"),
    [
        # a position of two axes
        ((i * m + j) // m, i),
        ((i * m + j) % m, j),
        ((x * 32 + d) // 32, x),
        ((x * 32 + d) // 384, const(0)),
        ((i * 384 + x * 32 + d) // 384, i),
        ((i * 384 + x * 32 + d) % 384, x * 32 + d),
        ((i * 384 + x * 32 + d) // 32 % 12, x),
        ((x * 32 + d) % 64, x % 2 * 32 + d),
        ((d + 1) % 64, d + 1),
        # of three, in Horner's form and distributed
        (((i * m + j) * h + k) // (m * h), i),
        (((i * m + j) * h + k) // h // m, i),
        (((i * m + j) * h + k) // h % m, j),
        (((i * m + j) * h + k) % h, k),
        ((i * (m * h) + j * h + k) % (m * h), j * h + k),
        # taken apart and put together
        (flat // h * h + flat % h, flat),
        (flat // (m * h) * (m * h) + flat // h % m * h + flat % h, flat),
        (flat // h // m, flat // (m * h)),
        (flat % (m * h) // h, flat // h % m),
        (flat % (m * h) % h, flat % h),
        # a sum as divisor
        (index("p", n + m) * (n + m) // (n + m), index("p", n + m)),
        ((c * (n + m) + index("p", n + m)) % (n + m), index("p", n + m)),
        # common factors of constants, also with a remainder
        ((j * 3 + 1) // (m * 3), const(0)),
        ((i * 8 + 4) // 16, i // 2),
        ((n * 4 + 5) // 4, n + 1),
        # negative numerators round down
        ((0 - n) // 2, 0 - (n + 1) // 2),
        ((i - n) // n, const(-1)),
        ((i - n) % n, i),
        ((n * 7 - 3) // 7, n - 1),
        # sizes of windows
        (ceildiv(n, 2), (n + 1) // 2),
        ((n - 1) // 2 + 1, (n + 1) // 2),
        # least, greatest
        (minimum(i, n - 1), i),
        (maximum(i - n, 0), const(0)),
        (minimum(minimum(n, m), n + 1), minimum(n, m)),
        (apply("abs", i - n), n - i),
        # where
        (where(i < n, n, m), n),
        (where(equal(n, 1), 0, i), i),
        (where(equal(n, 3), 3, n), n),
        (where(equal(n, 1), minimum(n, 512), n), n),
        (where(apply("ne", n, 3), n, m), where(equal(n, 3), m, n)),
        # comparisons
        ((i * m + j) * h + k < n * m * h, TRUE),
        ((i * m + j) * h + k >= 0, TRUE),
        (flat // (m * h) < n, TRUE),
        (flat // h % m < m, TRUE),
        (where(equal(n, 1), 0, index("q", joined)) < n, TRUE),
        (i >= n, FALSE),
        (n * 4 < m * 8, n < m * 2),
        (n + 3 <= m + 3, n <= m),
        (equal(n * 2 + 1, m * 4), FALSE),
        (equal(n * 6, m * 4), equal(m * 2, n * 3)),
        (equal(n, 3) & equal(m, 4) & equal(n, 3), equal(n, 3) & equal(m, 4)),
        ((n < m) & (m <= n), FALSE),
        ((n < m) | (m <= n), TRUE),
        ((n <= 512) | equal(n, 1), n <= 512),
        (equal(n, minimum(n, 512)), n <= 512),
        (equal(minimum(n, 512), 1), equal(n, 1)),
        # sums of products
        ((n + m) * (n - m) + m * m, n * n),
        (n * (m + 1) - n, n * m),
    ],
)
def test_simplify(expression: Expr, simple: Expr) -> None:
    found = Simplifier().simplify(expression)
    assert found is Simplifier().simplify(simple)
    assert found.op == simple.op


def test_what_cannot_be_decided_stays() -> None:
    for e in (i // 2, i % m, n <= m, minimum(n, m), where(n < m, n, m), flat // 7, k // m + i):
        assert Simplifier().simplify(e) is e


def test_facts() -> None:
    know = Simplifier(Facts({c: n * 2}, {n: Interval(2, 64)}, {m: 16}, {h <= w: TRUE}))
    assert know.simplify(c // n) is const(2)
    assert know.simplify(equal(n, 1)) is FALSE
    assert know.simplify(minimum(n, 64)) is n
    assert know.simplify(m % 8) is const(0)
    assert know.simplify(m // 16 * 16) is m
    assert know.simplify((i * m + d) % 16) is know.simplify(d % 16)
    assert know.simplify((i * m + d) // 16) is know.simplify(m // 16 * i + d // 16)
    assert know.simplify(minimum(h, w + 1)) is h
    assert know.simplify(k < w) is TRUE


def test_facts_change() -> None:
    facts = Facts()
    know = Simplifier(facts)
    assert know.simplify(n + m) is m + n
    facts.substitution[m] = const(3)
    know.forget()
    assert know.simplify(n + m) is n + 3


def test_indices_stay_the_nodes_they_are() -> None:
    p = index("p", m + n - n)
    know = Simplifier(Facts({m: const(4)}))
    assert know.simplify(p * 2) is p * 2
    assert know.simplify(p // 4) is const(0)
    at_one = Simplifier().simplify(where(equal(n, 1), i * 2 + n, 0))
    assert at_one is where(equal(n, 1), i * 2 + 1, 0)


def test_data_from_outside_is_left_alone() -> None:
    """64-bit arithmetic on loaded values may wrap, so nothing is concluded from it; checked index values are
    in range."""
    value = load("x", i, INT64)
    for e in (value * 4 // 4, value + 1 < value, value % 8 % 2):
        assert Simplifier().simplify(e) is e
    row = check(load("ids", i, INT64), 0, h, "ids", i)
    assert Simplifier().simplify((row * m + j) // m) is row


def test_kernel_bodies() -> None:
    body = reduce("sum", (k,), load("x", (i * m + j) * h + k - i * m * h, FLOAT32) * cast(n - n + 2, FLOAT32))
    assert Simplifier().simplify(body) is reduce("sum", (k,), load("x", j * h + k, FLOAT32) * 2.0)
    # NaN - NaN is not 0
    assert Simplifier().simplify(load("x", i, FLOAT32) - load("x", i, FLOAT32)).op == "sub"


def test_a_long_product_is_not_distributed() -> None:
    sizes = [size(f"s{number}") for number in range(24)]
    product: Expr = const(1)
    for a, b in zip(sizes[::2], sizes[1::2], strict=True):
        product = product * (a + b)  # 2**12 terms
    simple = Simplifier().simplify(product)
    assert sum(1 for _ in toposort([simple])) < 1_500
