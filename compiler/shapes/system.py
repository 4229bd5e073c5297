"""All that is known about the sizes of a program: what operators state about them comes in while the graph is
built; simpler expressions, decisions and, at the end, a solution come out. A contradiction is a ShapeError at
the statement that causes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, TypeAlias, TypeVar

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.bounds import Interval
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import FALSE, ONE, TRUE, ZERO, as_expr, equal, size, substitute, where
from dlcb.compiler.shapes.rules import STATEMENTS
from dlcb.compiler.shapes.solution import Solution, Verdict, necessary
from dlcb.compiler.shapes.statement import UNSTATED, Guard, Provenance, Saying, Statement, in_words
from dlcb.compiler.solver.engine import STEPS, STEPS_AT_ONCE, Engine, Report
from dlcb.compiler.solver.simplify import Facts, Simplifier, listed

# where a statement comes from, or what says so: that is only asked where the statement is news
Why: TypeAlias = Provenance | Callable[[], Provenance]
Answer = TypeVar("Answer")

_NESTED = 8  # sizes of one broadcast of which the first is asked first

__all__ = ["Guard", "Inference", "Interval", "Provenance", "Report", "Solution", "System", "Verdict"]


def asked(why: Why) -> Provenance:
    """The provenance itself."""
    return why if isinstance(why, Provenance) else why()


@dataclass(frozen=True)
class Inference:
    """The protocol of ir.op.Inference for one operator: every statement carries the operator's provenance."""

    system: System
    why: Why

    def _because(self, what: str) -> Why:
        def because() -> Provenance:
            why = asked(self.why)
            return replace(why, detail=" of ".join(filter(None, (what, why.detail))))

        return because if what else self.why

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
        return self.system.runtime_size(hint, low, high)


