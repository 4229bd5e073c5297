"""Do several graphs of a program serve every size between them? Answered for conditions that compare one
size, or its remainder, with numbers: those change at few places, and trying these is a proof."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import lcm, prod

from dlcb.compiler.bridge.symbolic import holds
from dlcb.compiler.expr.dag import Expr, toposort

Range = tuple[int, int | None]
_COMPARISONS = ("lt", "le", "eq", "ne")
_MOST_TRIED = 50_000


def covered(graphs: Sequence[Sequence[Expr]], ranges: Mapping[str, Range]) -> bool:
    """Whether at all sizes in `ranges` (size variable -> least and greatest) the conditions of some graph
    hold. False where that cannot be told."""
    if not all(graphs):
        return True  # one of them has no conditions
    conditions = list(dict.fromkeys(itertools.chain(*graphs)))
    nodes = list(toposort(conditions))
    if not all(map(_understood, nodes)):
        return False
    period = lcm(*(node.args[1].value for node in nodes if node.op == "mod"))
    numbers = {node.value for node in nodes if node.op == "const" and not isinstance(node.value, bool)}
    names = sorted({node.value for node in nodes if node.op == "size"})
    tried = [_places(numbers, period, ranges.get(name, (0, None))) for name in names]
    if prod(map(len, tried)) > _MOST_TRIED:
        return False
    return all(
        any(_hold(each, dict(zip(names, sizes, strict=True))) for each in graphs)
        for sizes in itertools.product(*tried)
    )


def _understood(node: Expr) -> bool:
    if node.op == "mod":
        return node.args[0].op == "size" and node.args[1].is_const and node.args[1].value > 0
    if node.op in _COMPARISONS:
        return any(arg.is_const for arg in node.args)
    return node.op in ("size", "const", "and", "or", "not")


def _places(numbers: Iterable[int], period: int, within: Range) -> list[int]:
    """Every size next to one of `numbers`, and a whole period above each."""
    low, high = within
    near = {number + step for number in (0, low, *numbers) for step in range(-1, period + 2)}
    return sorted(size for size in near if size >= low and (high is None or size <= high))


def _hold(conditions: Sequence[Expr], sizes: Mapping[str, int]) -> bool:
    return all(holds(condition, sizes) for condition in conditions)
