"""Do several graphs of a program serve every size between them? Conditions that compare one size, or its
remainder, with numbers change at few places, and a short range has few sizes: trying these is a proof. Of any
other comparison it is enough that some graph serves whether it is true or not: branches have two sides."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import lcm, prod

from dlcb.compiler.bridge.symbolic import opposite
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import evaluate

Range = tuple[int, int | None]
_COMPARISONS = ("lt", "le", "eq", "ne")
_CONNECTIVES = ("and", "or", "not")
_MOST_TRIED = 50_000


def covered(graphs: Sequence[Sequence[Expr]], ranges: Mapping[str, Range]) -> bool:
    """Whether at all sizes in `ranges` (size variable -> least and greatest) the conditions of some graph
    hold. False where that cannot be told."""
    if not all(graphs):
        return True  # one of them has no conditions
    questions = list(dict.fromkeys(_questions(itertools.chain(*graphs))))
    short = {name: range(low, high + 1) for name, (low, high) in ranges.items() if high is not None}
    short = {name: sizes for name, sizes in short.items() if len(sizes) <= _MOST_TRIED}
    exact = [q for q in questions if _is_simple(q) or {symbol.value for symbol in q.free} <= short.keys()]
    nodes = list(toposort(exact))
    period = lcm(*(node.args[1].value for node in nodes if _is_remainder(node)))
    numbers = {node.value for node in nodes if node.op == "const" and isinstance(node.value, int)}
    tried = {
        name: short.get(name) or _places(numbers, period, ranges.get(name, (0, None)))
        for name in sorted({node.value for node in nodes if node.op == "size"})
    }
    open_ = [question for question in questions if question not in exact]
    if prod(map(len, tried.values())) << len(open_) > _MOST_TRIED:
        return False
    return all(
        any(_all_hold(graph, dict(zip(tried, sizes, strict=True)), dict(zip(open_, answers, strict=True)))
            for graph in graphs)
        for sizes in itertools.product(*tried.values())
        for answers in itertools.product((False, True), repeat=len(open_))
    )  # fmt: skip


def _questions(conditions: Iterable[Expr]) -> Iterable[Expr]:
    """The comparisons in conditions, of one and its opposite always the same."""
    pending = list(conditions)
    for condition in pending:
        if condition.op in _CONNECTIVES:
            pending += condition.args
        else:
            yield _question(condition)


def _question(comparison: Expr) -> Expr:
    other = opposite(comparison)
    return comparison if other.op == "not" else min(comparison, other, key=lambda each: each.digest)


def _is_simple(question: Expr) -> bool:
    """Whether one size, or its remainder by a number, is compared with a number."""
    if question.op not in _COMPARISONS or not any(arg.is_const for arg in question.args):
        return False
    return all(arg.is_const or arg.op == "size" or _is_remainder(arg) for arg in question.args)


def _is_remainder(node: Expr) -> bool:
    return node.op == "mod" and node.args[0].op == "size" and node.args[1].is_const and node.args[1].value > 0


def _places(numbers: Iterable[int], period: int, within: Range) -> list[int]:
    """Every size next to one of `numbers`, and a whole period above each."""
    low, high = within
    near = {number + step for number in (0, low, *numbers) for step in range(-1, period + 2)}
    return sorted(size for size in near if size >= low and (high is None or size <= high))


def _all_hold(conditions: Sequence[Expr], sizes: Mapping[str, int], answers: Mapping[Expr, bool]) -> bool:
    """Whether the conditions are true at these sizes and answers; what divides by 0 there is not."""
    try:
        return all(_holds(condition, sizes, answers) for condition in conditions)
    except ZeroDivisionError:
        return False


def _holds(condition: Expr, sizes: Mapping[str, int], answers: Mapping[Expr, bool]) -> bool:
    if condition.op in _CONNECTIVES:
        parts = [_holds(arg, sizes, answers) for arg in condition.args]
        return {"and": all, "or": any, "not": lambda part: not part[0]}[condition.op](parts)
    question = _question(condition)
    if question in answers:
        return answers[question] is (question is condition)
    return bool(evaluate(condition, sizes))