class System:
    """Facts about size variables and the guards they rest on. `budget` limits the engine's steps, `at_once`
    those of one statement: when they are spent, statements are kept as guards without being solved."""

    def __init__(self, budget: int = STEPS, at_once: int = STEPS_AT_ONCE) -> None:
        self.facts = Facts()
        self.simplifier = Simplifier(self.facts, budget=budget, at_once=at_once)
        # under no facts: guards must say all that is to be checked
        self._plain = Simplifier(budget=budget, at_once=at_once)
        self._engine = Engine(STATEMENTS, budget, at_once)
        self._age: dict[Expr, int] = {}
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}  # hint -> how many were named after it
        self._reasons: dict[Expr, Provenance] = {}  # size variable -> the latest statement about it
        # size variable -> truths about it, in order; None -> those about many
        self._watching: dict[Expr | None, dict[Expr, bool]] = {}
        self._undo: list[tuple[dict, Expr, Any]] = []  # what the present statement changed
        self._joined: dict[Expr, tuple[Expr, ...]] = {}  # result of a broadcast -> the sizes it joins
        self._ones: dict[Expr, Expr] = {}  # size in a broadcast -> whether it is 1
        self._guards: list[Guard] = []

    # ---- size variables --------------------------------------------------------------------------

    def fresh(self, hint: str, low: int = 0, high: int | None = None, why: Provenance = UNSTATED) -> Expr:
        """A new, uniquely named size variable. A range other than 0 and up is declared: run time checks
        it."""
        symbol = self.runtime_size(hint, low, high)
        if low > 0:
            self._guards.append(Guard(as_expr(low) <= symbol, why, declared=True))
        if high is not None:
            self._guards.append(Guard(symbol <= high, why, declared=True))
        return symbol

    def runtime_size(self, hint: str, low: int = 0, high: int | None = None) -> Expr:
        """A new size variable for something that run time measures; its range holds by construction and is
        not checked."""
        name, count = hint, self._numbers.get(hint, 0)
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._numbers[hint] = count
        self._names.add(name)
        symbol = size(name)
        self.age(symbol)
        if low > 0 or high is not None:
            self.facts.ranges[symbol] = Interval(max(low, 0), high)
            self.simplifier.changed(symbol)
        return symbol

    def age(self, symbol: Expr) -> int:
        """When a size variable was first met: of two equal ones the older represents both."""
        if symbol.op != "size":
            raise ValueError(f"expected a size variable, found {symbol!r}")
        self._names.add(symbol.value)
        return self._age.setdefault(symbol, len(self._age))

    def inference(self, why: Why) -> Inference:
        """What a shape rule talks to."""
        return Inference(self, why)

    # ---- statements ------------------------------------------------------------------------------

    def equal(self, a: Expr | int, b: Expr | int, why: Why = UNSTATED) -> Expr:
        """States a == b and gives their simplest common form. ShapeError where they cannot be equal."""
        a, b = as_expr(a), as_expr(b)
        if a is not b:
            self._state(equal(a, b), why, said=Saying(a, "must equal", b))
        first, second = self.simplify(a), self.simplify(b)
        return second if second.is_const or (second.op == "size" and first.op != "size") else first

    def broadcast(self, a: Expr | int, b: Expr | int, why: Why = UNSTATED) -> Expr:
        """The size that `a` and `b` broadcast to: equal, or one of them is 1. Free sizes may turn out to be 1
        at run time."""
        a, b = self.simplify(as_expr(a)), self.simplify(as_expr(b))
        if a is b or b is ONE:
            return a
        if a is ONE:
            return b
        left, right = self._members(a), self._members(b)
        together = tuple(dict.fromkeys((*left, *right)))
        if len(together) == len(left):
            return a
        if len(together) == len(right):
            return b
        either = equal(a, b) | equal(a, ONE) | equal(b, ONE)
        self._state(either, why, said=Saying(a, "does not broadcast with", b))
        return self._join(together, a)

    def _members(self, e: Expr) -> tuple[Expr, ...]:
        """The sizes that `e` is the broadcast of, without those now known to be 1 or equal."""
        members = dict.fromkeys(self.simplify(member) for member in self._joined.get(e, (e,)))
        return tuple(member for member in members if member is not ONE) or (ONE,)

    def _join(self, members: tuple[Expr, ...], before: Expr) -> Expr:
        """The broadcast of `members`, of which the first may have `before` as theirs."""
        members = tuple(dict.fromkeys(map(self.simplify, members)))
        for member in members:
            if self.known(self._is_one(member)) is False:
                return member  # all others are equal to it or 1
        joined = self._joined.get(before, ())
        if len(joined) >= _NESTED and members[: len(joined)] == joined:
            result, further = before, members[len(joined) :]
        else:
            first, further = members[:_NESTED], members[_NESTED:]
            result = first[-1]
            for member in reversed(first[:-1]):
                result = where(self._is_one(member), result, member)
        for member in further:  # around what is there, so that each further one is one step
            result = where(self._is_one(member), result, member)
        result = self.simplify(result)
        self._joined[result] = members
        return result

    def _is_one(self, member: Expr) -> Expr:
        asked = self._ones.get(member)
        if asked is None:
            asked = self._ones[member] = equal(member, ONE)
        return asked

    def require(self, condition: Expr, why: Why = UNSTATED) -> None:
        """States a condition over sizes. ShapeError where it cannot hold."""
        self._state(condition, why)

    def exact_quotient(self, a: Expr | int, b: Expr | int, why: Why = UNSTATED) -> Expr:
        """a / b, stating that b is not 0 and divides a."""
        a, b = as_expr(a), as_expr(b)
        self._state(as_expr(1) <= b, why, said=Saying(b, "must not be 0 where it divides", a))
        if not (b.is_const and b.value == 0):
            self._state(equal(a % b, ZERO), why, said=Saying(a, "must be a multiple of", b))
        return self.simplify(a // b)

    def bound(
        self,
        symbol: Expr,
        low: int = 0,
        high: int | None = None,
        why: Provenance = UNSTATED,
        declared: bool = False,
    ) -> None:
        """States low <= symbol <= high."""
        self._state(as_expr(low) <= symbol, why, declared)
        if high is not None:
            self._state(symbol <= high, why, declared)

    def adopt(self, other: System, same: Mapping[Expr, Expr] | None = None) -> dict[Expr, Expr]:
        """Takes over what `other` knows: its size variables, renamed where a name is taken, and its guards.
        `same` maps its size variables to expressions of this system, as when its inputs are this one's
        outputs. Gives the whole mapping."""
        mapping = dict(same or {})
        for symbol in other._age:
            if symbol not in mapping:
                mapping[symbol] = self.runtime_size(symbol.value)
        for guard in other._guards:
            self._state(substitute(guard.condition, mapping), guard.why, guard.declared)
        return mapping

    def _state(
        self, condition: Expr, because: Why, declared: bool = False, said: Saying | None = None
    ) -> None:
        simple = self.simplify(condition)
        if simple is TRUE:
            return
        why = asked(because)
        statement = Statement(simple, why, said or in_words(condition))
        if simple is FALSE:
            raise self.contradiction(statement)
        for symbol in condition.free.difference(self._age):
            if symbol.op == "size":
                self.age(symbol)
        self._undo.clear()
        guards = len(self._guards)
        self._guards.append(Guard(self._plain.simplify(condition), why, declared))
        try:
            with self.simplifier.engine.use():  # what the rules ask is part of this statement
                self._engine.run([statement], self, self._keep)
        except ShapeError:
            self._restore()
            del self._guards[guards:]
            raise

    def _put(self, table: dict[Expr, Any], key: Expr, value: Any) -> None:
        self._undo.append((table, key, table.get(key)))
        table[key] = value

    def _take(self, table: dict[Expr, Any], key: Expr) -> Any:
        """What `table` holds under `key`, and no longer does; None where there is nothing."""
        value = table.pop(key, None)
        if value is not None:
            self._undo.append((table, key, value))
        return value

    def _restore(self) -> None:
        """A statement that is refused leaves nothing behind."""
        while self._undo:
            table, key, value = self._undo.pop()
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        self.simplifier.forget()

    # ---- what the rules do -----------------------------------------------------------------------

    def assign(self, symbol: Expr, e: Expr, it: Statement) -> tuple[Statement, ...]:
        """`e` stands for `symbol` from now on; what was known of `symbol` is stated of `e`."""
        interval = self._take(self.facts.ranges, symbol) or Interval(0)
        multiple = self._take(self.facts.multiples, symbol) or 1
        self._put(self.facts.substitution, symbol, e)
        inherited = [it.with_condition(as_expr(interval.low or 0) <= e)]
        if interval.high is not None:
            inherited.append(it.with_condition(e <= interval.high))
        if multiple > 1:
            inherited.append(it.with_condition(equal(e % multiple, ZERO)))
        return (*self._changed(symbol, it), *inherited)

    def narrow(self, symbol: Expr, interval: Interval, it: Statement) -> tuple[Statement, ...]:
        """`symbol` lies in `interval` as well."""
        narrowed = self.facts.ranges.get(symbol, Interval(0)) & interval
        if narrowed.high is not None and narrowed.low is not None and narrowed.low > narrowed.high:
            raise self.contradiction(it)
        self._put(self.facts.ranges, symbol, narrowed)
        further = self._changed(symbol, it, self.simplifier.may_decide)
        if narrowed.low is not None and narrowed.low == narrowed.high:
            return (*further, it.with_condition(equal(symbol, as_expr(narrowed.low))))
        return further

    def divide(self, symbol: Expr, divisor: int, it: Statement) -> tuple[Statement, ...]:
        """`divisor` divides `symbol`."""
        self._put(self.facts.multiples, symbol, lcm(self.facts.multiples.get(symbol, 1), divisor))
        return self._changed(symbol, it, self.simplifier.may_decide)

    def _changed(
        self, symbol: Expr, it: Statement, matters: Callable[[Expr], bool] = lambda truth: True
    ) -> tuple[Statement, ...]:
        """Truths that mention `symbol` and for which it `matters` are stated again: they may be decided now,
        or contradict. Where the budget does not suffice for all, they stay as they are."""
        self._put(self._reasons, symbol, it.why)
        self.simplifier.changed(symbol)
        wide = self._watching.get(None, {})
        watching = [*self._watching.get(symbol, ()), *(truth for truth in wide if symbol in truth.free)]
        if not watching or not self.simplifier.spend(sum(len(truth.free) for truth in watching)):
            return ()
        again: list[Statement] = []
        for truth in [truth for truth in watching if matters(truth)]:
            for other in listed(truth.free):
                self._take(self._watching[other], truth)
            again.append(self._take(self.facts.truths, truth))
            self.simplifier.withdraw(truth)
        return tuple(again)

    def _keep(self, it: Statement) -> None:
        """A statement to which no rule applies is a truth."""
        self._put(self.facts.truths, it.condition, it)
        for symbol in listed(it.condition.free):
            self._put(self._watching.setdefault(symbol, {}), it.condition, True)
        self.simplifier.state(it.condition)

    def contradiction(self, it: Statement) -> ShapeError:
        """The error that says what was stated, about which operands, and what it contradicts."""
        message = f"{it.why.operator or 'the caller'}: {it.said}"
        if it.why.detail:
            message += f", for {it.why.detail}"
        against = list(self._against(it.said.free))
        if against:
            message += f"; but {' and '.join(against)}"
        return ShapeError(message, stage="shapes", node=it.why.operator, source_line=it.why.source)

    def _against(self, symbols: Iterable[Expr]) -> Iterable[str]:
        for symbol in sorted((s for s in symbols if s.op == "size"), key=self.age):
            reason = self._reasons.get(symbol)
            value = self.simplify(symbol)
            by = f" by {reason}" if reason is not None else ""
            multiple = self.divisor(value)
            if value is not symbol:
                yield f"{symbol!r} is {value!r}{by}"
            elif self.bounds(symbol) != Interval(0):
                yield f"{symbol!r} is in {self.bounds(symbol)!r}{by}"
            elif multiple > 1:
                yield f"{symbol!r} is a multiple of {multiple}{by}"

    # ---- questions -------------------------------------------------------------------------------

    def once(self, question: Callable[..., Answer], *about: Hashable) -> Answer:
        """`question(self, *about)`, which the facts decide: worked out again after a new one alone."""
        answers, key = self.simplifier.answers, (question, *about)
        if key not in answers:
            answers[key] = question(self, *about)
        answer: Answer = answers[key]
        return answer

    def simplify(self, e: Expr) -> Expr:
        """The simplest form of an expression under all facts; cheap to ask again until the next new fact."""
        return self.simplifier.simplify(e)

    def known(self, condition: Expr) -> bool | None:
        """True or False where the facts decide the condition, else None."""
        condition = self.simplify(condition)
        return bool(condition.value) if condition.is_const else None

    def bounds(self, e: Expr) -> Interval:
        """Where the value of `e` lies."""
        return self.simplifier.interval(self.simplify(e))

    def divisor(self, e: Expr) -> int:
        """The largest constant proven to divide `e`; 0 where `e` is always 0."""
        return self.simplifier.divisor(self.simplify(e))

    def solve(self) -> Solution:
        """The solution at the fixed point that the statements so far have led to."""
        substitution = {symbol: self.simplify(symbol) for symbol in self.facts.substitution}
        verdicts = {symbol.value: self._verdict(symbol) for symbol in self._age}
        report = self.simplifier.engine.report() + self._engine.report()
        return Solution(substitution, verdicts, necessary(self._guards), report)

    def _verdict(self, symbol: Expr) -> Verdict:
        value = self.simplify(symbol)
        kind = "literal" if value.is_const else "named" if value.op == "size" else "residual"
        interval = self.bounds(symbol)
        return Verdict(
            kind,
            value,
            interval.low or 0,
            interval.high,
            self.divisor(symbol),
            self._reasons.get(symbol, UNSTATED),
        )
