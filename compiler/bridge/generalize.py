"""One graph with free sizes from static traces, without annotations: every input dim starts free, traces
at several sizes show what follows it, branches of the user's code bound it, and each dim ends with a
verdict that says why. Never wrong: what is not understood is pinned to the traced size or limited to the
range that was, and the verdict says so."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.export import ExportedProgram

from dlcb.compiler.bridge.capture import load_module, load_program, result_names
from dlcb.compiler.bridge.guards import Branch, Branches, collect
from dlcb.compiler.bridge.lower import Disagreement, Lowered, lower
from dlcb.compiler.bridge.probes import Bindings, FreeDim, Prober
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.seen import Seen
from dlcb.compiler.bridge.verdicts import DimVerdict, judge
from dlcb.compiler.errors import CaptureError, CompilerError, ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, equal, evaluate
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.shapes.system import Provenance, System
from dlcb.compiler.source import InputDeclaration, ModelSource

UNNAMED = ("", "?", "*", "_")  # spellings of a dim without a name
_SCANNED = 600  # sizes at which a branch is tried out
_FARTHEST = 4096  # how far the other side of a branch is looked for
PROVEN = "proven"
AS_FAR_AS_SHOWN = "as far as the graph shows"


@dataclass(frozen=True)
class Captured:
    """A program with free sizes.

    graph: inputs in declared order; free dims are size variables with the user's names, else s0, s1, ...;
    parameters by state-dict name, other constants "constant.k". outputs: names of the graph's outputs.
    examples: the sizes it was traced at. notes: what was left to PyTorch and why."""

    graph: Graph
    parameters: Mapping[str, torch.Tensor]
    verdicts: tuple[DimVerdict, ...]
    inputs: tuple[InputDeclaration, ...]
    outputs: tuple[str, ...]
    examples: tuple[Bindings, ...]
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Limit:
    """A dim held at the traced size. `refused`: the program rejects every other size that was tried."""

    dim: str
    size: int
    why: Provenance
    refused: bool


def generalize(
    source: ModelSource,
    module: nn.Module | ExportedProgram | None = None,
    options: CompileOptions | None = None,
) -> Captured:
    """Captures `source` (its factory or program is run unless `module` is given) and generalises it.

    Raises CaptureError where the program cannot be traced, and ShapeError where a dim that the user
    declared free is pinned by the program."""
    started = time.monotonic()
    options = options or CompileOptions()
    if module is None:
        module = load_program(source.program) if source.program else load_module(source)
    if isinstance(module, ExportedProgram):
        captured = _from_program(source, Trace.of(module))
    else:
        captured = _Search(source, module, options).run()
    return replace(captured, seconds=time.monotonic() - started)


# ---- declared dims ---------------------------------------------------------------------------------


def _declare(
    source: ModelSource, inputs: Sequence[InputDeclaration], system: System
) -> tuple[dict[str, list[Expr | int]], list[FreeDim]]:
    """The dims of every input as size variables or integers, and the free ones. Equal names are one
    variable."""
    dims: dict[str, list[Expr | int]] = {}
    symbols: dict[str, Expr] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    unnamed = itertools.count()
    for declared in inputs:
        if declared.shape is None:
            raise CaptureError(
                f"input '{declared.name}' has no rank: only its ranks can be compiled, one by one",
                stage="generalize",
            )
        dims[declared.name] = []
        for axis, size in enumerate(declared.shape):
            if isinstance(size, int):
                dims[declared.name].append(size)
                continue
            named = size not in UNNAMED
            name = size if named else f"s{next(unnamed)}"
            if name not in symbols:
                low, high = source.dims.get(name, (0, None)) if named else (0, None)
                why = Provenance("declared", detail=f"the range of '{name}'")
                symbols[name] = system.fresh(name, low, high, why)
            places.setdefault(name, []).append((declared.name, axis))
            dims[declared.name].append(symbols[name])
    return dims, [
        FreeDim(
            symbol=symbol,
            low=source.dims.get(name, (0, None))[0],
            high=source.dims.get(name, (0, None))[1],
            declared=any(name in (declared.shape or ()) for declared in inputs),
            places=tuple(places[name]),
            leading=all(axis == 0 and len(dims[input_name]) > 1 for input_name, axis in places[name]),
        )
        for name, symbol in symbols.items()
    ]


# ---- a program that can be traced again ------------------------------------------------------------


class _Search:
    """Finds traces of one module that are one program, and the limits within which they are."""

    def __init__(self, source: ModelSource, module: nn.Module, options: CompileOptions) -> None:
        if not source.inputs:
            raise CaptureError(
                f"model '{source.name}' declares no inputs to trace it with", stage="generalize"
            )
        self.source, self.module, self.options = source, module, options
        self.dims, self.free = _declare(source, source.inputs, System())
        self.prober = Prober(module, source.inputs, self.dims, self.free)
        self.limits: dict[str, Limit] = {}
        self.kept: list[Branch] = []  # branches that the graph is valid within
        self.ties: list[Expr] = []  # equalities of dims without which the program fails
        self.joined: list[dict[str, int]] = []  # sizes at which dims that otherwise move together broadcast
        self.refused: list[Branch] = []  # those of them beyond which the program itself fails
        self.seen = Seen()  # the numbers in the program's calls, as far as they follow sizes

    def run(self) -> Captured:
        first = self.prober.first()
        self._confirm_ties(first)
        branches = collect(self.module, self.prober.tensors(first), self.dims, self.options.guard_seconds)
        self.seen = branches.seen
        self._take(branches, first)
        others = self._others(first)
        if not others:
            self._hold_unmoved(first)
            others = self._others(first)
        lowered, system, others = self._agree(first, others)
        lowered, system, examples = self._cross_branches(lowered, system, [first, *others], branches)
        certainty = PROVEN if not branches.missing else f"branches not proven: {branches.missing}"
        if not others and len(self.limits) < len(self.free):
            certainty = AS_FAR_AS_SHOWN
        return self._captured(lowered, system, examples, certainty)

    def _take(self, branches: Branches, first: Bindings) -> None:
        """The branches of the traced path bound what it is valid for; one that only a single size passes
        holds that dim."""
        for branch in branches.found:
            names = [symbol.value for symbol in branch.condition.free]
            alone = len(names) == 1 and not any(
                evaluate(branch.condition, {names[0]: size})
                for size in range(1, _SCANNED)
                if size != first[names[0]]
            )
            if alone:
                why = Provenance("a branch", branch.source, f"{branch.condition!r}")
                self._hold(names[0], first[names[0]], why, refused=False)
            else:
                self.kept.append(branch)

    def _others(self, first: Bindings) -> list[dict[str, int]]:
        others = self.prober.others(first, max(self.options.probes - 1, 0), self._allowed)
        return [*others, *filter(self._allowed, self.joined)]

    def _allowed(self, sizes: Bindings) -> bool:
        held = all(sizes[limit.dim] == limit.size for limit in self.limits.values())
        return held and all(evaluate(branch.condition, sizes) for branch in self.kept)

    def _lower(self, examples: Sequence[Bindings], branches: Sequence[Branch]) -> tuple[Lowered, System]:
        """One graph from the traces at `examples`, within the limits and the branches taken."""
        system = System()
        dims, _ = _declare(self.source, self.source.inputs, system)
        for limit in self.limits.values():
            system.equal(self._symbol(limit.dim), as_expr(limit.size), limit.why)
        for tie in self.ties:
            system.require(tie, Provenance("the program", "", f"refuses other sizes than {tie!r}"))
        for branch in branches:
            system.require(branch.condition, Provenance("a branch", branch.source, f"{branch.condition!r}"))
        programs = [self.prober.trace(sizes) for sizes in examples]
        return lower(self.source.name, programs, examples, dims, system, self.seen), system

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
        """No second trace was possible: every dim that accepts no other size is held."""
        for dim in self.free:
            if dim.name in self.limits or self.prober.varied(first, dim.name, self._allowed) is not None:
                continue
            if (other := self.prober.partner(first, dim.name)) is not None:
                self._tie(first, dim.name, other)
            elif not self._leads(first, dim):
                self._hold(dim.name, first[dim.name], self._refusal(first, dim), refused=True)

    def _confirm_ties(self, first: Bindings) -> None:
        """Dims that were set equal to find a first trace stay tied where they cannot change alone."""
        supposed, self.prober.tied = self.prober.tied, {}
        for name, other in supposed.items():
            if self.prober.varied(first, name, lambda sizes: True) is None:
                self._tie(first, name, other)

    def _leads(self, first: Bindings, dim: FreeDim) -> bool:
        """Whether a later dim has to change with this one; that dim is tied when its turn comes."""
        later = self.free[list(self.free).index(dim) + 1 :]
        return any(self.prober.partner(first, other.name) == dim.name for other in later)

    def _tie(self, first: Bindings, name: str, other: str) -> None:
        """Two dims that the program takes only when they are equal are one size with two names, unless it
        takes either of them at 1 as well: then they broadcast, and the shape rules say what they need."""
        self.prober.tied[name] = other
        at_one = [{**first, dim: 1} for dim in (name, other)]
        if all(map(self.prober.accepts, at_one)):
            self.joined += [sizes for sizes in at_one if sizes != first]
        else:
            self.ties.append(equal(self._symbol(name), self._symbol(other)))

    def _refusal(self, first: Bindings, dim: FreeDim) -> Provenance:
        """What the program said when this dim alone was changed."""
        for key, outcome in self.prober.programs.items():
            sizes = dict(key)
            only = all(sizes[name] == size for name, size in first.items() if name != dim.name)
            if isinstance(outcome, CaptureError) and only and sizes[dim.name] != first[dim.name]:
                return Provenance(
                    "the program",
                    outcome.source_line,
                    f"refuses {dim.name} = {sizes[dim.name]}: {outcome.message}",
                )
        return Provenance("the program", "", f"accepts no other size of '{dim.name}' that was tried")

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
        """A branch whose other side gives the same graph bounds nothing: one trace beyond it tells.
        Without a full list of branches a trace with each dim at 1 stands in for them."""
        beyond = [self._beyond(branch, examples[0]) for branch in self.kept]
        if branches.missing:
            beyond += [
                {**examples[0], dim.name: 1}
                for dim in self.free
                if dim.name not in self.limits and dim.low <= 1
            ]
        for sizes in beyond:
            if sizes is None or sizes in examples:
                continue
            crossed = [branch for branch in self.kept if not evaluate(branch.condition, sizes)]
            without = [branch for branch in self.kept if branch not in crossed]
            if crossed and not self._accepts(sizes):
                self.refused += crossed
                continue
            try:
                lowered, system = self._lower([*examples, sizes], without)
                examples, self.kept = [*examples, sizes], without
            except CompilerError as error:
                if not crossed:
                    self._exclude(examples[0], sizes, error)
                    lowered, system = self._lower(examples, self.kept)
        return lowered, system, tuple(examples)

    def _accepts(self, sizes: Bindings) -> bool:
        try:
            self.prober.trace(sizes)
        except CaptureError:
            return False
        return True

    def _exclude(self, first: Bindings, sizes: Bindings, error: CompilerError) -> None:
        """A dim of 1 gives another graph: it belongs to another tier."""
        for name, size in sizes.items():
            if size != first[name]:
                condition = as_expr(2) <= self._symbol(name)
                self.kept.append(Branch(condition, error.source_line))

    def _beyond(self, branch: Branch, first: Bindings) -> dict[str, int] | None:
        """The sizes nearest to the first trace's where `branch` goes the other way and the others do not;
        where it never turns alone, those where it turns."""
        others = [other for other in self.kept if other is not branch]
        turned: dict[str, int] | None = None
        for symbol in branch.condition.free:
            name = symbol.value
            dim = next(dim for dim in self.free if dim.name == name)
            if name in self.limits:
                continue
            reach = range(max(dim.low, 1), min(dim.high or _FARTHEST, _FARTHEST) + 1)
            for size in _nearest_first(reach, first[name]):
                sizes = self.prober.moved(first, name, size)
                if evaluate(branch.condition, sizes):
                    continue
                if all(evaluate(other.condition, sizes) for other in others):
                    return sizes
                turned = turned or sizes
        return turned

    # ---- the result --------------------------------------------------------------------------------

    def _captured(
        self, lowered: Lowered, system: System, examples: Sequence[Bindings], certainty: str
    ) -> Captured:
        program = self.prober.trace(examples[0])
        verdicts = judge(system, self.dims, self.free, certainty, self._limited())
        names = result_names(program, self.source.outputs)
        return Captured(
            graph=lowered.graph,
            parameters=lowered.parameters,
            verdicts=verdicts,
            inputs=self.source.inputs,
            outputs=tuple(names[place] for place in lowered.kept),
            examples=tuple(examples),
            notes=lowered.notes,
            seconds=0.0,
        )

    def _limited(self) -> Callable[[str], bool]:
        """Whether sizes beyond the verdict's range may be right for the program, only not for this graph."""
        turning = [branch for branch in self.kept if branch not in self.refused]
        branched = {symbol.value for branch in turning for symbol in branch.condition.free}
        held = {name for name, limit in self.limits.items() if not limit.refused}
        return lambda name: name in branched or name in held


