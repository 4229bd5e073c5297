"""Rules of statements about sizes: a statement becomes a substitution, a range or a divisor, or falls into
simpler statements. What no rule takes apart stays as a truth that later facts may decide.

Sizes may be 0, so a factor is cancelled only where it is known not to be."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING

from dlcb.compiler.expr.bounds import Interval
from dlcb.compiler.expr.dag import Expr, operands
from dlcb.compiler.expr.node import FALSE, TRUE, ZERO, as_expr, equal
from dlcb.compiler.shapes.statement import Statement, States
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.pattern import Name, any_of, apply, number
from dlcb.compiler.solver.polynomial import Polynomial, to_expr
from dlcb.compiler.solver.rule import Rule, RuleSet

if TYPE_CHECKING:
    from dlcb.compiler.shapes.system import System

Statements = tuple[Statement, ...]


def simplified(system: System, it: Statement, c: Expr) -> Statements | None:
    simple = system.simplifier.simplify(c)
    return None if simple is c else (it.with_condition(simple),)


def contradiction(system: System, it: Statement, c: Expr) -> Statements:
    raise system.contradiction(it)


def all_parts(system: System, it: Statement, c: Expr) -> Statements:
    return tuple(it.with_condition(part) for part in operands("and", c))


# ---- equations ----


def substitute(system: System, it: Statement, v: Expr, e: Expr) -> Statements | None:
    """The newer of two size variables is replaced; a variable is replaced by an expression in which it does
    not occur."""
    if e.op == "size" and system.age(e) > system.age(v):
        v, e = e, v
    if _rests_on(system, e, v) or not system.simplifier.is_coordinate(e):
        return None
    if any(x.op == "index" for x in e.free):
        return None
    return system.assign(v, e, it)


def _rests_on(system: System, e: Expr, v: Expr) -> bool:
    """Whether `v` occurs in `e`, or in what stands for a variable of it: where the budget is spent, that was
    not put in."""
    known = system.facts.substitution
    seen: set[Expr] = set()
    waiting = [e]
    while waiting:
        free = waiting.pop().free
        if v in free:
            return True
        waiting += [known[x] for x in free if x in known and x not in seen]
        seen |= free
    return False


def _difference(system: System, x: Expr, y: Expr) -> Polynomial:
    know = system.simplifier
    return polynomial.subtract(know.polynomial(x), know.polynomial(y))


def invert(system: System, it: Statement, x: Expr, y: Expr) -> Statements | None:
    """v + r == 0 -> -r for v, r - v == 0 -> r for v; of several such `v` that occur nowhere else, the
    newest."""
    p = _difference(system, x, y)
    terms = Counter(chain.from_iterable({v for factor in monomial for v in factor.free} for monomial in p))
    best: Expr | None = None
    for monomial, coefficient in p.items():
        if len(monomial) == 1 and abs(coefficient) == 1 and monomial[0].op == "size":
            v = monomial[0]
            if terms[v] == 1 and (best is None or system.age(v) > system.age(best)):
                best = v
    if best is None:
        return None
    sign = p[(best,)]
    rest = {monomial: -sign * coefficient for monomial, coefficient in p.items() if monomial != (best,)}
    return substitute(system, it, best, to_expr(rest))


def cancel(system: System, it: Statement, x: Expr, y: Expr) -> Statements | None:
    """a*s == a*t -> s == t, for a >= 1."""
    p = _difference(system, x, y)
    if not p:  # equal as they stand; nothing simplified them where the budget is spent
        return ()
    monomials = list(p)
    shared = monomials[0]
    for monomial in monomials[1:]:
        shared = polynomial.common(shared, monomial)
    positive = tuple(factor for factor in shared if _at_least_one(system, factor))
    if not positive:
        return None
    rest = {polynomial.cancel(monomial, positive): coefficient for monomial, coefficient in p.items()}
    return (it.with_condition(equal(to_expr(rest), ZERO)),)


def _at_least_one(system: System, e: Expr) -> bool:
    low = system.simplifier.interval(e).low
    return low is not None and low >= 1


def factors(system: System, it: Statement, x: Expr, c: Expr) -> Statements | None:
    """a*b == c for c >= 1 -> a, b between 1 and c."""
    p = system.simplifier.polynomial(x)
    if len(p) != 1 or c.value < 1:
        return None
    (monomial,) = p
    return _narrowed(system, it, [(v, Interval(1, c.value)) for v in monomial if v.op == "size"])


def _narrowed(system: System, it: Statement, ranges: list[tuple[Expr, Interval]]) -> Statements | None:
    """The ranges that are news, followed by the statement itself."""
    news: list[Statement] = []
    for v, interval in ranges:
        known = system.simplifier.interval(v)
        if interval.low is not None and (known.low is None or interval.low > known.low):
            news.append(it.with_condition(as_expr(interval.low) <= v))
        if interval.high is not None and (known.high is None or interval.high < known.high):
            news.append(it.with_condition(v <= interval.high))
    return (*news, it) if news else None


def common_multiples(system: System, it: Statement, x: Expr, y: Expr) -> Statements | None:
    """a*n == b*m -> b/gcd(a, b) divides n and a/gcd(a, b) divides m, for constants a and b."""
    p = _difference(system, x, y)
    if len(p) != 2 or any(len(monomial) != 1 or monomial[0].op != "size" for monomial in p):
        return None
    (n, a), (m, b) = ((monomial[0], abs(coefficient)) for monomial, coefficient in p.items())
    shared = gcd(a, b)
    news = [
        it.with_condition(equal(v % step, ZERO))
        for v, step in ((n, b // shared), (m, a // shared))
        if system.simplifier.divisor(v) % step
    ]
    return (*news, it) if news else None


def quotient(system: System, it: Statement, x: Expr, d: Expr, e: Expr) -> Statements | None:
    """x // d == e -> x == d*e where d divides x, and d*e <= x <= d*e + d - 1 for constants"""
    know = system.simplifier
    if know.simplify(x % d) is ZERO:
        return (it.with_condition(equal(x, d * e)),)
    if not (d.is_const and e.is_const and d.value > 0) or x.op != "size":
        return None
    least = d.value * e.value
    return _narrowed(system, it, [(x, Interval(least, least + d.value - 1))])


