"""The normal form of integer arithmetic: a sum of products of atoms with integer coefficients. An atom is any
expression that is not a sum, difference or product. Two expressions with the same normal form are equal for
all values of their atoms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from dlcb.compiler.expr.dag import Expr, intern
from dlcb.compiler.expr.node import ZERO, const

Monomial = tuple[Expr, ...]  # sorted by `order`, with repetition; () is the constant term
Polynomial = dict[Monomial, int]  # no zero coefficients; never changed once made

TERMS = 64  # a product that would have more terms stays a product: distribution must not explode


def order(atom: Expr) -> tuple[int, str, bytes]:
    """Sorts atoms the same in every process: sizes and indices by name, then compound atoms by content."""
    if atom.op == "size":
        return 0, atom.value, b""
    return (1, atom.value, atom.digest) if atom.op == "index" else (2, "", atom.digest)


def _rank(monomial: Monomial) -> tuple:
    return -len(monomial), [order(atom) for atom in monomial]


def constant(value: int) -> Polynomial:
    return {(): value} if value else {}


def atom(x: Expr) -> Polynomial:
    return {(x,): 1}


def add(p: Polynomial, q: Polynomial, scale: int = 1) -> Polynomial:
    """p + scale * q"""
    result = dict(p)
    for monomial, coefficient in q.items():
        total = result.get(monomial, 0) + scale * coefficient
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return result


def subtract(p: Polynomial, q: Polynomial) -> Polynomial:
    return add(p, q, -1)


def scale(p: Polynomial, factor: int) -> Polynomial:
    return {monomial: coefficient * factor for monomial, coefficient in p.items()} if factor else {}


def join(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    return tuple(sorted(a + b, key=order)) if a and b else a or b


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for a, x in p.items():
        for b, y in q.items():
            monomial = join(a, b)
            result[monomial] = result.get(monomial, 0) + x * y
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def without(monomial: Monomial, factors: Iterable[Expr]) -> Monomial | None:
    """`monomial` divided by the product of `factors`, or None where that is not a monomial."""
    rest = list(monomial)
    for factor in factors:
        for place, candidate in enumerate(rest):
            if candidate is factor:
                del rest[place]
                break
        else:
            return None
    return tuple(rest)


def cancel(monomial: Monomial, factors: Sequence[Expr]) -> Monomial:
    """`monomial` divided by `factors`, which are factors of it."""
    rest = without(monomial, factors)
    if rest is None:
        raise ValueError(f"expected factors of {monomial}, found {factors}")
    return rest


def common(a: Monomial, b: Monomial) -> Monomial:
    """The factors that two monomials share, with repetition."""
    rest = list(b)
    shared = []
    for factor in a:
        if factor in rest:
            rest.remove(factor)
            shared.append(factor)
    return tuple(shared)


def leading(p: Polynomial) -> Monomial:
    """The first monomial: the most factors, then by `order`."""
    return min(p, key=_rank)


def divide(p: Polynomial, d: Polynomial) -> tuple[Polynomial, Polynomial]:
    """(q, r) with p == q * d + r, where q takes every term that `d`'s leading term divides with an integer
    coefficient."""
    lead = leading(d)
    quotient: Polynomial = {}
    rest = dict(p)
    # what `lead` divides, highest first; what is subtracted on the way is lower
    pending = [(_rank(monomial), monomial) for monomial in p if without(monomial, lead) is not None]
    heapify(pending)
    met = {monomial for _, monomial in pending}
    while pending and len(quotient) <= TERMS:
        _, first = heappop(pending)
        if rest.get(first, 0) % d[lead] or first not in rest:
            continue
        factor = cancel(first, lead)
        step = {factor: rest[first] // d[lead]}
        quotient = add(quotient, step)
        for monomial, coefficient in multiply(step, d).items():
            total = rest.pop(monomial, 0) - coefficient
            if total:
                rest[monomial] = total
            if monomial not in met and without(monomial, lead) is not None:
                met.add(monomial)
                heappush(pending, (_rank(monomial), monomial))
    return quotient, rest


def replace(p: Polynomial, old: Expr, new: Polynomial) -> Polynomial:
    """`p` with `new` for the atom `old`, in every power."""
    result: Polynomial = {}
    for monomial, coefficient in p.items():
        power = monomial.count(old)
        if not power:
            part: Polynomial = {monomial: coefficient}
        else:
            part = {tuple([f for f in monomial if f is not old]): coefficient}
            for _ in range(power):
                part = multiply(part, new)
        for each, number in part.items():
            total = result.get(each, 0) + number
            if total:
                result[each] = total
            else:
                result.pop(each, None)
    return result


def linear(p: Polynomial, v: Expr) -> tuple[Polynomial, Polynomial] | None:
    """(a, b) with p == a + b * v and no `v` in either, or None where `v` has a higher power."""
    a: Polynomial = {}
    b: Polynomial = {}
    for monomial, coefficient in p.items():
        power = monomial.count(v)
        if power > 1:
            return None
        if power:
            b[tuple([f for f in monomial if f is not v])] = coefficient
        else:
            a[monomial] = coefficient
    return a, b


def weight(p: Polynomial) -> int:
    """How many factors there are in `p`."""
    return sum(map(len, p))


def atoms(p: Polynomial) -> set[Expr]:
    return {factor for monomial in p for factor in monomial}


def is_constant(p: Polynomial) -> bool:
    return not p or (len(p) == 1 and () in p)


def to_expr(p: Polynomial) -> Expr:
    """The one expression with this normal form: products first, the constant last, what is negative
    subtracted."""
    ordered = sorted(p, key=_rank)
    positive = [m for m in ordered if p[m] > 0]
    total: Expr | None = None
    for monomial in positive:
        term = _term(monomial, p[monomial])
        if total is not None and total.op == "add" and not term.args:
            total = intern("add", (total, term), None, total.dtype)  # as `total + term`, in fewer steps
        else:
            total = term if total is None else total + term
    for monomial in ordered:
        if p[monomial] < 0:
            if total is None and not monomial:
                return const(p[monomial])
            total = (ZERO if total is None else total) - _term(monomial, -p[monomial])
    return ZERO if total is None else total


def _term(monomial: Monomial, coefficient: int) -> Expr:
    if not monomial:
        return const(coefficient)
    term = monomial[0]
    for factor in monomial[1:]:
        term = term * factor
    return term if coefficient == 1 else term * coefficient
