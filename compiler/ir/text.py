"""The text form of a program. `show` prints a graph, one line a node; `parse` reads it back through the
builder, so that shapes are checked again. What is printed and parsed prints the same.

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

import ast
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from dlcb.compiler.dtype import DTYPES, DType
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.text import parse as parse_expression
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value
from dlcb.compiler.ir.op import Shape
from dlcb.compiler.ir.ops import OPS
from dlcb.compiler.shapes.system import System

# ---- printing


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


# ---- parsing

_SIZE = re.compile(r"size (\S+) in (\d+)\.\.(\d*)$")
_VALUE = re.compile(r"(input|parameter) (\S+): (\w+)\[(.*)\]$")
_NODE = re.compile(r"(%.+?) = (\w+)\((.*)\) : (.+?)(?:  # (.*))?$")


def parse(text: str, system: System | None = None) -> Graph:
    """The graph that `text` describes. Raises CompilerError naming the line that does not read, ShapeError
    where shapes contradict each other or a written type is not the inferred one."""
    build = GraphBuilder("", system)
    values: dict[str, Value] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            outputs = _line(build, values, line.strip())
        except (ValueError, KeyError, SyntaxError) as error:
            raise CompilerError(f"line {number} does not read as a program: {line!r}: {error}") from error
        if outputs is not None:
            return build.build(*outputs)
    raise CompilerError("the text of a program ends without 'return'")


def _line(build: GraphBuilder, values: dict[str, Value], line: str) -> list[Value] | None:
    """Take in one line; the outputs if it is the last."""
    keyword, _, rest = line.partition(" ")
    if keyword == "program":
        build.name = rest
    elif keyword == "return":
        return [values[name] for name in _split(rest)]
    elif match := _SIZE.match(line):
        name, low, high = match.groups()
        build.system.fresh(name, int(low), int(high) if high else None)
    elif match := _VALUE.match(line):
        kind, name, dtype, shape = match.groups()
        make = build.input if kind == "input" else build.parameter
        values[f"%{name}"] = make(name, _sizes(shape), DTYPES[dtype])
    elif match := _NODE.match(line):
        _node(build, values, *match.groups(default=""))
    else:
        raise ValueError("expected program, size, input, parameter, %name = operator(..) : type, or return")
    return None


def _node(
    build: GraphBuilder, values: dict[str, Value], names: str, op: str, call: str, types: str, source: str
) -> None:
    operands, _, attributes = call.partition(";")
    pairs = (item.partition("=") for item in _split(attributes))
    given = {name: _read_attribute(text) for name, _, text in pairs}
    build.source = source
    inputs = tuple(values[name] for name in _split(operands))
    results = build.add(OPS[op], inputs, given, [name.removeprefix("%") for name in _split(names)])
    for value, name, written in zip(results, _split(names), _split(types), strict=True):
        dtype, _, shape = written.removesuffix("]").partition("[")
        if dtype != value.dtype.name:
            raise ValueError(f"{name} has the type {value.dtype}, where {dtype} is written")
        infer = build.infer(value.producer.op, inputs) if value.producer else None
        for axis, (found, extent) in enumerate(zip(value.shape, _sizes(shape), strict=True)):
            if infer is not None and found is not extent:
                infer.equal(found, extent, f"axis {axis} of the written type {written}")
        values[name] = value


def _sizes(text: str) -> Shape:
    return tuple(parse_expression(item) for item in _split(text))


def _read_attribute(text: str) -> Any:
    if text in DTYPES:
        return DTYPES[text]
    if text in ("inf", "-inf", "nan"):
        return math.nan if text == "nan" else float(text)
    if text.startswith("{"):
        return parse_expression(text[1:-1])
    if text.startswith("["):
        return _sizes(text[1:-1])
    if text.startswith("("):
        return tuple(_read_attribute(item) for item in _split(text[1:-1]))
    return ast.literal_eval(text)


def _split(text: str) -> list[str]:
    """The items between commas that stand outside brackets and quotes."""
    items, depth, quote, start = [], 0, "", 0
    for place, character in enumerate(text):
        if quote:
            # a backslash escapes, as in Python
            if character == quote and text[place - 1] != "\\":
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    return _stripped([*items, text[start:]])


def _stripped(items: Iterable[str]) -> list[str]:
    return [item.strip() for item in items if item.strip()]
