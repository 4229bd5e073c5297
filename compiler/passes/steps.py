"""What the passes hand on: a program cut into steps, and where each value lies in memory.

A kernel step is one generated kernel; a library step is a contraction that PyTorch's libraries run;
an eager step is an operator PyTorch runs by name; a view step gives a value a layout over memory
that another value owns, and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO
from dlcb.compiler.ir.graph import Graph, Node, Value


@dataclass(frozen=True)
class Layout:
    """Where a value's elements lie in its base buffer: offset + sum of coordinate * stride, in elements."""

    strides: tuple[Expr, ...]
    offset: Expr = ZERO


@dataclass(frozen=True, eq=False)
class Group:
    """The nodes of one kernel, in topological order.

    `inputs` are read through their layouts, `outputs` are written row-major. The first output is the
    anchor: its axes are the kernel's iteration domain. A further output has the anchor's shape, or the
    first `rows` axes of it (then perhaps axes of size 1)."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    rows: int  # reductions in it depend on the anchor's first `rows` axes only; its rank where none does

    @property
    def anchor(self) -> Value:
        return self.outputs[0]


@dataclass(frozen=True, eq=False)
class KernelStep:
    group: Group

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.group.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.group.outputs


@dataclass(frozen=True, eq=False)
class LibraryStep:
    node: Node

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.node.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.node.results


@dataclass(frozen=True, eq=False)
class EagerStep(LibraryStep):
    """A node that PyTorch runs by its ATen name."""


@dataclass(frozen=True, eq=False)
class ViewStep:
    """`value` lies in the memory of `base` (never itself a view)."""

    value: Value
    base: Value
    layout: Layout

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.base,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.value,)


Step = KernelStep | LibraryStep | EagerStep | ViewStep


@dataclass(frozen=True)
class Schedule:
    """A program as steps in an order that respects their dependences.

    `prologue` depends on parameters alone and runs once, at load; its results stay. `layouts` tells of each
    value that has memory its base buffer (itself, unless it is a view) and its layout there."""

    graph: Graph
    prologue: tuple[Step, ...]
    steps: tuple[Step, ...]
    layouts: Mapping[Value, tuple[Value, Layout]] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(step.group for step in (*self.prologue, *self.steps) if isinstance(step, KernelStep))


def row_major(shape: tuple[Expr, ...]) -> Layout:
    """The layout of a contiguous tensor."""
    strides: list[Expr] = []
    step: Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return Layout(tuple(reversed(strides)))
