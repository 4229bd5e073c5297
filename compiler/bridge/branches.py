"""The branches of a program: conditions over sizes that a traced path took for granted, and what is said of
several of them together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from dlcb.compiler.bridge.seen import Seen
from dlcb.compiler.bridge.symbolic import opposite
from dlcb.compiler.expr.dag import Expr


@dataclass(frozen=True)
class Branch:
    """A condition over sizes that the traced path took for granted, and the user's line that asked. `number`:
    it asked for the number that a size is, as a loop does."""

    condition: Expr
    source: str
    number: bool = False


@dataclass(frozen=True)
class Branches:
    """All branches that were met. `missing` says why there may be more; empty when there are none. `seen` are
    the calls that were met, with their numbers as expressions. `units` hold a size at the number 0 or 1,
    which PyTorch took it for: a trace at other sizes shows what it is."""

    found: tuple[Branch, ...]
    missing: str = ""
    seen: Seen = field(default_factory=Seen, compare=False)
    units: tuple[Expr, ...] = ()


def either(crossed: Sequence[Branch], beyond: Sequence[Branch]) -> list[Branch]:
    """All of `crossed` hold, or all of those met `beyond` them: in single conditions, without those that
    always hold."""
    joined: dict[Expr, Branch] = {}
    for here, there in itertools.product(crossed, beyond):
        known = alternatives(here.condition)
        fresh = [each for each in alternatives(there.condition) if each not in known]
        if not any(opposite(each) in known for each in fresh):
            condition = reduce(or_, fresh, here.condition)
            joined.setdefault(condition, Branch(condition, there.source))
    return list(joined.values())


def opposites(condition: Expr) -> set[Expr]:
    return {opposite(each) for each in alternatives(condition)}


def alternatives(condition: Expr) -> list[Expr]:
    if condition.op != "or":
        return [condition]
    return [part for each in condition.args for part in alternatives(each)]
