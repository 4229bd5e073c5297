"""A kernel that cannot be generated within its limits, as smaller ones: what the first nodes of its group
make is written to memory, where the others read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlcb.compiler.ir.graph import Node
from dlcb.compiler.passes.fuse import fuse
from dlcb.compiler.passes.layout import declared_layout
from dlcb.compiler.passes.steps import Group, KernelStep, Schedule, Step


def divide(plan: Schedule, group: Group) -> tuple[Schedule, tuple[Group, ...]]:
    """`plan` with kernels of about half the nodes in place of `group`, and their groups in order; none where
    it is one operator."""
    if not is_divisible(group):
        return plan, ()
    made: list[Step] = []
    for half, letter in zip(_halves(group), "ab", strict=True):
        read = {value for node in movable(group) if node not in half for value in node.inputs}
        kept = [r for node in half for r in node.results if r in read or r in group.outputs]
        nodes = [node for node in group.nodes if node in half or _is_read_fill(node, half)]
        made += fuse(plan.graph, nodes, kept, prefix=f"{group.name}_{letter}", views=False)
    layouts = dict(plan.layouts)
    layouts.update((value, (value, declared_layout(value))) for step in made for value in step.outputs)
    parts = tuple(step.group for step in made if isinstance(step, KernelStep))
    divided = replace(
        plan,
        prologue=_replaced(plan.prologue, group, made),
        steps=_replaced(plan.steps, group, made),
        layouts=layouts,
    )
    return divided, parts


def is_divisible(group: Group) -> bool:
    return len(movable(group)) > 1


def movable(group: Group) -> list[Node]:
    """Its nodes but for fills, which are computed wherever they are read."""
    return [
        node
        for node in group.nodes
        if node.op.kind != "create" or not set(group.outputs).isdisjoint(node.results)
    ]


def _halves(group: Group) -> tuple[list[Node], ...]:
    """What can be moved of `group` in two lists, cut in the middle half where the fewest values cross."""
    nodes = movable(group)
    count = len(nodes)
    place = {node: k for k, node in enumerate(nodes)}
    last = {
        value: max((place[n] for n in nodes if value in n.inputs), default=-1)
        for node in nodes
        for value in node.results
    }

    def crossing(cut: int) -> int:
        return sum(last[value] >= cut for node in nodes[:cut] for value in node.results)

    cuts = range(max(count // 4, 1), max(count - count // 4, 2))
    cut = min(cuts, key=lambda cut: (crossing(cut), abs(2 * cut - count)))
    return nodes[:cut], nodes[cut:]


def _is_read_fill(node: Node, nodes: Sequence[Node]) -> bool:
    return node.op.kind == "create" and any(r in each.inputs for each in nodes for r in node.results)


def _replaced(steps: Sequence[Step], group: Group, made: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(
        new
        for step in steps
        for new in (made if isinstance(step, KernelStep) and step.group is group else (step,))
    )
