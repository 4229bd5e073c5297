"""The rewriting engine: rows of rules by priority, a worklist, a fixed point, a step budget and a report.
What is rewritten is up to the instance: expressions with an operator and arguments in `simplify`, statements
about sizes in `shapes`."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.solver.rule import Rule, RuleSet

STEPS = 400_000  # in an engine's life; the sizes of 2,000 operators take a thirtieth of it
STEPS_AT_ONCE = 20_000  # for one expression or statement; those of large models take a hundred
STEPS_EARNED = 32  # that each further one adds, so that time is linear in their number; most take fewer
_TERMS = 2  # of a polynomial that are looked at in one step
_DEPTH = 40  # of rules that ask the engine in turn; four is much


@dataclass(frozen=True)
class Report:
    """`stopped` is "fixed point" (nothing more applies) or "budget" (more may apply; every result is right,
    if not the simplest).

    `fired`: how often each rule applied; `steps`: items and proofs looked at; `seconds`: time inside the
    engine."""

    stopped: str
    fired: Mapping[str, int]
    steps: int
    seconds: float

    def __add__(self, other: Report) -> Report:
        stopped = "budget" if "budget" in (self.stopped, other.stopped) else self.stopped
        fired = Counter(self.fired) + Counter(other.fired)
        return Report(stopped, dict(fired), self.steps + other.steps, self.seconds + other.seconds)


class Engine:
    """Applies `rules` to items that have an `op`. `budget` limits the steps of its whole life, `at_once`
    those of one use; what a use takes is missing to the next ones, and each has `earned` more. What they cut
    short stays right, and says less."""

    def __init__(
        self,
        rules: RuleSet,
        budget: int = STEPS,
        at_once: int = STEPS_AT_ONCE,
        earned: int = STEPS_EARNED,
    ) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: rule.priority))  # stable: a table's own order stays
        names = Counter(rule.name for rule in self.rules)
        if len(names) < len(self.rules):
            raise ValueError(
                f"rules need different names: {[name for name, count in names.items() if count > 1]}"
            )
        self.budget, self.at_once, self.earned = budget, at_once, earned
        self.fired: Counter[str] = Counter()
        self.steps = 0
        self.beyond = 0  # steps that uses took beyond what each earns
        self.exhausted = False
        self._seconds = 0.0
        self._nesting = 0  # a rule may ask the engine: the outermost call is the one use that counts
        self._until = min(budget, at_once)  # the step at which the present use ends
        self._by_head: dict[str, tuple[Rule, ...]] = {}

    def rewrite(self, item: Any, context: Any, terms: int = 0) -> Any | None:
        """What the first applicable rule makes of `item`, which has so many terms; None where none applies or
        the budget is spent."""
        if not self.spend(terms):
            return None
        rules = self._by_head.get(item.op)
        if rules is None:
            rules = tuple(rule for rule in self.rules if rule.heads is None or item.op in rule.heads)
            self._by_head[item.op] = rules
        for rule in rules:
            replacement = rule.attempt(item, context)
            if replacement is not None:
                self.fired[rule.name] += 1
                return replacement
        return None

    def spend(self, terms: int = 0) -> bool:
        """Takes a step, and another for each `_TERMS` of the terms looked at; False where none is left, or
        where rules ask each other in a circle."""
        if self.steps >= self._until or self._nesting > _DEPTH:
            self.exhausted = True
            return False
        self.steps += 1 + terms // _TERMS
        return True

    def _earn(self) -> None:
        left = self._until - self.steps  # less than 0 where one step of many terms took more than there was
        self._until = min(self.budget, self.steps + min(left + self.earned, self.at_once))

    def affords(self, steps: int, beyond: int) -> bool:
        """Whether further uses cannot be cut short that take so many steps, so many of which are `beyond`
        what each earns, in whatever order they come."""
        return beyond <= self._until - self.steps and steps <= self.budget - self.steps

    def run(self, items: Iterable[Any], context: Any, settle: Callable[[Any], None]) -> None:
        """Rewrites `items` to a fixed point: a replacement is a sequence of further items, empty where an
        item is discharged; `settle` takes each item to which no rule applies."""
        with self.use():
            pending = deque(items)
            while pending:
                item = pending.popleft()
                replacement = self.rewrite(item, context)
                if replacement is None:
                    settle(item)
                else:
                    pending.extendleft(reversed(replacement))

    def use(self) -> _Use:
        """A `with` block that is one use of the engine: its time is counted and its steps are limited."""
        return _Use(self)

    def report(self) -> Report:
        return Report(
            "budget" if self.exhausted else "fixed point", dict(self.fired), self.steps, self._seconds
        )


class _Use:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> None:
        if self.engine._nesting == 0:
            self.started = time.perf_counter()
            self.engine._earn()
            self.before = self.engine.steps
        self.engine._nesting += 1

    def __exit__(self, *error: object) -> None:
        self.engine._nesting -= 1
        if self.engine._nesting == 0:
            self.engine._seconds += time.perf_counter() - self.started
            self.engine.beyond += max(self.engine.steps - self.before - self.engine.earned, 0)