# ---- divisibility, order, alternatives ----


def multiple(system: System, it: Statement, v: Expr, c: Expr) -> Statements | None:
    """v % c == 0 -> c divides v"""
    return system.divide(v, abs(c.value), it) if c.value else None


def at_least(system: System, it: Statement, c: Expr, v: Expr) -> Statements:
    return system.narrow(v, Interval(c.value, None), it)


def at_most(system: System, it: Statement, v: Expr, c: Expr) -> Statements:
    return system.narrow(v, Interval(None, c.value), it)


def positive_product(system: System, it: Statement, c: Expr, x: Expr) -> Statements | None:
    """1 <= a*b -> 1 <= a and 1 <= b"""
    p = system.simplifier.polynomial(x)
    if len(p) != 1 or c.value < 1:
        return None
    (monomial,) = p
    if any(system.simplifier.interval(v).low is None for v in monomial):
        return None
    return _narrowed(system, it, [(v, Interval(1, None)) for v in monomial if v.op == "size"])


def bounded_sum(system: System, it: Statement, x: Expr, c: Expr) -> Statements | None:
    """a*n + b*m <= c -> n <= c // a and m <= c // b, for a, b > 0 and n, m >= 0"""
    p = system.simplifier.polynomial(x)
    if any(coefficient < 0 for coefficient in p.values()) or c.value < 0:
        return None
    if any(system.simplifier.interval(v).low is None for v in polynomial.atoms(p)):
        return None
    ranges = [
        (monomial[0], Interval(None, c.value // coefficient))
        for monomial, coefficient in p.items()
        if len(monomial) == 1 and monomial[0].op == "size"
    ]
    return _narrowed(system, it, ranges)


def alternatives(system: System, it: Statement, c: Expr) -> Statements | None:
    """v == c | v == d -> v lies between c and d"""
    found: list[tuple[Expr, int]] = []
    for part in operands("or", c):
        if part.op == "eq" and part.args[0].op == "size" and part.args[1].is_const:
            found.append((part.args[0], part.args[1].value))
        else:
            return None
    if len({v for v, _ in found}) != 1:
        return None
    values = [value for _, value in found]
    return _narrowed(system, it, [(found[0][0], Interval(min(values), max(values)))])


def excluded_end(system: System, it: Statement, v: Expr, c: Expr) -> Statements | None:
    """v != low -> low + 1 <= v, and likewise at the high end"""
    known = system.simplifier.interval(v)
    if known.low == c.value:
        return (it.with_condition(as_expr(c.value + 1) <= v),)
    return (it.with_condition(v <= c.value - 1),) if known.high == c.value else None


anything = any_of("c", "const", "eq", "ne", "lt", "le", "and", "or", "not")
v, x, y = any_of("v", "size"), Name("x"), Name("y")
e, d, c = Name("e"), Name("d"), number("c")

STATEMENTS: RuleSet = (
    # c -> true, under what is known
    Rule("simplify", States(anything), simplified, priority=0),
    Rule("true", States(Name("c", lambda e: e is TRUE, ("const",))), lambda system, it, c: (), priority=1),
    Rule("contradiction", States(Name("c", lambda e: e is FALSE, ("const",))), contradiction, priority=1),
    # x & y -> x, y
    Rule("unpack", States(any_of("c", "and")), all_parts, priority=1),
    # v == e -> e for v everywhere
    Rule("substitute", States(apply("eq", v, e)), substitute, priority=2),
    # v + r == s -> v == s - r
    Rule("invert", States(apply("eq", x, y)), invert, priority=3),
    # a*s == a*t -> s == t  if a >= 1
    Rule("cancel", States(apply("eq", x, y)), cancel, priority=3),
    # v % c == 0 -> c divides v
    Rule("multiple", States(apply("eq", apply("mod", v, c), 0)), multiple, priority=3),
    # x // d == e -> x == d*e  if d divides x
    Rule("quotient", States(apply("eq", apply("floordiv", x, d), e)), quotient, priority=3),
    # a*b == c -> 1 <= a <= c
    Rule("factors", States(apply("eq", x, c)), factors, priority=4),
    # a*n == b*m -> b/g divides n, a/g divides m
    Rule("common multiples", States(apply("eq", x, y)), common_multiples, priority=4),
    # c <= v, v <= c -> the range of v
    Rule("at least", States(apply("le", c, v)), at_least, priority=3),
    Rule("at most", States(apply("le", v, c)), at_most, priority=3),
    # 1 <= a*b -> 1 <= a, 1 <= b
    Rule("positive product", States(apply("le", c, x)), positive_product, priority=4),
    # a*n + b*m <= c -> n <= c // a
    Rule("bounded sum", States(apply("le", x, c)), bounded_sum, priority=4),
    # v == c | v == d -> c <= v <= d
    Rule("alternatives", States(any_of("c", "or")), alternatives, priority=4),
    # v != low -> low + 1 <= v
    Rule("excluded end", States(apply("ne", v, c)), excluded_end, priority=4),
)
