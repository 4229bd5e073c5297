"""CUDA kernels whose threads exchange elements through shared memory: column reductions, whose rows a block's
warps share, and transposing kernels, which read and write along different axes and are contiguous in both."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ceildiv, index
from dlcb.compiler.kgen.cstyle import ATOM, JOINS
from dlcb.compiler.kgen.cuda import Cuda
from dlcb.compiler.kgen.lower import Scope, identifier
from dlcb.compiler.kgen.variants import THREADS, TILE, crossed

_SLICES = THREADS // TILE


class Columns(Cuda):
    """A block takes 32 neighbouring columns; each of its warps folds every eighth row, and shared memory
    joins them. A thread beyond the last column repeats that one and stores nothing."""

    def run(self) -> list[str]:
        lane = self.nest.lane
        assert lane is not None
        block = index(f"{lane.value}_block", ceildiv(lane.args[0], TILE))
        self.block = Scope(self.root, frozenset((*self.nest.rows, lane)))
        leader = Scope(self.block, frozenset())
        self._store(self.nest.elements, self.block, leader)
        kind, place = self._index_type, f"{identifier(block.value)} * {TILE} + threadIdx.x % {TILE}"
        size = self._size(lane.args[0])
        here = f"const {kind} {identifier(lane.value)} = min_of({kind}({place}), {kind}({size} - 1));"
        self.block.lines.insert(0, here)
        self.block.add([f"if (threadIdx.x < {TILE} && {place} < {size})"], leader)
        self._over((*self.nest.rows, block), self.block, self.root, "blockIdx.x", "gridDim.x", 1)
        return [*self._shared_lines(TILE * _SLICES), *self.root.lines]

    def fold(self, folds: Sequence[Expr], home: Scope, scope: Scope) -> None:
        if home is not self.block:
            super().fold(folds, home, scope)
            return
        accumulators = self._started(folds, home)
        loops = folds[0].args[1:]
        turn = Scope(home, frozenset(loops))
        self._join(folds, accumulators, turn)
        self._over(loops, turn, home, f"threadIdx.x / {TILE}", str(_SLICES), 1)
        for fold, accumulator in zip(folds, accumulators, strict=True):
            shared = self._shared_for(fold)
            home.lines.append(f"{accumulator} = join_slices({accumulator}, {JOINS[fold.value]}(), {shared});")
        self._finished(folds, accumulators, home)


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
        tile.add(["#pragma unroll", f"for (int turn = 0; turn < {TILE}; turn += {_SLICES})"], turn)
