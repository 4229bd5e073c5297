"""What a library does in the same call as a convolution or a product: add the bias, add a residual, clip at
zero. What it does not do is left to the kernel that reads the result: there a bias costs
nothing, while the library would run a kernel for it.

Works on channels-last convolutions; see PAPERS technique 18 for why these calls take any size."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value, rewrite

_WITH_BIAS = 3  # operands


def fuse_epilogues(graph: Graph) -> Graph:
    """relu(convolution), relu(convolution + residual) and relu(linear) as one call each."""
    fused = _Fused(graph)
    return rewrite(graph, fused.replace) if fused.plain or fused.residual else graph


class _Fused:
    """Which relu ends which call: those of `plain` end their operand's, `residual[relu]` is the place of a
    convolution in a sum."""

    def __init__(self, graph: Graph) -> None:
        users = graph.users()
        once = {value for value, readers in users.items() if len(readers) == 1} - set(graph.outputs)
        self.plain: set[Node] = set()
        self.residual: dict[Node, int] = {}
        for node in graph.nodes:
            before = node.inputs[0].producer if node.op is ops.relu else None
            if before is None or node.inputs[0] not in once:
                continue
            if _takes_epilogue(before) or (before.op is ops.linear and len(before.inputs) == _WITH_BIAS):
                self.plain.add(node)
            elif before.op is ops.add and before.inputs[0].shape == before.inputs[1].shape:
                places = [
                    k
                    for k, v in enumerate(before.inputs)
                    if v in once and v.producer and _takes_epilogue(v.producer)
                ]
                if places:
                    self.residual[node] = places[0]

    def replace(self, build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if node in self.plain:
            call = inputs[0].made_by
            return (build.apply(call.op, *call.inputs, **{**call.attributes, "relu": True}),)
        if node in self.residual:
            total, place = inputs[0].made_by, self.residual[node]
            convolution, other = total.inputs[place].made_by, total.inputs[1 - place]
            attributes = {**convolution.attributes, "relu": True, "residual": True}
            return (build.apply(ops.convolution_nhwc, *convolution.inputs, other, **attributes),)
        return None


def _takes_epilogue(node: Node) -> bool:
    plain = (
        node.op is ops.convolution_nhwc
        and not node.attributes.get("relu")
        and not node.attributes.get("residual")
    )
    return plain and node.attributes["groups"] == 1 and len(node.inputs) == _WITH_BIAS


def split_biases(graph: Graph) -> Graph:
    """convolution + bias -> (convolution) + bias where no epilogue takes the bias. A residual's bias joins
    the bias of the convolution that it is added to: w * x + b + (v * y + c) -> w * x + (b + c) + v * y."""
    users = graph.users()

    def alone(node: Node) -> bool:
        return node.op is ops.convolution_nhwc and len(node.inputs) == 3 and not _has_epilogue(node)

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if alone(node):
            product = build.apply(ops.convolution_nhwc, *inputs[:2], **node.attributes)
            return (build.apply(ops.add, product, inputs[2]),)
        if node.op is ops.convolution_nhwc and node.attributes.get("residual"):
            residual = node.inputs[3]
            if residual.producer is not None and alone(residual.producer) and len(users[residual]) == 1:
                product, bias = inputs[3].made_by.inputs
                return (
                    build.apply(
                        node.op,
                        *inputs[:2],
                        build.apply(ops.add, inputs[2], bias),
                        product,
                        **node.attributes,
                    ),
                )
        return None

    return rewrite(graph, replace) if any(alone(node) for node in graph.nodes) else graph


def _has_epilogue(node: Node) -> bool:
    return bool(node.attributes.get("relu") or node.attributes.get("residual"))
