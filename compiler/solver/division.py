"""Rules of floor division and remainder. One function splits a dividend into quotient and remainder; both
operators read it, so that they always fit together. A divisor is never zero here: where it is, the expression
has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd

from dlcb.compiler.dtype import INDEX
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ZERO, const, equal
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.pattern import Name, any_of
from dlcb.compiler.solver.polynomial import Polynomial, add, constant, subtract, to_expr
from dlcb.compiler.solver.prove import Knowledge
from dlcb.compiler.solver.rule import Rule, RuleSet

Split = tuple[Expr, Expr]  # quotient, remainder


def _divides(node: Expr) -> bool:
    return node.dtype is INDEX and not (node.args[1].is_const and node.args[1].value == 0)


def _take_multiples(know: Knowledge, a: Expr, b: Expr) -> Split | None:
    """(q*b + r) // b -> q + r//b and (q*b + r) % b -> r % b, decided where 0 <= r < b or one step beside
    it."""
    p, d = know.polynomial(a), know.polynomial(b)
    if not d:
        return None
    quotient, rest = polynomial.divide(p, d)
    if polynomial.is_constant(d) and rest.get((), 0):
        whole, part = divmod(rest[()], d[()])  # a constant leaves at most d - 1
        quotient = add(quotient, constant(whole))
        rest = add({m: c for m, c in rest.items() if m}, constant(part))
    decided = _within_one(know, rest, d)
    if decided is not None:
        step, remainder = decided
        return to_expr(add(quotient, constant(step))), to_expr(remainder)
    if not quotient:
        return None
    return to_expr(quotient) + to_expr(rest) // b, to_expr(rest) % b


def _within_one(know: Knowledge, rest: Polynomial, d: Polynomial) -> tuple[int, Polynomial] | None:
    """(s, r) with rest == s*d + r and 0 <= r < d."""
    if not rest:
        return 0, rest
    if polynomial.is_constant(d):
        interval, divisor = know.interval(to_expr(rest)), d[()]
        if (
            interval.low is not None
            and interval.high is not None
            and interval.low // divisor == interval.high // divisor
        ):
            step = interval.low // divisor
            return step, add(rest, constant(-step * divisor))
    for step in (0, -1):
        remainder = add(rest, d, -step)
        below = add(subtract(d, remainder), constant(-1))
        if know.nonnegative(remainder) and know.nonnegative(below):
            return step, remainder
    return None


def _cancel_factor(know: Knowledge, a: Expr, b: Expr) -> Split | None:
    """(g*s + t) // (g*c) -> s//c and (g*s + t) % (g*c) -> g*(s%c) + t, where 0 <= t < g and c > 0."""
    p, d = know.polynomial(a), know.polynomial(b)
    if len(d) != 1:
        return None
    for g in _shared_factors(p, d):
        s, t = polynomial.divide(p, g)
        if polynomial.is_constant(g) and t.get((), 0):
            whole, part = divmod(t[()], g[()])
            s, t = add(s, constant(whole)), add({m: c for m, c in t.items() if m}, constant(part))
        fits = not t or (know.nonnegative(t) and know.nonnegative(add(subtract(g, t), constant(-1))))
        if s and fits and know.nonnegative(g):
            c, none = polynomial.divide(d, g)
            if none or not know.nonnegative(c):
                continue
            s_expr, c_expr = to_expr(s), to_expr(c)
            return s_expr // c_expr, to_expr(g) * (s_expr % c_expr) + to_expr(t)
    return None


def _shared_factors(p: Polynomial, d: Polynomial) -> Iterator[Polynomial]:
    """The greatest common divisors of a term of `p` with `d`, except 1, the ones with most factors first."""
    (d_factors, d_scale) = next(iter(d.items()))
    found: dict[tuple, Polynomial] = {}
    for monomial, coefficient in p.items():
        shared = polynomial.common(monomial, d_factors)
        number = gcd(coefficient, d_scale)
        if shared or number != 1:
            found[(shared, number)] = {shared: number}
    for key in sorted(found, key=lambda k: (-len(k[0]), -k[1])):
        yield found[key]


