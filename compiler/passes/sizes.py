"""What both proofs about sizes ask of shapes and expressions. An axis that merges a size with others is seen
as the axes that it was merged from: `outer` and what lies within; which they are is tried from the
operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, product
from dlcb.compiler.ir.graph import Node
from dlcb.compiler.ir.op import Shape
from dlcb.compiler.shapes.system import System


def simple(shape: Shape, system: System) -> Shape:
    """The sizes as simply as what is known allows."""
    return tuple(map(system.simplify, shape))


def splits(
    extent: Expr, sources: Iterable[tuple[Shape, int, Expr]], system: System
) -> Iterator[tuple[Expr, Expr]]:
    """(outer, within) whose product is `extent`, as a reshape may have merged it. Each of `sources` is an
    operand's (shape, axis, outer): there the size lies on `axis`, behind `outer` elements of the same axis,
    and a merging puts those of axes before it in front. (1, extent) is always tried, and is the last."""
    found: dict[Expr, None] = {}
    if extent is ONE:
        sources = ()
    for shape, axis, outer in sources:
        found.setdefault(outer)
        for first in reversed(range(axis)):
            found.setdefault(system.simplify(product(shape[first:axis]) * outer))
    for outer in found:
        within = system.simplify(extent // outer) if outer is not ONE else extent
        if outer is not ONE and system.simplify(outer * within) is extent:
            yield outer, within
    yield ONE, extent


def expressions(data: Any) -> Iterator[Expr]:
    """All expressions in an operator's attributes."""
    if isinstance(data, Expr):
        yield data
    elif isinstance(data, Mapping):
        for entry in data.values():
            yield from expressions(entry)
    elif isinstance(data, tuple | list):
        for entry in data:
            yield from expressions(entry)


def uses(node: Node) -> str:
    """That a node uses a size, in words; a call that PyTorch runs goes by its own name."""
    name = node.attributes["target"] if node.op.name == "eager" else node.op.name
    return f"{name} uses it{f' ({node.source})' if node.source else ''}"


def knows(node: Node, size: Expr, system: System) -> bool:
    """Whether `size` is in a shape that a node meets or in an attribute of it."""
    shapes = [extent for value in (*node.inputs, *node.results) for extent in value.shape]
    every = (*shapes, *expressions(node.attributes))
    return any(not e.is_const and size in system.simplify(e).free for e in every)


def mentions(expression: Expr, variables: tuple[Expr, ...]) -> bool:
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
