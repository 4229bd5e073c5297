"""A program as data: inputs and steps by name, so that it can be drawn, built as a graph, spelled in
PyTorch, printed and made smaller. Sizes are expressions over named size variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.ir import ops, text
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Value
from dlcb.compiler.passes.decompose import decompose

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Input:
    """A tensor from outside. `values` says how it is filled: "plain" (multiples of a quarter, exact in
    every float type), "finite" (the same, never made special), "special" (with NaN and infinities),
    "wide" (all magnitudes), "divisor" (no zeros), "positive", or a pair of sizes that bound indices."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    values: str | tuple[Expr, Expr] = "plain"
    parameter: bool = False


@dataclass(frozen=True)
class Step:
    """One operator applied to values by name; `name` is its result's."""

    name: str
    op: str
    operands: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """`outputs` are names of values. `seed` is where it came from. `rounded` names the steps whose floats
    are not exact: on them no decision depends."""

    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    rounded: frozenset[str] = frozenset()

    @property
    def size_names(self) -> tuple[str, ...]:
        """The free dims, in the order in which inputs show them."""
        return tuple(dict.fromkeys(s.value for given in self.inputs for s in given.shape if s.op == "size"))

    @property
    def given(self) -> tuple[Input, ...]:
        """The inputs that are no parameters."""
        return tuple(x for x in self.inputs if not x.parameter)


def graph(program: Program) -> Graph:
    """The program as a graph with a system of its own. Raises ShapeError where its sizes contradict each
    other."""
    build, values = _built(program)
    return build.build(*(values[name] for name in program.outputs))


def types(program: Program) -> dict[str, DType]:
    """The element type of every value."""
    return {name: value.dtype for name, value in _built(program)[1].items()}


def _built(program: Program) -> tuple[GraphBuilder, dict[str, Value]]:
    build = GraphBuilder(f"p{program.seed}")
    for name in program.size_names:
        build.system.fresh(name)
    values: dict[str, Value] = {}
    for x in program.inputs:
        values[x.name] = (build.parameter if x.parameter else build.input)(x.name, x.shape, x.dtype)
    for step in program.steps:
        operands = [values[name] for name in step.operands]
        values[step.name] = build.apply(ops.OPS[step.op], *operands, **step.attributes)
    return build, values


def numbers(value: Any, sizes: Sizes) -> Any:
    """An attribute with its sizes evaluated."""
    if isinstance(value, Expr):
        return evaluate(value, sizes)
    if isinstance(value, tuple):
        return tuple(numbers(item, sizes) for item in value)
    return value


def operators(built: Graph) -> set[str]:
    """The operators of a graph, and those that its composites are made of."""
    return {node.op.name for g in (built, decompose(built, keep=())) for node in g.nodes}


def show(program: Program) -> str:
    """The program as text, for people."""
    return text.show(graph(program))
