"""What operators refuse: contradicting shapes while the graph is built, bad index values when they are
read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dlcb.compiler.dtype import FLOAT32, INT64
from dlcb.compiler.errors import IndexRangeError, ShapeError, UnsupportedOperator
from dlcb.compiler.expr import node
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.reference import evaluate


def inputs(*shapes: tuple) -> tuple[GraphBuilder, list[Value]]:
    g = GraphBuilder("refused")
    return g, [g.input(f"x{k}", shape, FLOAT32) for k, shape in enumerate(shapes)]


def convolve(g: GraphBuilder, x: Value, w: Value) -> Value:
    return g.apply(ops.convolution, x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1))


@pytest.mark.parametrize(
    ("shapes", "build"),
    [
        (((2, 3), (4, 3)), lambda g, x, y: g.apply(ops.add, x, y)),
        (((2, 3),), lambda g, x: g.apply(ops.reshape, x, shape=(as_expr(4),))),
        (((2, 3),), lambda g, x: g.apply(ops.permute, x, order=(0, 0))),
        (((2, 3),), lambda g, x: g.apply(ops.expand, x, shape=(as_expr(4), as_expr(3)))),
        (((2, 3),), lambda g, x: g.apply(ops.expand, x, shape=(as_expr(3),))),
        (((2, 3),), lambda g, x: g.apply(ops.select, x, axis=1, index=as_expr(3))),
        (((2, 3),), lambda g, x: g.apply(ops.select, x, axis=1, index=as_expr(-4))),
        (((2, 3), (3, 3)), lambda g, x, y: g.apply(ops.concat, x, y, axis=1)),
        (((2, 3), (3,)), lambda g, x, y: g.apply(ops.concat, x, y, axis=0)),
        (((2, 3),), lambda g, x: g.apply(ops.pad, x, low=(0, -4), high=(0, 0))),
        (((2, 3),), lambda g, x: g.apply(ops.pad, x, low=(0, 3), high=(0, 0), mode="reflect")),
        (((2, 3),), lambda g, x: g.apply(ops.pad, x, low=(0, 4), high=(0, 0), mode="circular")),
        (((2, 0),), lambda g, x: g.apply(ops.pad, x, low=(0, 1), high=(0, 0), mode="replicate")),
        (((2, 0),), lambda g, x: g.apply(ops.max, x, axes=(1,))),
        (((2, 0),), lambda g, x: g.apply(ops.argmax, x, axis=1)),
        (((2, 3), (4, 5)), lambda g, x, y: g.apply(ops.matmul, x, y)),
        (((2, 3, 4), (3, 4, 5)), lambda g, x, y: g.apply(ops.matmul, x, y)),
        (((2, 3), (5, 4)), lambda g, x, y: g.apply(ops.linear, x, y)),
        (((2, 3, 8, 8), (4, 2, 3, 3)), convolve),
        (((2, 3, 2, 8), (4, 3, 3, 3)), convolve),
        (((2, 3), (4,)), lambda g, x, w: g.apply(ops.layer_norm, x, w, dims=1, eps=1e-5)),
        (((2, 3, 4),), lambda g, x: g.apply(ops.group_norm, x, groups=2, eps=1e-5)),
        (((3,),), lambda g, x: g.apply(ops.arange, start=as_expr(3), stop=as_expr(0), step=1, dtype=INT64)),
        (
            ((2, 1, 1),),
            lambda g, x: g.apply(
                ops.max_pool, x, window=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1)
            ),
        ),
        (((5,),), lambda g, x: g.apply(ops.tril, x)),
    ],
)
def test_contradictions(shapes: tuple, build: Callable[..., Value]) -> None:
    g, values = inputs(*shapes)
    with pytest.raises(ShapeError):
        build(g, *values)


def test_a_product_is_not_a_sum() -> None:
    # [a, b, c] to [b + c, a + b]: 6 elements are not 15
    g = GraphBuilder("product")
    a, b, c = (g.system.fresh(name) for name in "abc")
    x = g.input("x", (a, b, c), FLOAT32)
    graph = g.build(g.apply(ops.reshape, x, shape=(b + c, a + b)))
    conditions = [guard.condition for guard in graph.system.solve().guards]
    assert not all(node.evaluate(condition, {"a": 1, "b": 2, "c": 3}) for condition in conditions)


@pytest.mark.parametrize("bad", [4, -1, 1 << 40])
@pytest.mark.parametrize(
    ("shape", "build"),
    [
        ((4, 2), lambda g, x, ids: g.apply(ops.embedding, x, ids)),
        ((4, 2), lambda g, x, ids: g.apply(ops.gather, x, ids, axis=0)),
        (
            (4, 2),
            lambda g, x, ids: g.apply(
                ops.index_select, x, g.apply(ops.reshape, ids, shape=(as_expr(6),)), axis=0
            ),
        ),
        ((4, 2), lambda g, x, ids: g.apply(ops.one_hot, ids, classes=as_expr(4))),
    ],
)
def test_bad_indices_are_reported(shape: tuple, build: Callable[..., Value], bad: int) -> None:
    g = GraphBuilder("indices")
    x, ids = g.input("x", shape, FLOAT32), g.input("ids", (3, 2), INT64)
    graph = g.build(build(g, x, ids))
    indices = np.array([[0, 1], [2, bad], [3, 0]])
    with pytest.raises(IndexRangeError) as caught:
        evaluate(graph, {"x": np.zeros(shape), "ids": indices})
    error = caught.value
    assert (error.value, error.low, error.high) == (bad, 0, 4)
    # the error names the tensor that holds the value, and where in it
    assert (error.input, error.position) in (("ids", (1, 1)), ("reshape_0", (3,)))


@pytest.mark.parametrize(("bad", "legal"), [(4, 3), (-5, -4)])
def test_advanced_indices_wrap_once(bad: int, legal: int) -> None:
    g = GraphBuilder("indices")
    x, ids = g.input("x", (4, 2), FLOAT32), g.input("ids", (2,), INT64)
    graph = g.build(g.apply(ops.advanced_index, x, ids, axes=(0,)))
    table = np.arange(8.0).reshape(4, 2)
    (found,) = evaluate(graph, {"x": table, "ids": np.array([0, legal])})
    np.testing.assert_array_equal(found, table[[0, legal]])
    with pytest.raises(IndexRangeError, match="ids"):
        evaluate(graph, {"x": table, "ids": np.array([0, bad])})


@pytest.mark.parametrize("name", ["floordiv", "mod", "fmod"])
def test_an_integer_divisor_of_zero_is_reported(name: str) -> None:
    g = GraphBuilder("division")
    a, b = g.input("a", (2, 3), INT64), g.input("b", (3,), INT64)
    graph = g.build(g.apply(ops.OPS[name], a, b))
    least = np.iinfo(np.int64).min
    evaluate(graph, {"a": np.full((2, 3), least + 1), "b": np.array([-1, 1, 2])})
    with pytest.raises(IndexRangeError) as caught:
        evaluate(graph, {"a": np.ones((2, 3), np.int64), "b": np.array([-1, 0, 2])})
    assert (caught.value.input, caught.value.position) == ("b", (1,))


def test_reading_an_empty_table_is_reported() -> None:
    g = GraphBuilder("indices")
    x, ids = g.input("x", (0, 2), FLOAT32), g.input("ids", (1,), INT64)
    graph = g.build(g.apply(ops.embedding, x, ids))
    with pytest.raises(IndexRangeError):
        evaluate(graph, {"x": np.zeros((0, 2)), "ids": np.array([0])})


def test_an_opaque_node_needs_someone_to_run_it() -> None:
    g = GraphBuilder("opaque")
    x = g.input("x", (2,), FLOAT32)
    n = g.system.fresh("n")
    y = g.apply(
        ops.eager,
        x,
        target="aten.nonzero.default",
        arguments=("$0",),
        shapes=((n, as_expr(1)),),
        dtypes=(INT64,),
    )
    graph = g.build(g.apply(ops.add, y, y))
    with pytest.raises(UnsupportedOperator, match="eager"):
        evaluate(graph, {"x": np.zeros(2)})
    (found,) = evaluate(graph, {"x": np.array([0.0, 1.0])}, opaque=lambda _, arrays: [np.argwhere(arrays[0])])
    np.testing.assert_array_equal(found, [[2]])


def test_arrays_must_fit_their_types() -> None:
    g = GraphBuilder("shapes")
    n = g.system.fresh("n")
    x, y = g.input("x", (n, 3), FLOAT32), g.input("y", (n, 3), FLOAT32)
    graph = g.build(g.apply(ops.add, x, y))
    with pytest.raises(ShapeError, match="'y' has 5 along axis 0"):
        evaluate(graph, {"x": np.zeros((4, 3)), "y": np.zeros((5, 3))})
