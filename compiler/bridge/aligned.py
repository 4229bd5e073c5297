"""Traces of one program at different sizes, node by node side by side."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node as FxNode

from dlcb.compiler.bridge import aten
from dlcb.compiler.bridge.capture import node_line
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.errors import CompilerError


class Disagreement(CompilerError):
    """Traces at different sizes are not one program, or a literal in them follows nothing that is known."""


def align(programs: Sequence[Trace]) -> list[tuple[FxNode, ...]]:
    """The nodes of all programs side by side, checks left out. Raises Disagreement at the first that
    differs."""
    columns = [
        [node for node in program.nodes if str(node.target) not in aten.ASSERTIONS] for program in programs
    ]
    for row in zip(*columns, strict=False):
        if len({_form(node) for node in row}) > 1:
            found = " and ".join(sorted({_form(node) for node in row}))
            raise Disagreement(
                f"the graph changes with the sizes: {found}",
                stage="generalize",
                source_line=node_line(row[0]),
            )
    if len({len(column) for column in columns}) > 1:
        raise Disagreement("the graph's length changes with the sizes", stage="generalize")
    return list(zip(*columns, strict=True))


def _form(node: FxNode) -> str:
    """What a call is, but for the values it is given."""
    if node.op != "call_function":
        return node.op
    keywords = "".join(f", {name}" for name in sorted(node.kwargs))
    return f"{node.target} with {len(node.args)} arguments{keywords}"
