"""Rewrites that hold for every size: values made of coordinates alone, masks that let everything through."""

from __future__ import annotations

import numpy as np
import pytest
from pass_programs import Program

from dlcb.compiler.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.expr.node import evaluate as size_of
from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.passes.algebra import (
    additive_masks,
    evaluate_coordinates,
    fold_batch_norms,
    merge_linears,
)
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import KernelStep, ViewStep


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


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_batch_norm_joins_the_convolution_before_it(dtype, bias: bool) -> None:
    p = Program()
    x = p.input("x", p.size("batch"), 3, p.size("height"), 5, dtype=dtype)
    names = ("mean", "variance", "gamma", "beta", "bias")[: 5 if bias else 4]
    weight = p.parameter("weight", 4, 3, 3, 3, dtype=dtype)
    channels = [p.parameter(name, 4, dtype=dtype) for name in names]
    statistics, shift = channels[:4], channels[4:]
    geometry = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    convolved = p.convolution(x, weight, *shift, **geometry)
    graph = p.graph(p.batch_norm(convolved, *statistics, eps=1e-3))
    folded = fold_batch_norms(graph)
    operators = [node.op.name for node in folded.nodes]
    assert "batch_norm" not in operators
    assert ("cast_evenly" in operators) == (dtype is not FLOAT32)  # half weights are rounded with care

    random = np.random.default_rng(0)
    values = {name: random.uniform(0.5, 1.5, 4) for name in names} | {
        "weight": random.normal(size=(4, 3, 3, 3))
    }
    inputs = {"x": random.normal(size=(2, 3, 4, 5))}
    np.testing.assert_allclose(
        evaluate(folded, inputs, values)[0], evaluate(graph, inputs, values)[0], rtol=1e-6, atol=1e-6
    )


def two_layers_with_a_mask() -> Graph:
    p = Program()
    batch, length = p.size("batch"), p.size("length")
    mask = p.input("mask", batch, 1, 1, length, dtype=BOOL)
    x = p.input("x", batch, 2, length, 4)
    for _ in range(2):
        x = p.exp(p.attention(x, x, x, mask, scale=0.5, causal=False))
    return p.graph(x)


@pytest.mark.parametrize("length", [3, 8, 9])
@pytest.mark.parametrize("multiple", [1, 8])
def test_a_mask_of_booleans_becomes_one_to_add(length: int, multiple: int) -> None:
    graph = two_layers_with_a_mask()
    changed = additive_masks(graph, row_multiple=multiple)
    masks = {node.inputs[3] for node in changed.nodes if node.op.name == "attention"}
    assert [mask.dtype for mask in masks] == [FLOAT32]  # one for both layers
    random = np.random.default_rng(0)
    mask = random.random((2, 1, 1, length)) < 0.5
    mask[..., 0] = True
    given = {"x": random.normal(size=(2, 2, length, 4)), "mask": mask}
    np.testing.assert_allclose(evaluate(changed, given)[0], evaluate(graph, given)[0], atol=1e-12)


def test_rows_of_a_mask_start_where_fused_attention_wants_them() -> None:
    plan = schedule(run_passes(two_layers_with_a_mask(), "cuda"))
    (mask,) = (step for step in plan.steps if isinstance(step, ViewStep))
    for size, stride in ((3, 8), (8, 8), (9, 16), (0, 0)):
        assert size_of(mask.layout.strides[-2], {"length": size}) == stride
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == 3  # the mask and two exponentials
