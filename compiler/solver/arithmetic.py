"""Rules of sums, differences and products of integers: one normal form, in which a quotient and its remainder
join again."""

from __future__ import annotations

from dlcb.compiler.dtype import INDEX
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.pattern import any_of
from dlcb.compiler.solver.polynomial import Polynomial, add, cancel, join, multiply, without
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
    """`p` with b * (a // b) + a % b joined to a, also under a common factor and where a % b is known to be
    0."""
    again = any(factor.op in ("mod", "floordiv") for monomial in p for factor in monomial)
    while again:
        again = False
        for monomial in sorted(p, key=len, reverse=True):
            joined = _join_remainder(know, p, monomial) or _join_exact(know, p, monomial)
            if joined is not None:
                p, again = joined, True
                break
    return p


def _join_remainder(know: Knowledge, p: Polynomial, monomial: tuple[Expr, ...]) -> Polynomial | None:
    for factor in monomial:
        if factor.op != "mod":
            continue
        a, b = factor.args
        divisor = know.polynomial(b)
        if len(divisor) != 1:
            continue
        quotient = know.polynomial(know.simplify(apply("floordiv", a, b)))
        if len(quotient) != 1:
            continue
        (b_factors, b_scale), (q_factors, q_scale) = next(iter(divisor.items())), next(iter(quotient.items()))
        rest = cancel(monomial, (factor,))
        partner = join(join(rest, b_factors), q_factors)
        coefficient = p[monomial]
        if p.get(partner) == coefficient * b_scale * q_scale:
            joined = {m: c for m, c in p.items() if m not in (monomial, partner)}
            return add(joined, multiply({rest: coefficient}, know.polynomial(a)))
    return None


def _join_exact(know: Knowledge, p: Polynomial, monomial: tuple[Expr, ...]) -> Polynomial | None:
    for factor in monomial:
        if factor.op != "floordiv":
            continue
        a, b = factor.args
        divisor = know.polynomial(b)
        if len(divisor) != 1:
            continue
        b_factors, b_scale = next(iter(divisor.items()))
        rest = without(monomial, (factor, *b_factors))
        if rest is None or p[monomial] % b_scale:
            continue
        remainder = know.simplify(apply("mod", a, b))
        if remainder.is_const and remainder.value == 0:
            joined = {m: c for m, c in p.items() if m != monomial}
            return add(joined, multiply({rest: p[monomial] // b_scale}, know.polynomial(a)))
    return None


def magnitude(know: Knowledge, x: Expr) -> Expr | None:
    if not know.is_coordinate(x):
        return None
    p = know.polynomial(x.args[0])
    if know.nonnegative(p):
        return x.args[0]
    return 0 - x.args[0] if know.nonnegative(polynomial.scale(p, -1)) else None


ARITHMETIC: RuleSet = (
    # x*c0 + x*c1 -> x*(c0 + c1), (x + y)*z -> x*z + y*z, x - x -> 0, b*(a//b) + a%b -> a
    Rule("collect", any_of("x", "add", "sub", "mul", test=_is_index), collect),
    # |x| -> x  if x >= 0;  -> -x  if x <= 0
    Rule("magnitude", any_of("x", "abs", test=_is_index), magnitude),
)
