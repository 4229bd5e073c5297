"""All that is known about the sizes of a program: what operators state about them comes in while the graph is built; simpler
expressions, decisions and, at the end, a solution come out. A contradiction is a ShapeError at the statement that causes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import FALSE, ONE, TRUE, as_expr, equal, size, substitute, where


@dataclass(frozen=True)
class Provenance:
    """Where a statement comes from: the operator, "file:line" of the user's code, and the operands in words."""

    operator: str = ""
    source: str = ""
    detail: str = ""


UNSTATED = Provenance()


@dataclass(frozen=True)
class Interval:
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Guard:
    """A condition over sizes that run time must check. `declared`: from the user's contract, not derived from the program."""

    condition: Expr
    why: Provenance
    declared: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a size variable turned out to be: "literal", "named" (a parameter) or "residual" (computed from others)."""

    kind: str
    low: int
    high: int | None
    multiple: int
    reason: Provenance


@dataclass(frozen=True)
class Report:
    stopped: str
    fired: Mapping[str, int]
    steps: int
    seconds: float


@dataclass(frozen=True)
class Solution:
    substitution: Mapping[Expr, Expr]
    verdicts: Mapping[str, Verdict]
    guards: tuple[Guard, ...]
    report: Report

    def apply(self, e: Expr) -> Expr:
        return substitute(e, self.substitution)


class Inference:
    """The protocol of ir.op.Inference for one operator: every statement carries its provenance."""

    def __init__(self, system: System, why: Provenance) -> None:
        self.system, self.why = system, why

    def _because(self, what: str) -> Provenance:
        if not what:
            return self.why
        detail = f"{what} of {self.why.detail}" if self.why.detail else what
        return Provenance(self.why.operator, self.why.source, detail)

    def equal(self, a: Expr, b: Expr, what: str = "") -> Expr:
        return self.system.equal(a, b, self._because(what))

    def broadcast(self, a: Expr, b: Expr, what: str = "") -> Expr:
        return self.system.broadcast(a, b, self._because(what))

    def require(self, condition: Expr, what: str = "") -> None:
        self.system.require(condition, self._because(what))

    def exact_quotient(self, a: Expr, b: Expr, what: str = "") -> Expr:
        return self.system.exact_quotient(a, b, self._because(what))

    def known(self, condition: Expr) -> bool | None:
        return self.system.known(condition)

    def fresh(self, hint: str, low: int = 0, high: int | None = None) -> Expr:
        return self.system.fresh(hint, low, high)


class System:
    def __init__(self) -> None:
        self._names: set[str] = set()
        self._order: dict[Expr, int] = {}
        self._ranges: dict[Expr, Interval] = {}
        self._same: dict[Expr, Expr] = {}
        self._guards: list[Guard] = []

    def fresh(self, hint: str, low: int = 0, high: int | None = None) -> Expr:
        name, k = hint, 0
        while name in self._names:
            k += 1
            name = f"{hint}_{k}"
        self._names.add(name)
        symbol = size(name)
        self._order[symbol] = len(self._order)
        self._ranges[symbol] = Interval(low, high)
        return symbol

    def inference(self, why: Provenance) -> Inference:
        return Inference(self, why)

    def equal(self, a: Expr, b: Expr, why: Provenance = UNSTATED) -> Expr:
        a, b = self.simplify(as_expr(a)), self.simplify(as_expr(b))
        if a is b:
            return a
        if a.is_const and b.is_const:
            raise ShapeError(f"{why.operator}: {a!r} and {b!r} must be equal: {why.detail}", source_line=why.source)
        if a.op == "size" and b.op == "size" and self._order.get(a, 0) < self._order.get(b, 0):
            a, b = b, a
        if b.op == "size" and a.op != "size":
            a, b = b, a
        self._guards.append(Guard(equal(a, b), why))
        if a.op == "size" and a not in b.free:
            self._same[a] = b
        return b

    def broadcast(self, a: Expr, b: Expr, why: Provenance = UNSTATED) -> Expr:
        a, b = self.simplify(as_expr(a)), self.simplify(as_expr(b))
        if a is b or b is ONE:
            return a
        if a is ONE:
            return b
        if a.is_const and b.is_const:
            raise ShapeError(f"{why.operator}: {a!r} does not broadcast with {b!r}: {why.detail}", source_line=why.source)
        self._guards.append(Guard(equal(a, b) | equal(a, 1) | equal(b, 1), why))
        return a if a.is_const else b if b.is_const else where(equal(a, 1), b, a)

    def require(self, condition: Expr, why: Provenance = UNSTATED) -> None:
        condition = self.simplify(condition)
        if condition is FALSE:
            raise ShapeError(f"{why.operator}: {condition!r} does not hold: {why.detail}", source_line=why.source)
        if condition is not TRUE:
            self._guards.append(Guard(condition, why))

    def exact_quotient(self, a: Expr, b: Expr, why: Provenance = UNSTATED) -> Expr:
        self.require(equal(a % b, 0), why)
        return self.simplify(a // b)

    def bound(self, symbol: Expr, low: int = 0, high: int | None = None, why: Provenance = UNSTATED) -> None:
        self.require(as_expr(low) <= symbol, why)

    def simplify(self, e: Expr) -> Expr:
        while True:
            simple = substitute(e, {s: self._same[s] for s in e.free if s in self._same})
            if simple is e:
                return e
            e = simple

    def known(self, condition: Expr) -> bool | None:
        condition = self.simplify(condition)
        return condition.value if condition.is_const else None

    def bounds(self, e: Expr) -> Interval:
        e = self.simplify(e)
        return Interval(e.value, e.value) if e.is_const else self._ranges.get(e, Interval(None, None))

    def divisor(self, e: Expr) -> int:
        return e.value if e.is_const else 1

    def solve(self) -> Solution:
        return Solution({s: self.simplify(s) for s in self._same}, {}, tuple(self._guards), Report("fixed point", {}, 0, 0.0))
