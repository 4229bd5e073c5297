"""Two proofs about the sizes of a program, on which the server's batching rests: that rows of the outputs
depend on the same rows of the inputs alone, so that requests may be stacked, and that filling an axis up at
its end changes nothing that was there before, so that requests of different lengths may be.

The operators' coordinate rules are the evidence; an operator without one (PyTorch runs it) ends a proof that
it touches. A failed proof of padding says where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import FALSE, ONE
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

    A size variable is a batch size when every operator reads its batch-carrying operands at exactly its own
    batch coordinate and uses neither that coordinate nor the batch size for anything else."""
    for candidate in _sizes_of_inputs(graph):
        if graph.system.simplify(candidate) is not candidate:
            continue
        axes = _carry(graph, candidate)
        if axes is not None and all(output in axes for output in graph.outputs):
            return BatchAxes(
                candidate.value,
                {value.name: axes[value] for value in graph.inputs if value in axes},
                {str(k): axes[value] for k, value in enumerate(graph.outputs)},
            )
    return None


def _sizes_of_inputs(graph: Graph) -> dict[Expr, None]:
    return dict.fromkeys(size for value in graph.inputs for size in value.shape if size.op == "size")


def _carry(graph: Graph, batch: Expr) -> dict[Value, int] | None:
    """For each value that carries the batch the axis it does so on; None where the proof fails."""
    axes: dict[Value, int] = {}
    for value in graph.inputs:
        carrying = [axis for axis, size in enumerate(value.shape) if batch in size.free]
        if len(carrying) > 1 or any(value.shape[axis] is not batch for axis in carrying):
            return None
        axes.update((value, axis) for axis in carrying)
    for node in graph.nodes:
        if _mixes(node, batch, axes, graph.system):
            return None
    return axes


def _mixes(node: Node, batch: Expr, axes: dict[Value, int], system: System) -> bool:
    """True where rows mix or the proof cannot go on;
    else the axis that the result carries the batch on enters `axes`."""
    if node.op.at is None:
        return any(value in axes for value in node.inputs) or any(
            batch in s.free for r in node.results for s in r.shape
        )
    shape = node.result.shape
    carrying = [axis for axis, size in enumerate(shape) if size is batch]
    if any(batch in size.free for axis, size in enumerate(shape) if axis not in carrying):
        return True
    reading = read(node)
    accesses = [
        (access.operand, [system.simplify(c) for c in access.coordinates], system.simplify(access.guard))
        for access in reading.accesses
        if not is_computed(node.inputs[access.operand])
    ]
    batched = [k for k, value in enumerate(node.inputs) if value in axes]
    if not batched and (not carrying or is_computed(node.result)):
        return False  # what is made of coordinates alone shows in the bodies of its readers
    for axis in carrying:
        row = reading.out[axis]
        others = [system.simplify(reading.body), *(guard for _, _, guard in accesses)]
        for operand, coordinates, _ in accesses:
            carried = axes.get(node.inputs[operand])
            if carried is not None and coordinates[carried] is not row:
                break
            others += [c for place, c in enumerate(coordinates) if place != carried]
        else:
            if not any(_mentions(expression, (row, batch)) for expression in others):
                axes[node.result] = axis
                return False
    return True


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
