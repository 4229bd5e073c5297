"""The tensor program: values, the nodes that make them, and a builder that checks shapes while it builds.

Nodes are immutable; applying the same operator to the same values with the same attributes gives the same
value. Shape constraints go into the builder's system as nodes are added, so a contradiction is an error at
the line that causes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dlcb.compiler.dtype import DType
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir.op import Inference, Op, Type
from dlcb.compiler.shapes.shape import Shapes
from dlcb.compiler.shapes.system import Provenance, System, Why, asked


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the program. Identity is equality. `kind` is "input", "parameter" or "node"."""

    name: str
    type: Type
    kind: str
    producer: Node | None = field(default=None, repr=False)
    position: int = 0  # among its producer's results

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def made_by(self) -> Node:
        """The producer of a value that is known to have one."""
        assert self.producer is not None, f"{self} is an {self.kind}: no node makes it"
        return self.producer

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an operator. `attributes` are plain, hashable values; `source` is "file:line" of the
    user's code."""

    op: Op
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    source: str = ""
    results: tuple[Value, ...] = ()

    @property
    def result(self) -> Value:
        return self.results[0]

    @cached_property
    def content(self) -> Hashable:
        """The attributes as one value to compare by: 1, 1.0 and True differ."""
        return _content(self.attributes)


