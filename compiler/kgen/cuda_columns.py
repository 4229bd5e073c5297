"""CUDA kernels in which neighbouring outputs reduce side by side: a nest comes in, text goes out in which the
threads of a block share the rows and join through shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ceildiv, index
from dlcb.compiler.kgen.cstyle import JOINS
from dlcb.compiler.kgen.cuda import Cuda, Lanes, first_of
from dlcb.compiler.kgen.lower import Scope, identifier
from dlcb.compiler.kgen.variants import THREADS

_UNDER_WAY = {1: 8}  # rows that a thread loads before it adds the first, by the elements of an access
_FEWER_UNDER_WAY = 4


class Columns(Cuda):
    """A block takes neighbouring columns, `across` threads wide; the other threads take other rows, and
    shared memory joins them. A thread beyond the last column repeats that one and stores nothing."""

    def run(self) -> list[str]:
        lane, width = self.nest.lane, self.variant.width
        assert lane is not None
        across = self.variant.across
        block = index(f"{lane.value}_block", ceildiv(lane.args[0], across * width))
        here = first_of(lane) if width > 1 else lane
        self.block = Scope(self.root, frozenset((*self.nest.rows, here)))
        leader = Scope(self.block, frozenset())
        lanes = Lanes(leader, frozenset((lane,)), lane=lane, first=here) if width > 1 else leader
        after = self._store(self.nest.elements, leader, lanes)
        self._unroll(leader, lanes)
        leader.lines.extend(after)
        kind, size = self._index_type, self._size(lane.args[0])
        place = f"({identifier(block.value)} * {across} + threadIdx.x % {across})"
        place += f" * {width}" if width > 1 else ""
        least = f"min_of({kind}({place}), {kind}({size} - {width}))"
        self.block.lines.insert(0, f"const {kind} {identifier(here.value)} = {least};")
        self.block.add([f"if (threadIdx.x < {across} && {place} < {size})"], leader)
        self._over((*self.nest.rows, block), self.block, self.root, "blockIdx.x", "gridDim.x", 1)
        return [*self._shared_lines(THREADS), *self.root.lines]

    def fold(self, folds: Sequence[Expr], home: Scope, scope: Scope) -> None:
        if home is self.block:
            accumulators = self._started(folds, home)
            self._fold_slices(folds, home, home, accumulators)
            for fold, accumulator in zip(folds, accumulators, strict=True):
                home.lines.append(f"{accumulator} = {self._joined_slices(fold, accumulator)};")
            self._finished(folds, accumulators, home)
        elif isinstance(home, Lanes) and home.around.parent is self.block:
            accumulators = self._started_lanes(folds, self.block)
            self._fold_slices(folds, self.block, home, accumulators)
            every = Scope(self.block, frozenset())
            for fold, accumulator in zip(folds, accumulators, strict=True):
                every.lines.append(f"{accumulator} = {self._joined_slices(fold, accumulator)};")
            self._each_lane(self.block, every)
            self._finished(folds, accumulators, home)
        else:
            super().fold(folds, home, scope)

    def _fold_slices(
        self, folds: Sequence[Expr], block: Scope, home: Scope, accumulators: Sequence[str]
    ) -> None:
        """A thread's share of the rows."""
        loops, across = folds[0].args[1:], self.variant.across
        turn = Scope(block, frozenset(loops))
        lanes = self._inner_lanes(home, turn) if isinstance(home, Lanes) else turn
        self._join(folds, accumulators, lanes)
        self._unroll(turn, lanes)
        slices = THREADS // across
        unrolled = f"#pragma unroll {_UNDER_WAY.get(self.variant.width, _FEWER_UNDER_WAY)}"
        self._over(loops, turn, block, f"threadIdx.x / {across}", str(slices), 1, unrolled=unrolled)

    def _joined_slices(self, fold: Expr, accumulator: str) -> str:
        join, shared = f"{JOINS[fold.value]}()", self._shared_for(fold)
        return f"join_slices<{self.variant.across}>({accumulator}, {join}, {shared})"
