"""Programs of unknown rank: a text whose inputs have lists of sizes (`input x: float32[*s, n]`) comes in;
types with what is known of every rank go out, and a graph for each rank that is met.

What an operator's rule needs a rank for stays a list of sizes of its own. It is decided, and everything is
checked, when the program is read at the shapes that run time found; errors name the operator and its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Value, make_node
from dlcb.compiler.ir.op import Op, Type, broadcast_shape, same_shape
from dlcb.compiler.ir.ops.contract import linear, matmul
from dlcb.compiler.ir.reader import parse, read
from dlcb.compiler.shapes.shape import Shape, Shapes, ShapeVariable, shape
from dlcb.compiler.shapes.system import Provenance, Why, asked


@dataclass(frozen=True)
class AnyRank:
    """A program of unknown rank. The shapes in `outputs` hold a shape variable where rank is not known."""

    text: str
    outputs: tuple[Type, ...]
    shapes: Shapes

    def at(self, shapes: Mapping[str, Sequence[Expr | int]]) -> Graph:
        """The program where its inputs have these shapes. Raises ShapeError where they do not fit."""
        return parse(self.text, shapes=shapes)


def parse_any_rank(text: str) -> AnyRank:
    """What the text says of its shapes. Raises CompilerError naming the line that does not read, ShapeError
    where shapes contradict each other at every rank."""
    build = _Builder("")
    outputs = read(text, build)
    types = [Type(build.shapes.resolve(shape(*v.shape)).parts, v.dtype) for v in outputs]  # type: ignore[arg-type]
    return AnyRank(text, tuple(types), build.shapes)


class _Builder(GraphBuilder):
    """Builds values whose shapes may hold shape variables."""

    shapes: Shapes

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.shapes = Shapes(self.system)

    def input(self, name: str, shape: Sequence[Any], dtype: DType) -> Value:
        return Value(name, Type(tuple(shape), dtype), "input")

    def add(
        self, op: Op, inputs: tuple[Value, ...], attributes: Mapping[str, Any], names: Sequence[str] = ()
    ) -> tuple[Value, ...]:
        shapes = [self.shapes.resolve(shape(*value.shape)) for value in inputs]
        types = [Type(s.parts, v.dtype) for s, v in zip(shapes, inputs, strict=True)]  # type: ignore[arg-type]
        if all(s.is_list for s in shapes):
            known = tuple(replace(v, type=t) for v, t in zip(inputs, types, strict=True))
            return super().add(op, known, attributes, names)
        dtypes = op.dtype(*types, **attributes)
        dtypes = dtypes if isinstance(dtypes, tuple) else (dtypes,)
        rule = _RULES.get(op) or _RULES.get(op.shape)
        why = asked(self.because(op, inputs))
        if rule is None:
            found = [shape(self.shapes.fresh(op.name)) for _ in dtypes]
        else:
            found = [rule(self.shapes, shapes, why)]
        results = [Type(s.parts, dtype) for s, dtype in zip(found, dtypes, strict=True)]  # type: ignore[arg-type]
        return make_node(op, inputs, attributes, self.source, names, results).results

    def agree(self, found: Sequence[Any], expected: Sequence[Any], why: Why, what: str) -> None:
        because = asked(why)
        detail = ", ".join(filter(None, (what, because.detail)))
        self.shapes.same(shape(*found), shape(*expected), replace(because, detail=detail))


# ---- shape rules that need no rank, by operator or by the rule that it has where rank is known

_Rule = Callable[[Shapes, list[Shape], Provenance], Shape]


def _broadcast(shapes: Shapes, operands: list[Shape], why: Provenance) -> Shape:
    return reduce(lambda a, b: shapes.broadcast(a, b, why), operands)


def _first(shapes: Shapes, operands: list[Shape], why: Provenance) -> Shape:
    return operands[0]


def _matmul(shapes: Shapes, operands: list[Shape], why: Provenance) -> Shape:
    """[*s, n, k] and [*t, k, m] -> (*s and *t) ++ [n, m]"""
    a, b = operands
    if any(len(x.parts) < 2 or isinstance(part, ShapeVariable) for x in operands for part in x.parts[-2:]):
        return shape(shapes.fresh("matmul"))  # one of the two may have one axis alone
    shapes.same(shape(a.parts[-1]), shape(b.parts[-2]), why)
    return shape(shapes.broadcast(shape(*a.parts[:-2]), shape(*b.parts[:-2]), why), a.parts[-2], b.parts[-1])


def _linear(shapes: Shapes, operands: list[Shape], why: Provenance) -> Shape:
    """[*s, k] and [n, k] -> [*s, n]"""
    lead, features, width = shapes.fresh("lead"), shapes.system.fresh("k"), shapes.system.fresh("n")
    shapes.same(operands[0], shape(lead, features), why)
    shapes.same(operands[1], shape(width, features), why)
    return shapes.resolve(shape(lead, width))


_RULES: dict[Any, _Rule] = {broadcast_shape: _broadcast, same_shape: _first, matmul: _matmul, linear: _linear}
