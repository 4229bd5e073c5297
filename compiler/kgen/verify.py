"""Every memory access is shown to be in bounds before any text is printed: a coordinate, an axis and what is known come in;
what could not be shown goes out as a condition that the access is guarded with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlcb.compiler.dtype import BOOL
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, all_of, apply, as_expr, const
from dlcb.compiler.kgen.affine import linear, over_sizes
from dlcb.compiler.shapes.system import System

_FARTHEST = 16  # facts tried for one bound


def guard_in_bounds(system: System, shape: Sequence[Expr], coordinates: Sequence[Expr], guard: Expr) -> Expr:
    """`guard`, with a condition added for every bound of 0 <= coordinate < size that is not proven under it."""
    facts = [*_facts(guard)]
    missing: list[Expr] = []
    for coordinate, size in zip(coordinates, shape, strict=True):
        if _broadcast(coordinate, size):
            continue
        if not _proven(system, coordinate, facts):
            missing.append(as_expr(0) <= coordinate)
        if not _proven(system, size - ONE - coordinate, facts):
            missing.append(coordinate < size)
    return all_of([guard, *missing])


def _broadcast(coordinate: Expr, size: Expr) -> bool:
    """i * (size != 1): zero where the axis has one element, else an index of an axis that broadcasting made as long."""
    chooses = apply("cast_ne", size) if False else apply("ne", size, 1)
    return coordinate.op == "mul" and any(
        arg.op == "cast" and arg.args[0] is chooses and other.op == "index"
        for arg, other in (coordinate.args, coordinate.args[::-1])
    )


def _facts(guard: Expr) -> Iterable[Expr]:
    """Expressions that are not negative where `guard` holds."""
    stack = [guard]
    while stack:
        node = stack.pop()
        if node.op == "and" and node.dtype is BOOL:
            stack.extend(node.args)
        elif node.op == "le":
            yield node.args[1] - node.args[0]
        elif node.op == "lt":
            yield node.args[1] - node.args[0] - ONE


def _proven(system: System, claim: Expr, facts: Sequence[Expr]) -> bool:
    """Is `claim` >= 0, by the ranges of its indices, or because a fact is no larger?"""
    if _at_least_zero(system, claim):
        return True
    return any(_at_least_zero(system, claim - fact) for fact in facts[:_FARTHEST])


def _at_least_zero(system: System, claim: Expr) -> bool:
    least = lowest(system, claim)
    if least is None:
        return False
    low = system.bounds(least).low
    return (low is not None and low >= 0) or system.known(ZERO <= least) is True or _sizes_at_least_zero(system, least)


def lowest(system: System, root: Expr) -> Expr | None:
    """An expression over sizes that `root` never falls below while its indices are in range; None if none is seen."""
    return _extreme(system, root, -1)


def highest(system: System, root: Expr) -> Expr | None:
    """An expression over sizes that `root` never exceeds while its indices are in range; None if none is seen."""
    return _extreme(system, root, 1)


def _extreme(system: System, root: Expr, side: int) -> Expr | None:
    """The lower (side -1) or upper (side 1) end of `root`."""
    total: Expr = ZERO
    for term, coefficient in linear(root).items():
        if term is ONE:
            total = total + coefficient
            continue
        sign = _sign(system, coefficient)
        end = None if sign is None else _end(system, term, side * sign)
        if end is None:
            return None
        total = total + coefficient * end
    return system.simplify(total)


def _sign(system: System, coefficient: Expr) -> int | None:
    if coefficient.is_const:
        return 1 if coefficient.value >= 0 else -1
    if system.known(ZERO <= coefficient) is True or _sizes_at_least_zero(system, coefficient):
        return 1
    if system.known(coefficient <= ZERO) is True or _sizes_at_least_zero(system, ZERO - coefficient):
        return -1
    return None


def _end(system: System, term: Expr, side: int) -> Expr | None:
    """The end of a term that is not a sum: an index, or one of the operators that coordinates use."""
    match term.op:
        case "index":
            return ZERO if side < 0 else term.args[0] - ONE
        case "floordiv" | "mod" if over_sizes(term.args[1]) and _sizes_at_least_zero(system, term.args[1] - ONE):
            numerator, divisor = term.args
            if term.op == "mod":
                return ZERO if side < 0 else divisor - ONE
            end = _extreme(system, numerator, side)
            return None if end is None else end // divisor
        case "min" | "max":
            ends = [_extreme(system, arg, side) for arg in term.args]
            if None not in ends:
                return apply(term.op, *ends)
            if (term.op == "min") == (side > 0):  # either operand bounds a minimum from above, a maximum from below
                return next((end for end in ends if end is not None), None)
        case "where":
            ends = [_extreme(system, arg, side) for arg in term.args[1:]]
            if None not in ends:
                return apply("max" if side > 0 else "min", *ends)
        case "cast" if term.args[0].dtype is BOOL:
            return ZERO if side < 0 else ONE
    return None


def _sizes_at_least_zero(system: System, claim: Expr) -> bool:
    """Is an expression over sizes >= 0 by the sign of each of its monomials? Sizes are never negative; a division rounds
    down, so -k * (a // c) is at least -(k // c) * a where c divides k."""
    if system.known(ZERO <= claim) is True:
        return True
    terms = linear_in_sizes(claim)
    for monomial, k in list(terms.items()):
        if k < 0 and len(monomial) == 1 and monomial[0].op == "floordiv":
            numerator, divisor = monomial[0].args
            if divisor.is_const and divisor.value > 0 and k % divisor.value == 0:
                del terms[monomial]
                for below, factor in linear_in_sizes(numerator).items():
                    terms[below] = terms.get(below, 0) + factor * (k // divisor.value)
    constant = terms.pop((), 0)
    rest = all_terms(terms)
    if all(k >= 0 for k in rest.values()):
        least = constant
        for monomial, k in rest.items():
            low = 1
            for atom in monomial:
                low *= max(system.bounds(atom).low or 0, 0)
            least += k * low
        return least >= 0 and all(atom.op == "size" or (system.bounds(atom).low or -1) >= 0 for m in rest for atom in m)
    return False


def all_terms(terms: dict[tuple[Expr, ...], int]) -> dict[tuple[Expr, ...], int]:
    return {monomial: k for monomial, k in terms.items() if k != 0}


def linear_in_sizes(root: Expr) -> dict[tuple[Expr, ...], int]:
    """`root` multiplied out: for each product of atoms its integer factor."""
    if root.is_const:
        return {(): int(root.value)}
    if root.op in ("add", "sub"):
        result = linear_in_sizes(root.args[0]).copy()
        sign = 1 if root.op == "add" else -1
        for monomial, k in linear_in_sizes(root.args[1]).items():
            result[monomial] = result.get(monomial, 0) + sign * k
        return result
    if root.op == "mul":
        result = {}
        for a, j in linear_in_sizes(root.args[0]).items():
            for b, k in linear_in_sizes(root.args[1]).items():
                both = tuple(sorted((*a, *b), key=lambda atom: atom.digest))
                result[both] = result.get(both, 0) + j * k
        return result
    return {(root,): 1}
