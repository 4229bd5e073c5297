"""Proof that rows of the outputs depend on the same rows of the inputs alone, so that requests may be stacked.

A size variable is a batch size when every operator reads its batch-carrying operands at exactly its own batch coordinate
and uses neither that coordinate nor the batch size for anything else. The operators' coordinate rules are the evidence;
an operator without one (PyTorch runs it) ends the proof."""

from __future__ import annotations

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.passes.access import read
from dlcb.compiler.signature import BatchAxes


def batch_axes(graph: Graph) -> BatchAxes | None:
    """The batch axes of a graph whose composites are all expanded, or None where no size variable is proven to be one."""
    for candidate in dict.fromkeys(size for value in graph.inputs for size in value.shape if size.op == "size"):
        axes = _carry(graph, candidate)
        if axes is not None and all(output in axes for output in graph.outputs):
            return BatchAxes(
                candidate.value,
                {value.name: axes[value] for value in graph.inputs if value in axes},
                {str(k): axes[value] for k, value in enumerate(graph.outputs)},
            )
    return None


def _carry(graph: Graph, batch: Expr) -> dict[Value, int] | None:
    """For each value that carries the batch the axis it does so on; None where the proof fails."""
    axes: dict[Value, int] = {}
    for value in graph.inputs:
        carrying = [axis for axis, size in enumerate(value.shape) if batch in size.free]
        if len(carrying) > 1 or any(value.shape[axis] is not batch for axis in carrying):
            return None
        axes.update((value, axis) for axis in carrying)
    for node in graph.nodes:
        mixed = _carry_through(node, batch, axes)
        if mixed:
            return None
    return axes


def _carry_through(node: Node, batch: Expr, axes: dict[Value, int]) -> bool:
    """Enter the node's results into `axes`; True where rows mix or the proof cannot go on."""
    if node.op.at is None:
        return any(value in axes for value in node.inputs) or any(batch in s.free for r in node.results for s in r.shape)
    shape = node.result.shape
    carrying = [axis for axis, size in enumerate(shape) if size is batch]
    if any(batch in size.free for axis, size in enumerate(shape) if axis not in carrying):
        return True
    reading = read(node)
    if not any(value in axes for value in node.inputs):
        if not carrying:
            return False
        # made without a batched operand: a fill or an expansion, the same for every row on some axis
        if any(batch in e.free for e in (reading.body, *(c for a in reading.accesses for c in a.coordinates))):
            return True
        return _uses(reading, carrying[0], axes, node, batch) or _enter(node, carrying[0], axes)
    for axis in carrying:
        if not _uses(reading, axis, axes, node, batch):
            return _enter(node, axis, axes)
    return True


def _enter(node: Node, axis: int, axes: dict[Value, int]) -> bool:
    axes[node.result] = axis
    return False


def _uses(reading, axis: int, axes: dict[Value, int], node: Node, batch: Expr) -> bool:  # noqa: ANN001
    """Is the output's coordinate on `axis`, or the batch size, used for more than reading the same row of the operands?"""
    row = reading.out[axis]
    if row in reading.body.free or _mentions(reading.body, batch):
        return True
    for access in reading.accesses:
        operand = node.inputs[access.operand]
        for position, coordinate in enumerate(access.coordinates):
            if operand in axes and position == axes[operand]:
                if coordinate is not row:
                    return True
            elif row in coordinate.free or _mentions(coordinate, batch):
                return True
        if row in access.guard.free or _mentions(access.guard, batch):
            return True
    return False


def _mentions(expression: Expr, batch: Expr) -> bool:
    """Does `expression` use the batch size other than as the extent of an index?"""
    stack, seen = [expression], set()
    while stack:
        node = stack.pop()
        if node is batch:
            return True
        if node.op != "index" and node not in seen:
            seen.add(node)
            stack.extend(node.args)
    return False