@dataclass(frozen=True)
class Graph:
    """A program: inputs and parameters, nodes in topological order, outputs, and what is known of its sizes.

    `folded` marks nodes that depend on parameters alone."""

    name: str
    inputs: tuple[Value, ...]
    parameters: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    system: System

    def users(self) -> dict[Value, list[Node]]:
        """For each value the nodes that read it, in order."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                users.setdefault(value, []).append(node)
        return users

    def values(self) -> Iterator[Value]:
        yield from self.inputs
        yield from self.parameters
        for node in self.nodes:
            yield from node.results


class GraphBuilder:
    """Builds a Graph. `apply` is the one way to add a node."""

    shapes: Shapes | None = None  # what is known of lists of sizes, where ranks are unknown

    def __init__(self, name: str, system: System | None = None) -> None:
        self.name = name
        self.system = system if system is not None else System()
        self._inputs: list[Value] = []
        self.parameters: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._made: dict[tuple, tuple[Value, ...]] = {}
        self._taken: set[str] = set()  # names of values: no two share one
        self.source = ""  # "file:line" given to nodes that are added from now on

    def input(self, name: str, shape: Sequence[Expr | int], dtype: DType) -> Value:
        value = Value(name, Type(tuple(as_expr(d) for d in shape), dtype), "input")
        self._inputs.append(value)
        self._taken.add(name)
        return value

    def parameter(self, name: str, shape: Sequence[Expr | int], dtype: DType) -> Value:
        """A tensor known at load: a weight or a constant, by name."""
        value = Value(name, Type(tuple(as_expr(d) for d in shape), dtype), "parameter")
        self.parameters[name] = value
        self._taken.add(name)
        return value

    def adopt(self, graph: Graph) -> None:
        """Takes over the inputs and parameters of `graph`, and leaves the names of all its values to them."""
        self._inputs = list(graph.inputs)
        self.parameters = {value.name: value for value in graph.parameters}
        self._taken.update(value.name for value in graph.values())

    def apply(self, op: Op, *inputs: Value, **attributes: Any) -> Value:
        """The (first) result of `op`. Raises ShapeError where the operands' shapes contradict each other."""
        return self.apply_all(op, *inputs, **attributes)[0]

    def apply_all(self, op: Op, *inputs: Value, **attributes: Any) -> tuple[Value, ...]:
        """All results of `op`: its shape rule gives one Shape, or a tuple of Shapes; likewise its dtype
        rule."""
        return self.add(op, inputs, attributes)

    def add(
        self, op: Op, inputs: tuple[Value, ...], attributes: Mapping[str, Any], names: Sequence[str] = ()
    ) -> tuple[Value, ...]:
        """As `apply_all`; `names` are the results' names, which are made up if not given."""
        content = _content(attributes)
        key = (op.name, inputs, content)
        if key in self._made:
            return self._made[key]
        types = [value.type for value in inputs]
        shapes: Any = op.shape(self.infer(op, inputs), *types, **attributes)
        dtypes = op.dtype(*types, **attributes)
        if not isinstance(dtypes, tuple):
            shapes, dtypes = (shapes,), (dtypes,)
        names = names or self._fresh_names(op, len(dtypes))
        self._taken.update(names)
        simplify = self.system.simplify
        types = [
            Type(tuple(simplify(as_expr(extent)) for extent in shape), dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        node = make_node(op, inputs, attributes, self.source, names, types, content)
        self._nodes.append(node)
        self._made[key] = node.results
        return node.results

    def keep(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """The results of `node` over other inputs of the same types, under the names that they have. What its
        shape rule states was stated when it was made, so it is not asked again; where nothing is new, the
        node stays the same."""
        key = (node.op.name, inputs, node.content)
        if key in self._made:
            return self._made[key]
        types = [self._simplified(value.type) for value in node.results]
        same = all([new is old.type for new, old in zip(types, node.results, strict=True)])
        if not same or any([new is not old for new, old in zip(inputs, node.inputs, strict=True)]):
            names = [value.name for value in node.results]
            node = make_node(node.op, inputs, node.attributes, node.source, names, types, node.content)
        self._nodes.append(node)
        self._made[key] = node.results
        return node.results

    def _simplified(self, known: Type) -> Type:
        simplify = self.system.simplify
        shape = tuple([extent if extent.is_const else simplify(extent) for extent in known.shape])
        return known if shape == known.shape else Type(shape, known.dtype)

    def _fresh_names(self, op: Op, count: int) -> list[str]:
        for number in itertools.count(len(self._nodes)):
            stem = f"{op.name}_{number}"
            names = [stem] if count == 1 else [f"{stem}_{k}" for k in range(count)]
            if not self._taken.intersection(names):
                return names
        raise AssertionError("numbers do not end")

    def infer(self, op: Op, inputs: Iterable[Value]) -> Inference:
        """What `op`'s shape rule talks to."""
        return self.system.inference(self.because(op, inputs))

    def because(self, op: Op, inputs: Iterable[Value]) -> Why:
        """Where statements of `op` over `inputs` come from."""
        source = self.source
        return lambda: Provenance(op.name, source, ", ".join(f"{v!r}: {v.type!r}" for v in inputs))

    def agree(self, found: Sequence[Expr], expected: Sequence[Expr], why: Why, what: str) -> None:
        """States that two shapes are the same. `what` says in words which shape this is."""
        if len(found) != len(expected):
            because = asked(why)
            raise ShapeError(
                f"{because.operator}: {list(found)} and {list(expected)} differ in rank, {what}",
                node=because.operator, source_line=because.source,
            )  # fmt: skip
        infer = self.system.inference(why)
        for axis, (one, other) in enumerate(zip(found, expected, strict=True)):
            if one is not other:
                infer.equal(one, other, f"axis {axis} {what}")

    def build(self, *outputs: Value) -> Graph:
        """The finished program, without nodes that no output needs."""
        for output in outputs:
            if not isinstance(output, Value):
                raise ShapeError(f"program {self.name}: expected a value as output, found {output!r}")
        nodes = live(self._nodes, outputs)
        return Graph(
            self.name,
            tuple(self._inputs),
            tuple(self.parameters.values()),
            tuple(nodes),
            tuple(outputs),
            self.system,
        )


def live(nodes: Sequence[Node], outputs: Iterable[Value]) -> list[Node]:
    """The nodes that `outputs` depend on, in the given order."""
    needed = {value.producer for value in outputs}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node in needed:
            kept.append(node)
            needed.update(value.producer for value in node.inputs)
    kept.reverse()
    return kept


def rewrite(
    graph: Graph, replace: Callable[[GraphBuilder, Node, tuple[Value, ...]], Sequence[Value] | None]
) -> Graph:
    """A new graph, node by node. `replace(builder, node, new_inputs)` gives the values that stand for the
    node's results (built with `builder`), or None to keep the node. Shapes are inferred where operand types
    changed, into the same system. Values that nothing changes stay the same, others keep their names."""
    build = GraphBuilder(graph.name, graph.system)
    build.adopt(graph)
    made: dict[Value, Value] = {value: value for value in (*graph.inputs, *graph.parameters)}
    for node in graph.nodes:
        build.source = node.source
        inputs = tuple(made[value] for value in node.inputs)
        results = replace(build, node, inputs)
        if results is None:
            pairs = zip(inputs, node.inputs, strict=True)
            same_types = all([new is old or new.type == old.type for new, old in pairs])
            results = build.keep(node, inputs) if same_types else build.add(node.op, inputs, node.attributes)
        made.update(zip(node.results, results, strict=True))
    return build.build(*(made[value] for value in graph.outputs))


def make_node(
    op: Op,
    inputs: tuple[Value, ...],
    attributes: Mapping[str, Any],
    source: str,
    names: Sequence[str],
    types: Sequence[Type],
    content: Hashable = None,
) -> Node:
    """A node with its results; `content` is that of its attributes where it is known already."""
    node = Node(op, inputs, attributes, source)
    if content is not None:
        object.__setattr__(node, "content", content)
    results = tuple(
        Value(name, each, "node", node, k) for k, (name, each) in enumerate(zip(names, types, strict=True))
    )
    object.__setattr__(node, "results", results)  # the knot of a node and its values is tied once, here
    return node


def _content(attributes: Mapping[str, Any]) -> Hashable:
    return tuple((name, _hashable(attributes[name])) for name in sorted(attributes))


def _hashable(value: Any) -> Any:
    # 1, 1.0 and True are equal as dictionary keys but are different attributes
    if isinstance(value, tuple):
        return tuple(_hashable(item) for item in value)
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)
