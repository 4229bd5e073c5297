"""Proof that rows of the outputs depend on the same rows of the inputs alone,
so that requests may be stacked.

A size variable is a batch size when every operator reads its batch-carrying operands at exactly its own batch
coordinate and uses neither that coordinate nor the batch size for anything else. The operators' coordinate
rules are the evidence; an operator without one (PyTorch runs it) ends the proof."""

from __future__ import annotations

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.passes.access import is_computed, read
from dlcb.compiler.shapes.system import System
from dlcb.compiler.signature import BatchAxes


def batch_axes(graph: Graph) -> BatchAxes | None:
    """The batch axes of a graph whose composites are all expanded,
    or None where no size variable is proven to be one."""
    for candidate in dict.fromkeys(
        size for value in graph.inputs for size in value.shape if size.op == "size"
    ):
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
