"""C++ kernels that read and write along different axes: a nest comes in, text goes out that moves tiles
through a small buffer, so that memory is walked contiguously on both sides, however far apart rows lie."""

from __future__ import annotations

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.kgen.cpp import Cpp
from dlcb.compiler.kgen.cstyle import ATOM
from dlcb.compiler.kgen.lower import Scope, identifier
from dlcb.compiler.kgen.variants import crossed

_SIDE = 64  # of a tile, in elements


class Tiled(Cpp):
    """A thread reads a tile of what lies along the other axis into a buffer, then writes along the lane."""

    def run(self) -> list[str]:
        lane, loads = self._lane, crossed(self.nest)
        assert loads is not None
        across, nodes = loads
        others = tuple(loop for loop in self.nest.rows if loop is not across)
        tile = Scope(self.root, frozenset(others))
        for loop in (across, lane):
            name, size = identifier(loop.value), self._extent(loop)
            end = f"{name}_begin + {_SIDE}"
            tile.lines.append(f"const int64_t {name}_end = {end} < {size} ? {end} : {size};")
        outer, reading = self._nested((lane, across), tile)
        places = "".join(f"[{identifier(i.value)} - {identifier(i.value)}_begin]" for i in (lane, across))
        values = self.compute(nodes, reading)
        along, writing = self._nested((across, lane), tile)
        for number, (node, value) in enumerate(zip(nodes, values, strict=True)):
            # a row of the buffer is longer than a tile, so that a column of it spreads over a cache's sets
            tile.lines.append(f"{self.type_name(node.dtype)} tile{number}[{_SIDE}][{_SIDE + 1}];")
            reading.lines.append(f"tile{number}{places} = {value[0]};")
            writing.names[node] = f"tile{number}{places}", ATOM
        self._store(self.nest.elements, writing)
        for slow, fast, row, scope in ((lane, across, outer, reading), (across, lane, along, writing)):
            row.add([*self._simd(scope), _within(fast)], scope)
            tile.add([_within(slow)], row)
        blocks = [
            f"for (int64_t {name}_begin = 0; {name}_begin < {self._extent(loop)}; {name}_begin += {_SIDE})"
            for loop in (across, lane)
            for name in (identifier(loop.value),)
        ]
        self._outermost([*map(self._loop, others), *blocks], tile)
        return self.root.lines


def _within(loop: Expr) -> str:
    """The loop over one tile's part of an axis."""
    name = identifier(loop.value)
    return f"for (int64_t {name} = {name}_begin; {name} < {name}_end; ++{name})"
