"""Reading the text form of a program: lines go through the builder, so that shapes are inferred and checked
again.

Beside what `show` prints, a text may leave out the types of nodes, write `?` for the one unknown size of a
reshape, and define functions, which are called or looped at any rank that fits:

    func project(x: float32[*s, k], w: float32[n, k])
      %y = linear(%x, %w)
      return %y
    end
    %a = call project(%x, %w)
    %b = loop step(%a, %w; count=3)
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.dtype import DTYPES
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import product
from dlcb.compiler.ir.function import Body, Function, Pattern, Sizes, call, loop
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Value
from dlcb.compiler.ir.op import Shape
from dlcb.compiler.ir.ops import OPS
from dlcb.compiler.shapes.system import Provenance, System

_SIZE = re.compile(r"size (\S+) in (\d+)\.\.(\d*)$")
_VALUE = re.compile(r"(input|parameter) (\S+): (\w+)\[(.*)\]$")
_FUNCTION = re.compile(r"func (\w+)\((.*)\)$")
_NODE = re.compile(r"(%.+?) = (?:(call|loop) )?(\w+)\((.*?)\)(?: : (.+?))?(?:  # (.*))?$")

Line = tuple[int, str]


def parse(
    text: str, system: System | None = None, shapes: Mapping[str, Sequence[Expr | int]] | None = None
) -> Graph:
    """The graph that `text` describes; `shapes` are those of inputs, by name, where the text leaves their
    rank open. Raises CompilerError naming the line that does not read, ShapeError where shapes contradict
    each other or a written type is not the inferred one."""
    build = GraphBuilder("", system)
    return build.build(*read(text, build, shapes))


def read(
    text: str, build: GraphBuilder, shapes: Mapping[str, Sequence[Expr | int]] | None = None
) -> list[Value]:
    """The values that the text returns, built with `build`."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    reader = _Reader(build, Sizes(build.system, build.shapes), {}, {}, [], shapes or {})
    return reader.read(iter([line for line in lines if line[1] and not line[1].startswith("#")]))


@dataclass
class _Call:
    """A call or loop that is being built."""

    function: str
    result: str  # the name that the text gives to what comes out
    loops: bool
    turn: int = -1

    @property
    def prefix(self) -> str:
        """What tells the names made in this turn from all others."""
        return f"{self.result}.{self.turn}." if self.loops else f"{self.result}."


