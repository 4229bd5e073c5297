"""What the stages allow, and graphs that are not well formed."""

from __future__ import annotations

import dataclasses

import pytest
from programs import encoder_layer, small_convnet

from dlcb.compiler.dtype import FLOAT32
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.expr.node import size
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder
from dlcb.compiler.ir.verify import verify
from dlcb.compiler.passes.decompose import decompose


@pytest.mark.parametrize("program", [encoder_layer, small_convnet])
def test_stages(program) -> None:
    graph = program()
    verify(graph, "captured")
    with pytest.raises(CompilerError, match="of kind composite"):
        verify(graph, "decomposed")
    verify(decompose(graph, keep={"attention", "linear", "convolution"}), "decomposed")


def chain() -> Graph:
    g = GraphBuilder("chain")
    x = g.input("x", (g.system.fresh("n"),), FLOAT32)
    return g.build(g.apply(ops.exp, g.apply(ops.neg, x)))


def test_order_matters() -> None:
    graph = chain()
    with pytest.raises(CompilerError, match="%neg_0 is read before it is defined"):
        verify(dataclasses.replace(graph, nodes=graph.nodes[::-1]), "captured")


def test_outputs_are_values_of_the_graph() -> None:
    with pytest.raises(CompilerError, match="is not a value of chain"):
        verify(dataclasses.replace(chain(), outputs=chain().outputs), "captured")


def test_operators_are_those_of_the_table() -> None:
    g = GraphBuilder("foreign")
    x = g.input("x", (2,), FLOAT32)
    graph = g.build(g.apply(dataclasses.replace(ops.exp, name="explode"), x))
    with pytest.raises(CompilerError, match="explode is not an operator of the table"):
        verify(graph, "captured")


def test_names_are_used_once() -> None:
    g = GraphBuilder("twins")
    x = g.input("neg_0", (2,), FLOAT32)
    with pytest.raises(CompilerError, match="two values are named 'neg_0'"):
        verify(g.build(*g.add(ops.neg, (x,), {}, names=["neg_0"])), "captured")


def test_sizes_come_from_somewhere() -> None:
    g = GraphBuilder("free")
    graph = g.build(g.apply(ops.full, shape=(size("nowhere"),), value=0.0, dtype=FLOAT32))
    with pytest.raises(CompilerError, match="nowhere"):
        verify(graph, "captured")


def test_the_builder_gives_no_name_twice() -> None:
    g = GraphBuilder("names")
    x = g.input("add_0", (g.system.fresh("n"),), FLOAT32)
    graph = g.build(g.apply(ops.add, x, g.parameter("add_1", (1,), FLOAT32)))
    names = [value.name for value in graph.values()]
    assert len(set(names)) == len(names)
