"""ATen's operators that cut an axis into a list: rows over our own. Where the number of pieces follows an
input, they are made one by one, when the program takes them from the list."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dlcb.compiler.bridge.emit import Emit, Row, Size
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ZERO, as_expr, ceildiv, maximum, minimum
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value


@dataclass(frozen=True)
class Pieces:
    """The `count` pieces of `size` that `axis` of `x` is cut into, the last one smaller; of size 1 and
    without that axis where `single`."""

    x: Value
    axis: int
    size: Expr
    count: Expr
    single: bool = False

    def take(self, e: Emit, place: Size) -> Value:
        """The piece at `place`, counted from the front. That there are so many becomes a guard."""
        place = as_expr(place)
        e.require(place < self.count, f"piece {place!r} of {self.count!r}")
        e.require(place >= ZERO, f"piece {place!r} of {self.count!r}")
        if self.single:
            return e.apply(ops.select, self.x, axis=self.axis, index=place)
        first = place * self.size
        last = minimum(first + self.size, self.x.shape[self.axis])
        return e.apply(ops.slice, self.x, axis=self.axis, start=first, stop=last, step=1)


def _unbind(e: Emit, x: Value, axis: int = 0) -> list[Value] | Pieces:
    axis = e.axis(axis, x.rank)
    count = e.system.simplify(x.shape[axis])
    pieces = Pieces(x, axis, as_expr(1), count, single=True)
    return [pieces.take(e, k) for k in range(count.value)] if count.is_const else pieces


def _joined(e: Emit, x: Value, sizes: Sequence[Size], axis: int) -> list[Value]:
    ends: list[Expr] = [ZERO]
    for size in sizes:
        ends.append(ends[-1] + size)
    e.equal(ends[-1], x.shape[axis], f"the sum of the pieces of axis {axis} of {x!r}")
    ends[-1] = x.shape[axis]
    return [
        e.apply(ops.slice, x, axis=axis, start=start, stop=stop, step=1)
        for start, stop in itertools.pairwise(ends)
    ]


def _split(e: Emit, x: Value, size: Size, axis: int = 0) -> list[Value] | Pieces:
    """Where all traces had equally many pieces, that is a fact about a free size."""
    axis = e.axis(axis, x.rank)
    extent, each = x.shape[axis], as_expr(size)
    count = e.pieces(extent, each)
    if count is None:
        most = maximum(ceildiv(extent, maximum(each, 1)), 1)  # nothing is one empty piece
        return Pieces(x, axis, each, most)
    return _joined(e, x, [*[size] * (count - 1), extent - each * (count - 1)], axis)


def _split_with_sizes(e: Emit, x: Value, sizes: Sequence[Size], axis: int = 0) -> list[Value]:
    return _joined(e, x, sizes, e.axis(axis, x.rank))


def _chunk(e: Emit, x: Value, chunks: int, axis: int = 0) -> list[Value] | Pieces:
    axis = e.axis(axis, x.rank)
    size = (x.shape[axis] + (chunks - 1)) // chunks
    return _split(e, x, size.value if size.is_const else size, axis)


def _tensor_split(e: Emit, x: Value, sections: int, axis: int = 0) -> list[Value]:
    """Pieces whose sizes differ by one at most, the larger ones first."""
    axis = e.axis(axis, x.rank)
    each, rest = x.shape[axis] // sections, x.shape[axis] % sections
    ends = [each * k + minimum(rest, k) for k in range(sections)]
    return [
        e.apply(ops.slice, x, axis=axis, start=start, stop=stop, step=1)
        for start, stop in itertools.pairwise([*ends, x.shape[axis]])
    ]


ROWS: dict[str, Row] = {
    "aten.unbind.int": _unbind,
    "aten.split.Tensor": _split,
    "aten.split.sizes": _split_with_sizes,
    "aten.split_with_sizes.default": _split_with_sizes,
    "aten.chunk.default": _chunk,
    "aten.tensor_split.sections": _tensor_split,
}
