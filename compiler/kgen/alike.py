"""Which groups compute the same: a group and the places of its values in memory come in, a key goes out. Two
groups of one system with equal keys differ in the names of their values alone, as the layers of a model do,
so that their kernels are made once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from dlcb.compiler.ir.graph import Value
from dlcb.compiler.kgen.coords import Layouts, names
from dlcb.compiler.passes.steps import Group


def structure(group: Group, layouts: Layouts) -> Hashable:
    """Operators, attributes and wiring of `group`, the types of its values, and where they lie."""
    place = names(group)
    return (
        tuple(tuple(_given(value, layouts)) for value in group.inputs),
        tuple(
            (node.op.name, node.content, tuple(place[value] for value in node.inputs), *_types(node.results))
            for node in group.nodes
        ),
        tuple((place[value], layouts[value][1] if value in layouts else None) for value in group.outputs),
        group.rows,
    )


def _given(value: Value, layouts: Layouts) -> Iterator[Hashable]:
    yield from _types((value,))
    yield layouts[value][1] if value in layouts else None
    if value.producer is not None and value.producer.op.kind == "create":  # computed where it is read
        yield value.producer.op.name, value.producer.content


def _types(values: tuple[Value, ...]) -> Iterator[Hashable]:
    return ((value.dtype.name, value.shape) for value in values)
