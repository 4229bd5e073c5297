"""What a library does in the same call as a convolution or a product: add the bias, add a residual, clip.
What it does not do is left to the kernel that reads the result: there a bias costs nothing, while cuDNN would
run a kernel for it.

Works on channels-last convolutions; see PAPERS technique 18 for why these calls take any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value, rewrite

_WITH_BIAS = 3  # operands
_IMAGE_RANK = 4


def fuse_epilogues(graph: Graph) -> Graph:
    """relu(convolution), relu(convolution + residual) and relu(linear) as one call each."""
    return _fused(graph, _takes_epilogue, _ended_nhwc)


def clip_channels_first(graph: Graph) -> Graph:
    """As `fuse_epilogues`, for convolutions over channels-first images."""
    return _fused(graph, _takes_epilogue_first, _ended_first)


def clip_in_place(graph: Graph) -> Graph:
    """As `fuse_epilogues`, for a library that clips in a pass of its own over what it just wrote: then groups
    do not matter, nor whether there is a bias, and minimum(relu(convolution), constant) is one call too."""
    graph = rewrite(graph, _as_relu)
    clipped = _fused(graph, _is_plain, _ended_nhwc)
    if clipped is graph:
        return graph
    graph = clipped
    users = graph.users()

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        call = node.inputs[0].producer if node.op is ops.minimum else None
        if call is None or call.op is not ops.convolution_nhwc or not call.attributes.get("relu"):
            return None
        ceiling = _number(node.inputs[1])
        if ceiling is None or len(users[call.result]) > 1 or call.result in graph.outputs:
            return None
        return (build.apply(call.op, *inputs[0].made_by.inputs, **{**call.attributes, "ceiling": ceiling}),)

    return rewrite(graph, replace)


def _as_relu(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    """maximum(x, 0) -> relu(x)"""
    if node.op is ops.maximum and _number(node.inputs[1]) == 0 and node.inputs[0].dtype is node.result.dtype:
        return (build.apply(ops.relu, inputs[0]),)
    return None


def _number(value: Value) -> float | None:
    """The number that a rank-0 value is, where it is known."""
    node = value.producer
    if node is None or node.op is not ops.full or value.rank:
        return None
    number = node.attributes["value"]
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


# the convolution, its operands in the new graph and the residual, if there is one, as one call that clips
_Ended = Callable[[GraphBuilder, Node, tuple[Value, ...]], Value]


def _fused(graph: Graph, takes_epilogue: Callable[[Node], bool], ended: _Ended) -> Graph:
    fused = _Fused(graph, takes_epilogue, ended)
    return rewrite(graph, fused.replace) if fused.plain or fused.residual else graph


def _ended_nhwc(build: GraphBuilder, call: Node, residual: tuple[Value, ...]) -> Value:
    attributes = {**call.attributes, "relu": True, **({"residual": True} if residual else {})}
    return build.apply(call.op, *call.inputs, *residual, **attributes)


def _ended_first(build: GraphBuilder, call: Node, residual: tuple[Value, ...]) -> Value:
    if call.op is ops.linear:
        return _ended_nhwc(build, call, residual)
    return build.apply(ops.convolution_relu, *call.inputs, *residual, **call.attributes)


class _Fused:
    """Which relu ends which call: those of `plain` end their operand's, `residual[relu]` is the place of a
    convolution in a sum."""

    def __init__(self, graph: Graph, takes_epilogue: Callable[[Node], bool], ended: _Ended) -> None:
        self._ended = ended
        users = graph.users()
        once = {value for value, readers in users.items() if len(readers) == 1} - set(graph.outputs)
        self.plain: set[Node] = set()
        self.residual: dict[Node, int] = {}
        for node in graph.nodes:
            before = node.inputs[0].producer if node.op is ops.relu else None
            if before is None or node.inputs[0] not in once:
                continue
            if takes_epilogue(before) or (before.op is ops.linear and len(before.inputs) == _WITH_BIAS):
                self.plain.add(node)
            elif before.op is ops.add and before.inputs[0].shape == before.inputs[1].shape:
                places = [
                    k
                    for k, v in enumerate(before.inputs)
                    if v in once and v.producer and takes_epilogue(v.producer)
                ]
                if places:
                    self.residual[node] = places[0]

    def replace(self, build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if node in self.plain:
            return (self._ended(build, inputs[0].made_by, ()),)
        if node in self.residual:
            total, place = inputs[0].made_by, self.residual[node]
            return (self._ended(build, total.inputs[place].made_by, (total.inputs[1 - place],)),)
        return None


def _is_plain(node: Node) -> bool:
    return node.op is ops.convolution_nhwc and not _has_epilogue(node)


def _takes_epilogue(node: Node) -> bool:
    return _is_plain(node) and node.attributes["groups"] == 1 and len(node.inputs) == _WITH_BIAS


def _takes_epilogue_first(node: Node) -> bool:
    return (
        node.op is ops.convolution
        and node.result.rank == _IMAGE_RANK
        and node.attributes["groups"] == 1
        and len(node.inputs) == _WITH_BIAS
    )


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
