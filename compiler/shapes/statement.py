"""What is stated about sizes, on its way through the engine: a condition with where it comes from, and the
errors it can end in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.show import brief
from dlcb.compiler.solver.pattern import Bindings, Pattern


@dataclass(frozen=True)
class Provenance:
    """Where a statement comes from: the operator, "file:line" of the user's code, and the operands in
    words."""

    operator: str = ""
    source: str = ""
    detail: str = ""

    def __str__(self) -> str:
        place = f" at {self.source}" if self.source else ""
        return f"{self.operator or 'the caller'}{place}"


UNSTATED = Provenance()


@dataclass(frozen=True)
class Saying:
    """A statement in words, for errors: `left` `verb` `right`."""

    left: Expr
    verb: str
    right: Expr | None = None

    @property
    def free(self) -> frozenset[Expr]:
        return self.left.free if self.right is None else self.left.free | self.right.free

    def __str__(self) -> str:
        return f"{brief(self.left)} {self.verb}" + ("" if self.right is None else f" {brief(self.right)}")


_VERBS = {"eq": "must equal", "ne": "must differ from", "lt": "must be less than", "le": "must be at most"}


def in_words(condition: Expr) -> Saying:
    """What is said by stating `condition`."""
    verb = _VERBS.get(condition.op)
    if verb is None:
        return Saying(condition, "must hold")
    a, b = condition.args
    if condition.op == "eq" and a.op == "mod" and b.is_const and b.value == 0:
        return Saying(a.args[0], "must be a multiple of", a.args[1])
    if a.is_const and condition.op in ("lt", "le"):
        return Saying(b, "must be at least" if condition.op == "le" else "must be greater than", a)
    return Saying(a, verb, b)


@dataclass(frozen=True)
class Statement:
    """A condition that holds. `said` is what was stated, before anything was rewritten: the two sides and the
    words between them."""

    condition: Expr
    why: Provenance
    said: Saying

    @property
    def op(self) -> str:
        return self.condition.op

    def with_condition(self, condition: Expr) -> Statement:
        return Statement(condition, self.why, self.said)


class States(Pattern):
    """Matches a statement whose condition matches `inner`; binds the statement itself to `it`."""

    def __init__(self, inner: Pattern) -> None:
        self.inner, self.heads = inner, inner.heads

    def match(self, node: Statement, bound: Bindings) -> Iterator[Bindings]:  # type: ignore[override]
        yield from self.inner.match(node.condition, {**bound, "it": node})  # type: ignore[dict-item]


@dataclass(frozen=True)
class Guard:
    """A condition over sizes that run time must check. `declared`: from the user's contract, not derived from
    the program.

    Guards are in the order in which they were stated: a divisor is shown not to be 0 before anything is
    divided by it."""

    condition: Expr
    why: Provenance
    declared: bool = False
