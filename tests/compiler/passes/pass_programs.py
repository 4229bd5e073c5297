"""Programs that several tests of the passes schedule."""

from __future__ import annotations

from collections.abc import Sequence

from dlcb.compiler.dtype import BOOL, FLOAT32
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder, Value


class Program:
    """A builder with short spellings for tests: float32 inputs and parameters, integers as sizes."""

    def __init__(self, name: str = "program") -> None:
        self.build = GraphBuilder(name)
        self.size = self.build.system.fresh

    def input(self, name: str, *shape, dtype=FLOAT32) -> Value:
        return self.build.input(name, shape, dtype)

    def parameter(self, name: str, *shape, dtype=FLOAT32) -> Value:
        return self.build.parameter(name, shape, dtype)

    def constant(self, value: float) -> Value:
        return self.build.apply(ops.full, shape=(), value=value, dtype=FLOAT32)

    def reshape(self, x: Value, *shape) -> Value:
        return self.build.apply(ops.reshape, x, shape=tuple(map(as_expr, shape)))

    def __getattr__(self, name: str):
        op = ops.OPS[name]
        return lambda *inputs, **attributes: self.build.apply(op, *inputs, **attributes)

    def graph(self, *outputs: Value) -> Graph:
        return self.build.build(*outputs)


def encoder_layer(width: int = 384, heads: int = 12) -> Graph:
    """One BERT layer: projections, attention with a mask, two residual norms and the feed-forward network."""
    p = Program("encoder_layer")
    batch, length = p.size("batch"), p.size("length")
    x = p.input("x", batch, length, width)
    mask = p.input("mask", batch, 1, length, length, dtype=BOOL)

    def linear(value: Value, name: str, wide: int, narrow: int) -> Value:
        return p.linear(value, p.parameter(f"{name}.weight", wide, narrow), p.parameter(f"{name}.bias", wide))

    def heads_of(value: Value) -> Value:
        return p.permute(p.reshape(value, batch, length, heads, width // heads), order=(0, 2, 1, 3))

    def norm(value: Value, name: str) -> Value:
        weights = p.parameter(f"{name}.weight", width), p.parameter(f"{name}.bias", width)
        return p.layer_norm(value, *weights, dims=1, eps=1e-12)

    query, key, value = (heads_of(linear(x, name, width, width)) for name in ("query", "key", "value"))
    attended = p.attention(query, key, value, mask, scale=0.17, causal=False)
    merged = p.reshape(p.permute(attended, order=(0, 2, 1, 3)), batch, length, width)
    first = norm(p.add(linear(merged, "out", width, width), x), "norm1")
    hidden = p.gelu(linear(first, "up", 4 * width, width), approximate="none")
    return p.graph(norm(p.add(linear(hidden, "down", width, 4 * width), first), "norm2"))


def step_kinds(steps: Sequence[object]) -> list[str]:
    return [type(step).__name__ for step in steps]
