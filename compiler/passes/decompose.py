"""Composites are replaced by their definitions until none is left but those that a library takes.

A graph and the names to keep come in; a graph of the same meaning comes out, whose nodes are coordinate
rules, kept library calls and opaque nodes. The definitions are the operators' own `expand` rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value, rewrite


def decompose(graph: Graph, keep: Collection[str]) -> Graph:
    """`graph` without any operator that has a definition in terms of others, except those named in `keep`."""

    def is_composite(node: Node) -> bool:
        return node.op.expand is not None and node.op.name not in keep

    def expand(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if not is_composite(node):
            return None
        assert node.op.expand is not None
        return (node.op.expand(build, *inputs, **node.attributes),)

    while any(is_composite(node) for node in graph.nodes):  # a definition may use composites itself
        graph = rewrite(graph, expand)
    return graph
