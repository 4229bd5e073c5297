"""Rules of comparisons and negation: decided where bounds, divisibility or a stated truth decide them, and
otherwise brought to one form."""

from __future__ import annotations

from math import gcd

from dlcb.compiler.dtype import BOOL, INDEX
from dlcb.compiler.expr.dag import Expr, operands
from dlcb.compiler.expr.node import FALSE, TRUE, apply, const, equal
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.pattern import Name, any_of
from dlcb.compiler.solver.pattern import apply as op
from dlcb.compiler.solver.polynomial import Polynomial, add, constant, scale, subtract, to_expr
from dlcb.compiler.solver.prove import Knowledge
from dlcb.compiler.solver.rule import Rule, RuleSet


def _compares_indices(x: Expr) -> bool:
    return x.args[0].dtype is INDEX and x.args[1].dtype is INDEX


def is_index(x: Expr) -> bool:
    return x.dtype is INDEX


def is_bool(x: Expr) -> bool:
    return x.dtype is BOOL


def _gap(know: Knowledge, x: Expr) -> Polynomial:
    """What is at least 0 exactly where the order `x` holds."""
    gap = subtract(know.polynomial(x.args[1]), know.polynomial(x.args[0]))
    return gap if x.op == "le" else add(gap, constant(-1))


def order(know: Knowledge, x: Expr) -> Expr | None:
    """Decided, or in normal form: what is subtracted goes to the other side; a common factor goes; an integer
    bound is rounded."""
    if not know.is_coordinate(x):
        return None
    gap = _gap(know, x)
    if know.nonnegative(gap):
        return TRUE
    if know.nonnegative(add(scale(gap, -1), constant(-1))):
        return FALSE
    return _ordered(gap)


def _ordered(gap: Polynomial) -> Expr:
    """gap >= 0"""
    number = gap.get((), 0)
    terms = {monomial: coefficient for monomial, coefficient in gap.items() if monomial}
    shared = gcd(*terms.values()) if terms else 1
    terms = {monomial: coefficient // shared for monomial, coefficient in terms.items()}
    number //= shared  # g*s + c >= 0 exactly if s + floor(c/g) >= 0
    right = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient > 0}
    left = {monomial: -coefficient for monomial, coefficient in terms.items() if coefficient < 0}
    if number == -1 and left and right:
        return apply("lt", to_expr(left), to_expr(right))
    if number >= 0:
        return apply("le", to_expr(left), to_expr(add(right, constant(number))))
    if not right:  # 0 <= -left + number has no solution where left >= 0; it is decided elsewhere if so
        return apply("le", to_expr(left), const(number))
    return apply("le", to_expr(add(left, constant(-number))), to_expr(right))


def _equation(know: Knowledge, x: Expr) -> Polynomial | None:
    """left - right, without a common factor and with a positive leading term; None where no integers solve
    it."""
    terms = subtract(know.polynomial(x.args[0]), know.polynomial(x.args[1]))
    number = terms.pop((), 0)
    if not terms:
        return constant(number) if number == 0 else None
    step = 0  # divides every value of the left side
    for monomial, coefficient in terms.items():
        multiple = coefficient
        for factor in monomial:
            multiple *= know.divisor(factor)
        step = gcd(step, multiple)
    if number % step if step else number:
        return None
    shared = gcd(*terms.values(), number)
    sign = 1 if terms[polynomial.leading(terms)] > 0 else -1
    return {
        monomial: sign * coefficient // shared
        for monomial, coefficient in [*terms.items(), ((), number)]
        if coefficient
    }


def equality(know: Knowledge, x: Expr) -> Expr | None:
    """Decided, or in normal form: what is subtracted goes to the other side; a common factor goes."""
    if not know.is_coordinate(x):
        return None
    difference = _equation(know, x)
    if difference is None:
        return FALSE
    if not difference:
        return TRUE
    below = add(difference, constant(-1))
    above = add(scale(difference, -1), constant(-1))
    if know.nonnegative(below) or know.nonnegative(above):
        return FALSE
    left = {monomial: coefficient for monomial, coefficient in difference.items() if coefficient > 0}
    right = {monomial: -coefficient for monomial, coefficient in difference.items() if coefficient < 0}
    if set(left) == {()}:
        left, right = right, left
    return equal(to_expr(left), to_expr(right))


