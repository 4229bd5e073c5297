"""Branches whose other side is the same program: a graph is widened to every size at which the traces say
so."""

from __future__ import annotations

import time
from collections import deque

from dlcb.compiler.bridge.aligned import Disagreement, align
from dlcb.compiler.bridge.beyond import beyond, farther, few, shape_rules, sides
from dlcb.compiler.bridge.branches import Branch, Branches, alternatives, either, opposites
from dlcb.compiler.bridge.lower import Lowered
from dlcb.compiler.bridge.probes import Bindings
from dlcb.compiler.bridge.scope import Scope, fits
from dlcb.compiler.bridge.symbolic import holds
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.shapes.system import System

_FAR = (4099, 1031, 257, 131)  # sizes at which a graph whose branches are not known is tried, too
_CROSSED = 16  # branches of one graph whose other side is followed; all others stay
_CROSSING = 2  # times what one symbolic forward may take, for following them
_ALTERNATIVES = 6  # conditions in one branch that is still crossed


def cross_branches(
    scope: Scope, lowered: Lowered, system: System, examples: list[Bindings], branches: Branches
) -> tuple[Lowered, System, tuple[Bindings, ...]]:
    """A branch whose other side gives the same graph bounds nothing: traces beyond its edge tell, and
    what is decided only there is crossed in turn, until the time for that is over. Without a full list of
    branches each stays, and traces at extreme sizes stand in for those that are not known."""
    if branches.missing:
        lowered, system, examples = _try_extremes(scope, lowered, system, examples)
    ahead = deque(branch for branch in scope.kept if branch not in scope.assumed)
    crossings, started = 0, time.process_time()
    while ahead and time.process_time() - started < _CROSSING * scope.options.guard_seconds:
        branch = ahead.popleft()
        all_sizes = few(scope, branch.condition, examples[0]) if branch in scope.kept else []
        sizes = all_sizes[0] if all_sizes else beyond(scope, branch.condition, examples[0], least=2)
        if sizes is None or branch not in scope.kept:
            continue
        if not scope.prober.accepts(sizes):  # perhaps for what a shape rule asks
            fitting = _fitting(scope, branch, examples[0], system)
            if fitting is None:
                scope.refused.append(branch)  # of what else fails there nothing is known
                continue
            sizes = fitting
        crossed = [each for each in scope.kept if not holds(each.condition, sizes)]
        deep = len(alternatives(branch.condition)) > _ALTERNATIVES
        if branches.missing or deep or crossings == _CROSSED:
            continue
        without = [each for each in scope.kept if each not in crossed]
        if not _is_alike(scope, examples[0], sizes):
            continue  # whatever the program asks there
        crossings += 1
        there = scope.follow(sizes)
        met = [each for each in there.found if each not in without]
        if all(few(scope, each.condition, examples[0]) for each in crossed):
            every = [more for each in crossed for more in few(scope, each.condition, examples[0])]
            unlike = bool(there.missing)
        else:  # more sizes than can be tried: far ones, too, where the calls or their numbers differ
            fars = (None,) if there.seen.agrees(scope.seen) else (None, *_FAR)
            path = [*without, *met]
            every = [sizes, *(x for far in fars for x in farther(scope, examples[0], sizes, path, far))]
            asked = {each.condition for each in met}
            turned = all(not asked.isdisjoint(opposites(each.condition)) for each in crossed)
            unlike = bool(there.missing) or not turned
        if unlike:
            continue
        fresh = [more for more in every if more not in examples and scope.prober.accepts(more)]
        tried = list({tuple(each.items()): each for each in [*examples, *fresh]}.values())
        tried = [each for each in tried if all(holds(other.condition, each) for other in without)]
        deeper = either(crossed, met)
        try:
            lowered, system = scope.lower(tried, [*without, *deeper])
        except CompilerError:
            continue
        examples, scope.kept = tried, [*without, *deeper]
        ahead.extend(deeper)
    return lowered, system, tuple(examples)


def _fitting(scope: Scope, branch: Branch, first: Bindings, system: System) -> dict[str, int] | None:
    """Sizes beyond a branch that the program takes, among those that the shape rules take."""
    rules = shape_rules(scope, system)
    nearest = beyond(scope, branch.condition, first, least=2, asked=rules)
    tries = (nearest, *sides(scope, branch.condition, first, 2, rules))
    return next((each for each in tries if each is not None and scope.prober.accepts(each)), None)


def _is_alike(scope: Scope, first: Bindings, sizes: Bindings) -> bool:
    """Whether the program makes the same calls at both sizes, whatever their numbers."""
    try:
        align([scope.prober.trace(first), scope.prober.trace(sizes)])
    except Disagreement:
        return False
    return True


def _try_extremes(
    scope: Scope, lowered: Lowered, system: System, examples: list[Bindings]
) -> tuple[Lowered, System, list[Bindings]]:
    """The same graph with traces where a dim is 1, and where it is far larger than in all others; where
    these are another program, the graph is limited to what was traced."""
    for dim in scope.free:
        far = (scope.prober.moved(examples[0], dim.name, size) for size in _FAR if fits(dim, size))
        large = next((sizes for sizes in far if scope.allowed(sizes) and scope.prober.accepts(sizes)), None)
        most = max(sizes[dim.name] for sizes in examples)
        one = {**examples[0], dim.name: 1} if fits(dim, 1) else None
        for sizes, limit in ((one, as_expr(2) <= dim.symbol), (large, dim.symbol <= most)):
            if dim.name in scope.limits or sizes is None or sizes in examples or not scope.allowed(sizes):
                continue
            try:
                lowered, system = scope.lower([*examples, sizes], scope.kept)
                examples = [*examples, sizes]
            except CompilerError as error:
                scope.kept.append(Branch(limit, error.source_line))
                lowered, system = scope.lower(examples, scope.kept)
    return lowered, system, examples
