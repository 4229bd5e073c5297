"""Images are kept channels-last between convolutions, which is what tensor cores and oneDNN's fastest
kernels read. A layout is a property of operator, rank and weights, not of sizes, so it is decided here, for
any batch, height and width.

Each convolution becomes convolution_nhwc between two permutations; a permutation back to channels-first
then sinks through whatever works element by element, until it meets the permutation of the next convolution
and both vanish. Kernels that stand between (pooling, concatenation) read and write channels-last memory
because that is what their readers ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dlcb.compiler.dtype import FLOAT32
from dlcb.compiler.expr.node import ONE
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value, rewrite
from dlcb.compiler.passes.epilogues import clip_channels_first

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_IMAGE_RANK = 4


def channels_last(graph: Graph, *, depthwise_kernels: bool = False) -> Graph:
    """`graph` with its two-dimensional convolutions over channels-last images; with `depthwise_kernels` those
    of one channel a group as kernels of ours."""
    if not any(_is_image_convolution(node) for node in graph.nodes):
        return graph
    return rewrite(graph, partial(_replace, depthwise_kernels))


def exact_images(graph: Graph) -> Graph:
    """As `channels_last` where cuDNN may not round float32 to TF32: its exact kernels are 8 to 60 % faster
    over channels-first images, which stay so then. Depthwise kernels of ours are channels-last, and with one
    of them all convolutions are."""
    convolutions = [node for node in graph.nodes if _is_image_convolution(node)]
    if any(_is_depthwise(node) or node.result.dtype is not FLOAT32 for node in convolutions):
        return channels_last(graph, depthwise_kernels=True)
    return clip_channels_first(graph)


def _is_image_convolution(node: Node) -> bool:
    return node.op is ops.convolution and node.result.rank == _IMAGE_RANK


def _is_depthwise(node: Node) -> bool:
    if not _is_image_convolution(node):
        return False
    wide, narrow = (node.inputs[1].shape[axis] for axis in (0, 1))
    return narrow is ONE and wide.is_const and wide.value == node.attributes["groups"] > 1


def _depthwise(build: GraphBuilder, inputs: tuple[Value, ...], attributes: Mapping[str, Any]) -> Value:
    """cuDNN plans a depthwise convolution for seconds at each new shape;
    a kernel of ours takes any shape, and what follows joins it."""
    x, weight, *bias = inputs
    channels, _, *window = weight.shape
    weight = build.apply(
        ops.permute, build.apply(ops.reshape, weight, shape=(channels, *window)), order=(1, 2, 0)
    )
    geometry = {name: value for name, value in attributes.items() if name != "groups"}
    y = build.apply(ops.depthwise_nhwc, _last(build, x), build.apply(ops.contiguous, weight), **geometry)
    return build.apply(ops.add, y, bias[0]) if bias else y


def _replace(
    depthwise_kernels: bool, build: GraphBuilder, node: Node, inputs: tuple[Value, ...]
) -> Sequence[Value] | None:
    if depthwise_kernels and _is_depthwise(node):
        return (_first(build, _depthwise(build, inputs, node.attributes)),)
    if _is_image_convolution(node):
        weight = build.apply(ops.contiguous, build.apply(ops.permute, inputs[1], order=_TO_LAST))
        return (
            _first(
                build,
                build.apply(
                    ops.convolution_nhwc, _last(build, inputs[0]), weight, *inputs[2:], **node.attributes
                ),
            ),
        )
    if node.op is ops.permute and _is_first(inputs[0]) and node.attributes["order"] == _TO_LAST:
        return (inputs[0].made_by.inputs[0],)
    images = [value for value in inputs if value.rank == _IMAGE_RANK]
    if len(node.results) != 1 or node.result.rank != _IMAGE_RANK or not any(map(_is_first, images)):
        return None
    if node.op.kind == "pointwise":
        return (
            _first(build, build.apply(node.op, *(_aligned(build, v) for v in inputs), **node.attributes)),
        )
    if node.op.at is not None and node.op.kind in ("move", "reduce"):
        return (_first(build, _last(build, build.apply(node.op, *inputs, **node.attributes))),)
    return None


def _is_first(value: Value) -> bool:
    """Is `value` a channels-last image seen channels-first?"""
    node = value.producer
    return node is not None and node.op is ops.permute and node.attributes["order"] == _TO_FIRST


def _first(build: GraphBuilder, value: Value) -> Value:
    return build.apply(ops.permute, value, order=_TO_FIRST)


def _last(build: GraphBuilder, value: Value) -> Value:
    if _is_first(value):
        return value.made_by.inputs[0]
    return build.apply(ops.permute, value, order=_TO_LAST)


def _aligned(build: GraphBuilder, value: Value) -> Value:
    """An operand that broadcasts against channels-first images,
    made to broadcast against channels-last ones."""
    if value.rank == 0:
        return value
    if value.rank < _IMAGE_RANK:
        value = build.apply(ops.reshape, value, shape=(*(ONE,) * (_IMAGE_RANK - value.rank), *value.shape))
    return _last(build, value)
