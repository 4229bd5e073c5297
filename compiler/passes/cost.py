"""Rough costs that fusion and scheduling decide by: what repeating a scalar operator costs beside a memory access."""

from __future__ import annotations

from dlcb.compiler.ir.graph import Node

# operators of the graph whose element costs more than reading it back from a cache
_EXPENSIVE = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh erf pow atan2 sigmoid silu gelu fmod".split()
)


def is_expensive(node: Node) -> bool:
    """Would computing this again cost more than writing it once and reading it back? Table look-ups count: they miss caches."""
    return node.op.name in _EXPENSIVE or node.op.kind == "index"


def is_cheap(node: Node) -> bool:
    """May this be computed in several kernels that read it, rather than be written to memory?"""
    return not is_expensive(node) and not node.op.fold
