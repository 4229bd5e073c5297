"""Sizes on the other side of a branch: the nearest, all of them where they are few, and some far beyond."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

from dlcb.compiler.bridge.branches import Branch, alternatives
from dlcb.compiler.bridge.probes import Bindings
from dlcb.compiler.bridge.scope import A_BRANCH, FARTHEST, Scope
from dlcb.compiler.bridge.symbolic import holds
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.shapes.system import System

_FEW = 32  # sizes beyond a branch that are all tried, and the greatest of them


def beyond(
    scope: Scope, condition: Expr, first: Bindings, least: int = 1, asked: Sequence[Expr] = ()
) -> dict[str, int] | None:
    """The sizes nearest to the first trace's where `condition` fails and the branches' others do not, nor
    what is `asked` of sizes besides (by shape rules, without which the program may fail); where it never
    fails alone, those where it fails."""
    others = [other for other in scope.kept if other.condition is not condition]
    alone: dict[str, int] | None = None
    turned: dict[str, int] | None = None
    for symbol in condition.free:
        name = symbol.value
        dim = scope.dim(name)
        if name in scope.limits:
            continue
        reach = range(max(dim.low, least), min(dim.high or FARTHEST, FARTHEST) + 1)
        for size in _nearest_first(reach, first[name]):
            sizes = scope.prober.moved(first, name, size)
            if holds(condition, sizes):
                continue
            if all(holds(other.condition, sizes) for other in others):
                alone = alone or sizes
                if all(holds(each, sizes) for each in asked if each is not condition):
                    return sizes
            turned = turned or sizes
    if alone is not None:
        return alone
    parts = alternatives(condition)
    if turned is None and len(parts) > 1:  # each fails by another dim
        together = dict(first)
        for sizes in (beyond(scope, part, first, least, asked) or {} for part in parts):
            together |= {name: size for name, size in sizes.items() if size != first[name]}
        return None if holds(condition, together) else together
    return turned


def sides(
    scope: Scope, condition: Expr, first: Bindings, least: int, asked: Sequence[Expr]
) -> Iterator[dict[str, int]]:
    """The sizes nearest to the first trace's at which `condition` fails, and nothing else that is `asked` or
    that the branches need: below and above, for each dim in it. On one side the program may refuse what it
    takes on the other."""
    needed = [each.condition for each in scope.kept] + list(asked)
    for name in sorted(symbol.value for symbol in condition.free):
        dim = scope.dim(name)
        if name in scope.limits:
            continue
        below = range(first[name] - 1, max(dim.low, least) - 1, -1)
        above = range(first[name] + 1, min(dim.high or FARTHEST, FARTHEST) + 1)
        for reach in (below, above):
            moves = (scope.prober.moved(first, name, size) for size in reach)
            failing = (sizes for sizes in moves if not holds(condition, sizes))
            fit = (s for s in failing if all(holds(each, s) for each in needed if each is not condition))
            if (found := next(fit, None)) is not None:
                yield found


def emptied(scope: Scope, condition: Expr, first: Bindings) -> Iterator[dict[str, int]]:
    """The first trace's sizes with one of them 0 where `condition` fails then; batches come last, which are
    rarely what a branch is for."""
    dims = (scope.dim(symbol.value) for symbol in condition.free)
    for dim in sorted(dims, key=lambda dim: (dim.leading, dim.name)):
        if dim.low == 0 and dim.name not in scope.limits:
            sizes = scope.prober.moved(first, dim.name, 0)
            if not holds(condition, sizes):
                yield sizes


def shape_rules(scope: Scope, system: System) -> list[Expr]:
    """What the shape rules of a graph ask of the free dims."""
    symbols = {dim.symbol for dim in scope.free}
    guards = system.solve().guards
    return [g.condition for g in guards if g.why.operator != A_BRANCH and g.condition.free <= symbols]


def few(scope: Scope, condition: Expr, first: Bindings) -> list[dict[str, int]]:
    """All sizes at which `condition` fails, nearest to the first trace's first, where these are few and
    small; else none. There every one is tried: PyTorch's symbolic forward takes a size of 1 for a
    number."""
    parts = alternatives(condition)
    single = all(len(part.free) == 1 for part in parts)
    if not single or any(node.op == "mod" for node in toposort([condition])):
        return []
    failing: list[list[tuple[str, int]]] = []
    for name in sorted({symbol.value for symbol in condition.free}):
        dim = scope.dim(name)
        own = [part for part in parts if part.free == {dim.symbol}]
        reach = range(dim.low, (FARTHEST if dim.high is None else dim.high) + 1)
        sizes = [size for size in reach if not any(holds(each, {name: size}) for each in own)]
        if not sizes or sizes[-1] > _FEW or name in scope.limits:
            return []
        failing.append([(name, size) for size in _nearest_first(sizes, first[name])])
    if prod(map(len, failing)) > _FEW:
        return []
    found = []
    for chosen in itertools.product(*failing):
        sizes_there = dict(first)
        for name, size in chosen:
            sizes_there = scope.prober.moved(sizes_there, name, size)
        found.append(sizes_there)
    return [sizes for sizes in found if not holds(condition, sizes)]


def farther(
    scope: Scope, first: Bindings, sizes: Bindings, path: Sequence[Branch], target: int | None
) -> tuple[dict[str, int], ...]:
    """One more example of the `path` that the program takes at `sizes`: there half as far again from the
    first trace's, or at `target`, or as near to that as the path has any. Empty where the program takes
    none such."""
    for dim in scope.free:
        size, start = sizes[dim.name], first[dim.name]
        if size == start:
            continue
        near = size + (size - start) // 2 + 5 if size > start else max(dim.low, size // 2)
        far = near if target is None else target
        for other in _nearest_first(range(dim.low, min(dim.high or FARTHEST, FARTHEST) + 1), far):
            moved = scope.prober.moved(first, dim.name, other)
            if other != size and all(holds(each.condition, moved) for each in path):
                return (moved,) if scope.prober.accepts(moved) else ()
    return ()


def _nearest_first(sizes: Sequence[int], origin: int) -> list[int]:
    return sorted(sizes, key=lambda size: abs(size - origin))
