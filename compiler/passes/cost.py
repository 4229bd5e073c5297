"""Rough costs that fusion and scheduling decide by:
what repeating a scalar operator costs beside a memory access."""

from __future__ import annotations

from dlcb.compiler.expr.ops import TRANSCENDENTAL
from dlcb.compiler.ir.graph import Node, Value
from dlcb.compiler.passes.access import read


def is_expensive(node: Node) -> bool:
    """Would computing this again cost more than writing it once and reading it back? Table look-ups count:
    they miss caches."""
    if node.op.kind == "index":
        return True
    return node.op.kind == "pointwise" and read(node).dearest >= TRANSCENDENTAL


def is_cheap(node: Node) -> bool:
    """May this be computed in several kernels that read it, rather than be written to memory?

    Only where that reads no more memory than its result would: a residual stream, added up in every kernel
    that needs it, would be read once more for each layer."""
    if is_expensive(node) or node.op.fold:
        return False
    large = [
        value for value in node.inputs if value.kind != "parameter" and value.rank and not _is_fill(value)
    ]
    return len(large) <= 1


def _is_fill(value: Value) -> bool:
    return value.producer is not None and value.producer.op.kind == "create"
