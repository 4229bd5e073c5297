"""The search for one graph of a module that runs at many sizes: traces at several sizes that are one program,
the branches and limits within which they are, and the sizes beyond. What is not understood is held at the
traced size or limited to the range that was."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import or_

from torch import nn

from dlcb.compiler.bridge.capture import result_names
from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.declared import declare
from dlcb.compiler.bridge.guards import Branch, Branches, collect
from dlcb.compiler.bridge.lower import Disagreement, Lowered, align, lower
from dlcb.compiler.bridge.probes import Bindings, FreeDim, Prober
from dlcb.compiler.bridge.relations import followers
from dlcb.compiler.bridge.seen import Seen
from dlcb.compiler.bridge.symbolic import holds, opposite
from dlcb.compiler.bridge.verdicts import BY_SHAPE, PROVEN, judge
from dlcb.compiler.errors import CaptureError, CompilerError, ShapeError
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import as_expr, equal
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.shapes.system import Guard, Provenance, System
from dlcb.compiler.source import ModelSource

A_BRANCH = "a branch"
_SCANNED = 600  # sizes at which a branch is tried out
_FARTHEST = 4096  # how far the other side of a branch is looked for
_FAR = (4099, 1031, 257, 131)  # sizes at which a graph whose branches are not known is tried, too
_TRIED = 6  # conditions of shape rules beyond which the program is tried
_CROSSED = 16  # branches of one graph whose other side is followed; all others stay
_CROSSING = 2  # times what one symbolic forward may take, for following them
_FEW = 32  # sizes beyond a branch that are all tried, and the greatest of them
_ALTERNATIVES = 6  # conditions in one branch that is still crossed


@dataclass(frozen=True)
class Limit:
    """A dim held at the traced size. `refused`: the program rejects every other size that was tried."""

    dim: str
    size: int
    why: Provenance
    refused: bool


class Search:
    """Finds traces of one module that are one program, and the limits within which they are. `number` counts
    the graphs of a module; `start` are sizes where `assumed` holds, for all but the first."""

    def __init__(
        self,
        source: ModelSource,
        module: nn.Module,
        options: CompileOptions,
        number: int = 1,
        start: dict[str, int] | None = None,
        assumed: Sequence[Branch] = (),
    ) -> None:
        if not source.inputs:
            raise CaptureError(
                f"model '{source.name}' declares no inputs to trace it with", stage="generalize"
            )
        self.source, self.module, self.options = source, module, options
        self.dims, self.free = declare(source, source.inputs, System())
        self.prober = Prober(module, source.inputs, self.dims, self.free)
        self.number, self.start, self.assumed = number, start, tuple(assumed)
        self.limits: dict[str, Limit] = {}
        self.kept: list[Branch] = []  # branches that the graph is valid within
        self.ties: list[Expr] = []  # equalities of dims without which the program fails
        self.joined: list[dict[str, int]] = []  # sizes at which dims that otherwise move together broadcast
        self.refused: list[Branch] = []  # those of them beyond which the program itself fails
        self.followed: dict[tuple[tuple[str, int], ...], Branches] = {}  # at sizes, of all graphs
        self.seen = Seen()  # the numbers in the program's calls, as far as they follow sizes
        self.turns: list[tuple[Branch, dict[str, int]]] = []  # what limits the graph, and sizes beyond it
        self.guards: tuple[Guard, ...] = ()
        self.outputs: tuple[str, ...] = ()

    def beyond(self, turn: Branch, sizes: dict[str, int], number: int) -> Search:
        """The search for a graph that serves `sizes`, where `turn` does not hold."""
        assumed = [branch for branch in self.assumed if holds(branch.condition, sizes)]
        assumed.append(Branch(opposite(turn.condition), turn.source))
        search = Search(self.source, self.module, self.options, number, sizes, assumed)
        search.prober.programs, search.prober.rung = self.prober.programs, self.prober.rung
        search.followed = self.followed
        search.prober.tied, search.ties, search.joined = dict(self.prober.tied), self.ties, self.joined
        return search

    def covers(self, sizes: Bindings) -> bool:
        """Whether the graph that was found serves these sizes."""
        return all(holds(guard.condition, sizes) for guard in self.guards)

    def run(self) -> Captured:
        if self.start is None:
            first = self.prober.first()
            if self.prober.tied:  # supposed, to find the first trace
                self.prober.tied = {}
                self._relate(first)
            first = self._roomier(first)
        else:
            first = self.start
        self.outputs = tuple(result_names(self.prober.trace(first), self.source.outputs))
        branches = self._collect(first)
        self.seen = branches.seen
        self._take([*self.assumed, *branches.found], first)
        others = self._others(first)
        if not others:
            self._hold_unmoved(first)
            others = self._others(first)
        lowered, system, others = self._agree(first, others)
        lowered, system, examples = self._cross_branches(lowered, system, [first, *others], branches)
        unproven = branches.missing
        if not others and len(self.limits) < len(self.free):
            unproven = unproven or "the program could be traced at one size alone"
        return self._captured(lowered, system, examples, unproven)

    def _roomier(self, first: dict[str, int]) -> dict[str, int]:
        """`first`, or other sizes at which fewer results have an axis of 1: PyTorch's symbolic forward takes
        that for a number, and what follows from it too."""
        others = self.prober.others(first, 1, lambda sizes: True)
        return min((first, *others), key=lambda sizes: self.prober.trace(sizes).units)

    def _take(self, branches: Sequence[Branch], first: Bindings) -> None:
        """The branches of the traced path bound what it is valid for; one that only a single size passes
        holds that dim."""
        for branch in branches:
            names = [symbol.value for symbol in branch.condition.free]
            alone = len(names) == 1 and not any(
                holds(branch.condition, {names[0]: size})
                for size in range(_SCANNED)
                if size != first[names[0]]
            )
            if alone:
                why = Provenance(A_BRANCH, branch.source, f"{branch.condition!r}")
                self._hold(names[0], first[names[0]], why, refused=False)
            else:
                self.kept.append(branch)
        self.prober.free = [self._narrowed(dim) for dim in self.free]

    def _narrowed(self, dim: FreeDim) -> FreeDim:
        """The range that the branches leave to a dim, so that sizes are drawn within it."""
        alone = [branch.condition for branch in self.kept if branch.condition.free == {dim.symbol}]
        if not alone:
            return dim
        reach = range(dim.low, (_FARTHEST if dim.high is None else dim.high) + 1)
        passing = [size for size in reach if all(holds(each, {dim.name: size}) for each in alone)]
        if not passing:
            return dim
        unbounded = dim.high is None and passing[-1] == reach[-1]
        return replace(dim, low=passing[0], high=None if unbounded else passing[-1])

    def _others(self, first: Bindings) -> list[dict[str, int]]:
        others = self.prober.others(first, max(self.options.probes - 1, 0), self._allowed)
        return [*others, *filter(self._allowed, self.joined)]

    def _allowed(self, sizes: Bindings) -> bool:
        held = all(sizes[limit.dim] == limit.size for limit in self.limits.values())
        return held and all(holds(branch.condition, sizes) for branch in self.kept)

    def _lower(self, examples: Sequence[Bindings], branches: Sequence[Branch]) -> tuple[Lowered, System]:
        """One graph from the traces at `examples`, within the limits and the branches taken."""
        system = System()
        dims, _ = declare(self.source, self.source.inputs, system)
        for limit in self.limits.values():
            system.equal(self._symbol(limit.dim), as_expr(limit.size), limit.why)
        for tie in self.ties:
            system.require(tie, Provenance("the program", "", f"refuses other sizes than {tie!r}"))
        for branch in branches:
            system.require(branch.condition, Provenance(A_BRANCH, branch.source, f"{branch.condition!r}"))
        programs = [self.prober.trace(sizes) for sizes in examples]
        label = "" if self.number == 1 else f"graph{self.number}."
        return lower(self.source.name, programs, examples, dims, system, self.seen, label), system

    def _symbol(self, name: str) -> Expr:
        return next(dim.symbol for dim in self.free if dim.name == name)

    def _agree(
        self, first: Bindings, others: list[dict[str, int]]
    ) -> tuple[Lowered, System, list[dict[str, int]]]:
        """The graph of all traces; dims whose change makes them disagree are held at the first trace's
        size."""
        for _ in range(len(self.free) + 1):
            if not others and len(self.limits) < len(self.free):
                self._hold_unmoved(first)
            try:
                lowered, system = self._lower([first, *others], self.kept)
                return self._confirmed(first, others, lowered, system)
            except (Disagreement, ShapeError) as error:
                self._hold_culprits(first, error)
                others = self._others(first)
        raise CaptureError("the traces at different sizes are not one program", stage="generalize")

    def _confirmed(
        self, first: Bindings, others: list[dict[str, int]], lowered: Lowered, system: System
    ) -> tuple[Lowered, System, list[dict[str, int]]]:
        """Where a literal was explained by a form that so few traces cannot prove, one more trace has to
        agree."""
        if not lowered.sizes.uncertain or not self.free:
            return lowered, system, others
        more = self.prober.others(first, len(others) + 1, self._allowed)
        fresh = [sizes for sizes in more if sizes not in others][:1]
        lowered, system = self._lower([first, *others, *fresh], self.kept)
        return lowered, system, [*others, *fresh]

    # ---- limits ------------------------------------------------------------------------------------

    def _hold_unmoved(self, first: Bindings) -> None:
        """No second trace was possible: every dim that accepts no other size, alone or with others, is
        held."""
        led = self._relate(first)
        for dim in self.free:
            if dim.name in led or not self._is_stuck(first, dim):
                continue
            if (other := self.prober.partner(first, dim.name)) is not None:
                self._tie(first, dim.name, other)
            elif not self._leads(first, dim):
                branched = any(dim.symbol in branch.condition.free for branch in self.kept)
                why, final = self._refusal(first, dim)
                self._hold(dim.name, first[dim.name], why, refused=final and not branched)

    def _is_stuck(self, first: Bindings, dim: FreeDim) -> bool:
        settled = dim.name in self.limits or dim.name in self.prober.tied
        return not settled and self.prober.varied(first, dim.name, self._allowed) is None

    def _relate(self, first: Bindings) -> set[str]:
        """Dims that cannot change alone, but with others, follow those: a total its parts, an axis its twin.
        Gives those that lead."""
        stuck = {dim.name for dim in self.free if self._is_stuck(first, dim)}
        moves = {
            dim.name: found
            for dim in self.free
            if dim.name in stuck and (found := self.prober.response(first, dim.name, stuck)) is not None
        }
        following = followers(first, moves)
        for name, value in following.items():
            if value.op == "size":
                self._tie(first, name, value.value)
            else:
                self.prober.tied[name] = value
                at_one = {**first, name: 1}
                if self.prober.accepts(at_one):
                    self.joined.append(at_one)
                else:
                    self.ties.append(equal(self._symbol(name), value))
        return {symbol.value for value in following.values() for symbol in value.free}

    def _leads(self, first: Bindings, dim: FreeDim) -> bool:
        """Whether a later dim has to change with this one; that dim is tied when its turn comes."""
        later = self.free[list(self.free).index(dim) + 1 :]
        return any(self.prober.partner(first, other.name) == dim.name for other in later)

    def _tie(self, first: Bindings, name: str, other: str) -> None:
        """Two dims that the program takes only when they are equal are one size with two names, unless it
        takes either of them at 1 as well: then they broadcast, and the shape rules say what they need."""
        self.prober.tied[name] = self._symbol(other)
        at_one = [{**first, dim: 1} for dim in (name, other)]
        if all(map(self.prober.accepts, at_one)):
            self.joined += [sizes for sizes in at_one if sizes != first]
        else:
            self.ties.append(equal(self._symbol(name), self._symbol(other)))

    def _refusal(self, first: Bindings, dim: FreeDim) -> tuple[Provenance, bool]:
        """What the program said when this dim alone was changed, and whether it says so when it is run as
        well: a branch on what only run time knows ends a trace."""
        for key, outcome in self.prober.programs.items():
            sizes = dict(key)
            only = all(sizes[name] == size for name, size in first.items() if name != dim.name)
            if isinstance(outcome, CaptureError) and only and sizes[dim.name] != first[dim.name]:
                why = f"refuses {dim.name} = {sizes[dim.name]}: {outcome.message}"
                final = not self.prober.runs(sizes)
                return Provenance("the program", outcome.source_line, why), final
        return Provenance("the program", "", f"accepts no other size of '{dim.name}' that was tried"), True

    def _hold_culprits(self, first: Bindings, error: CompilerError) -> None:
        """Holds each dim that, changed alone, makes the traces disagree; all of them where none does so
        alone."""
        why = Provenance(error.node or "the graph", error.source_line, error.message)
        moving = [dim for dim in self.free if dim.name not in self.limits]
        culprits = [dim for dim in moving if self._disagrees(first, dim)] or moving
        if not culprits:
            raise error
        for dim in culprits:
            self._hold(dim.name, first[dim.name], why, refused=False)

    def _disagrees(self, first: Bindings, dim: FreeDim) -> bool:
        varied = self.prober.varied(first, dim.name, self._allowed)
        if varied is None:
            return False
        try:
            self._lower([first, varied], self.kept)
        except (Disagreement, ShapeError):
            return True
        return False

    def _hold(self, name: str, size: int, why: Provenance, refused: bool) -> None:
        dim = next(dim for dim in self.free if dim.name == name)
        if refused and dim.declared:
            places = ", ".join(f"axis {axis} of '{name}'" for name, axis in dim.places)
            raise ShapeError(
                f"'{dim.name}' ({places}) is declared free, and the program takes {size} only: {why.detail}",
                stage="generalize",
                node=why.operator,
                source_line=why.source,
            )
        self.limits[name] = Limit(name, size, why, refused)
        self.prober.fixed[name] = size

    # ---- branches ----------------------------------------------------------------------------------

    def _cross_branches(
        self, lowered: Lowered, system: System, examples: list[Bindings], branches: Branches
    ) -> tuple[Lowered, System, tuple[Bindings, ...]]:
        """A branch whose other side gives the same graph bounds nothing: traces beyond its edge tell, and
        what is decided only there is crossed in turn, until the time for that is over. Without a full list of
        branches each stays, and traces at extreme sizes stand in for those that are not known."""
        if branches.missing:
            lowered, system, examples = self._try_extremes(lowered, system, examples)
        ahead = deque(branch for branch in self.kept if branch not in self.assumed)
        crossings, started = 0, time.process_time()
        while ahead and time.process_time() - started < _CROSSING * self.options.guard_seconds:
            branch = ahead.popleft()
            few = self._few(branch.condition, examples[0]) if branch in self.kept else []
            sizes = few[0] if few else self._beyond(branch.condition, examples[0], least=2)
            if sizes is None or branch not in self.kept:
                continue
            crossed = [each for each in self.kept if not holds(each.condition, sizes)]
            if not self.prober.accepts(sizes):
                self.refused += crossed
                continue
            deep = len(_alternatives(branch.condition)) > _ALTERNATIVES
            if branches.missing or deep or crossings == _CROSSED:
                continue
            without = [each for each in self.kept if each not in crossed]
            if not self._is_alike(examples[0], sizes):
                continue  # whatever the program asks there
            crossings += 1
            there = self._collect(sizes)
            met = [each for each in there.found if each not in without]
            if all(self._few(each.condition, examples[0]) for each in crossed):
                every = [more for each in crossed for more in self._few(each.condition, examples[0])]
                unlike = bool(there.missing)
            else:  # more sizes than can be tried: far ones, too, where the calls or their numbers differ
                fars = (None,) if there.seen.agrees(self.seen) else (None, *_FAR)
                path = [*without, *met]
                every = [sizes, *(x for far in fars for x in self._farther(examples[0], sizes, path, far))]
                asked = {each.condition for each in met}
                turned = all(not asked.isdisjoint(_opposites(each.condition)) for each in crossed)
                unlike = bool(there.missing) or not turned
            if unlike:
                continue
            fresh = [more for more in every if more not in examples and self.prober.accepts(more)]
            tried = list({tuple(each.items()): each for each in [*examples, *fresh]}.values())
            tried = [each for each in tried if all(holds(other.condition, each) for other in without)]
            deeper = _either(crossed, met)
            try:
                lowered, system = self._lower(tried, [*without, *deeper])
            except CompilerError:
                continue
            examples, self.kept = tried, [*without, *deeper]
            ahead.extend(deeper)
        return lowered, system, tuple(examples)

    def _is_alike(self, first: Bindings, sizes: Bindings) -> bool:
        """Whether the program makes the same calls at both sizes, whatever their numbers."""
        try:
            align([self.prober.trace(first), self.prober.trace(sizes)])
        except Disagreement:
            return False
        return True

    def _few(self, condition: Expr, first: Bindings) -> list[dict[str, int]]:
        """All sizes at which `condition` fails, nearest to the first trace's first, where these are few and
        small; else none. There every one is tried: PyTorch's symbolic forward takes a size of 1 for a
        number."""
        alternatives = _alternatives(condition)
        single = all(len(each.free) == 1 for each in alternatives)
        if not single or any(node.op == "mod" for node in toposort([condition])):
            return []
        failing: list[list[tuple[str, int]]] = []
        for name in sorted({symbol.value for symbol in condition.free}):
            dim = next(dim for dim in self.free if dim.name == name)
            own = [each for each in alternatives if each.free == {dim.symbol}]
            reach = range(dim.low, (_FARTHEST if dim.high is None else dim.high) + 1)
            sizes = [size for size in reach if not any(holds(each, {name: size}) for each in own)]
            if not sizes or sizes[-1] > _FEW or name in self.limits:
                return []
            failing.append([(name, size) for size in _nearest_first(sizes, first[name])])
        if prod(map(len, failing)) > _FEW:
            return []
        found = []
        for chosen in itertools.product(*failing):
            sizes_there = dict(first)
            for name, size in chosen:
                sizes_there = self.prober.moved(sizes_there, name, size)
            found.append(sizes_there)
        return [sizes for sizes in found if not holds(condition, sizes)]

    def _try_extremes(
        self, lowered: Lowered, system: System, examples: list[Bindings]
    ) -> tuple[Lowered, System, list[Bindings]]:
        """The same graph with traces where a dim is 1, and where it is far larger than in all others; where
        these are another program, the graph is limited to what was traced."""
        for dim in self.free:
            far = (self.prober.moved(examples[0], dim.name, size) for size in _FAR if _fits(dim, size))
            large = next(
                (sizes for sizes in far if self._allowed(sizes) and self.prober.accepts(sizes)), None
            )
            most = max(sizes[dim.name] for sizes in examples)
            one = {**examples[0], dim.name: 1} if _fits(dim, 1) else None
            for sizes, limit in ((one, as_expr(2) <= dim.symbol), (large, dim.symbol <= most)):
                if dim.name in self.limits or sizes is None or sizes in examples or not self._allowed(sizes):
                    continue
                try:
                    lowered, system = self._lower([*examples, sizes], self.kept)
                    examples = [*examples, sizes]
                except CompilerError as error:
                    self.kept.append(Branch(limit, error.source_line))
                    lowered, system = self._lower(examples, self.kept)
        return lowered, system, examples

    def _collect(self, sizes: Bindings) -> Branches:
        """The branches at these sizes, followed once for all graphs of the module."""
        key = tuple(sorted(sizes.items()))
        if key not in self.followed:
            inputs = self.prober.tensors(sizes)
            self.followed[key] = collect(self.module, inputs, self.dims, self.options.guard_seconds)
        return self.followed[key]

    def _farther(
        self, first: Bindings, sizes: Bindings, path: Sequence[Branch], target: int | None
    ) -> tuple[dict[str, int], ...]:
        """One more example of the `path` that the program takes at `sizes`: there half as far again from the
        first trace's, or at `target`, or as near to that as the path has any. Empty where the program takes
        none such."""
        for dim in self.free:
            size, start = sizes[dim.name], first[dim.name]
            if size == start:
                continue
            near = size + (size - start) // 2 + 5 if size > start else max(dim.low, size // 2)
            far = near if target is None else target
            for other in _nearest_first(range(dim.low, min(dim.high or _FARTHEST, _FARTHEST) + 1), far):
                moved = self.prober.moved(first, dim.name, other)
                if other != size and all(holds(each.condition, moved) for each in path):
                    return (moved,) if self.prober.accepts(moved) else ()
        return ()

    def _beyond(self, condition: Expr, first: Bindings, least: int = 1) -> dict[str, int] | None:
        """The sizes nearest to the first trace's where `condition` fails and the branches' others do not;
        where it never fails alone, those where it fails."""
        others = [other for other in self.kept if other.condition is not condition]
        turned: dict[str, int] | None = None
        for symbol in condition.free:
            name = symbol.value
            dim = next(dim for dim in self.free if dim.name == name)
            if name in self.limits:
                continue
            reach = range(max(dim.low, least), min(dim.high or _FARTHEST, _FARTHEST) + 1)
            for size in _nearest_first(reach, first[name]):
                sizes = self.prober.moved(first, name, size)
                if holds(condition, sizes):
                    continue
                if all(holds(other.condition, sizes) for other in others):
                    return sizes
                turned = turned or sizes
        alternatives = _alternatives(condition)
        if turned is None and len(alternatives) > 1:  # each fails by another dim
            apart = [self._beyond(each, first, least) or {} for each in alternatives]
            together = dict(first)
            for sizes in apart:
                together |= {name: size for name, size in sizes.items() if size != first[name]}
            return None if holds(condition, together) else together
        return turned

    # ---- the result --------------------------------------------------------------------------------

    def _captured(
        self, lowered: Lowered, system: System, examples: Sequence[Bindings], unproven: str
    ) -> Captured:
        symbols = {dim.symbol for dim in self.free}
        self.guards = tuple(g for g in system.solve().guards if g.condition.free <= symbols)
        self._find_turns(examples[0])
        certainty = BY_SHAPE if unproven else PROVEN
        verdicts = judge(system, self.dims, self.free, certainty, self._limited(unproven))
        return Captured(
            graph=lowered.graph,
            parameters=lowered.parameters,
            verdicts=verdicts,
            inputs=self.source.inputs,
            outputs=self.outputs,
            examples=tuple(examples),
            notes=lowered.notes,
            seconds=0.0,
            within=self._within(),
            unproven=unproven,
        )

    def _find_turns(self, first: Bindings) -> None:
        """The conditions beyond which the program goes on, as another graph: branches, and what the shape
        rules asked for where the program itself does not."""
        derived = [
            Branch(guard.condition, guard.why.source)
            for guard in self.guards
            if not guard.declared and guard.why.operator != A_BRANCH
        ]
        taken = [branch for branch in self.kept if branch not in self.refused and branch not in self.assumed]
        for branch in taken:
            if (sizes := self._beyond(branch.condition, first)) is not None:
                self.turns.append((branch, sizes))
        for branch in derived[:_TRIED]:
            sizes = self._beyond(branch.condition, first, least=0)
            if sizes is not None and self.prober.accepts(sizes) and self.prober.runs(sizes):
                self.turns.append((branch, sizes))

    def _within(self) -> tuple[Branch, ...]:
        held = [
            Branch(equal(self._symbol(limit.dim), limit.size), limit.why.source)
            for limit in self.limits.values()
            if not limit.refused
        ]
        kept = [branch for branch in self.kept if branch not in self.refused]
        return tuple(dict.fromkeys([*held, *kept, *(branch for branch, _ in self.turns)]))

    def _limited(self, unproven: str) -> Callable[[str], bool]:
        """Whether sizes beyond the verdict's range may be right for the program, only not for this graph."""
        if unproven:
            return lambda name: True
        names = {symbol.value for branch in self._within() for symbol in branch.condition.free}
        return lambda name: name in names


def _nearest_first(sizes: Sequence[int], origin: int) -> list[int]:
    return sorted(sizes, key=lambda size: abs(size - origin))


def _fits(dim: FreeDim, size: int) -> bool:
    return dim.low <= size and (dim.high is None or size <= dim.high)


def _either(crossed: Sequence[Branch], beyond: Sequence[Branch]) -> list[Branch]:
    """All of `crossed` hold, or all of those met `beyond` them: in single conditions, without those that
    always hold."""
    joined: dict[Expr, Branch] = {}
    for here, there in itertools.product(crossed, beyond):
        known = _alternatives(here.condition)
        fresh = [each for each in _alternatives(there.condition) if each not in known]
        if not any(opposite(each) in known for each in fresh):
            condition = reduce(or_, fresh, here.condition)
            joined.setdefault(condition, Branch(condition, there.source))
    return list(joined.values())


def _opposites(condition: Expr) -> set[Expr]:
    return {opposite(each) for each in _alternatives(condition)}


def _alternatives(condition: Expr) -> list[Expr]:
    if condition.op != "or":
        return [condition]
    return [part for each in condition.args for part in _alternatives(each)]
