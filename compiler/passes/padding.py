"""A proof about the sizes of a program, on which the server's padding rests: that filling an axis up at its
end with given values changes nothing that was there before, so that requests of different lengths may share a
batch.

The operators' coordinate rules are the evidence; of an operator without one, which PyTorch runs, what
`eager_rows` knows by its name. Any other ends the proof where it touches it. What stands in the way is named
with its source line."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dlcb.compiler.dtype import BOOL
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, index, substitute
from dlcb.compiler.expr.node import size as size_variable
from dlcb.compiler.expr.ops import FOLDS
from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.ir.op import Shape
from dlcb.compiler.passes.access import Reading, alike, is_computed, read
from dlcb.compiler.passes.certain import Scalar, certain
from dlcb.compiler.passes.eager_rows import RowAxes, growing_axes
from dlcb.compiler.passes.sizes import expressions, knows, mentions, simple, splits, uses
from dlcb.compiler.shapes.system import System

WHOLE = frozenset({"attention"})  # composites that are judged as they are, not expanded

_FARTHEST = 16  # nodes, one reading the next, that what is padded is followed through
_LAYOUTS = 16  # ways to take a result's merged axes apart that are tried

_Layout = Mapping[int, Expr]  # for each axis that is taken apart the extent of its inner part


def padding_obstacles(graph: Graph, fill: Mapping[str, float]) -> dict[str, str]:
    """For each size variable of the inputs what stands against padding its axes, "" where that is proven
    harmless. The composites of the graph are expanded, but for those in `WHOLE`; inputs are filled up with
    their values in `fill`, or with anything where they have none.

    Harmless means: the elements that were there before keep their values, at their coordinates. By induction
    over the nodes they do when no operator uses the size for anything but to end its loops, since it then
    reads the same elements of its operands, all of which were there; and when each reduction that runs over
    what was added meets its fold's identity there, as each attention meets a masked key. Positions may be
    used, since what is added comes last. On an axis that merges the size with outer ones coordinates move, so
    there they are compared by their parts."""
    sizes = dict.fromkeys(size for value in graph.inputs for size in value.shape if size.op == "size")
    return {size.value: _Proof(size, graph, fill).obstacle() for size in sizes}


@dataclass(frozen=True)
class _Beyond:
    """Where padding is looked for: a loop's index, what it is there, and what was found of elements there."""

    loop: Expr
    place: Expr
    found: dict[tuple[Value, tuple[Expr, ...]], Scalar | None] = field(default_factory=dict)

    def __call__(self, e: Expr) -> Expr:
        return substitute(e, {self.loop: self.place})