def _nearest_first(sizes: range, origin: int) -> list[int]:
    return sorted(sizes, key=lambda size: abs(size - origin))


# ---- a program that cannot be traced again ---------------------------------------------------------


def _from_program(source: ModelSource, program: Trace) -> Captured:
    """A lone exported program: reshapes are read by contiguous groups, other literals by the sizes they
    equal."""
    inputs = source.inputs or _inputs_of(program)
    system = System()
    dims, free = _declare(source, inputs, system)
    placeholders = program.placeholders
    sizes: dict[str, int] = {}
    for declared, name in zip(inputs, program.user_inputs, strict=True):
        traced = placeholders[declared.name if declared.name in placeholders else name].meta["val"].shape
        for dim, size in zip(dims[declared.name], traced, strict=True):
            if isinstance(dim, Expr):
                _agreed(sizes, dim, int(size), declared.name)
            elif dim != size:
                raise ShapeError(
                    f"input '{declared.name}' is declared {list(declared.shape or ())}, "
                    f"the program has {list(traced)}"
                )
    lowered = lower(source.name, [program], [sizes], dims, system)
    names = result_names(program, source.outputs)
    return Captured(
        graph=lowered.graph,
        parameters=lowered.parameters,
        verdicts=judge(system, dims, free, AS_FAR_AS_SHOWN, lambda name: True),
        inputs=tuple(inputs),
        outputs=tuple(names[place] for place in lowered.kept),
        examples=(sizes,),
        notes=lowered.notes,
        seconds=0.0,
    )


def _agreed(sizes: dict[str, int], dim: Expr, size: int, name: str) -> None:
    if sizes.setdefault(dim.value, size) != size:
        raise ShapeError(
            f"'{dim!r}' is {sizes[dim.value]} elsewhere and {size} in input '{name}' of the program",
            stage="generalize",
        )


def _inputs_of(program: Trace) -> tuple[InputDeclaration, ...]:
    """Declarations for a program that comes without: every dim free and unnamed."""
    placeholders = program.placeholders
    declared = []
    for name in program.user_inputs:
        tensor = placeholders[str(name)].meta["val"]
        declared.append(
            InputDeclaration(str(name), str(tensor.dtype).removeprefix("torch."), ("?",) * tensor.dim())
        )
    return tuple(declared)