class _Reader:
    """Reads the lines of the program, or of one call of a function, in a scope of their own."""

    def __init__(
        self,
        build: GraphBuilder,
        sizes: Sizes,
        values: dict[str, Value],
        functions: dict[str, Function],
        calls: list[_Call],
        shapes: Mapping[str, Sequence[Expr | int]],
    ) -> None:
        self.build, self.sizes, self.values, self.functions = build, sizes, values, functions
        self.shapes = shapes  # of inputs, where the text leaves their rank open
        self.calls = calls  # those that lead here, outermost first; shared by all readers of a text

    def read(self, lines: Iterator[Line]) -> list[Value]:
        """The values that the lines return."""
        for number, line in lines:
            try:
                if match := _FUNCTION.match(line):
                    self._function(match[1], match[2], lines)
                elif line.startswith("return "):
                    return [self.values[name] for name in split(line.removeprefix("return "))]
                else:
                    self._line(line)
            except (ValueError, KeyError, SyntaxError, TypeError) as error:
                raise CompilerError(f"line {number} does not read as a program: {line!r}: {error}") from error
        raise CompilerError("the text of a program ends without 'return'")

    def _line(self, line: str) -> None:
        if line.startswith("program "):
            self.build.name = line.removeprefix("program ")
        elif match := _SIZE.match(line):
            name, low, high = match.groups()
            self.sizes.one[name] = self.build.system.fresh(name, int(low), int(high) if high else None)
        elif match := _VALUE.match(line):
            self.values[f"%{match[2]}"] = self._value(*match.groups())
        elif match := _NODE.match(line):
            self._node(*match.groups(default=""))
        else:
            raise ValueError(
                "expected program, size, input, parameter, func, %name = operator(..), or return"
            )

    def _value(self, kind: str, name: str, dtype: str, shape: str) -> Value:
        make = self.build.input if kind == "input" else self.build.parameter
        if name not in self.shapes:
            return make(name, self._shape(shape), DTYPES[dtype])
        value = make(name, self.shapes[name], DTYPES[dtype])
        Pattern.of(f"{name}: {dtype}[{shape}]").bind(value, self.sizes, Provenance(f"input {name}"))
        return value

    # ---- nodes

    def _node(self, names: str, how: str, op: str, operands: str, types: str, source: str) -> None:
        given, _, rest = operands.partition(";")
        inputs = tuple(self.values[name] for name in split(given))
        attributes = dict(self._named(item, op, inputs) for item in split(rest))
        if not self.calls:
            self.build.source = source
        local = [name.removeprefix("%") for name in split(names)]
        if how:
            results = self._apply(how, local[0], op, inputs, attributes)
        else:
            prefix = "".join(call.prefix for call in self.calls)
            results = self.build.add(OPS[op], inputs, attributes, [prefix + name for name in local])
        if len(results) != len(local):
            raise ValueError(f"{op} has {len(results)} results, where {len(local)} names are given")
        for name, value, written in zip(local, results, split(types) or [""] * len(local), strict=True):
            if written:
                self._agree(name, value, written)
            self.values[f"%{name}"] = value

    def _agree(self, name: str, value: Value, written: str) -> None:
        dtype, _, shape = written.removesuffix("]").partition("[")
        if dtype != value.dtype.name:
            raise ValueError(f"%{name} has the type {value.dtype}, where {dtype} is written")
        if value.producer is None:
            return
        why = self.build.because(value.producer.op, value.producer.inputs)
        self.build.agree(value.shape, self._shape(shape), why, f"of the written type {written}")

    def _named(self, item: str, op: str, inputs: Sequence[Value]) -> tuple[str, Any]:
        name, _, text = item.partition("=")
        if op == "reshape" and name == "shape" and "?" in text:
            return name, self._completed(inputs[0], text)
        return name, self._attribute(text)

    def _completed(self, x: Value, text: str) -> Shape:
        """The shape of a reshape of `x`, with the size for `?` that leaves as many elements."""
        before, after = (self._shape(part) for part in text.strip("[]").split("?"))
        infer = self.build.infer(OPS["reshape"], (x,))
        unknown = infer.exact_quotient(product(x.shape), product((*before, *after)), "the unknown size")
        return (*before, unknown, *after)

    # ---- functions

    def _function(self, name: str, parameters: str, lines: Iterator[Line]) -> None:
        body: list[Line] = []
        for line in lines:
            if line[1] == "end":
                patterns = tuple(Pattern.of(text) for text in split(parameters))
                self.functions[name] = Function(name, patterns, self._body(patterns, body))
                return
            body.append(line)
        raise ValueError(f"func {name} has no 'end'")

    def _body(self, patterns: Sequence[Pattern], lines: list[Line]) -> Body:
        def build_body(build: GraphBuilder, sizes: Sizes, arguments: Sequence[Value]) -> list[Value]:
            values = {f"%{p.name}": value for p, value in zip(patterns, arguments, strict=True)}
            self.calls[-1].turn += 1
            return _Reader(build, sizes, values, self.functions, self.calls, {}).read(iter(lines))

        return build_body

    def _apply(
        self, how: str, result: str, name: str, inputs: tuple[Value, ...], attributes: dict[str, Any]
    ) -> tuple[Value, ...]:
        function = self.functions[name]
        if any(call.function == name for call in self.calls):
            raise ValueError(f"func {name} calls itself")
        count = attributes.pop("count", None)
        if how == "loop" and not isinstance(count, int):
            raise ValueError(f"a loop needs a count that is a number, found {count!r}")
        self.calls.append(_Call(name, result, how == "loop"))
        if how == "loop":
            results = loop(self.build, function, *inputs, count=count)
        else:
            results = call(self.build, function, *inputs)
        self.calls.pop()
        return results

    # ---- sizes and attributes

    def _shape(self, text: str) -> Shape:
        return tuple(extent for item in split(text) for extent in self.sizes.read(item))

    def _attribute(self, text: str) -> Any:
        if text in DTYPES:
            return DTYPES[text]
        if text in ("inf", "-inf", "nan"):
            return math.nan if text == "nan" else float(text)
        if text.startswith("{"):
            return self._shape(text[1:-1])[0]
        if text.startswith("["):
            return self._shape(text[1:-1])
        if text.startswith("("):
            return tuple(self._attribute(item) for item in split(text[1:-1]))
        return ast.literal_eval(text)


def split(text: str) -> list[str]:
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
