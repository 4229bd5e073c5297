"""What the system ends with: a value, a parameter or an expression for every size variable, and what run time
must check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import substitute
from dlcb.compiler.shapes.statement import Guard, Provenance
from dlcb.compiler.solver.engine import Report


@dataclass(frozen=True)
class Verdict:
    """What a size variable turned out to be: "literal" (a constant, hard-coded), "named" (itself or an equal
    variable: a parameter) or "residual" (computed from others). `value` is that; low..high and `multiple`
    hold for it; `reason` is what decided it."""

    kind: str
    value: Expr
    low: int
    high: int | None
    multiple: int
    reason: Provenance


@dataclass(frozen=True)
class Solution:
    """`substitution`: size variable -> literal or expression that stands for it; `guards`: over the original
    variables."""

    substitution: Mapping[Expr, Expr]
    verdicts: Mapping[str, Verdict]
    guards: tuple[Guard, ...]
    report: Report

    def apply(self, e: Expr) -> Expr:
        """`e` with every size variable replaced by what stands for it."""
        return substitute(e, self.substitution)


def necessary(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """`guards` without those that say less about one variable's range than another does, and without
    repetitions."""
    guards = list(dict.fromkeys(guards))
    strictest: dict[tuple[Expr, bool, bool], tuple[int, Guard]] = {}
    for guard in guards:
        end = _range_end(guard.condition)
        if end is not None:
            v, value, is_low = end
            best = strictest.get((v, is_low, guard.declared))
            if best is None or (value > best[0]) == is_low:
                strictest[(v, is_low, guard.declared)] = (value, guard)
    kept = {guard for _, guard in strictest.values()}
    return tuple(guard for guard in guards if guard in kept or _range_end(guard.condition) is None)


def _range_end(condition: Expr) -> tuple[Expr, int, bool] | None:
    """(v, c, True) for c <= v, (v, c, False) for v <= c, else None."""
    if condition.op != "le":
        return None
    a, b = condition.args
    if a.is_const and b.op == "size":
        return b, a.value, True
    return (a, b.value, False) if b.is_const and a.op == "size" else None
