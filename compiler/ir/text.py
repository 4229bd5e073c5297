"""The text form of a program. `show` prints a graph, one line a node; `parse` reads it back. What is printed
and parsed prints the same.

    program example
    size n in 0..
    input x: float32[n, 8]
    parameter layer.weight: float32[4, 8]
    %linear_0 = linear(%x, %layer.weight) : float32[n, 4]  # model.py:12
    %softmax_1 = softmax(%linear_0; axis=1) : float32[n, 4]
    return %softmax_1

In attributes `{n + 1}` is a size, `[n, 8]` a tuple of sizes, `(0, 1)` a tuple of other values; a bare word
is an element type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlcb.compiler.dtype import DType
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir.graph import Graph, Node
from dlcb.compiler.ir.reader import parse

__all__ = ["parse", "show"]


def show(graph: Graph) -> str:
    """The program as text; raises CompilerError for an attribute that has no text form."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
    yield f"program {graph.name}"
    for symbol in _symbols(graph):
        bounds = graph.system.bounds(symbol)
        yield f"size {symbol.value} in {bounds.low or 0}..{'' if bounds.high is None else bounds.high}"
    for value in graph.inputs:
        yield f"input {value.name}: {value.type!r}"
    for value in graph.parameters:
        yield f"parameter {value.name}: {value.type!r}"
    for node in graph.nodes:
        yield _node_line(node)
    yield f"return {', '.join(map(repr, graph.outputs))}"


def _node_line(node: Node) -> str:
    results = ", ".join(map(repr, node.results))
    operands = ", ".join(map(repr, node.inputs))
    attributes = ", ".join(f"{name}={_attribute(value)}" for name, value in node.attributes.items())
    call = f"{node.op.name}({operands}{'; ' if attributes else ''}{attributes})"
    types = ", ".join(repr(value.type) for value in node.results)
    return f"{results} = {call} : {types}" + (f"  # {node.source}" if node.source else "")


def _symbols(graph: Graph) -> list[Expr]:
    """The size variables of the program, in the order in which they are met."""
    found: dict[Expr, None] = {}
    for value in graph.values():
        for extent in value.shape:
            found |= dict.fromkeys(sorted(extent.free, key=lambda symbol: symbol.value))
        if value.producer is not None:
            for attribute in value.producer.attributes.values():
                for expression in _expressions(attribute):
                    found |= dict.fromkeys(sorted(expression.free, key=lambda symbol: symbol.value))
    return list(found)


def _expressions(attribute: Any) -> Iterator[Expr]:
    if isinstance(attribute, Expr):
        yield attribute
    elif isinstance(attribute, tuple):
        for item in attribute:
            yield from _expressions(item)


def _attribute(value: Any) -> str:
    if isinstance(value, Expr):
        return f"{{{value!r}}}"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        if value and all(isinstance(item, Expr) for item in value):
            return f"[{', '.join(map(repr, value))}]"
        return f"({', '.join(map(_attribute, value))}{',' if len(value) == 1 else ''})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise CompilerError(f"an attribute of type {type(value).__name__} has no text form: {value!r}")
