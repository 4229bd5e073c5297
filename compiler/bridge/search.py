"""The search for one graph of a module that runs at many sizes: traces at several sizes that are one program,
the branches and limits within which they are, and the sizes beyond. What is not understood is held at the
traced size or limited to the range that was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from dlcb.compiler.bridge.aligned import Disagreement
from dlcb.compiler.bridge.beyond import beyond, emptied, sides
from dlcb.compiler.bridge.branches import Branch
from dlcb.compiler.bridge.capture import result_names
from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.crossing import cross_branches
from dlcb.compiler.bridge.holding import hold_culprits, hold_unmoved, relate
from dlcb.compiler.bridge.lower import Lowered
from dlcb.compiler.bridge.probes import Bindings
from dlcb.compiler.bridge.scope import A_BRANCH, Scope, fits
from dlcb.compiler.bridge.symbolic import holds, opposite
from dlcb.compiler.bridge.verdicts import BY_SHAPE, PROVEN, judge
from dlcb.compiler.errors import CaptureError, ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import equal
from dlcb.compiler.shapes.system import Guard, System

_USUAL = 256  # a size that many models are cut for
_TRIED = 24  # conditions of shape rules beyond which the program is tried; further ones refuse nothing
_MOVES = 3  # of the first trace


class Search:
    """Finds traces of one module that are one program, and the limits within which they are. `start` are
    sizes where what the scope assumes holds, for all graphs of the module but the first."""

    def __init__(self, scope: Scope, start: dict[str, int] | None = None) -> None:
        self.scope, self.start = scope, start
        self.turns: list[tuple[Branch, dict[str, int]]] = []  # what limits the graph, and sizes beyond it
        self.untried: list[Branch] = []  # rules of shapes that PyTorch was not asked about
        self.usual: tuple[Branch, dict[str, int]] | None = None  # the same for sizes that are asked for most
        self.guards: tuple[Guard, ...] = ()
        self.outputs: tuple[str, ...] = ()

    def beyond(self, turn: Branch, sizes: dict[str, int], number: int) -> Search:
        """The search for a graph that serves `sizes`, where `turn` does not hold."""
        assumed = [branch for branch in self.scope.assumed if holds(branch.condition, sizes)]
        assumed.append(Branch(opposite(turn.condition), turn.source))
        return Search(self.scope.beside(number, assumed), sizes)

    def covers(self, sizes: Bindings) -> bool:
        """Whether the graph that was found serves these sizes."""
        return all(holds(guard.condition, sizes) for guard in self.guards)

    def run(self) -> Captured:
        scope = self.scope
        if self.start is None:
            first = scope.prober.first()
            if scope.prober.tied:  # supposed, to find the first trace
                scope.prober.tied = {}
                relate(scope, first)
            first = self._apart(self._roomier(first))
        else:
            first = self.start
        self.outputs = tuple(result_names(scope.prober.trace(first), scope.source.outputs))
        branches = scope.follow(first)
        branches = replace(branches, missing=branches.missing or scope.prober.trace(first).unsure)
        scope.seen = branches.seen
        scope.take([*scope.assumed, *branches.found], first)
        others = scope.others(first)
        if not others:
            hold_unmoved(scope, first)
            others = scope.others(first)
        lowered, system, others = self._agree(first, others)
        lowered, system, examples = cross_branches(scope, lowered, system, [first, *others], branches)
        unproven = branches.missing
        if not others and len(scope.limits) < len(scope.free):
            unproven = unproven or "the program could be traced at one size alone"
        return self._captured(lowered, system, examples, unproven)

    def _roomier(self, first: dict[str, int]) -> dict[str, int]:
        """`first`, or other sizes at which fewer results have an axis of 1: PyTorch's symbolic forward takes
        that for a number, and what follows from it too."""
        others = self.scope.prober.others(first, 1, lambda sizes: True)
        return min((first, *others), key=lambda sizes: self.scope.prober.trace(sizes).units)

    def _apart(self, first: dict[str, int]) -> dict[str, int]:
        """`first`, or other sizes at which PyTorch takes fewer sizes of results for the numbers 0 and 1."""
        tried = [first]
        met: list[Expr] = []

        def apart(sizes: Bindings) -> bool:
            return not any(holds(unit, sizes) for unit in met)

        for _ in range(_MOVES):
            units = self.scope.follow(tried[-1]).units
            if not units:
                break
            met += units
            others = self.scope.prober.others(first, 1, apart)
            if not others:
                break
            tried += others
        return min(tried, key=lambda sizes: len(self.scope.follow(sizes).units))

    def _agree(
        self, first: Bindings, others: list[dict[str, int]]
    ) -> tuple[Lowered, System, list[dict[str, int]]]:
        """The graph of all traces; dims whose change makes them disagree are held at the first trace's
        size."""
        scope = self.scope
        for _ in range(len(scope.free) + 1):
            if not others and len(scope.limits) < len(scope.free):
                hold_unmoved(scope, first)
            try:
                lowered, system = scope.lower([first, *others], scope.kept)
                return self._confirmed(first, others, lowered, system)
            except (Disagreement, ShapeError) as error:
                hold_culprits(scope, first, error)
                others = scope.others(first)
        raise CaptureError("the traces at different sizes are not one program", stage="generalize")

    def _confirmed(
        self, first: Bindings, others: list[dict[str, int]], lowered: Lowered, system: System
    ) -> tuple[Lowered, System, list[dict[str, int]]]:
        """Where a literal was explained by a form that so few traces cannot prove, one more trace has to
        agree."""
        scope = self.scope
        if not lowered.sizes.uncertain or not scope.free:
            return lowered, system, others
        more = scope.prober.others(first, len(others) + 1, scope.allowed)
        fresh = [sizes for sizes in more if sizes not in others][:1]
        lowered, system = scope.lower([first, *others, *fresh], scope.kept)
        return lowered, system, [*others, *fresh]

    # ---- the result --------------------------------------------------------------------------------

    def _captured(
        self, lowered: Lowered, system: System, examples: Sequence[Bindings], unproven: str
    ) -> Captured:
        scope = self.scope
        symbols = {dim.symbol for dim in scope.free}
        self.guards = tuple(g for g in system.solve().guards if g.condition.free <= symbols)
        self._find_turns(examples[0])
        if self.scope.number == 1:
            self._find_usual(examples[0])
        certainty = BY_SHAPE if unproven else PROVEN
        verdicts = judge(system, scope.dims, scope.free, certainty, self._limited(unproven))
        return Captured(
            graph=lowered.graph,
            parameters=lowered.parameters,
            verdicts=verdicts,
            inputs=scope.source.inputs,
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
        scope = self.scope
        derived = [
            Branch(guard.condition, guard.why.source)
            for guard in self.guards
            if not guard.declared and guard.why.operator != A_BRANCH
        ]
        asked = [branch.condition for branch in derived]
        taken = [
            branch for branch in scope.kept if branch not in scope.refused and branch not in scope.assumed
        ]
        for branch in taken:
            sizes = beyond(scope, branch.condition, first, asked=asked)
            if sizes is None:  # an empty cache is a first call
                sizes = next(filter(self._serves, emptied(scope, branch.condition, first)), None)
            if sizes is not None:
                self.turns.append((branch, sizes))
        for branch in derived[:_TRIED]:
            # at sizes that break another rule, that one may be what PyTorch refuses
            nearest = beyond(scope, branch.condition, first, least=0, asked=asked)
            others = sides(scope, branch.condition, first, 0, asked)
            served = next(filter(self._serves, filter(None, (nearest, *others))), None)
            if served is not None:
                self.turns.append((branch, served))
        self.untried = derived[_TRIED:]

    def _serves(self, sizes: Bindings) -> bool:
        """Whether the program takes these sizes; a forward is refused sooner than a trace, which knows types
        alone."""
        return self.scope.prober.runs(sizes) and self.scope.prober.accepts(sizes)

    def _find_usual(self, first: Bindings) -> None:
        """Sizes of images and texts as they are, which models are cut for, where several branches lie between
        the first trace and those: a walk from branch to branch would end before."""
        sizes, usual = dict(first), itertools.count(_USUAL, _USUAL // 4)
        for dim in self.scope.free:
            if not (dim.leading or dim.name in self.scope.limits or dim.name in self.scope.prober.tied):
                size = next(usual)
                sizes = self.scope.prober.moved(sizes, dim.name, size if fits(dim, size) else first[dim.name])
        between = [branch for branch in self.scope.kept if not holds(branch.condition, sizes)]
        if len(between) > 1 and self.scope.prober.accepts(sizes):
            self.usual = between[0], sizes

    def _within(self) -> tuple[Branch, ...]:
        scope = self.scope
        held = [
            Branch(equal(scope.symbol(limit.dim), limit.size), limit.why.source)
            for limit in scope.limits.values()
            if not limit.refused
        ]
        kept = [branch for branch in scope.kept if branch not in scope.refused]
        return tuple(dict.fromkeys([*held, *kept, *(branch for branch, _ in self.turns), *self.untried]))

    def _limited(self, unproven: str) -> Callable[[str], bool]:
        """Whether sizes beyond the verdict's range may be right for the program, only not for this graph."""
        if unproven:
            return lambda name: True
        names = {symbol.value for branch in self._within() for symbol in branch.condition.free}
        return lambda name: name in names
