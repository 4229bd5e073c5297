"""Convolutions as matrix products where that is all they are: over channels-last images a window of one pixel
is a product over the last axis. cuBLAS plans nothing for a new shape, writes into memory of ours, and costs a
third of a convolution's call. What stays a convolution gets its images in one piece."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.dtype import BFLOAT16, FLOAT16
from dlcb.compiler.expr.node import ONE
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value, rewrite

_TO_LAST = (0, 2, 3, 1)


def products(graph: Graph) -> Graph:
    """convolution_nhwc with a window of 1x1 -> linear, and relu(linear) -> linear with relu, for half types.

    PyTorch lets cuDNN use TF32 for float32 and cuBLAS not: there a product would be exact and slow.
    """

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if not _is_product(node):
            return None
        x, weight, *bias = inputs
        matrix = build.apply(ops.reshape, weight, shape=(weight.shape[0], weight.shape[3]))
        return (build.apply(ops.linear, x, matrix, *bias, relu=bool(node.attributes.get("relu"))),)

    return rewrite(graph, replace) if any(map(_is_product, graph.nodes)) else graph


def _is_product(node: Node) -> bool:
    if node.op is not ops.convolution_nhwc or node.attributes.get("residual"):
        return False
    geometry = tuple(tuple(node.attributes[name]) for name in ("stride", "padding"))
    return (
        node.result.dtype in (FLOAT16, BFLOAT16)
        and node.attributes["groups"] == 1
        and geometry == ((1, 1), (0, 0))
        and all(size is ONE for size in node.inputs[1].shape[1:3])
    )


def dense_images(graph: Graph) -> Graph:
    """Images that come channels-first into a convolution are laid out by a kernel of ours, once for all that
    read them; the library would do it for each, at a fraction of the speed."""
    laid_out: dict[Value, Value] = {}

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if node.op is not ops.convolution_nhwc:
            return None
        images = [0, *([len(inputs) - 1] if node.attributes.get("residual") else [])]
        if not any(_is_seen_last(inputs[place]) for place in images):
            return None
        operands = list(inputs)
        for place in images:
            if _is_seen_last(inputs[place]):
                source = inputs[place].made_by.inputs[0]
                if source not in laid_out:
                    laid_out[source] = build.apply(ops.contiguous, inputs[place])
                operands[place] = laid_out[source]
        return (build.apply(node.op, *operands, **node.attributes),)

    return rewrite(graph, replace)


def _is_seen_last(value: Value) -> bool:
    """Is `value` a channels-first image seen channels-last?"""
    node = value.producer
    return node is not None and node.op is ops.permute and node.attributes["order"] == _TO_LAST
