"""Every memory access is shown to be in bounds before any text is printed: a coordinate, an axis and what is
known come in; what could not be shown goes out as a condition that the access is guarded with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from dlcb.compiler.dtype import BOOL, INDEX
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, all_of, apply, cast, not_equal
from dlcb.compiler.kgen.affine import linear, over_sizes
from dlcb.compiler.shapes.system import System

_FARTHEST = 16  # facts tried for one bound


def guard_in_bounds(system: System, shape: Sequence[Expr], coordinates: Sequence[Expr], guard: Expr) -> Expr:
    """`guard`, and a condition for every bound of 0 <= coordinate < size that is not proven under it."""
    facts = tuple(_facts(guard))
    missing: list[Expr] = []
    for coordinate, size in zip(coordinates, shape, strict=True):
        if _broadcast(coordinate, size):
            continue
        # the least of several is not negative where none of them is: what is proven of one is not asked
        lows = coordinate.args if coordinate.op == "min" else (coordinate,)
        missing += [low >= ZERO for low in lows if not _proven(system, low, facts)]
        highs = coordinate.args if coordinate.op == "max" else (coordinate,)
        missing += [high < size for high in highs if not _proven(system, size - ONE - high, facts)]
    return all_of([guard, *missing])


def conditions(guard: Expr) -> Iterator[Expr]:
    """The conditions that `guard` joins."""
    stack = [guard]
    while stack:
        node = stack.pop()
        if node.op == "and":
            stack.extend(node.args)
        elif node is not TRUE:
            yield node


def _broadcast(coordinate: Expr, size: Expr) -> bool:
    """i * (size != 1): zero where the axis has one element, else an index of an axis that broadcasting made
    as long."""
    stretched = cast(not_equal(size, 1), INDEX)
    return coordinate.op == "mul" and any(
        factor is stretched and other.op == "index"
        for factor, other in (coordinate.args, coordinate.args[::-1])
    )


def _facts(guard: Expr) -> Iterator[Expr]:
    """Expressions that are not negative where `guard` holds."""
    for condition in conditions(guard):
        if condition.op == "le":
            yield condition.args[1] - condition.args[0]
        elif condition.op == "lt":
            yield condition.args[1] - condition.args[0] - ONE


def _proven(system: System, claim: Expr, facts: tuple[Expr, ...]) -> bool:
    """Is `claim` >= 0, by the ranges of its indices, or because a fact is no larger?"""
    if any(_is_no_less(system, claim, fact) for fact in facts[:_FARTHEST]):  # mostly one says just that
        return True
    if system.once(_at_least_zero, claim, ()) or (facts and system.once(_at_least_zero, claim, facts)):
        return True
    return system.known(claim >= ZERO) is True


def _at_least_zero(system: System, claim: Expr, facts: Sequence[Expr]) -> bool:
    """Exact for quotients: q <= c is the same as n <= c * d + d - 1, and c <= q the same as c * d <= n, for
    q = n // d. A minimum is at least zero where both operands are; a choice where both branches are."""
    for term, coefficient in linear(claim).items():
        if term.op in ("min", "max", "where") and coefficient.is_const:
            rest = claim - term * coefficient
            either = term.op == ("max" if coefficient.value > 0 else "min")
            shown = (_at_least_zero(system, rest + arg * coefficient, facts) for arg in term.args[-2:])
            return any(shown) if either else all(shown)
        if term.op == "floordiv" and coefficient.is_const and abs(coefficient.value) == 1:
            numerator, divisor = term.args
            if over_sizes(divisor) and _positive(system, divisor, numerator):
                rest = claim - term * coefficient
                if coefficient.value > 0:
                    return _at_least_zero(system, rest * divisor + numerator, facts)
                return _at_least_zero(system, rest * divisor + divisor - ONE - numerator, facts)
    if any(_is_no_less(system, claim, fact) for fact in facts[:_FARTHEST]):
        return True
    rests = (rest for fact in facts[:_FARTHEST] for rest in _less(system, claim, fact)) if facts else (claim,)
    lows = (lowest(system, rest) for rest in rests)
    return any(low is not None and system.once(_sizes_at_least_zero, low) for low in lows)


def _is_no_less(system: System, claim: Expr, fact: Expr) -> bool:
    """Is `claim` plainly `fact` and a number that is not negative?"""
    sums, others = dict(linear(claim)), dict(linear(fact))
    one, other = sums.pop(ONE, ZERO), others.pop(ONE, ZERO)
    if sums != others or not all(coefficient.is_const for coefficient in sums.values()):
        return False
    gap = system.simplify(one - other)
    return gap.is_const and gap.value >= 0


def _less(system: System, claim: Expr, fact: Expr) -> Iterator[Expr]:
    """`claim` less the fact, once and as often as takes a term of both out of the claim."""
    yield claim - fact
    sums = linear(claim)
    for term, sign in linear(fact).items():
        if term is not ONE and sign.is_const and abs(sign.value) == 1 and term in sums:
            times = sums[term] * sign
            if not times.is_const and _sign(system, times) == 1:
                yield claim - fact * times


