"""What one graph of a module is for: its free dims, what holds some of them, the branches that it is valid
within, and the graph of all traces there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch import nn

from dlcb.compiler.bridge.branches import Branch, Branches
from dlcb.compiler.bridge.declared import declare
from dlcb.compiler.bridge.guards import collect
from dlcb.compiler.bridge.lower import Lowered, lower
from dlcb.compiler.bridge.probes import Bindings, FreeDim, Prober
from dlcb.compiler.bridge.seen import Seen
from dlcb.compiler.bridge.stand_ins import HERE, Home
from dlcb.compiler.bridge.symbolic import holds
from dlcb.compiler.errors import CaptureError, ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.shapes.system import Provenance, System
from dlcb.compiler.source import ModelSource

A_BRANCH = "a branch"
_A_NUMBER = ", since the program makes a plain number of it, as a loop over it does"
FARTHEST = 4096  # how far the other side of a branch is looked for
_SCANNED = 600  # sizes at which a branch is tried out


@dataclass(frozen=True)
class Limit:
    """A dim held at the traced size. `refused`: the program rejects every other size that was tried."""

    dim: str
    size: int
    why: Provenance
    refused: bool


class Scope:
    """The sizes within which traces of a module are one program. `number` counts the graphs of a module;
    `assumed` holds at all sizes of this one; `left` are lines of the user's whose calls PyTorch runs; `home`
    is what it is traced for."""

    def __init__(
        self,
        source: ModelSource,
        module: nn.Module,
        options: CompileOptions,
        number: int = 1,
        assumed: Sequence[Branch] = (),
        left: Collection[str] = (),
        home: Home = HERE,
    ) -> None:
        if not source.inputs:
            raise CaptureError(
                f"model '{source.name}' declares no inputs to trace it with", stage="generalize"
            )
        self.source, self.module, self.options = source, module, options
        self.dims, self.free = declare(source, source.inputs, System())
        self.home = home
        self.prober = Prober(module, source.inputs, self.dims, self.free, home=self.home)
        self.number, self.assumed, self.left = number, tuple(assumed), left
        self.limits: dict[str, Limit] = {}
        self.kept: list[Branch] = []  # branches that the graph is valid within
        self.ties: list[Expr] = []  # equalities of dims without which the program fails
        self.joined: list[dict[str, int]] = []  # sizes at which dims that otherwise move together broadcast
        self.refused: list[Branch] = []  # those of `kept` beyond which the program itself fails
        self.followed: dict[tuple[tuple[str, int], ...], Branches] = {}  # at sizes, of all graphs
        self.converting: set[str] = set()  # the user's modules that make plain numbers of sizes
        self.seen = Seen()  # the numbers in the program's calls, as far as they follow sizes

    def beside(self, number: int, assumed: Sequence[Branch]) -> Scope:
        """That of another graph of the module, with what is known of all of them."""
        scope = Scope(self.source, self.module, self.options, number, assumed, self.left, self.home)
        scope.prober.programs, scope.prober.rung = self.prober.programs, self.prober.rung
        scope.prober.tied, scope.ties, scope.joined = dict(self.prober.tied), self.ties, self.joined
        scope.followed, scope.converting = self.followed, self.converting
        return scope

    def dim(self, name: str) -> FreeDim:
        return next(dim for dim in self.free if dim.name == name)

    def symbol(self, name: str) -> Expr:
        return self.dim(name).symbol

    def take(self, branches: Sequence[Branch], first: Bindings) -> None:
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
                said = f"{branch.condition!r}{_A_NUMBER if branch.number else ''}"
                why = Provenance(A_BRANCH, branch.source, said)
                self.hold(names[0], first[names[0]], why, refused=False)
            else:
                self.kept.append(branch)
        self.prober.free = [self._narrowed(dim) for dim in self.free]

    def _narrowed(self, dim: FreeDim) -> FreeDim:
        """The range that the branches leave to a dim, so that sizes are drawn within it."""
        alone = [branch.condition for branch in self.kept if branch.condition.free == {dim.symbol}]
        if not alone:
            return dim
        reach = range(dim.low, (FARTHEST if dim.high is None else dim.high) + 1)
        passing = [size for size in reach if all(holds(each, {dim.name: size}) for each in alone)]
        if not passing:
            return dim
        unbounded = dim.high is None and passing[-1] == reach[-1]
        return replace(dim, low=passing[0], high=None if unbounded else passing[-1])

    def hold(self, name: str, size: int, why: Provenance, refused: bool) -> None:
        """Holds a dim at one size. ShapeError where it is declared free and the program refuses others."""
        dim = self.dim(name)
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

    def allowed(self, sizes: Bindings) -> bool:
        """Whether the limits and the branches that are kept admit these sizes."""
        held = all(sizes[limit.dim] == limit.size for limit in self.limits.values())
        return held and all(holds(branch.condition, sizes) for branch in self.kept)

    def others(self, first: Bindings) -> list[dict[str, int]]:
        """Further sizes to trace at."""
        others = self.prober.others(first, max(self.options.probes - 1, 0), self.allowed)
        return [*others, *filter(self.allowed, self.joined)]

    def lower(self, examples: Sequence[Bindings], branches: Sequence[Branch]) -> tuple[Lowered, System]:
        """One graph from the traces at `examples`, within the limits and the branches taken."""
        system = System()
        dims, _ = declare(self.source, self.source.inputs, system)
        for limit in self.limits.values():
            system.equal(self.symbol(limit.dim), as_expr(limit.size), limit.why)
        for tie in self.ties:
            system.require(tie, Provenance("the program", "", f"refuses other sizes than {tie!r}"))
        for branch in branches:
            system.require(branch.condition, Provenance(A_BRANCH, branch.source, f"{branch.condition!r}"))
        programs = [self.prober.trace(sizes) for sizes in examples]
        label = "" if self.number == 1 else f"graph{self.number}."
        name, left = self.source.name, self.left
        return lower(name, programs, examples, dims, system, self.seen, label, left=left), system

    def follow(self, sizes: Bindings) -> Branches:
        """The branches at these sizes, followed once for all graphs of the module."""
        key = tuple(sorted(sizes.items()))
        if key not in self.followed:
            inputs = self.prober.tensors(sizes)
            seconds = self.options.guard_seconds
            known = self.converting
            self.followed[key] = collect(self.module, inputs, self.dims, seconds, known, self.home)
        return self.followed[key]


def fits(dim: FreeDim, size: int) -> bool:
    """Whether the range of a dim holds a size."""
    return dim.low <= size and (dim.high is None or size <= dim.high)
