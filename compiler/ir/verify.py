"""What a graph must be at each stage, as a small table, and the check that it is.

Every graph: operators of the table, values defined before they are read and named once, types as the
declarations say, sizes made of known variables."""

from __future__ import annotations

from collections.abc import Iterable

from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.ir.ops import OPS

COORDINATES = frozenset({"pointwise", "move", "create", "reduce", "index"})
STAGES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    # stage: kinds that may occur, and operators of other kinds that may as well
    "captured": (COORDINATES | {"contract", "composite", "opaque"}, frozenset()),
    "decomposed": (COORDINATES | {"contract", "opaque"}, frozenset({"attention"})),
}


def verify(graph: Graph, stage: str) -> None:
    """Raises CompilerError at the first node that `stage` does not allow or that is not well formed."""
    kinds, others = STAGES[stage]
    known: set[Value] = {*graph.inputs, *graph.parameters}
    names: set[str] = set()
    sizes = _variables(known)
    for value in known:
        _named_once(names, value, stage)
    for node in graph.nodes:
        if node.op.kind not in kinds and node.op.name not in others:
            allowed = ", ".join(sorted(kinds | others))
            raise _error(
                node, stage, f"operator {node.op.name} of kind {node.op.kind}, where {allowed} may stand"
            )
        _well_formed(node, known, sizes, stage)
        for value in node.results:
            _named_once(names, value, stage)
        known.update(node.results)
    for value in graph.outputs:
        if value not in known:
            raise CompilerError(f"output {value!r} is not a value of {graph.name}", stage=stage)


def _well_formed(node: Node, known: set[Value], sizes: set[Expr], stage: str) -> None:
    if OPS.get(node.op.name) is not node.op:
        raise _error(node, stage, f"{node.op.name} is not an operator of the table")
    for value in node.inputs:
        if value not in known:
            raise _error(node, stage, f"{value!r} is read before it is defined")
    dtypes = node.op.dtype(*(value.type for value in node.inputs), **node.attributes)
    expected = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    found = tuple(value.dtype for value in node.results)
    if found != expected:
        raise _error(node, stage, f"results of type {found}, where {node.op.name} gives {expected}")
    if node.op.kind == "opaque":  # the one place where sizes of run time come from
        sizes |= _variables(node.results)
    unknown = _variables(node.results) - sizes
    if unknown:
        raise _error(
            node, stage, f"sizes {sorted(map(repr, unknown))} that no input, parameter or eager result has"
        )


def _named_once(names: set[str], value: Value, stage: str) -> None:
    if value.name in names:
        raise CompilerError(f"two values are named '{value.name}'", stage=stage)
    names.add(value.name)


def _variables(values: Iterable[Value]) -> set[Expr]:
    return {symbol for value in values for extent in value.shape for symbol in extent.free}


def _error(node: Node, stage: str, message: str) -> CompilerError:
    return CompilerError(message, stage=stage, node=repr(node.result), source_line=node.source)
