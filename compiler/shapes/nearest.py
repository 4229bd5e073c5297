"""For sizes that break a guard: the nearest sizes that break none, for the error's reader. A small search,
not a proof: one size is moved, then two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate

FAR = 512  # how far one size is moved
NEAR = 16  # how far each of two sizes is moved together


def holds(condition: Expr, sizes: Mapping[str, int]) -> bool:
    """Whether `condition` holds; one that has no value (a division by zero) does not."""
    try:
        return bool(evaluate(condition, sizes))
    except ZeroDivisionError:
        return False


def nearest_legal(
    conditions: Iterable[Expr], sizes: Mapping[str, int], movable: Iterable[str] | None = None
) -> dict[str, int] | None:
    """`sizes` with as little changed as possible so that all `conditions` hold, or None where nothing near
    does.

    `movable` names the sizes that may change, all by default. Larger sizes are preferred to smaller ones at
    one distance, so that an input can be padded rather than cut."""
    conditions = list(conditions)
    broken = [condition for condition in conditions if not holds(condition, sizes)]
    if not broken:
        return dict(sizes)
    mentioned = {v.value for condition in broken for v in condition.free}
    names = sorted(mentioned & set(sizes if movable is None else movable))
    return next(
        (found for found in _neighbours(sizes, names) if all(holds(c, found) for c in conditions)), None
    )


def _neighbours(sizes: Mapping[str, int], names: list[str]) -> Iterator[dict[str, int]]:
    for distance in range(1, FAR + 1):
        for name in names:
            for step in (distance, -distance):
                if sizes[name] + step >= 0:
                    yield {**sizes, name: sizes[name] + step}
    for distance in range(2, 2 * NEAR + 1):
        for place, first in enumerate(names):
            for second in names[place + 1 :]:
                yield from _both(sizes, first, second, distance)


def _both(sizes: Mapping[str, int], first: str, second: str, distance: int) -> Iterator[dict[str, int]]:
    """Both moved, by `distance` in sum."""
    for part in range(1, distance):
        for a in (part, -part):
            for b in (distance - part, part - distance):
                if sizes[first] + a >= 0 and sizes[second] + b >= 0:
                    yield {**sizes, first: sizes[first] + a, second: sizes[second] + b}
