"""Proves that an integer expression is never negative, from what is known about its atoms. The proof moves
each atom to the end of its range where the expression is least: an index to 0 or its extent - 1, a remainder
to 0 or its divisor - 1, a size to its bounds.

True is a proof; False only says that none was found within the fuel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from dlcb.compiler.expr.bounds import Interval
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.polynomial import Polynomial, add, multiply, scale, subtract
from dlcb.compiler.solver.stated import Stated

FUEL = 24  # polynomials looked at in one proof; address arithmetic of four axes takes about ten
_SPREAD = 4096  # factors that products may be multiplied out to; one of eight sizes makes 2,048


class Knowledge(Protocol):
    """What a proof and the rules ask about expressions; the simplifier answers, under the facts of its
    system."""

    @property
    def truths(self) -> Mapping[Expr, object]:
        """Conditions that were stated and hold."""
        ...

    def simplify(self, e: Expr) -> Expr: ...

    def polynomial(self, e: Expr) -> Polynomial: ...

    def normal(self, e: Expr) -> Expr: ...

    def interval(self, e: Expr) -> Interval: ...

    def divisor(self, e: Expr) -> int: ...

    def nonnegative(self, p: Polynomial) -> bool: ...

    def is_coordinate(self, e: Expr) -> bool: ...

    @property
    def stated(self) -> Stated: ...

    def spend(self, terms: int = 0) -> bool:
        """Takes a step of the budget, and more for many terms; False where none is left."""
        ...


@dataclass
class _Proof:
    know: Knowledge
    fuel: int = FUEL
    # of sizes, beyond what is known: an index over n exists, so n >= 1
    least: dict[Expr, int] = field(default_factory=dict)
    cases: dict[Expr, bool] = field(default_factory=dict)  # conditions taken as true or false


def nonnegative(know: Knowledge, p: Polynomial) -> bool:
    """Whether `p` >= 0 was proved."""
    return _prove(_Proof(know), p)


def least(know: Knowledge, p: Polynomial) -> int | None:
    """The least value of `p` if its terms were independent."""
    return _end(_Proof(know), p, lower=True)


def _prove(proof: _Proof, p: Polynomial) -> bool:
    proof.fuel -= 1
    if not proof.know.spend(polynomial.weight(p)):
        return False
    p = _decided(proof, p)
    low = _end(proof, p, lower=True)
    if low is not None and low >= 0:
        return True
    high = _end(proof, p, lower=False)
    if proof.fuel <= 0 or polynomial.is_constant(p) or (high is not None and high < 0):
        return False
    present = sorted(polynomial.atoms(p), key=polynomial.order)
    if present[-1].op == "size" and max(map(len, p)) == 1:  # sizes come first; `low` is exact
        return _by_statement(proof, p, present)
    for v in present:
        if v.op == "index":  # outermost facts first, and never undone: what depends on the index is gone then
            split = polynomial.linear(p, v)
            return split is not None and _at_ends(proof, split, {}, _last(proof, v))
    for v in present:
        if v.op in ("mod", "floordiv", "min", "max") and any(
            _prove(proof, q) for q in _eliminated(proof, p, v)
        ):
            return True
    for v in present:
        if v.op == "where":
            return _by_cases(proof, p, v)
    return _at_bounds(proof, p, present) or _by_statement(proof, p, present)


def _by_statement(proof: _Proof, p: Polynomial, present: list[Expr]) -> bool:
    """p >= s for an s that was stated to be nonnegative."""
    return proof.fuel > 8 and any(
        _prove(_Proof(proof.know, 4, proof.least, proof.cases), subtract(p, stated))
        for stated in proof.know.stated.over(present, _endless(proof, p, present))
    )


def _endless(proof: _Proof, p: Polynomial, present: list[Expr]) -> list[Expr]:
    """Sizes that take `p` below every bound, all others left as they are: only what mentions them helps."""
    if present[-1].op != "size":
        return []  # sizes come first: something else may mention one
    terms = Counter(v for monomial in p for v in set(monomial))
    return [
        v for v in present if terms[v] == 1 and p.get((v,), 0) < 0 and proof.know.interval(v).high is None
    ]


def _end(proof: _Proof, p: Polynomial, lower: bool) -> int | None:
    """The least (or greatest) value of `p` if its terms were independent."""
    total = 0
    for monomial, coefficient in p.items():
        end: int | None = coefficient
        if monomial:
            product = _range(proof, monomial[0])
            for factor in monomial[1:]:
                product = product * _range(proof, factor)
            end = product.low if lower == (coefficient > 0) else product.high
            end = None if end is None else end * coefficient
        if end is None:
            return None
        total += end
    return total


def _range(proof: _Proof, factor: Expr) -> Interval:
    known = proof.know.interval(factor)
    return known & Interval(proof.least[factor]) if factor in proof.least else known


def _last(proof: _Proof, v: Expr) -> Polynomial:
    """The greatest value of a loop index; notes that its extent is at least 1."""
    extent = proof.know.polynomial(proof.know.simplify(v.args[0]))
    if len(extent) == 1:
        for factor in next(iter(extent)):
            if factor.op == "size":
                proof.least[factor] = max(proof.least.get(factor, 0), 1)
    return add(extent, polynomial.constant(-1))


def _at_ends(proof: _Proof, split: tuple[Polynomial, Polynomial], low: Polynomial, high: Polynomial) -> bool:
    """a + b * v >= 0 for low <= v <= high: linear in v, so it is least at one of the ends."""
    a, b = split
    least = _end(proof, b, lower=True)
    if least is not None and least >= 0:
        return _prove(proof, add(a, multiply(b, low)))
    greatest = _end(proof, b, lower=False)
    if greatest is not None and greatest <= 0:
        return _prove(proof, add(a, multiply(b, high)))
    return _prove(proof, add(a, multiply(b, low))) and _prove(proof, add(a, multiply(b, high)))


def _eliminated(proof: _Proof, p: Polynomial, v: Expr) -> Iterator[Polynomial]:
    """Polynomials without `v`, each of which is nonnegative only if `p` is."""
    split = polynomial.linear(p, v) if proof.know.spend(polynomial.weight(p)) else None
    if split is None:
        return
    know, (a, b) = proof.know, split
    low, high = _end(proof, b, lower=True), _end(proof, b, lower=False)
    rising = low is not None and low >= 0
    falling = high is not None and high <= 0
    if not rising and not falling:
        return
    x, y = know.polynomial(v.args[0]), know.polynomial(v.args[1])
    match v.op:
        case "min" | "max":
            # max >= each, so where it helps either will do; likewise -min >= -each
            if rising == (v.op == "max"):
                yield add(a, multiply(b, x))
                yield add(a, multiply(b, y))
        case "mod" if know.nonnegative(y):
            if rising:  # x % y >= 0
                yield a
            else:  # x % y <= y - 1, and <= x where x >= 0
                yield add(a, multiply(b, add(y, polynomial.constant(-1))))
                if know.nonnegative(x):
                    yield add(a, multiply(b, x))
        case "floordiv" if know.nonnegative(y):
            if rising and know.nonnegative(x):  # x // y >= 0
                yield a
            # With y > 0 (the quotient has a value) p >= 0 exactly if y * (p + 1) >= 1, and y * (x // y) lies
            # between x - y + 1 and x.
            bound = add(subtract(x, y), polynomial.constant(1)) if rising else x
            yield add(
                add(multiply(add(a, polynomial.constant(1)), y), multiply(b, bound)), polynomial.constant(-1)
            )


def _by_cases(proof: _Proof, p: Polynomial, v: Expr) -> bool:
    condition = v.args[0]
    for case in (True, False):
        inner = _Proof(proof.know, proof.fuel // 2, dict(proof.least), {**proof.cases, condition: case})
        if not _prove(inner, p):
            return False
    return True


def _decided(proof: _Proof, p: Polynomial) -> Polynomial:
    """`p` with each `where` whose condition was taken replaced by its branch, and what a taken equality says
    put in."""
    if not proof.cases:
        return p
    changed = True
    while changed:
        changed = False
        for v in polynomial.atoms(p):
            if v.op == "where" and v.args[0] in proof.cases:
                branch = v.args[1] if proof.cases[v.args[0]] else v.args[2]
                p, changed = polynomial.replace(p, v, proof.know.polynomial(branch)), True
                break
    for condition, case in proof.cases.items():
        if case and condition.op == "eq" and condition.args[1].is_const:
            p = polynomial.replace(p, condition.args[0], proof.know.polynomial(condition.args[1]))
    return p


def _at_bounds(proof: _Proof, p: Polynomial, present: list[Expr]) -> bool:
    """Writes each atom as its least value plus something nonnegative; then, for atoms with both bounds, tries
    their ends."""
    lows = {v: _range(proof, v).low for v in present}
    if None not in lows.values():
        shifted = _shifted(proof, p, {v: low for v, low in lows.items() if low})
        if shifted is not None and all(coefficient >= 0 for coefficient in shifted.values()):
            return True
    for v in present:
        low, high = lows[v], proof.know.interval(v).high
        if low is None or (low == 0 and high is None):
            continue
        split = polynomial.linear(p, v)
        if split is None or not split[0]:
            continue
        if high is not None:
            return _at_ends(proof, split, polynomial.constant(low), polynomial.constant(high))
        slope = _end(proof, split[1], lower=True)
        if low > 0 and slope is not None and slope >= 0 and not polynomial.is_constant(split[1]):
            return _prove(proof, add(split[0], scale(split[1], low)))
    return False


def _shifted(proof: _Proof, p: Polynomial, lows: Mapping[Expr, int]) -> Polynomial | None:
    """`p` with each atom of `lows` counted from there; None where products would become too many terms."""
    factors = sum(
        len(monomial) * prod(monomial.count(v) + 1 for v in set(monomial) if v in lows) for monomial in p
    )
    if factors > max(_SPREAD, 4 * len(p)) or not proof.know.spend(factors):
        return None
    for v, low in lows.items():
        p = polynomial.replace(p, v, add(polynomial.atom(v), polynomial.constant(low)))
    return p
