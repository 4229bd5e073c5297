"""Refutes in a moment what would be looked for in vain: facts about sizes come in, and at a few sizes for
which all of them hold a polynomial is calculated. Where one value is negative there is no proof of the
opposite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import const
from dlcb.compiler.expr.ops import OPS
from dlcb.compiler.solver.polynomial import Polynomial

if TYPE_CHECKING:
    from dlcb.compiler.solver.simplify import Facts

_LARGE = (1 << 36) + 7  # a size that no kernel of 32-bit indices takes, nor a thousandth of it
_FROM_DATA = ("load", "reduce", "check")


class Refuter:
    """Answers under `facts` as they are: call `forget` or `state` when one changes."""

    def __init__(self, facts: Facts) -> None:
        sizes = ("least", "large")
        self._points = [_Point(facts, size == "large", last) for size in sizes for last in (False, True)]

    def forget(self, changed: Expr | None = None) -> None:
        """Facts about a size variable are others now; about any, where it is not given."""
        for point in self._points:
            point.forget(changed)

    def state(self, truth: Expr) -> None:
        """`truth` holds as well."""
        for point in self._points:
            point.state(truth)

    def negative(self, p: Polynomial) -> bool:
        """Whether `p` < 0 somewhere. False says nothing."""
        return any(point.holds and point.negative(p) for point in self._points)


class _Point:
    """All sizes at their least, or `large` ones; all indices at their first, or their `last`."""

    def __init__(self, facts: Facts, large: bool, last: bool) -> None:
        self._facts, self._large, self._last = facts, large, last
        self._values: dict[Expr, int | None] = {}  # None: it has no value here, or none that is known
        self._holds: bool | None = None
        self._broken: Expr | None = None  # what a fact is about that did not hold here when it was last seen

    def forget(self, changed: Expr | None) -> None:
        """A fact that leaves a size its value here leaves all that was calculated from it."""
        known = self._values
        if changed is None or (changed in known and known[changed] != self._calculated(changed)):
            self._values, self._holds = {}, None
        elif self._holds:
            self._holds = self._keeps(changed)  # only what is said of this size is new
        else:
            self._holds = None

    def state(self, truth: Expr) -> None:
        if self._holds:
            self._holds = bool(self._value(truth))

    @property
    def holds(self) -> bool:
        """Do all facts hold here?"""
        if self._holds is None:
            facts = self._facts
            if self._broken is None or not self._breaks(self._broken):
                about = (*facts.truths, *facts.ranges, *facts.multiples, *facts.substitution)
                self._broken = next((each for each in about if self._breaks(each)), None)
            self._holds = self._broken is None
        return self._holds

    def _breaks(self, about: Expr) -> bool:
        """Is a fact about this expression, or it itself as a truth, false here?"""
        if about in self._facts.truths and not self._value(about):
            return True
        return not self._keeps(about)

    def _keeps(self, e: Expr) -> bool:
        """Does the value of `e` lie where it should, and is it divided and equal as it should be?"""
        facts = self._facts
        known, multiple, same = facts.ranges.get(e), facts.multiples.get(e), facts.substitution.get(e)
        if known is None and multiple is None and same is None:
            return True
        at = self._value(e)
        return (
            at is not None
            and (known is None or at in known)
            and (multiple is None or at % multiple == 0)
            and (same is None or at == self._value(same))
        )

    def negative(self, p: Polynomial) -> bool:
        total = 0
        for monomial, coefficient in p.items():
            term = coefficient
            for factor in monomial:
                at = self._value(factor)
                if at is None:
                    return False
                term *= at
            total += term
        return total < 0

    def _value(self, root: Expr) -> int | None:
        values, standing = self._values, self._facts.substitution
        stack = [root]  # as deep as what stands for sizes in turn
        while root not in values:
            node = stack[-1]
            below = (standing[node],) if node in standing else node.args
            missing = [each for each in below if each not in values]
            if missing:
                stack += missing
            else:
                values[stack.pop()] = self._calculated(node)
        return values[root]

    def _calculated(self, node: Expr) -> int | None:
        if node.op == "const":
            return None if node.dtype.is_float else int(node.value)
        if node.op == "size":
            standing = self._facts.substitution.get(node)
            return self._size(node) if standing is None else self._value(standing)
        args = [self._values[arg] for arg in node.args]
        if node.op in _FROM_DATA or node.dtype.is_float or any(arg is None for arg in args):
            return None
        if node.op == "index":
            extent = args[0]
            assert extent is not None
            return None if extent < 1 else extent - 1 if self._last else 0
        if node.op == "cast":
            return int(const(args[0], node.dtype).value)
        try:
            return int(OPS[node.op].meaning(*args))
        except ZeroDivisionError:
            return None

    def _size(self, symbol: Expr) -> int:
        known, multiple = self._facts.ranges.get(symbol), self._facts.multiples.get(symbol, 1)
        least = max(known.low or 0, 0) if known is not None else 0
        if not self._large:
            return -(-least // multiple) * multiple
        most = known.high if known is not None and known.high is not None else max(_LARGE, least)
        return min(most, max(_LARGE, least)) // multiple * multiple
