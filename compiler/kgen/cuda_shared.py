"""CUDA kernels whose threads exchange elements through shared memory: column reductions, whose rows a block's
warps share, and transposing kernels, which read and write along different axes and are contiguous in both."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ceildiv, index
from dlcb.compiler.kgen.cstyle import ATOM, JOINS
from dlcb.compiler.kgen.cuda import Cuda, Lanes, first_of
from dlcb.compiler.kgen.lower import Scope, identifier
from dlcb.compiler.kgen.variants import THREADS, TILE, crossed

_ROWS_AT_ONCE = THREADS // TILE  # of a tile
_UNROLLED = "#pragma unroll 4"  # so that several loads are under way


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
        self._over(loops, turn, block, f"threadIdx.x / {across}", str(slices), 1, unrolled=_UNROLLED)

    def _joined_slices(self, fold: Expr, accumulator: str) -> str:
        join, shared = f"{JOINS[fold.value]}()", self._shared_for(fold)
        return f"join_slices<{self.variant.across}>({accumulator}, {join}, {shared})"


class Tiled(Cuda):
    """A block moves tiles of 32 by 32: inputs that are contiguous along another axis than the output are read
    along theirs into shared memory, and taken from it along the output's."""

    def run(self) -> list[str]:
        lane, loads = self.nest.lane, crossed(self.nest)
        assert lane is not None and loads is not None
        across, nodes = loads
        others = tuple(loop for loop in self.nest.rows if loop is not across)
        blocks = [index(f"{loop.value}_block", ceildiv(loop.args[0], TILE)) for loop in (across, lane)]
        tile = Scope(self.root, frozenset(others))
        tiles: list[str] = []
        reading = Scope(tile, frozenset((across, lane)))
        writing = Scope(tile, frozenset((across, lane)))
        for number, (node, value) in enumerate(zip(nodes, self.compute(nodes, reading), strict=True)):
            tiles.append(f"__shared__ {self.local_type(node)} tile{number}[{TILE}][{TILE + 1}];")
            reading.lines.append(
                f"tile{number}[turn + threadIdx.x / {TILE}][threadIdx.x % {TILE}] = {value[0]};"
            )
            writing.names[node] = f"tile{number}[threadIdx.x % {TILE}][turn + threadIdx.x / {TILE}]", ATOM
        self._store(self.nest.elements, tile, writing)
        tile.lines.append("__syncthreads();")  # before the tiles of the last turn are overwritten
        self._pass(tile, reading, blocks, fast=across, slow=lane)
        tile.lines.append("__syncthreads();")
        self._pass(tile, writing, blocks, fast=lane, slow=across)
        self._over((*others, *blocks), tile, self.root, "blockIdx.x", "gridDim.x", 1)
        return [*tiles, *self.root.lines]

    def _pass(self, tile: Scope, scope: Scope, blocks: Sequence[Expr], fast: Expr, slow: Expr) -> None:
        """All elements of a tile, neighbouring threads along the axis `fast`."""
        kind = self._index_type
        starts = {loop.value.removesuffix("_block"): identifier(loop.value) for loop in blocks}
        inside = " && ".join(f"{identifier(x.value)} < {self._size(x.args[0])}" for x in (slow, fast))
        turn = Scope(tile, frozenset())
        for loop, place in ((fast, f"threadIdx.x % {TILE}"), (slow, f"turn + threadIdx.x / {TILE}")):
            start = f"{starts[loop.value]} * {TILE}"
            turn.lines.append(f"const {kind} {identifier(loop.value)} = {start} + {place};")
        turn.add([f"if ({inside})"], scope)
        tile.add(["#pragma unroll", f"for (int turn = 0; turn < {TILE}; turn += {_ROWS_AT_ONCE})"], turn)
