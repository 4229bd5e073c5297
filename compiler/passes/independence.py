"""Two proofs about the sizes of a program, on which the server's batching rests: that rows of the outputs
depend on the same rows of the inputs alone, so that requests may be stacked, and that filling an axis up at
its end changes nothing that was there before, so that requests of different lengths may be.

The operators' coordinate rules are the evidence; an operator without one (PyTorch runs it) ends a proof that
it touches. A failed proof of padding says where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import FALSE, ONE, ZERO, index, substitute
from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.ir.op import Shape
from dlcb.compiler.passes.access import Reading, is_computed, read
from dlcb.compiler.shapes.system import System
from dlcb.compiler.signature import BatchAxes

WHOLE = frozenset({"attention"})  # composites that `padding_obstacle` judges as they are, not expanded

# ---- rows


def batch_axes(graph: Graph) -> BatchAxes | None:
    """The batch axes of a graph whose composites are all expanded,
    or None where no size variable is proven to be one.

    A size variable is a batch size when every operator reads its row-carrying operands at its own row and
    uses neither the row nor the batch size for anything else. An axis of extent `batch * k` carries rows as
    well: k neighbours each, at `row * k + rest`."""
    for candidate in _sizes_of_inputs(graph):
        if graph.system.simplify(candidate) is not candidate:
            continue
        carried = _carry(graph, candidate)
        if carried is not None and all(v in carried and carried[v].each is ONE for v in graph.outputs):
            return BatchAxes(
                candidate.value,
                {value.name: carried[value].axis for value in graph.inputs if value in carried},
                {str(k): carried[value].axis for k, value in enumerate(graph.outputs)},
            )
    return None


@dataclass(frozen=True)
class _Rows:
    """Where a value's rows lie: on `axis`, `each` elements a row."""

    axis: int
    each: Expr


def _sizes_of_inputs(graph: Graph) -> dict[Expr, None]:
    return dict.fromkeys(size for value in graph.inputs for size in value.shape if size.op == "size")


def _carry(graph: Graph, batch: Expr) -> dict[Value, _Rows] | None:
    """Where each value that carries rows does so; None where the proof fails."""
    carried: dict[Value, _Rows] = {}
    for value in graph.inputs:
        rows = _rows(value.shape, batch, graph.system)
        if rows is not None and rows.each is ONE:
            carried[value] = rows
        elif _sized(value, batch, graph.system):
            return None
    for node in graph.nodes:
        if not _keeps_rows_apart(node, batch, carried, graph.system):
            return None
    return carried


def _sized(value: Value, batch: Expr, system: System) -> bool:
    return any(batch in extent.free for extent in _simple(value.shape, system))


def _rows(shape: Shape, batch: Expr, system: System) -> _Rows | None:
    """The rows of a tensor of this shape, which lie on the one axis whose extent is `batch * k`."""
    shape = _simple(shape, system)
    axes = [axis for axis, extent in enumerate(shape) if batch in extent.free]
    if len(axes) != 1:
        return None
    extent = shape[axes[0]]
    each = system.simplify(substitute(extent, {batch: ONE}))
    return _Rows(axes[0], each) if system.simplify(batch * each) is extent else None


