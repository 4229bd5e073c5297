"""How values that library calls make lie in memory. Everything else is row-major.

PyTorch's fused attention gives its result as [batch, heads, length, width] over memory ordered batch, length,
heads, width, so that merging the heads again moves nothing. The runtime compares each result with what is
declared here and copies where a library version disagrees: a wrong row costs a copy, never an answer."""

from __future__ import annotations

from collections.abc import Callable

from dlcb.compiler.ir.graph import Node, Value
from dlcb.compiler.passes.steps import Layout, row_major


def _heads_inside(node: Node) -> Layout:
    batch, heads, length, width = node.result.shape
    strides = row_major((batch, length, heads, width)).strides
    return Layout((strides[0], strides[2], strides[1], strides[3]))


_LAYOUTS: dict[str, Callable[[Node], Layout]] = {"attention": _heads_inside}


def declared_layout(value: Value) -> Layout:
    """The layout of a value that owns its memory."""
    node = value.producer
    if node is not None and node.op.name in _LAYOUTS and value.rank == 4:
        return _LAYOUTS[node.op.name](node)
    return row_major(value.shape)
