"""Convolutions that become products, and images that are laid out once: what changes; values stay."""

from __future__ import annotations

import numpy as np
import pytest
from pass_programs import Program

from dlcb.compiler.dtype import FLOAT16, FLOAT32, DType
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.passes.epilogues import fuse_epilogues
from dlcb.compiler.passes.products import dense_images, products

POINT = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def convolution(dtype: DType = FLOAT16, window: int = 1, *, relu: bool = False, **changed) -> Graph:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("height"), 5, 4, dtype=dtype)
    groups = changed.get("groups", 1)
    weight = p.parameter("weight", 6, window, window, 4 // groups, dtype=dtype)
    y = p.convolution_nhwc(x, weight, p.parameter("bias", 6, dtype=dtype), **{**POINT, **changed})
    return p.graph(p.relu(y) if relu else y)


def operators(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def same_values(before: Graph, after: Graph, *shape: int) -> None:
    random = np.random.default_rng(0)
    values = {
        value.name: random.normal(size=[size.value for size in value.shape]) for value in before.parameters
    }
    x = {"x": random.normal(size=shape)}
    np.testing.assert_allclose(evaluate(after, x, values)[0], evaluate(before, x, values)[0], atol=1e-9)


@pytest.mark.parametrize("relu", [False, True])
def test_a_window_of_one_pixel_is_a_product(relu: bool) -> None:
    graph = convolution(relu=relu)
    changed = products(fuse_epilogues(graph))
    assert operators(changed) == ["reshape", "linear"]  # relu in the same call
    same_values(graph, changed, 2, 3, 5, 4)


@pytest.mark.parametrize(
    "graph",
    [
        convolution(FLOAT32),  # cuDNN may use TF32 there
        convolution(window=3),
        convolution(stride=(2, 1)),
        convolution(padding=(0, 1)),
        convolution(groups=2),
    ],
    ids=["float32", "window", "stride", "padding", "groups"],
)
def test_what_stays_a_convolution(graph: Graph) -> None:
    assert "linear" not in operators(products(graph))


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32])
def test_relu_joins_a_product_with_a_bias(dtype: DType) -> None:
    p = Program()
    x = p.input("x", p.size("rows"), 4, dtype=dtype)
    weight, bias = p.parameter("weight", 6, 4, dtype=dtype), p.parameter("bias", 6, dtype=dtype)
    graph = p.graph(p.relu(p.linear(x, weight, bias)))
    fused = fuse_epilogues(graph)
    assert operators(fused) == ["linear"]
    same_values(graph, fused, 3, 4)


@pytest.mark.parametrize("also", ["read twice", "no bias"])
def test_relu_stays_where_the_product_is_needed_or_cannot_take_it(also: str) -> None:
    p = Program()
    x = p.input("x", p.size("rows"), 4)
    bias = [] if also == "no bias" else [p.parameter("bias", 6)]
    y = p.linear(x, p.parameter("weight", 6, 4), *bias)
    graph = p.graph(p.relu(y), *([y] if also == "read twice" else []))
    assert operators(fuse_epilogues(graph)) == ["linear", "relu"]


def test_an_image_is_laid_out_once_for_all_who_read_it() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), as_expr(4), p.size("height"), 5)
    seen = [p.permute(x, order=(0, 2, 3, 1)) for _ in range(2)]
    weight, bias = p.parameter("weight", 4, 3, 3, 4), p.parameter("bias", 4)
    geometry = {**POINT, "padding": (1, 1)}
    y = p.convolution_nhwc(seen[0], weight, bias, seen[1], relu=True, residual=True, **geometry)
    graph = p.graph(y)
    changed = dense_images(graph)
    assert operators(changed).count("contiguous") == 1
    same_values(graph, changed, 2, 4, 3, 5)
    assert operators(dense_images(changed)) == operators(changed)