def _keeps_rows_apart(node: Node, batch: Expr, carried: dict[Value, _Rows], system: System) -> bool:
    """Whether each row of the result is made of the same rows of the operands and of what has none; where its
    own rows lie enters `carried`."""
    if node.op.at is None:
        return not (
            any(value in carried or _mentions_itself(value, batch, system) for value in node.inputs)
            or any(_sized(result, batch, system) for result in node.results)
            or any(batch in system.simplify(e).free for e in _expressions(node.attributes))
        )
    if is_computed(node.result):
        return True  # what is made of coordinates alone shows in the bodies of its readers
    rows = _rows(node.result.shape, batch, system)
    if rows is None and _sized(node.result, batch, system):
        return False
    reading = read(node)
    if any(batch in system.simplify(r.args[0]).free for r in reading.over):
        return False
    # a bias, which `finish` adds, has no rows: the axis that carries them is not its own
    if node.op.finish is not None and any(_mentions_itself(value, batch, system) for value in node.inputs):
        return False
    row, own = index("row", batch), dict[Expr, Expr]()
    if rows is not None:
        rest = index("rest", rows.each) if rows.each is not ONE else ZERO
        own[reading.out[rows.axis]] = row * rows.each + rest

    def at_row(e: Expr) -> Expr:
        return system.simplify(substitute(e, own))

    others = [at_row(reading.body)]
    for access in reading.accesses:
        operand = node.inputs[access.operand]
        if is_computed(operand):
            continue
        coordinates = [at_row(c) for c in access.coordinates]
        theirs = carried.get(operand)
        if theirs is not None:
            place = coordinates[theirs.axis]
            if rows is None or system.simplify(place // theirs.each) is not row:
                return False
            coordinates[theirs.axis] = system.simplify(place % theirs.each)
        others += [*coordinates, at_row(access.guard)]
    if any(_mentions(e, (row, batch)) for e in others):
        return False
    if rows is not None:
        carried[node.result] = rows
    return True


def _mentions_itself(value: Value, batch: Expr, system: System) -> bool:
    """Whether `batch` shows in the elements of a value that is made of coordinates alone."""
    return is_computed(value) and _mentions(system.simplify(read(value.made_by).body), (batch,))


# ---- padding


def padding_obstacles(graph: Graph) -> dict[str, str]:
    """For each size variable of the inputs what stands against padding its axes, "" where that is proven
    harmless. The composites of the graph are expanded, but for those in `WHOLE`.

    Harmless means: the elements that were there before keep their values, at their coordinates. It follows by
    induction when no operator uses the size for anything but to end its loops over the result: it then reads
    the same elements of its operands as before, and all of them were there. Positions may be used, since what
    is added comes last; sums over the axis may not, unless each stops at its own position (cumsum, causal
    attention)."""
    return {size.value: _obstacle(graph, size) for size in _sizes_of_inputs(graph)}


def _obstacle(graph: Graph, size: Expr) -> str:
    if graph.system.simplify(size) is not size:
        return f"it equals {graph.system.simplify(size)!r}"
    for value in graph.inputs:
        shape = _simple(value.shape, graph.system)
        if any(size in extent.free and extent is not size for extent in shape):
            return f"input '{value.name}' has shape {list(shape)}"
    # made of coordinates alone: the bodies of their readers show what becomes of them
    changed: dict[Value, Node] = {}
    for node in graph.nodes:
        if not _uses(node, size, changed, graph.system):
            continue
        if len(node.results) > 1 or not is_computed(node.result):
            return _named(node)
        changed[node.result] = node
    return next((_named(changed[output]) for output in graph.outputs if output in changed), "")


def _named(node: Node) -> str:
    return f"{node.op.name} uses it{f' ({node.source})' if node.source else ''}"


def _uses(node: Node, size: Expr, changed: Mapping[Value, Node], system: System) -> bool:
    """Whether elements of the node's result that exist at any size may depend on `size`."""
    if node.op.name in WHOLE:
        return any(value in changed for value in node.inputs) or _attends_to_padding(node, size, system)
    if node.op.at is None:
        shapes = (_simple(value.shape, system) for value in (*node.inputs, *node.results))
        return (
            any(value in changed for value in node.inputs)
            or any(size in extent.free for shape in shapes for extent in shape)
            or any(size in system.simplify(e).free for e in _expressions(node.attributes))
        )
    reading = read(node)
    used = [reading.body]
    for access in reading.accesses:
        if not is_computed(node.inputs[access.operand]):
            used += [*access.coordinates, access.guard]
    if any(_mentions(system.simplify(e), (size,)) for e in used):
        return True
    return any(
        size in system.simplify(r.args[0]).free and not _stops(node, reading, r, system) for r in reading.over
    )


def _stops(node: Node, reading: Reading, r: Expr, system: System) -> bool:
    """Whether a sum over index `r` adds nothing past the result's own coordinate on an axis of that
    extent."""
    body = reading.body
    if node.op.fold != "sum" or body.op != "where" or not (body.args[2].is_const and body.args[2].value == 0):
        return False
    return any(
        system.simplify(body.args[0] & (i < r)) is FALSE for i in reading.out if i.args[0] is r.args[0]
    )


def _attends_to_padding(node: Node, size: Expr, system: System) -> bool:
    """Attention without a look at later keys keeps its rows: a masked key's value counts 0 times, which is 0
    as long as padding makes no infinity."""
    query, key, value, *mask = (_simple(operand.shape, system) for operand in node.inputs)
    batch = query[:-2]
    if not (key[:-2] == value[:-2] == batch):
        return any(size in extent.free for shape in (query, key, value) for extent in shape)
    if any(size in extent.free for extent in (query[-1], key[-1], value[-1])):
        return True
    scores = (*batch, query[-2], key[-2])
    for shape in mask:
        trailing = scores[len(scores) - len(shape) :]
        if any(given is not ONE and given is not own for given, own in zip(shape, trailing, strict=True)):
            return True
    return size in key[-2].free and not (node.attributes.get("causal") and query[-2] is key[-2])


def _simple(shape: Shape, system: System) -> Shape:
    return tuple(map(system.simplify, shape))


def _expressions(data: Any) -> Iterator[Expr]:
    """All expressions in an operator's attributes."""
    if isinstance(data, Expr):
        yield data
    elif isinstance(data, Mapping):
        for entry in data.values():
            yield from _expressions(entry)
    elif isinstance(data, tuple | list):
        for entry in data:
            yield from _expressions(entry)


def _mentions(expression: Expr, variables: tuple[Expr, ...]) -> bool:
    """Does `expression` use any of `variables`,
    other than as an index's extent or as the position that a check reports?"""
    stack, seen = [expression], set()
    while stack:
        node = stack.pop()
        if node in variables:
            return True
        if node.op == "index" or node in seen:
            continue
        seen.add(node)
        stack.extend(node.args if node.op != "check" else (*node.args[:3], node.args[4]))
    return False
