"""What was stated and holds, found by what it is about: orders as polynomials that are not negative,
remainders that are 0, alternatives. A question meets the few statements that may answer it, however many
there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dlcb.compiler.expr.dag import Expr, operands
from dlcb.compiler.expr.node import ZERO
from dlcb.compiler.solver.polynomial import Polynomial, atoms


class Stated:
    """The statements of one system; each is added with what `gap` says of it, and removed again where it no
    longer stands."""

    def __init__(self) -> None:
        self._gaps: dict[Expr, tuple[Polynomial, frozenset[Expr]]] = {}
        self._about: dict[Expr, dict[Expr, None]] = {}  # atom -> the orders that mention it
        self._under: dict[Expr, dict[Expr, None]] = {}  # atom -> orders, each under one of its atoms alone
        self._place: dict[Expr, Expr] = {}
        self._exact: dict[Expr, dict[Expr, None]] = {}  # divisor -> what it divides
        self._either: dict[Expr, dict[Expr, frozenset[Expr]]] = {}  # first alternative -> truth -> all of it

    def add(self, truth: Expr, gap: Polynomial | None) -> None:
        """`truth` holds; where it is an order of sizes, `gap` is what is not negative then."""
        if gap is not None:
            mentioned = frozenset(atoms(gap))
            self._gaps[truth] = gap, mentioned
            for atom in mentioned:
                self._about.setdefault(atom, {})[truth] = None
            if mentioned:
                place = min(mentioned, key=lambda atom: (len(self._about[atom]), atom.digest))
                self._place[truth] = place
                self._under.setdefault(place, {})[truth] = None
        elif truth.op == "eq" and truth.args[1] is ZERO and truth.args[0].op == "mod":
            self._exact.setdefault(truth.args[0].args[1], {})[truth.args[0].args[0]] = None
        elif truth.op == "or":
            alternatives = operands("or", truth)
            self._either.setdefault(alternatives[0], {})[truth] = frozenset(alternatives)

    def remove(self, truth: Expr) -> None:
        """`truth` does not stand any more, or not as it is."""
        if truth in self._gaps:
            _, mentioned = self._gaps.pop(truth)
            for atom in mentioned:
                del self._about[atom][truth]
            if mentioned:
                del self._under[self._place.pop(truth)][truth]
        elif truth.op == "eq" and truth.args[0].op == "mod":
            self._exact.get(truth.args[0].args[1], {}).pop(truth.args[0].args[0], None)
        elif truth.op == "or":
            self._either.get(operands("or", truth)[0], {}).pop(truth, None)

    def gap(self, truth: Expr) -> Polynomial | None:
        """What is not negative because of `truth`, an order; None of anything else."""
        return self._gaps[truth][0] if truth in self._gaps else None

    def over(self, present: Sequence[Expr], needed: Sequence[Expr]) -> Iterator[Polynomial]:
        """Polynomials that are not negative, over no other atoms than `present`, and over all that are
        `needed`."""
        if not self._gaps:
            return
        found = [self._under[atom] for atom in present if atom in self._under]
        if needed:
            fewest = min((self._about.get(atom, {}) for atom in needed), key=len)
            found = [fewest] if len(fewest) < sum(map(len, found)) else found
        within, least = set(present), set(needed)
        for truths in found:
            for truth in list(truths):
                gap, mentioned = self._gaps[truth]
                if least <= mentioned <= within:
                    yield gap

    def divided_by(self, divisor: Expr) -> Iterable[Expr]:
        """What `divisor` is known to divide."""
        return list(self._exact.get(divisor, ()))

    @property
    def alternatives(self) -> bool:
        """Was it stated of any conditions that one of them holds?"""
        return any(self._either.values())

    def one_of(self, conditions: set[Expr]) -> bool:
        """Was it stated that one of `conditions` holds?"""
        return any(
            alternatives <= conditions
            for first in (conditions if self._either else ())
            for alternatives in self._either.get(first, {}).values()
        )
