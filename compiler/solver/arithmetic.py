"""Rules of sums, differences and products of integers: one normal form, in which a quotient and its remainder
join again."""

from __future__ import annotations

from dlcb.compiler.dtype import INDEX
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.pattern import any_of
from dlcb.compiler.solver.polynomial import (
    Monomial,
    Polynomial,
    add,
    cancel,
    multiply,
    scale,
    subtract,
    without,
)  # fmt: skip
from dlcb.compiler.solver.prove import Knowledge
from dlcb.compiler.solver.rule import Rule, RuleSet


def _is_index(x: Expr) -> bool:
    return x.dtype is INDEX


def collect(know: Knowledge, x: Expr) -> Expr | None:
    """`x` as a sum of products of its atoms, like terms added."""
    p = know.polynomial(x)
    joined = recombine(know, p)
    return know.normal(x) if joined is p else polynomial.to_expr(joined)


def recombine(know: Knowledge, p: Polynomial) -> Polynomial:
    """`p` with b * (a // b) + a % b joined to a, and a - a % b to b * (a // b), also under a factor."""
    again = any(factor.op in ("mod", "floordiv") for monomial in p for factor in monomial)
    while again:
        again = False
        for monomial in sorted(p, key=len, reverse=True):
            joined = _joined(know, p, monomial)
            if joined is not None:
                p, again = joined, True
                break
    return p


def _joined(know: Knowledge, p: Polynomial, monomial: Monomial) -> Polynomial | None:
    for factor in monomial:
        if factor.op not in ("mod", "floordiv"):
            continue
        divisor = know.polynomial(factor.args[1])
        if len(divisor) != 1:
            continue
        joined = (_join_remainder if factor.op == "mod" else _join_quotient)(know, p, monomial, factor)
        if joined is not None:
            return joined
    return None


def _join_remainder(know: Knowledge, p: Polynomial, monomial: Monomial, factor: Expr) -> Polynomial | None:
    """Of s * (a % b): s*b*(a // b) beside it gives s*a, -s*a beside it gives -s*b*(a // b)."""
    a, b = factor.args
    quotient = know.polynomial(know.simplify(apply("floordiv", a, b)))
    if len(quotient) != 1:
        return None
    s = {cancel(monomial, (factor,)): p[monomial]}
    whole, product = multiply(s, know.polynomial(a)), multiply(multiply(s, know.polynomial(b)), quotient)
    rest = subtract(p, {monomial: p[monomial]})
    if _contains(rest, product):
        return add(subtract(rest, product), whole)
    negative = scale(_varying(whole, s), -1)
    return subtract(add(rest, whole), product) if negative and _contains(rest, negative) else None


def _join_quotient(know: Knowledge, p: Polynomial, monomial: Monomial, factor: Expr) -> Polynomial | None:
    """Of s*b * (a // b): s * (a % b) beside it gives s*a, however that remainder is spelled; so does nothing
    where it is known to be a number."""
    a, b = factor.args
    ((b_factors, b_scale),) = know.polynomial(b).items()
    others = without(monomial, (factor, *b_factors))
    if others is None or b_scale == 0 or p[monomial] % b_scale:
        return None
    s = {others: p[monomial] // b_scale}
    remainder = multiply(s, know.polynomial(know.simplify(apply("mod", a, b))))
    rest = subtract(p, {monomial: p[monomial]})
    if not _contains(rest, _varying(remainder, s)):
        return None
    return add(subtract(rest, remainder), multiply(s, know.polynomial(a)))


def _contains(p: Polynomial, part: Polynomial) -> bool:
    return all(p.get(monomial) == coefficient for monomial, coefficient in part.items())


def _varying(p: Polynomial, s: Polynomial) -> Polynomial:
    """`p`, a multiple of the one term of `s`, without what is `s` times a number."""
    return {monomial: coefficient for monomial, coefficient in p.items() if monomial not in s}


def magnitude(know: Knowledge, x: Expr) -> Expr | None:
    if not know.is_coordinate(x):
        return None
    p = know.polynomial(x.args[0])
    if know.nonnegative(p):
        return x.args[0]
    return 0 - x.args[0] if know.nonnegative(polynomial.scale(p, -1)) else None


ARITHMETIC: RuleSet = (
    # x*c0 + x*c1 -> x*(c0 + c1), (x + y)*z -> x*z + y*z, x - x -> 0, b*(a//b) + a%b -> a,
    # a - a%b -> b*(a//b)
    Rule("collect", any_of("x", "add", "sub", "mul", test=_is_index), collect),
    # |x| -> x  if x >= 0;  -> -x  if x <= 0
    Rule("magnitude", any_of("x", "abs", test=_is_index), magnitude),
)