class _Proof:
    """That `size` may grow and the elements that were there stay what they are."""

    def __init__(self, size: Expr, graph: Graph, fill: Mapping[str, float]) -> None:
        self.size, self.graph, self.fill = size, graph, fill
        self.system: System = graph.system
        self.apart: dict[Value, _Layout] = {}  # values whose elements move
        self.read = {value for node in graph.nodes for value in node.inputs}.union(graph.outputs)
        self.changed: dict[Value, Node] = {}  # made of coordinates alone: shows in their readers' bodies
        # of nodes that read alike, by how their operands are taken apart: how they are, None where no way is
        self._met: dict[Hashable, _Layout | None] = {}

    def obstacle(self) -> str:
        if self.system.simplify(self.size) is not self.size:
            return f"it equals {self.system.simplify(self.size)!r}"
        for value in self.graph.inputs:
            shape = simple(value.shape, self.system)
            if any(self.size in extent.free and extent is not self.size for extent in shape):
                return f"input '{value.name}' has shape {list(shape)}"
        for node in self.graph.nodes:
            if not self._keeps(node):
                if len(node.results) > 1 or not is_computed(node.result):
                    return uses(node)
                self.changed[node.result] = node
        for output in self.graph.outputs:
            if output in self.changed:
                return uses(self.changed[output])
            if output in self.apart or not all(self._grows(extent) for extent in output.shape):
                return f"an output has shape {list(simple(output.shape, self.system))}"
        return ""

    def _sized(self, e: Expr) -> bool:
        return self.size in self.system.simplify(e).free

    def _unmoved(self, expressions: Sequence[Expr]) -> bool:
        return not any(mentions(self.system.simplify(e), (self.size,)) for e in expressions)

    def _grows(self, extent: Expr) -> bool:
        return grows(self.system.simplify(extent), self.size, self.system)

    def _keeps(self, node: Node) -> bool:
        """Whether the elements of the node's results that exist at any size keep their values; how their axes
        are to be taken apart for that enters `apart`."""
        if node.op.name in WHOLE:
            unseen = not any(value in self.changed or value in self.apart for value in node.inputs)
            return unseen and self._attends_to_nothing_more(node)
        if node.op.at is None:
            ways = growing_axes(node)
            return self._has_no_size(node) or any(self._runs_on_what_was_there(node, axes) for axes in ways)
        if self._has_none(node):
            return True
        reading = read(node)
        key = None if (shared := alike(node)) is None else (shared, *map(self._parts, node.inputs))
        layout = self._met[key] if key in self._met else self._layout(node, reading)
        if key is not None:
            self._met[key] = layout
        if layout is None:
            return False
        if layout:
            self.apart[node.result] = layout
        return all(self._adds_nothing(node, reading, r) for r in reading.over if self._sized(r.args[0]))

    def _parts(self, value: Value) -> Hashable:
        return tuple(self.apart.get(value, {}).items())

    def _layout(self, node: Node, reading: Reading) -> _Layout | None:
        """How the axes of a node's result are taken apart for it to read what was there; None where it reads
        something else."""
        ways = itertools.islice(self._layouts(node), _LAYOUTS)
        return next((way for way in ways if self._reads_what_was_there(node, reading, way)), None)

    def _has_no_size(self, node: Node) -> bool:
        shapes = (value.shape for value in (*node.inputs, *node.results))
        return not (
            any(value in self.changed for value in node.inputs)
            or any(self._sized(extent) for shape in shapes for extent in shape)
            or any(self._sized(e) for e in expressions(node.attributes))
        )

    def _runs_on_what_was_there(self, node: Node, axes: RowAxes) -> bool:
        """Whether the size counts the rows on these axes and nothing else, and the call is told nothing of
        it."""
        for place, value in enumerate(node.inputs):
            if value in self.changed or value in self.apart:
                return False
            if self._grown(value) not in ([], [axes.operands.get(place)]):
                return False
        if any(self._sized(e) for e in expressions(node.attributes["arguments"])):
            return False
        return all(
            result not in self.read if axis is None else self._grown(result) == [axis]
            for result, axis in zip(node.results, axes.results, strict=True)
        )

    def _grown(self, value: Value) -> list[int | None]:
        """The axes that grow with the size; None for one that is more than it."""
        shape = simple(value.shape, self.system)
        return [
            axis if extent is self.size else None
            for axis, extent in enumerate(shape)
            if self.size in extent.free
        ]

    def _has_none(self, node: Node) -> bool:
        """Whether the size can show in nothing that a node reads or makes, as in what is made of weights."""
        unseen = not any(value in self.changed or value in self.apart for value in node.inputs)
        return unseen and not knows(node, self.size, self.system) and not any(map(is_computed, node.inputs))

    # ---- where elements are

    def _layouts(self, node: Node) -> Iterator[_Layout]:
        """The ways in which the axes of a node's result may be taken apart, so that what lies within each
        grows at its end."""
        sources = []
        for value in node.inputs:
            shape, apart = simple(value.shape, self.system), self.apart.get(value, {})
            for axis, extent in enumerate(shape):
                if self.size in extent.free:
                    outer = self.system.simplify(extent // apart[axis]) if axis in apart else ONE
                    sources.append((shape, axis, outer))
        ways: list[list[tuple[int, Expr] | None]] = []
        for axis, extent in enumerate(simple(node.result.shape, self.system)):
            if self.size in extent.free and extent is not self.size:
                inner = [
                    within
                    for outer, within in splits(extent, sources, self.system)
                    if outer is not ONE and self.size not in outer.free and self._grows(within)
                ]
                ways.append([None, *((axis, within) for within in inner)])
        for way in itertools.product(*ways):
            yield dict(part for part in way if part is not None)

    def _reads_what_was_there(self, node: Node, reading: Reading, layout: _Layout) -> bool:
        own = {}
        for axis, within in layout.items():
            outer = self.system.simplify(reading.out[axis].args[0] // within)
            own[reading.out[axis]] = index(f"outer{axis}", outer) * within + index(f"within{axis}", within)
        used = [substitute(reading.body, own)]
        for access in reading.accesses:
            operand = node.inputs[access.operand]
            if is_computed(operand):
                continue
            coordinates = [substitute(c, own) for c in access.coordinates]
            for axis, within in self.apart.get(operand, {}).items():
                place = self.system.simplify(coordinates[axis])
                coordinates[axis] = place // within
                coordinates.append(place % within)
            used += [*coordinates, substitute(access.guard, own)]
        return self._unmoved(used)

    # ---- what is added

    def _adds_nothing(self, node: Node, reading: Reading, r: Expr) -> bool:
        """Whether the loop over `r`, past what was there, folds its identity alone."""
        if node.op.fold is None or node.result in self.apart or not self._grows(r.args[0]):
            return False
        identity = FOLDS[node.op.fold].identity
        found = self._at(node, reading.out, _beyond(r))
        return found is not None and found == identity

    def _attends_to_nothing_more(self, node: Node) -> bool:
        """Attention keeps its rows where it looks at no key that is added: a masked key's value counts 0
        times, which is 0 as long as padding makes no infinity."""
        query, key, value, *mask = (simple(operand.shape, self.system) for operand in node.inputs)
        batch = query[:-2]
        if not (key[:-2] == value[:-2] == batch):
            return not any(self.size in extent.free for shape in (query, key, value) for extent in shape)
        if any(self.size in extent.free for extent in (query[-1], key[-1], value[-1])):
            return False
        scores = (*batch, query[-2], key[-2])
        for shape in mask:
            trailing = scores[len(scores) - len(shape) :]
            if any(given is not ONE and given is not own for given, own in zip(shape, trailing, strict=True)):
                return False
        if self.size not in key[-2].free or (node.attributes.get("causal") and query[-2] is key[-2]):
            return True
        return bool(mask) and self._grows(key[-2]) and self._is_masked(node.inputs[3], scores)

    def _is_masked(self, mask: Value, scores: Shape) -> bool:
        """Whether all keys past those that were there are masked, in all rows that were there."""
        place = [index(f"at{axis}", extent) for axis, extent in enumerate(scores)]
        shape = simple(mask.shape, self.system)
        trailing = place[len(place) - len(shape) :]
        at = tuple(
            ZERO if extent is ONE else coordinate for extent, coordinate in zip(shape, trailing, strict=True)
        )
        hidden = False if mask.dtype is BOOL else FOLDS["max"].identity
        return self._element(mask, at, _beyond(place[-1])) == hidden

    def _element(self, value: Value, at: Sequence[Expr], beyond: _Beyond, depth: int = 0) -> Scalar | None:
        """What the element of `value` is at coordinates `at`, where they lie beyond what was there; None
        where that depends on data, or on the size."""
        at = tuple(self.system.simplify(c) for c in at)
        if depth < _FARTHEST and (value, at) not in beyond.found:
            beyond.found[value, at] = self._find(value, at, beyond, depth)
        return beyond.found.get((value, at))

    def _find(self, value: Value, at: Sequence[Expr], beyond: _Beyond, depth: int) -> Scalar | None:
        if value.kind == "input" and value.name in self.fill and self._unmoved(at):
            grown = [beyond(c) for c, extent in zip(at, value.shape, strict=True) if extent is self.size]
            return self.fill[value.name] if any(self.system.known(c >= self.size) for c in grown) else None
        node = value.producer
        if node is None or node.op.at is None or node.op.over or len(node.results) > 1 or value in self.apart:
            return None
        return self._at(node, at, beyond, depth)

    def _at(self, node: Node, at: Sequence[Expr], beyond: _Beyond, depth: int = 0) -> Scalar | None:
        """What the node's rule makes of coordinates `at`, or folds there."""
        reading, simplify = read(node), self.system.simplify
        own = dict(zip(reading.out, at, strict=True))
        body = simplify(substitute(reading.body, own))
        if not self._unmoved([body]):
            return None  # another rule at the larger size

        def loaded(place: int) -> Scalar | None:
            access = reading.accesses[place]
            coordinates = [substitute(c, own) for c in access.coordinates]
            return self._element(node.inputs[access.operand], coordinates, beyond, depth + 1)

        return certain(simplify(beyond(body)), loaded)


def _beyond(loop: Expr) -> _Beyond:
    """Past the end of a loop that runs over what was there and what is added."""
    return _Beyond(loop, loop.args[0] + size_variable("past the end"))


def grows(extent: Expr, size: Expr, system: System, falling: bool = False) -> bool:
    """Whether `extent` is proven not to fall when `size` rises; with `falling`, not to rise."""
    if size not in extent.free:
        return True
    if extent is size:
        return not falling
    match extent.op:
        case "add" | "min" | "max":
            return all(grows(part, size, system, falling) for part in extent.args)
        case "sub":
            first, second = extent.args
            return grows(first, size, system, falling) and grows(second, size, system, not falling)
        case "mul" | "floordiv":
            for factor, other in ((*extent.args,), (*extent.args[::-1],))[: 1 + (extent.op == "mul")]:
                if size not in other.free and system.known(other >= 0) is True:
                    return grows(factor, size, system, falling)
                if size not in other.free and system.known(other <= 0) is True:
                    return grows(factor, size, system, not falling)
            both = extent.op == "mul" and all(system.known(part >= 0) is True for part in extent.args)
            return both and all(grows(part, size, system, falling) for part in extent.args)
    return False
