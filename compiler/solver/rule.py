"""A rewrite as one row: a name, what it matches, what it makes of it, and under which condition. The law
stands beside the row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.solver.pattern import Pattern


@dataclass(frozen=True)
class Rule:
    """`result(context, **bindings)` is what replaces a match, or None where the rule does not apply after
    all; `given`, with the same arguments, must hold. A lower `priority` is tried first; within one priority
    the order of the table counts."""

    name: str
    match: Pattern
    result: Callable[..., Any]
    given: Callable[..., bool] | None = None
    priority: int = 0

    @property
    def heads(self) -> frozenset[str] | None:
        return self.match.heads

    def attempt(self, item: Any, context: Any) -> Any | None:
        """The replacement of `item`, or None."""
        for bindings in self.match.match(item, {}):
            if self.given is None or self.given(context, **bindings):
                replacement = self.result(context, **bindings)
                if replacement is not None and replacement is not item:
                    return replacement
        return None


RuleSet = tuple[Rule, ...]