def _nested(know: Knowledge, x: Expr) -> Expr | None:
    """(x//c + k) // b -> (x + k*c) // (c*b) and (x % (b*k)) // b -> (x//b) % k, for b, c > 0."""
    a, b = x.args
    if not know.is_coordinate(x):
        return None
    p = know.polynomial(a)
    inner = [monomial for monomial in p if monomial]
    if len(inner) != 1 or p[inner[0]] != 1 or len(inner[0]) != 1:
        return None
    (atom,), k = inner[0], p.get((), 0)
    if atom.op not in ("floordiv", "mod") or not know.nonnegative(know.polynomial(b)):
        return None
    numerator, c = atom.args
    if not know.nonnegative(know.polynomial(c)):
        return None
    if atom.op == "floordiv":
        return (numerator + c * k) // (c * b)
    factor, none = polynomial.divide(know.polynomial(c), know.polynomial(b))
    if k or none or not factor or not know.nonnegative(factor):
        return None
    return (numerator // b) % to_expr(factor)


def _negative(know: Knowledge, a: Expr, b: Expr) -> Split | None:
    """-p // c -> -((p + c - 1) // c) and -p % c -> c - 1 - (p + c - 1) % c, for c > 0. If `c` is no constant,
    only in sizes that are rounded up: the other spelling says more about coordinates."""
    p, d = know.polynomial(a), know.polynomial(b)
    terms = {monomial: coefficient for monomial, coefficient in p.items() if monomial}
    if not terms or terms[polynomial.leading(terms)] > 0 or not know.nonnegative(d):
        return None
    if not b.is_const and (max(terms.values()) > 0 or any(v.op == "index" for v in a.free)):
        return None
    flipped = to_expr(add(subtract(d, p), constant(-1)))
    return 0 - flipped // b, b - 1 - flipped % b


def _stated_exact(know: Knowledge, x: Expr) -> Expr | None:
    """a % b -> 0 where that was stated, and (q*x + r) % b -> r % b where x % b == 0 was."""
    a, b = x.args
    if not know.is_coordinate(x):
        return None
    if equal(x, 0) in know.truths or (b.is_const and know.divisor(a) % b.value == 0):
        return ZERO
    p = know.polynomial(a)
    for multiple in know.stated.divided_by(b):
        exact = know.polynomial(multiple)
        if not exact or _circular(exact):
            continue
        quotient, rest = polynomial.divide(p, exact)
        if quotient:
            return to_expr(rest) % b
    return None


def _circular(exact: Polynomial) -> bool:
    """Does the rest of `exact` depend on its leading term, so that the one cannot be rid of by the other?"""
    lead = set(polynomial.leading(exact))
    below = {v for atom in lead for v in atom.free}
    others = {atom for monomial in exact for atom in monomial if atom not in lead}
    return any(atom.args and not below.isdisjoint(atom.free) for atom in others)


def _remainder_within(know: Knowledge, x: Expr) -> Expr | None:
    """(s*(y % (c*b)) + r) % b -> (s*y + r) % b"""
    a, b = x.args
    if not know.is_coordinate(x):
        return None
    p, d = know.polynomial(a), know.polynomial(b)
    replaced = p
    for atom in polynomial.atoms(p):
        if atom.op == "mod" and _is_multiple(know.polynomial(atom.args[1]), d):
            replaced = polynomial.replace(replaced, atom, know.polynomial(atom.args[0]))
    return None if replaced is p else to_expr(replaced) % b


def _is_multiple(p: Polynomial, d: Polynomial) -> bool:
    quotient, rest = polynomial.divide(p, d)
    return bool(quotient) and not rest


def _exact_terms(know: Knowledge, a: Expr, b: Expr) -> Split | None:
    """(x*s + r) // c -> (x//c)*s + r//c and (x*s + r) % c -> r % c, where the constant c is known to divide
    x."""
    if not b.is_const or b.value <= 0:
        return None
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in know.polynomial(a).items():
        exact = next((factor for factor in monomial if know.divisor(factor) % b.value == 0), None)
        if exact is None:
            rest[monomial] = coefficient
        else:
            others = polynomial.cancel(monomial, (exact,))
            quotient = add(quotient, {polynomial.join(others, (exact // b,)): coefficient})
    return (to_expr(quotient) + to_expr(rest) // b, to_expr(rest) % b) if quotient else None


def _negative_divisor(know: Knowledge, a: Expr, b: Expr) -> Split | None:
    """a // -c -> -a // c and a % -c -> -(-a % c), for a constant c > 0."""
    if not b.is_const or b.value >= 0:
        return None
    c = const(-b.value)
    return (0 - a) // c, 0 - (0 - a) % c


def _row(name: str, split: Callable[[Knowledge, Expr, Expr], Split | None], priority: int = 0) -> RuleSet:
    """The two rules that read one split. Data from outside (a load) is left alone: there 64-bit arithmetic
    may wrap."""

    def part(position: int) -> Callable[..., Expr | None]:
        def result(know: Knowledge, x: Expr) -> Expr | None:
            a, b = x.args
            if not know.is_coordinate(x):
                return None
            parts = split(know, a, b)
            return None if parts is None else parts[position]

        return result

    quotient: Name = any_of("x", "floordiv", test=_divides)
    remainder: Name = any_of("x", "mod", test=_divides)
    return (
        Rule(f"{name} of a quotient", quotient, part(0), priority=priority),
        Rule(f"{name} of a remainder", remainder, part(1), priority=priority),
    )


DIVISION: RuleSet = (
    # a // -c -> -a // c                                  a % -c -> -(-a % c)
    *_row("negative divisor", _negative_divisor),
    # (q*b + r) // b -> q + r//b                          (q*b + r) % b -> r % b
    *_row("multiples", _take_multiples),
    # (x*s + r) // c -> (x//c)*s + r//c  if c divides x   (x*s + r) % c -> r % c
    *_row("exact terms", _exact_terms),
    # a % b -> 0  if b is known to divide a
    Rule("stated remainder", any_of("x", "mod", test=_divides), _stated_exact),
    # (s*(y % (c*b)) + r) % b -> (s*y + r) % b
    Rule("remainder within", any_of("x", "mod", test=_divides), _remainder_within, priority=1),
    # (g*s + t) // (g*c) -> s // c  if 0 <= t < g         (g*s + t) % (g*c) -> g*(s % c) + t
    *_row("common factor", _cancel_factor, priority=1),
    # (x//c + k) // b -> (x + k*c) // (c*b)
    Rule("nested", any_of("x", "floordiv", test=_divides), _nested, priority=1),
    # -p // c -> -((p + c - 1) // c)                      -p % c -> c - 1 - (p + c - 1) % c
    *_row("negative", _negative, priority=2),
)
