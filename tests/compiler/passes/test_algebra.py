"""Rewrites that hold for every size: values made of coordinates alone, masks that let everything through."""

from __future__ import annotations

import pytest
from pass_programs import Program

from dlcb.compiler.dtype import BOOL, FLOAT32, INT64
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.passes.algebra import evaluate_coordinates, merge_linears


def attended(p: Program, make_mask) -> Graph:
    batch, length = p.size("batch"), p.size("length")
    q, k, v = (p.input(name, batch, 4, length, 8) for name in "qkv")
    return p.graph(p.attention(q, k, v, make_mask(p, batch, length), scale=None, causal=False))


def ones(p: Program, batch, length) -> Value:
    return p.expand(p.full(shape=(batch, as_expr(1), as_expr(1), length), value=True, dtype=BOOL),
                    shape=(batch, as_expr(1), length, length))  # fmt: skip


def positions_at_least_zero(p: Program, batch, length) -> Value:
    places = p.arange(start=as_expr(0), stop=length, step=1, dtype=INT64)
    legal = p.ge(places, p.full(shape=(), value=0, dtype=INT64))
    return p.expand(p.reshape(legal, 1, 1, 1, length), shape=(batch, as_expr(1), length, length))


def zeros_to_add(p: Program, batch, length) -> Value:
    return p.full(shape=(batch, as_expr(1), length, length), value=0.0, dtype=FLOAT32)


@pytest.mark.parametrize("make_mask", [ones, positions_at_least_zero, zeros_to_add])
def test_a_mask_that_lets_everything_through_is_dropped(make_mask) -> None:
    (node,) = evaluate_coordinates(attended(Program(), make_mask)).nodes
    assert len(node.inputs) == 3


def triangle(p: Program, batch, length) -> Value:
    square = p.full(shape=(length, length), value=True, dtype=BOOL)
    return p.expand(
        p.reshape(p.tril(square, diagonal=0), 1, 1, length, length), shape=(batch, as_expr(1), length, length)
    )


def from_outside(p: Program, batch, length) -> Value:
    return p.input("mask", batch, 1, length, length, dtype=BOOL)


def minus_one_to_add(p: Program, batch, length) -> Value:
    return p.full(shape=(batch, as_expr(1), length, length), value=-1.0, dtype=FLOAT32)


@pytest.mark.parametrize("make_mask", [triangle, from_outside, minus_one_to_add])
def test_any_other_mask_stays(make_mask) -> None:
    graph = evaluate_coordinates(attended(Program(), make_mask))
    assert len(graph.nodes[-1].inputs) == 4


def test_products_of_one_tensor_become_one() -> None:
    p = Program()
    x = p.input("x", p.size("rows"), 8)
    parts = [p.linear(x, p.parameter(f"w{k}", 4 + k, 8), p.parameter(f"b{k}", 4 + k)) for k in range(3)]
    graph = merge_linears(p.graph(*parts))
    assert [node.op.name for node in graph.nodes].count("linear") == 1
    assert [repr(value.shape) for value in graph.outputs] == ["(rows, 4)", "(rows, 5)", "(rows, 6)"]
