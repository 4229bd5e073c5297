"""CUDA kernels that read and write along different axes: a nest comes in, text goes out in which a block
moves tiles through shared memory, so that memory is walked contiguously on both sides, several elements an
access where the sizes allow."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ceildiv, index, substitute
from dlcb.compiler.kgen.cstyle import ATOM
from dlcb.compiler.kgen.cuda import Cuda, Lanes, first_of
from dlcb.compiler.kgen.lower import Scope, identifier
from dlcb.compiler.kgen.variants import THREADS, WARP, crossed, tile_side

_BANK = 4  # bytes


class Tiled(Cuda):
    """Inputs that are contiguous along another axis than the output are read along theirs into shared memory,
    and taken from it along the output's. All of a thread's reads are under way before the first is stored."""

    def run(self) -> list[str]:
        lane, loads = self.nest.lane, crossed(self.nest)
        assert lane is not None and loads is not None
        self.across, nodes = loads
        self.lane, self.side = lane, tile_side(self.nest)
        others = tuple(loop for loop in self.nest.rows if loop is not self.across)
        blocks = [index(f"{i.value}_block", ceildiv(i.args[0], self.side)) for i in (self.across, lane)]
        tile = Scope(self.root, frozenset(others))
        tiles = [self._shared_tile(number, node.dtype) for number, node in enumerate(nodes)]
        self._read(nodes, tile)
        tile.lines.append("__syncthreads();")
        self._write(nodes, tile)
        tile.lines.append("__syncthreads();")  # before the tiles of the next turn overwrite these
        self._over((*others, *blocks), tile, self.root, "blockIdx.x", "gridDim.x", 1)
        return [*tiles, *self.root.lines]

    def _shared_tile(self, number: int, dtype: DType) -> str:
        """A row is longer than the tile by a bank, so that a column spreads over the banks."""
        pitch = self.side + max(1, _BANK // dtype.itemsize)
        return f"__shared__ {self.type_name(dtype)} tile{number}[{self.side}][{pitch}];"

    def _read(self, nodes: Sequence[Expr], tile: Scope) -> None:
        width, threads = self.variant.width, WARP if self.variant.width == 1 else 8
        here = first_of(self.across) if width > 1 else self.across
        reading, storing = Scope(tile, frozenset((here, self.lane))), Scope(tile, frozenset())
        inside = self._place(reading, self.across, self.lane, threads)
        row, column = self._place_in_tile(self.across, threads)
        for number, node in enumerate(nodes):
            kind = self._pack_type(node.dtype)
            tile.lines.append(f"{kind} held{number}[{self._turns}];")
            address = substitute(node.args[0], {self.across: here})
            (offset,) = self.compute([address], reading)
            if address not in reading.names:  # several tensors may be read at one place
                reading.names[address] = self.fresh("p"), ATOM
                reading.lines.append(f"const {self._index_type} {reading.names[address][0]} = {offset[0]};")
            place = f"reinterpret_cast<const {kind}*>({node.value} + {reading.names[address][0]})"
            reading.lines.append(f"held{number}[turn] = load_if({inside}, {place});")
            each = Scope(storing, frozenset())
            each.lines.append(f"tile{number}[{row}][{column} + lane] = held{number}[turn].at[lane];")
            self._each_lane(storing, each)
        for scope in (reading, storing):
            tile.add(["#pragma unroll", f"for (int turn = 0; turn < {self._turns}; ++turn)"], scope)

    def _write(self, nodes: Sequence[Expr], tile: Scope) -> None:
        width = self.variant.width
        threads = WARP // width
        here = first_of(self.lane) if width > 1 else self.lane
        turn = Scope(tile, frozenset())
        inside = self._place(turn, self.lane, self.across, threads)
        chunk = Scope(
            turn, frozenset((here, self.across))
        )  # what is read at these coordinates may lie outside
        lanes = Lanes(chunk, frozenset((self.lane,)), lane=self.lane, first=here) if width > 1 else chunk
        column, row = self._place_in_tile(self.lane, threads)
        for number, node in enumerate(nodes):
            place = f"[{row} + lane][{column}]" if width > 1 else f"[{row}][{column}]"
            (lanes if width > 1 else chunk).names[node] = f"tile{number}{place}", ATOM
        after = self._store(self.nest.elements, chunk, lanes)
        self._unroll(chunk, lanes)
        chunk.lines.extend(after)
        turn.add([f"if ({inside})"], chunk)
        tile.add(["#pragma unroll", f"for (int turn = 0; turn < {self._turns}; ++turn)"], turn)

    @property
    def _turns(self) -> int:
        """Accesses that a thread makes to read a tile, or to write one."""
        return self.side * self.side // (THREADS * self.variant.width)

    def _place_in_tile(self, fast: Expr, threads: int) -> tuple[str, str]:
        """Row and column of a thread's elements, where `threads` side by side walk the axis `fast`."""
        beside = self.side // (threads * self.variant.width)  # turns along the axis
        slow = f"threadIdx.x / {threads}"
        if self._turns > beside:
            slow = f"(turn / {beside} * {THREADS // threads} + {slow})"
        column = f"(turn % {beside} * {threads} + threadIdx.x % {threads})"
        return slow, column + (f" * {self.variant.width}" if self.variant.width > 1 else "")

    def _place(self, scope: Scope, fast: Expr, slow: Expr, threads: int) -> str:
        """Define a thread's coordinates; gives the condition that they lie inside."""
        row, column = self._place_in_tile(fast, threads)
        conditions = []
        for loop, local in ((slow, row), (fast, column)):
            known = first_of(loop) if loop is fast and self.variant.width > 1 else loop
            name, start = identifier(known.value), f"{identifier(loop.value)}_block * {self.side}"
            scope.lines.append(f"const {self._index_type} {name} = {start} + {local};")
            conditions.append(f"{name} < {self._size(loop.args[0])}")
        return " && ".join(conditions)
