"""Rough costs that fusion and scheduling decide by:
what repeating a scalar operator costs beside a memory access."""

from __future__ import annotations

from dlcb.compiler.ir.graph import Node, Value

# operators of the graph whose element costs more than reading it back from a cache
_EXPENSIVE = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "erf",
        "pow",
        "atan2",
        "sigmoid",
        "silu",
        "gelu",
        "fmod",
    ]
)


def is_expensive(node: Node) -> bool:
    """Would computing this again cost more than writing it once and reading it
    back? Table look-ups count: they miss caches."""
    return node.op.name in _EXPENSIVE or node.op.kind == "index"


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
