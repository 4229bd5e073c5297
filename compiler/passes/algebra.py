"""Rewrites that hold for every size: a batch norm joins the convolution before it, products of
one tensor with several weights become one, and what is computed from coordinates alone is
replaced by its value where that is a constant.

Weight values are never seen here: new weights are expressions over parameters, evaluated once at load."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlcb.compiler.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, equal, index
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Node, Value, rewrite
from dlcb.compiler.passes.access import from_coordinates, is_computed
from dlcb.compiler.shapes.system import System


def fold_batch_norms(graph: Graph) -> Graph:
    """batch_norm(convolution(x, w, b)) -> convolution(x, w * s, (b - mean) * s + beta),
    s = gamma / sqrt(var + eps).

    Weights of a half type are rounded once more by this, the same way at every position, so that nothing
    averages the errors out; `cast_evenly` keeps those of a channel from adding up."""
    users = graph.users()

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        before = node.inputs[0].producer if node.inputs else None
        if node.op is not ops.batch_norm or before is None or before.op is not ops.convolution:
            return None
        if len(users[node.inputs[0]]) > 1 or before.inputs[1].kind != "parameter":
            return None
        convolution = inputs[0].producer
        assert convolution is not None
        x, weight, *bias = convolution.inputs
        scale, shift = _affine(build, node, inputs[1:])
        wide = build.apply(ops.reshape, scale, shape=(scale.shape[0], *(ONE for _ in weight.shape[1:])))
        weight = _scaled(build, weight, wide)
        if bias:
            shift = build.apply(ops.add, shift, build.apply(ops.mul, bias[0], scale))
        shift = build.apply(ops.cast, shift, dtype=weight.dtype)
        return (build.apply(ops.convolution, x, weight, shift, **convolution.attributes),)

    return rewrite(graph, replace)


def _scaled(build: GraphBuilder, weight: Value, scale: Value) -> Value:
    if weight.dtype not in (FLOAT16, BFLOAT16):
        return build.apply(ops.cast, build.apply(ops.mul, weight, scale), dtype=weight.dtype)
    exact = build.apply(ops.mul, build.apply(ops.cast, weight, dtype=FLOAT32), scale)
    return build.apply(ops.cast_evenly, exact, dtype=weight.dtype)


def _affine(build: GraphBuilder, node: Node, statistics: tuple[Value, ...]) -> tuple[Value, Value]:
    """(scale, shift) of a batch norm in inference: x * scale + shift."""
    mean, variance, *affine = statistics
    eps = build.apply(ops.full, shape=(), value=node.attributes["eps"], dtype=variance.dtype)
    scale = build.apply(ops.rsqrt, build.apply(ops.add, variance, eps))
    if affine:
        scale = build.apply(ops.mul, scale, affine[0])
    shift = build.apply(ops.neg, build.apply(ops.mul, mean, scale))
    return scale, build.apply(ops.add, shift, affine[1]) if len(affine) > 1 else shift


def merge_linears(graph: Graph) -> Graph:
    """linear(x, w1), linear(x, w2), ... -> slices of linear(x, concat(w1, w2, ...)):
    one product in place of several."""
    families: dict[tuple, list[Node]] = {}
    for node in graph.nodes:
        if node.op is ops.linear and all(v.kind == "parameter" for v in node.inputs[1:]):
            families.setdefault((node.inputs[0], len(node.inputs)), []).append(node)
    home = {node: family for family in families.values() if len(family) > 1 for node in family}
    merged: dict[Node, Value] = {}

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if node not in home:
            return None
        family = home[node]
        if family[0] not in merged:
            parameters = {v.name: build.parameters[v.name] for member in family for v in member.inputs[1:]}
            together = [
                build.apply(ops.concat, *(parameters[member.inputs[k].name] for member in family), axis=0)
                for k in range(1, len(inputs))
            ]
            merged[family[0]] = build.apply(ops.linear, inputs[0], *together)
        start = sum((member.inputs[1].shape[0] for member in family[: family.index(node)]), start=ZERO)
        whole = merged[family[0]]
        stop = start + node.inputs[1].shape[0]
        return (build.apply(ops.slice, whole, axis=whole.rank - 1, start=start, stop=stop, step=1),)

    return rewrite(graph, replace)


def evaluate_coordinates(graph: Graph) -> Graph:
    """A value made of coordinates alone whose element is the same everywhere -> full; x & full(true) ->
    expand(x); attention with a mask that lets everything through -> attention without one."""

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if node.op.kind == "pointwise":
            element = _everywhere(node.result, graph.system)
            if element is not None:
                shape, dtype = node.result.shape, node.result.dtype
                return (build.apply(ops.full, shape=shape, value=element, dtype=dtype),)
        if node.op in (ops.logical_and, ops.bitwise_and):
            for x, y in (inputs, inputs[::-1]):
                if _always_true(y) and x.dtype is node.result.dtype:
                    same = x.shape == node.result.shape
                    return (x if same else build.apply(ops.expand, x, shape=node.result.shape),)
        if node.op is ops.attention and len(inputs) == 4:
            lets_through = True if inputs[3].dtype is BOOL else 0.0
            if _everywhere(node.inputs[3], graph.system) == lets_through:
                return (build.apply(ops.attention, *inputs[:3], **node.attributes),)
        return None

    return rewrite(graph, replace)


def _everywhere(value: Value, system: System) -> bool | int | float | None:
    """The element of `value` where it is made of coordinates alone and is the same at all of them."""
    if not is_computed(value):
        return None
    element = from_coordinates(value, [index(f"i{axis}", size) for axis, size in enumerate(value.shape)])
    assert element is not None  # it is computed
    simple = system.simplify(element)
    return simple.value if simple.is_const else None


def _always_true(value: Value) -> bool:
    node = value.producer
    return node is not None and node.op is ops.full and node.attributes["value"] is True


def additive_masks(graph: Graph, *, row_multiple: int = 1) -> Graph:
    """attention(.., mask) -> attention(.., where(mask, 0, -inf)) for a mask of booleans: what PyTorch makes
    of it in every call is made once for all layers that share it. Its rows start at multiples of
    `row_multiple` elements, since fused attention copies masks whose rows do not."""
    made: dict[Value, Value] = {}

    def replace(build: GraphBuilder, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if node.op is not ops.attention or len(inputs) < 4 or inputs[3].dtype is not BOOL:
            return None
        query, key, value, mask = inputs
        if mask not in made:
            made[mask] = _spaced(build, _to_add(build, mask, query.dtype), key.shape[-2], row_multiple)
        return (build.apply(ops.attention, query, key, value, made[mask], **node.attributes),)

    return rewrite(graph, replace)


def _to_add(build: GraphBuilder, mask: Value, dtype: DType) -> Value:
    passed, hidden = (build.apply(ops.full, shape=(), value=v, dtype=dtype) for v in (0.0, -math.inf))
    return build.apply(ops.where, mask, passed, hidden)


def _spaced(build: GraphBuilder, mask: Value, length: Expr, multiple: int) -> Value:
    """The same mask as the beginnings of rows whose length is a multiple of `multiple`."""
    if multiple == 1 or build.system.known(equal(mask.shape[-1], length)) is not True:
        return mask
    before = (ZERO,) * mask.rank
    after = (*before[:-1], (-length) % multiple)
    rows = build.apply(ops.pad, mask, low=before, high=after, value=-math.inf, mode="constant")
    rows = build.apply(ops.contiguous, rows)
    return build.apply(ops.slice, rows, axis=mask.rank - 1, start=ZERO, stop=length, step=1)
