"""Decomposition leaves no composite that is not kept, keeps the meaning, and folds half types in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlcb.compiler.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.passes.decompose import decompose

Shapes = tuple[tuple[int, ...], ...]

PROGRAMS: list[tuple[str, Shapes, dict[str, Any]]] = [
    ("softmax", ((3, 5),), {"axis": 1}),
    ("log_softmax", ((3, 5),), {"axis": 0}),
    ("layer_norm", ((3, 5), (5,), (5,)), {"dims": 1, "eps": 1e-5}),
    ("rms_norm", ((3, 5), (5,)), {"dims": 1, "eps": 1e-5}),
    ("batch_norm", ((2, 3, 4), (3,), (3,), (3,), (3,)), {"eps": 1e-5}),
    ("group_norm", ((2, 4, 3),), {"groups": 2, "eps": 1e-5}),
    ("mean", ((3, 5),), {"axes": (0,)}),
    ("var", ((3, 5),), {"axes": (1,)}),
    ("argmax", ((3, 5),), {"axis": 1}),
    ("linear", ((3, 5), (4, 5), (4,)), {}),
    ("attention", ((2, 3, 4), (2, 5, 4), (2, 5, 6)), {"causal": True}),
    (
        "avg_pool",
        ((2, 7, 7),),
        {"window": (3, 3), "stride": (2, 2), "padding": (1, 1), "count_include_pad": False},
    ),
]


def graph_of(name: str, shapes: Shapes, attributes: dict[str, Any], dtype: DType = FLOAT32) -> Graph:
    g = GraphBuilder(name)
    inputs = [
        g.input(f"x{k}", [g.system.fresh(f"x{k}_{axis}") for axis in range(len(shape))], dtype)
        for k, shape in enumerate(shapes)
    ]
    return g.build(g.apply(ops.OPS[name], *inputs, **attributes))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[0])
def test_meaning_is_kept(program: tuple) -> None:
    graph = graph_of(*program)
    expanded = decompose(graph, keep=())
    assert all(node.op.expand is None for node in expanded.nodes)
    random = np.random.default_rng(3)
    arrays = {f"x{k}": random.uniform(0.1, 2, shape) for k, shape in enumerate(program[1])}
    np.testing.assert_allclose(evaluate(expanded, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-12)
    assert expanded.outputs[0].shape == graph.outputs[0].shape


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[0])
def test_kept_operators_stay(program: tuple) -> None:
    graph = graph_of(*program)
    assert decompose(graph, keep={program[0]}).nodes[0].op is ops.OPS[program[0]]


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[0])
def test_half_types_are_folded_in_float32(program: tuple, dtype: DType) -> None:
    graph = graph_of(*program, dtype=dtype)
    expanded = decompose(graph, keep=())
    assert expanded.outputs[0].dtype is graph.outputs[0].dtype
    sums = [node for node in expanded.nodes if node.op.fold == "sum" and node.op is not ops.matmul]
    assert all(node.result.dtype is FLOAT32 for node in sums)


def test_a_softmax_of_large_scores_does_not_overflow() -> None:
    expanded = decompose(graph_of("softmax", ((1, 3),), {"axis": 1}), keep=())
    (found,) = evaluate(expanded, {"x0": np.array([[1e4, 1e4, -1e4]])})
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.0]])


def test_a_long_chain_takes_linear_time() -> None:
    g = GraphBuilder("chain")
    x = g.input("x", (g.system.fresh("n"), 4), FLOAT32)
    for _ in range(200):
        x = g.apply(ops.softmax, x, axis=1)
    expanded = decompose(g.build(x), keep=())
    assert len(expanded.nodes) == 200 * 5