def _positive(system: System, size: Expr, used_with: Expr) -> bool:
    """Is `size` > 0? It is where an index of `used_with` runs up to it, as else that index has no value."""
    if size.is_const:
        return size.value > 0
    for loop in used_with.free:
        extent = products(loop.args[0]) if loop.op == "index" else {}
        if loop.op == "index" and (loop.args[0] is size or (len(extent) == 1 and size in next(iter(extent)))):
            return True  # a product of sizes is not zero only where none of them is
    return system.once(_sizes_at_least_zero, size - ONE)


def lowest(system: System, root: Expr) -> Expr | None:
    """An expression over sizes that `root` never falls below for indices in range; None if none is seen."""
    return system.once(_extreme, root, -1)


def highest(system: System, root: Expr) -> Expr | None:
    """An expression over sizes that `root` never exceeds for indices in range; None if none is seen."""
    return system.once(_extreme, root, 1)


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
    if system.known(coefficient >= ZERO) is True or system.once(_sizes_at_least_zero, coefficient):
        return 1
    if system.known(coefficient <= ZERO) is True or system.once(_sizes_at_least_zero, ZERO - coefficient):
        return -1
    return None


def _end(system: System, term: Expr, side: int) -> Expr | None:
    """The end of a term that is not a sum: an index, or one of the operators that coordinates use."""
    match term.op:
        case "index":
            return ZERO if side < 0 else term.args[0] - ONE
        case "floordiv" | "mod" if over_sizes(term.args[1]) and _positive(system, term.args[1], term.args[0]):
            numerator, divisor = term.args
            if term.op == "mod":
                return ZERO if side < 0 else divisor - ONE
            end = system.once(_extreme, numerator, side)
            return None if end is None else end // divisor
        case "min" | "max":
            ends = [system.once(_extreme, arg, side) for arg in term.args]
            known = [end for end in ends if end is not None]
            if len(known) == len(ends):
                return apply(term.op, *known)
            if (term.op == "min") == (side > 0):
                # one operand bounds a minimum from above, a maximum from below
                return next(iter(known), None)
        case "cast" if term.args[0].dtype is BOOL:
            return ZERO if side < 0 else ONE
        case "cast" if side < 0 and _is_no_negative_number(system, term.args[0]):
            return ZERO
    return None


def _is_no_negative_number(system: System, x: Expr) -> bool:
    """Is a number that coordinates are made of, before it is cut off, >= 0? It is never NaN."""
    match x.op:
        case "const":
            return bool(x.value >= 0)
        case "size" | "index":
            return True
        case "floor" | "cast":
            return _is_no_negative_number(system, x.args[0])
        case "max":
            return any(_is_no_negative_number(system, arg) for arg in x.args)
        case "add" | "mul" | "div" | "min" | "where":
            return all(_is_no_negative_number(system, arg) for arg in x.args[-2:])
    return not x.dtype.is_float and system.known(x >= ZERO) is True


def _sizes_at_least_zero(system: System, claim: Expr) -> bool:
    """Is an expression over sizes >= 0 by the sign of each of its monomials? Sizes are never negative; a
    division rounds down, so -k * (a // c) is at least -(k // c) * a where c divides k."""
    if system.known(claim >= ZERO) is True:
        return True
    terms = products(claim)
    for atoms, k in list(terms.items()):
        if k < 0 and len(atoms) == 1 and atoms[0].op == "floordiv":
            numerator, divisor = atoms[0].args
            if divisor.is_const and divisor.value > 0 and k % divisor.value == 0:
                del terms[atoms]
                for below, factor in products(numerator).items():
                    terms[below] = terms.get(below, 0) + factor * (k // divisor.value)
    least = 0
    for atoms, k in terms.items():
        lows = [low for atom in atoms if (low := system.bounds(atom).low) is not None and low >= 0]
        if (k < 0 and atoms) or len(lows) < len(atoms):
            return False
        least += k * prod(lows)
    return least >= 0


def products(root: Expr) -> dict[tuple[Expr, ...], int]:
    """An expression over sizes multiplied out: for each product of atoms its integer factor."""
    if root.is_const:
        return {(): int(root.value)}
    if root.op not in ("add", "sub", "mul"):
        return {(root,): 1}
    left, right = map(products, root.args)
    result: dict[tuple[Expr, ...], int] = {}
    if root.op == "mul":
        for a, j in left.items():
            for b, k in right.items():
                both = tuple(sorted((*a, *b), key=lambda atom: atom.digest))
                result[both] = result.get(both, 0) + j * k
    else:
        sign = 1 if root.op == "add" else -1
        for atoms, k in (*left.items(), *((b, sign * k) for b, k in right.items())):
            result[atoms] = result.get(atoms, 0) + k
    return {atoms: k for atoms, k in result.items() if k != 0}
