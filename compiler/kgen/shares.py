"""Kernel generation in parts that need nothing of each other: which groups of a schedule each process takes,
and what it makes of them. Who takes what follows from the schedule alone, so that the same kernels come out
however many cores there are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dlcb.compiler.errors import CompilerError
from dlcb.compiler.kgen.coords import is_window
from dlcb.compiler.kgen.deadline import Allowance
from dlcb.compiler.kgen.generate import kind, kinds, of_kind
from dlcb.compiler.kgen.kernel import KernelSet
from dlcb.compiler.kgen.regions import most_values
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.steps import Group, Schedule
from dlcb.compiler.shapes.system import System

SHARES = 12
SECONDS = 5.0  # of processor time for a share; the longest seen took 0.1
# what takes as long as so many pointwise groups: a reduction is made for several lengths of rows, windows are
# made in strips as well
_REDUCTION, _WINDOW = 5, 10


@dataclass(frozen=True)
class Made:
    """The kernels of some groups of a schedule, by their places there, and the solver's steps that they took,
    and how many of these were beyond what each use earns."""

    kernels: tuple[tuple[int, KernelSet], ...]
    steps: int
    beyond: int


def missing(plan: Schedule, options: CompileOptions) -> dict[int, Hashable]:
    """Places of groups whose kernels are still to be made, one of each kind, with the kind."""
    known = kinds(plan.graph.system)
    found: dict[Hashable, int] = {}
    for place, group in enumerate(plan.groups):
        found.setdefault(kind(group, plan.layouts, options.target), place)
    return {place: alike for alike, place in found.items() if alike not in known}


def shares(plan: Schedule, places: Iterable[int]) -> list[list[int]]:
    """`places` of groups in SHARES parts that take about as long, in the order of the groups."""
    groups = plan.groups
    parts: list[list[int]] = [[] for _ in range(SHARES)]
    taken = [0] * SHARES
    for place in sorted(places, key=lambda place: -_cost(groups[place])):  # stable
        least = taken.index(min(taken))
        parts[least].append(place)
        taken[least] += _cost(groups[place])
    return [sorted(part) for part in parts if part]


def costs(plan: Schedule, places: Iterable[int]) -> int:
    """What generating the groups there takes, in pointwise groups."""
    return sum(_cost(plan.groups[place]) for place in places)


def _cost(group: Group) -> int:
    folds = [node for node in group.nodes if node.op.fold]
    return _WINDOW if any(map(is_window, folds)) else _REDUCTION if folds else 1


def generate_share(plan: Schedule, places: Sequence[int], options: CompileOptions) -> Made:
    """The kernels of the groups there. What fails, or takes too long, is left out: where it is asked for
    it fails again, and says so."""
    system, groups, kernels = plan.graph.system, plan.groups, list[tuple[int, KernelSet]]()
    engine = system.simplifier.engine
    steps, beyond = engine.steps, engine.beyond
    allowance = Allowance(SECONDS, SECONDS)
    for place in places:
        group = groups[place]
        try:
            with allowance.spent_on(group.name, "", most_values(group, options)):
                kernels.append((place, of_kind(group, plan.layouts, system, options.target)))
        except CompilerError:
            continue
    return Made(tuple(kernels), engine.steps - steps, engine.beyond - beyond)


def accept(made: Sequence[Made], asked: Mapping[int, Hashable], system: System) -> bool:
    """Takes the kernels of all shares, unless so much work at a stretch might have been cut short here: then
    other kernels, as right as these, would have come out. `asked` are their kinds by place."""
    if not system.simplifier.engine.affords(sum(m.steps for m in made), sum(m.beyond for m in made)):
        return False
    known = kinds(system)
    for share in made:
        for place, kernels in share.kernels:
            known[asked[place]] = kernels
    return True
