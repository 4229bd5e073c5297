"""Small programs that several tests use, built without PyTorch."""

from __future__ import annotations

from dlcb.compiler.dtype import FLOAT32, INT64, DType
from dlcb.compiler.expr.node import ONE, as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Value


def encoder_layer(dtype: DType = FLOAT32, heads: int = 2, width: int = 8, vocabulary: int = 11) -> Graph:
    """Embedding, one post-norm attention block and the masked mean over the sequence; batch and sequence
    free."""
    g = GraphBuilder("encoder_layer")
    batch, sequence = g.system.fresh("batch"), g.system.fresh("sequence", 1, 512)
    ids = g.input("input_ids", (batch, sequence), INT64)
    mask = g.input("attention_mask", (batch, sequence), INT64)

    def weight(name: str, *shape: int) -> Value:
        return g.parameter(name, shape, dtype)

    def split(x: Value) -> Value:
        shape = (batch, sequence, as_expr(heads), as_expr(width // heads))
        return g.apply(ops.permute, g.apply(ops.reshape, x, shape=shape), order=(0, 2, 1, 3))

    g.source = "encoder.py:4"
    x = g.apply(ops.embedding, weight("words", vocabulary, width), ids)
    x = g.apply(
        ops.layer_norm, x, weight("norm.weight", width), weight("norm.bias", width), dims=1, eps=1e-12
    )
    g.source = "encoder.py:9"
    q, k, v = (
        split(g.apply(ops.linear, x, weight(f"{n}.weight", width, width), weight(f"{n}.bias", width)))
        for n in ("query", "key", "value")
    )
    wide_mask = g.apply(ops.reshape, mask, shape=(batch, ONE, ONE, sequence))
    allowed = g.apply(ops.ne, wide_mask, g.apply(ops.full, shape=(), value=0, dtype=INT64))
    context = g.apply(ops.permute, g.apply(ops.attention, q, k, v, allowed, scale=None), order=(0, 2, 1, 3))
    context = g.apply(ops.reshape, context, shape=(batch, sequence, as_expr(width)))
    x = g.apply(ops.gelu, g.apply(ops.add, x, context), approximate="none")
    g.source = "encoder.py:15"
    weights = g.apply(ops.cast, g.apply(ops.reshape, mask, shape=(batch, sequence, ONE)), dtype=dtype)
    total = g.apply(ops.sum, g.apply(ops.mul, x, weights), axes=(1,))
    mean = g.apply(ops.div, total, g.apply(ops.sum, weights, axes=(1,)))
    return g.build(mean)


def small_convnet() -> Graph:
    """Convolution, PReLU, pooling with `ceil_mode`, and a softmax over the channels; batch, height and width
    free."""
    g = GraphBuilder("small_convnet")
    batch = g.system.fresh("batch")
    height, width = g.system.fresh("height", 12), g.system.fresh("width", 12)
    x = g.input("image", (batch, 3, height, width), FLOAT32)
    options = {"padding": (0, 0), "dilation": (1, 1)}
    x = g.apply(
        ops.convolution,
        x,
        g.parameter("conv1.weight", (4, 3, 3, 3), FLOAT32),
        g.parameter("conv1.bias", (4,), FLOAT32),
        stride=(1, 1),
        groups=1,
        **options,
    )
    slope = g.apply(ops.reshape, g.parameter("prelu.weight", (4,), FLOAT32), shape=(as_expr(4), ONE, ONE))
    zero = g.apply(ops.full, shape=(), value=0.0, dtype=FLOAT32)
    x = g.apply(ops.where, g.apply(ops.gt, x, zero), x, g.apply(ops.mul, x, slope))
    x = g.apply(ops.max_pool, x, window=(2, 2), stride=(2, 2), ceil_mode=True, **options)
    return g.build(g.apply(ops.softmax, x, axis=1), x)