def inequality(know: Knowledge, x: Expr) -> Expr | None:
    """a != b as the negation of a == b."""
    same = know.simplify(equal(*x.args))
    return negation(same)


def negation(x: Expr) -> Expr | None:
    """The condition that holds exactly where `x` does not, without `not`; None where there is none."""
    if x.is_const:
        return FALSE if x.value else TRUE
    if x.op == "not":
        return x.args[0]
    if x.op in ("or", "and") and x.dtype is BOOL:
        parts = [negation(part) or apply("not", part) for part in operands(x.op, x)]
        return joined("and" if x.op == "or" else "or", parts)
    if x.op not in ("lt", "le", "eq", "ne") or not _compares_indices(x):
        return None  # of floats neither a < b nor b <= a may hold
    a, b = x.args
    match x.op:
        case "lt":
            return apply("le", b, a)
        case "le":
            return apply("lt", b, a)
        case "eq":
            return apply("ne", a, b)
        case _:
            return equal(a, b)


def stated(know: Knowledge, x: Expr) -> Expr | None:
    if not know.truths:
        return None
    if x in know.truths:
        return TRUE
    if x.op == "or" or (x.op == "and" and not know.stated.alternatives):
        return None  # the negation of `or` would have been stated as two truths
    opposite = negation(x)
    if opposite is not None and opposite.op in ("lt", "le"):
        opposite = _ordered(_gap(know, opposite)) if know.is_coordinate(opposite) else opposite
    return FALSE if opposite in know.truths else None


def joined(op: str, parts: list[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        result = apply(op, result, part)
    return result


x, i, n = Name("x"), Name("i", is_index), Name("n", is_index)
k, d = Name("k", is_index, heads=("const",)), Name("d", is_index, heads=("const",))

COMPARISON: RuleSet = (
    # a condition that was stated is true, its negation false
    Rule("stated", any_of("x", "lt", "le", "eq", "ne", "and", "or", "not", test=is_bool), stated),
    # a < b -> true  if b - a - 1 >= 0;  -> false  if a - b >= 0;  g*a - g*b < 0 -> a < b
    Rule("order", any_of("x", "lt", "le", test=_compares_indices), order, priority=1),
    # a == b -> true  if a - b is 0;  -> false  if it is never 0;  g*a - g*b == 0 -> a == b
    Rule("equality", any_of("x", "eq", test=_compares_indices), equality, priority=1),
    # x == min(x, y) -> x <= y, x == max(x, y) -> y <= x
    Rule(
        "equal to the least",
        op("eq", i, op("min", i, n)),
        lambda know, i, n: apply("le", i, n),
    ),
    Rule(
        "equal to the greatest",
        op("eq", i, op("max", i, n)),
        lambda know, i, n: apply("le", n, i),
    ),
    # min(x, k) == d -> x == d  if d < k; max(x, k) == d -> x == d  if d > k
    Rule(
        "least is less",
        op("eq", op("min", i, k), d),
        lambda know, i, k, d: equal(i, d),
        given=lambda know, i, k, d: d.value < k.value,
    ),
    Rule(
        "greatest is greater",
        op("eq", op("max", i, k), d),
        lambda know, i, k, d: equal(i, d),
        given=lambda know, i, k, d: d.value > k.value,
    ),
    # a != b -> not (a == b)
    Rule("inequality", any_of("x", "ne", test=_compares_indices), inequality),
    # not (a < b) -> b <= a, not (a == b) -> a != b
    Rule("negation", any_of("x", "not"), lambda know, x: negation(x.args[0])),
)
