"""A proof about the sizes of a program, on which the server's batching rests: that rows of the outputs depend
on the same rows of the inputs alone, so that requests may be stacked.

The operators' coordinate rules are the evidence; of an operator without one, which PyTorch runs, what
`eager_rows` knows by its name. Any other ends a proof that it touches."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, index, substitute
from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.passes.access import Reading, alike, is_computed, read
from dlcb.compiler.passes.eager_rows import RowAxes, row_axes
from dlcb.compiler.passes.sizes import expressions, knows, mentions, simple, splits, uses
from dlcb.compiler.shapes.system import System
from dlcb.compiler.signature import BatchAxes


def batch_axes(graph: Graph) -> BatchAxes | None:
    """The batch axes of a graph whose composites are all expanded,
    or None where no size variable is proven to be one.

    A size variable is a batch size when every operator reads its row-carrying operands at its own row and
    uses neither the row nor the batch size for anything else. An axis that merges the batch with others
    carries rows as well, at `(outer * batch + row) * each + rest`: by induction over the nodes an element
    then depends on its row, `outer`, `rest` and its other coordinates alone, however many rows there are.
    Which of the merged axes are outer does not show in a shape, so each way is tried, and one must fit all
    reads."""
    for candidate in _candidates(graph):
        proof = _Proof(candidate, graph.system)
        carried = proof.carried
        if not proof.obstacle(graph):
            return BatchAxes(
                candidate.value,
                {value.name: carried[value].axis for value in graph.inputs if value in carried},
                {str(k): carried[value].axis for k, value in enumerate(graph.outputs)},
            )
    return None


def stacking_obstacles(graph: Graph) -> dict[str, str]:
    """For each size variable of the inputs what stands against its being a batch size, "" where nothing does.
    The graph as for `batch_axes`."""
    return {size.value: _Proof(size, graph.system).obstacle(graph) for size in _candidates(graph)}


def _candidates(graph: Graph) -> list[Expr]:
    sizes = dict.fromkeys(s for value in graph.inputs for s in value.shape if s.op == "size")
    return [size for size in sizes if graph.system.simplify(size) is size]


@dataclass(frozen=True)
class _Rows:
    """Where a value's rows lie: on `axis`, `outer` times all of them, `each` elements a row."""

    axis: int
    outer: Expr
    each: Expr

    @property
    def plain(self) -> bool:
        """Whether the axis is made of rows alone."""
        return self.outer is ONE and self.each is ONE


