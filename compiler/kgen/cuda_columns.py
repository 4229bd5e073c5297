"""CUDA kernels in which neighbouring outputs reduce side by side: a nest comes in, text goes out in which the
threads of a block share the rows and join through shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ZERO, ceildiv, index, substitute_all
from dlcb.compiler.kgen.cstyle import JOINS
from dlcb.compiler.kgen.cuda import Cuda, Lanes, first_of
from dlcb.compiler.kgen.lower import Scope, identifier
from dlcb.compiler.kgen.variants import THREADS, WARP, columns_of_block, row_start

_UNDER_WAY = {1: 8}  # rows that a thread loads before it adds the first, by the elements of an access
_FEWER_UNDER_WAY = 4


class Columns(Cuda):
    """A block takes neighbouring columns, `across` threads wide; the other threads take other rows, and
    shared memory joins them. A thread beyond the last column repeats that one and stores nothing."""

    def run(self) -> list[str]:
        lane, width = self.nest.lane, self.variant.width
        assert lane is not None
        blocks = ceildiv(lane.args[0], columns_of_block(self.variant))
        block = index(f"{lane.value}_block", blocks)
        here = first_of(lane) if width > 1 else lane
        self.block = Scope(self.root, frozenset((*self.nest.rows, here)))
        if self.variant.peeled:
            self._store_shifted(lane, identifier(block.value))
        else:
            self._store_aligned(lane, here, identifier(block.value))
        self._over((*self.nest.rows, block), self.block, self.root, "blockIdx.x", "gridDim.x", 1)
        across = self.variant.across + self.variant.peeled  # what is shifted needs room for an access more
        return [*self._shared_lines(THREADS // WARP * across * width), *self.root.lines]

    def _store_aligned(self, lane: Expr, here: Expr, block: str) -> None:
        width, across = self.variant.width, self.variant.across
        leader = Scope(self.block, frozenset())
        lanes = Lanes(leader, frozenset((lane,)), lane=lane, first=here) if width > 1 else leader
        after = self._store(self.nest.elements, leader, lanes)
        self._unroll(leader, lanes)
        leader.lines.extend(after)
        kind, size = self._index_type, self._size(lane.args[0])
        place = f"({block} * {across} + threadIdx.x % {across})" + (f" * {width}" if width > 1 else "")
        least = f"min_of({kind}({place}), {kind}({size} - {width}))"
        self.block.lines.insert(0, f"const {kind} {identifier(here.value)} = {least};")
        self.block.add([f"if (threadIdx.x < {across} && {place} < {size})"], leader)

    def _store_shifted(self, lane: Expr, block: str) -> None:
        """Rows that start within an access: as many threads share the rows as an access has elements, or a
        multiple of it, so that each of them meets rows that start at the same place of one. A thread stores
        a column."""
        width, parts, columns = self.variant.width, self.nest.parts, columns_of_block(self.variant)
        assert parts is not None
        kind, size, slice_ = self._index_type, self._size(lane.args[0]), index("slice", THREADS // WARP)
        self.block.bound |= {slice_}
        self.block.lines.append(f"const int slice = threadIdx.x / {WARP};")
        (start,) = substitute_all([row_start(self.nest, lane)], {parts.place: slice_, lane: ZERO})
        (place,) = self.compute([start], self.block)
        wanted, last = f"{block} * {columns} + threadIdx.x % {WARP} * {width}", f"({size} - 1 + before)"
        self.block.lines += [
            f"const int before = ({place[0]}) & {width - 1};",
            f"const {kind} {identifier(first_of(lane).value)} = "
            f"min_of({kind}({wanted}), {kind}({last} / {width} * {width})) - before;",
        ]
        self.leader = Scope(self.block, frozenset((lane,)))
        self._store(self.nest.elements, self.leader, self.leader)
        name = identifier(lane.value)
        column = Scope(self.block, frozenset())
        column.lines.append(f"const {kind} {name} = {block} * {columns} + threadIdx.x;")
        column.add([f"if (threadIdx.x < {columns} && {name} < {size})"], self.leader)
        self.block.lines += ["{", *("    " + line for line in column.lines), "}"]

    def fold(self, folds: Sequence[Expr], home: Scope, scope: Scope) -> None:
        if self.variant.peeled:
            self._fold_shifted(folds, home)
        elif home is self.block:
            accumulators = self._started(folds, home)
            self._fold_slices(folds, home, home, accumulators)
            self._join_columns(folds, [f"&{accumulator}" for accumulator in accumulators])
            self._finished(folds, accumulators, home)
        elif isinstance(home, Lanes) and home.around.parent is self.block:
            accumulators = self._started_lanes(folds, self.block)
            self._fold_slices(folds, self.block, home, accumulators)
            self._join_columns(folds, map(_array, accumulators))
            self._finished(folds, accumulators, home)
        else:
            super().fold(folds, home, scope)

    def _fold_shifted(self, folds: Sequence[Expr], home: Scope) -> None:
        lane, width = self.nest.lane, self.variant.width
        assert lane is not None and home is self.leader
        accumulators = self._started_lanes(folds, self.block)
        lanes = Lanes(self.block, frozenset((lane,)), lane=lane, first=first_of(lane))
        self._fold_slices(folds, self.block, lanes, accumulators)
        totals = [self.fresh("total") for _ in folds]
        for fold, accumulator, total in zip(folds, accumulators, totals, strict=True):
            joined = f"join_shifted<{width}>({_array(accumulator)}, before, {JOINS[fold.value]}()"
            self.block.lines.append(
                f"const {self.local_type(fold)} {total} = {joined}, {self._shared_for(fold)});"
            )
        self._finished(folds, totals, home)

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

    def _join_columns(self, folds: Sequence[Expr], accumulators: Iterable[str]) -> None:
        for fold, accumulator in zip(folds, accumulators, strict=True):
            operands = f"{accumulator}, {JOINS[fold.value]}(), {self._shared_for(fold)}"
            self.block.lines.append(f"join_columns<{self.variant.across}, {self.variant.width}>({operands});")

    def _shared_for(self, fold: Expr) -> str:
        """One array a type: a join starts with a barrier."""
        kind = self.local_type(fold)
        named = {element: name for name, element in self._shared.items()}
        return named[kind] if kind in named else super()._shared_for(fold)


def _array(accumulator: str) -> str:
    return accumulator.removesuffix("[lane]")