class _Proof:
    """That `batch` counts rows that are apart from each other."""

    def __init__(self, batch: Expr, system: System) -> None:
        self.batch, self.system = batch, system
        self.row = index("row", batch)
        self.carried: dict[Value, _Rows] = {}
        # of nodes that read alike, by where their operands' rows lie: whether rows stay apart, and where
        self._met: dict[Hashable, tuple[bool, _Rows | None]] = {}

    def obstacle(self, graph: Graph) -> str:
        """What ends the proof, "" where it succeeds; then `carried` says where each value that carries rows
        does so."""
        for value in graph.inputs:
            axes = [axis for axis, extent in enumerate(value.shape) if self._counted(extent)]
            if len(axes) == 1 and self.system.simplify(value.shape[axes[0]]) is self.batch:
                self.carried[value] = _Rows(axes[0], ONE, ONE)
            elif axes:
                return self._on_axes(value, axes)
        for node in graph.nodes:
            if not self._keeps_rows_apart(node):
                return uses(node)
        for value in graph.outputs:
            if value not in self.carried or not self.carried[value].plain:
                return f"an output has shape {list(simple(value.shape, self.system))}"
        return ""

    def _on_axes(self, value: Value, axes: Sequence[int]) -> str:
        """How an input has the size elsewhere than on one axis of its own."""
        for axis in axes:
            place, extent = f"axis {axis} of input '{value.name}'", self.system.simplify(value.shape[axis])
            if extent is not value.shape[axis]:
                return f"{place} follows it: {value.shape[axis]!r} == {extent!r} must hold"
            if extent is not self.batch:
                return f"{place} is {extent!r}"
        return f"it is the size of axes {' and '.join(map(str, axes))} of input '{value.name}'"

    def _counted(self, e: Expr) -> bool:
        return self.batch in self.system.simplify(e).free

    def _keeps_rows_apart(self, node: Node) -> bool:
        """Whether each row of the result is made of the same rows of the operands and of what has none; where
        its own rows lie enters `carried`."""
        if node.op.at is None:
            return self._has_no_rows(node) or any(
                self._runs_rows_apart(node, axes) for axes in row_axes(node)
            )
        shared = alike(node)
        if shared is None:
            apart, rows = self._apart(node)
        else:
            key = shared, tuple(map(self.carried.get, node.inputs))
            if key not in self._met:
                self._met[key] = self._apart(node)
            apart, rows = self._met[key]
        if rows is not None:
            self.carried[node.result] = rows
        return apart

    def _apart(self, node: Node) -> tuple[bool, _Rows | None]:
        """Whether a node that reads by its rule keeps rows apart, and where its own lie."""
        if self._has_none(node) or is_computed(node.result):
            return True, None  # what is made of coordinates alone shows in the bodies of its readers
        reading = read(node)
        if any(self._counted(r.args[0]) for r in reading.over):
            return False, None
        # a bias, which `finish` adds, has no rows: the axis that carries them is not its own
        if node.op.finish is not None and any(map(self._is_seen_in, node.inputs)):
            return False, None
        for rows in self._places(node):
            if self._reads_own_rows(node, reading, rows):
                return True, rows
        return False, None

    def _has_no_rows(self, node: Node) -> bool:
        return not (
            any(value in self.carried or self._is_seen_in(value) for value in node.inputs)
            or any(self._counted(extent) for result in node.results for extent in result.shape)
            or any(self._counted(e) for e in expressions(node.attributes))
        )

    def _runs_rows_apart(self, node: Node, axes: RowAxes) -> bool:
        """Whether rows lie on these axes and nowhere else, merged with others alike in all of them, and the
        call is told nothing of them."""
        if any(self._counted(e) for e in expressions(node.attributes["arguments"])):
            return False
        found = {self.carried[value] for value in node.inputs if value in self.carried}
        if len({(rows.outer, rows.each) for rows in found}) > 1:
            return False
        like = next(iter(found), _Rows(0, ONE, ONE))
        extent = self.system.simplify(like.outer * self.batch * like.each)
        if not all(
            self._has_rows_on(value, axes.operands.get(k), extent) for k, value in enumerate(node.inputs)
        ):
            return False
        made = dict(zip(node.results, axes.results, strict=True))
        if any(self._rows_on(result, extent) != [axis] for result, axis in made.items()):
            return False
        self.carried.update(
            (value, _Rows(axis, like.outer, like.each)) for value, axis in made.items() if axis is not None
        )
        return True

    def _has_rows_on(self, value: Value, axis: int | None, extent: Expr) -> bool:
        """Whether an operand's rows lie on `axis`, of this extent, alone; None where it must have none. One
        that is made of coordinates alone, as first states are, is the same in each row."""
        if (rows := self.carried.get(value)) is not None:
            return rows.axis == axis
        if self._is_seen_in(value) or self._rows_on(value, extent) != ([] if axis is None else [axis]):
            return False
        if axis is None:
            return True
        if not is_computed(value):
            return False
        reading = read(value.made_by)
        return not mentions(self.system.simplify(reading.body), (reading.out[axis],))

    def _rows_on(self, value: Value, extent: Expr) -> list[int | None]:
        """The axes that count rows; None for one that is not of this extent."""
        shape = simple(value.shape, self.system)
        counting = [axis for axis, size in enumerate(shape) if self.batch in size.free]
        return [axis if shape[axis] is extent else None for axis in counting]

    def _has_none(self, node: Node) -> bool:
        """Whether rows can show in nothing that a node reads or makes, as in what is made of weights."""
        unseen = not any(value in self.carried for value in node.inputs)
        return unseen and not knows(node, self.batch, self.system) and not any(map(is_computed, node.inputs))

    def _places(self, node: Node) -> Iterator[_Rows | None]:
        """Where the rows of the node's result may lie, which is on the one axis whose extent counts them."""
        shape = simple(node.result.shape, self.system)
        axes = [axis for axis, extent in enumerate(shape) if self.batch in extent.free]
        if not axes:
            yield None
        if len(axes) != 1:
            return
        (axis,) = axes
        merged = self.system.simplify(substitute(shape[axis], {self.batch: ONE}))
        if self.system.simplify(self.batch * merged) is not shape[axis]:
            return
        sources = [
            (simple(value.shape, self.system), rows.axis, rows.outer)
            for value in node.inputs
            if (rows := self.carried.get(value)) is not None
        ]
        for outer, each in splits(merged, sources, self.system):
            yield _Rows(axis, outer, each)

    def _reads_own_rows(self, node: Node, reading: Reading, rows: _Rows | None) -> bool:
        own = {} if rows is None else {reading.out[rows.axis]: self._position(rows)}

        def at_row(e: Expr) -> Expr:
            return self.system.simplify(substitute(e, own))

        others = [at_row(reading.body)]
        for access in reading.accesses:
            operand = node.inputs[access.operand]
            if is_computed(operand):
                continue
            coordinates = [at_row(c) for c in access.coordinates]
            theirs = self.carried.get(operand)
            if theirs is not None:
                place = coordinates.pop(theirs.axis)
                row, rest = self._taken_apart(place, theirs)
                if rows is None or row is not self.row:
                    return False
                coordinates += rest
            others += [*coordinates, at_row(access.guard)]
        return not any(mentions(e, (self.row, self.batch)) for e in others)

    def _position(self, rows: _Rows) -> Expr:
        place: Expr = self.row
        if rows.outer is not ONE:
            place = index("outer", rows.outer) * self.batch + place
        return place * rows.each + (index("rest", rows.each) if rows.each is not ONE else ZERO)

    def _taken_apart(self, place: Expr, rows: _Rows) -> tuple[Expr, list[Expr]]:
        """The row of a position, and what else it says."""
        simplify = self.system.simplify
        row, rest = simplify(place // rows.each), [simplify(place % rows.each)]
        if rows.outer is not ONE:
            row, rest = simplify(row % self.batch), [*rest, simplify(row // self.batch)]
        return row, rest

    def _is_seen_in(self, value: Value) -> bool:
        """Whether the batch shows in the elements of a value that is made of coordinates alone."""
        return is_computed(value) and mentions(self.system.simplify(read(value.made_by).body), (self.batch,))
