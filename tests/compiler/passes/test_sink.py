"""Movements of rows sink below products: values stay, copies go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_programs import Program

from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.sink import sink_row_movements
from dlcb.compiler.passes.steps import KernelStep

WIDTH, HEADS = 12, 4


def linear(p: Program, x: Value, name: str, wide: int, narrow: int) -> Value:
    return p.linear(x, p.parameter(f"{name}.weight", wide, narrow), p.parameter(f"{name}.bias", wide))


def sequence_first_attention() -> Graph:
    """As torch.nn.MultiheadAttention computes: sequence before batch, batch and heads merged on the way."""
    p = Program("sequence_first_attention")
    batch, length = p.size("batch"), p.size("length")
    x = p.input("x", batch, length, WIDTH)
    first = p.permute(p.exp(x), order=(1, 0, 2))
    packed = linear(p, first, "in", 3 * WIDTH, WIDTH)
    parts = p.permute(p.reshape(packed, length, batch, 3, WIDTH), order=(2, 0, 1, 3))

    def heads(part: int) -> Value:
        rows = p.reshape(p.select(parts, axis=0, index=part), length, batch * HEADS, WIDTH // HEADS)
        return p.reshape(p.permute(rows, order=(1, 0, 2)), batch, HEADS, length, WIDTH // HEADS)

    attended = p.attention(*map(heads, range(3)), scale=None, causal=False)
    rows = p.reshape(p.permute(attended, order=(2, 0, 1, 3)), length * batch, WIDTH)
    out = p.reshape(linear(p, rows, "out", WIDTH, WIDTH), length, batch, WIDTH)
    return p.graph(p.add(p.permute(out, order=(1, 0, 2)), x))


def same_values(before: Graph, after: Graph, *shape: int) -> None:
    random = np.random.default_rng(0)
    values = {v.name: random.normal(size=[size.value for size in v.shape]) for v in before.parameters}
    x = {"x": random.normal(size=shape)}
    np.testing.assert_allclose(evaluate(after, x, values)[0], evaluate(before, x, values)[0], atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 5, WIDTH), (1, 3, WIDTH), (3, 1, WIDTH)])
def test_attention_keeps_its_values(shape: tuple[int, ...]) -> None:
    graph = sequence_first_attention()
    same_values(graph, sink_row_movements(graph), *shape)


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_attention_copies_nothing(target: str) -> None:
    plan = schedule(run_passes(sequence_first_attention(), target))
    kernels = [[n.op.name for n in step.group.nodes] for step in plan.steps if isinstance(step, KernelStep)]
    assert len(kernels) == 2, f"the exponentials and the sum, found {kernels}"


@pytest.mark.parametrize(
    ("move", "sinks"),
    [
        (lambda p, x: p.permute(x, order=(1, 0, 2)), True),
        (lambda p, x: p.reshape(x, x.shape[0] * x.shape[1], WIDTH), True),
        (lambda p, x: p.reshape(p.permute(x, order=(1, 0, 2)), 1, x.shape[0] * x.shape[1], WIDTH), True),
        (lambda p, x: p.permute(p.reshape(x, x.shape[0], x.shape[1], 3, 4), order=(0, 1, 3, 2)), False),
        (lambda p, x: p.reshape(x, x.shape[0], x.shape[1] * 3, 4), False),
        (lambda p, x: p.reshape(x, x.shape[0], x.shape[1] * WIDTH // 4, 4), False),
    ],
    ids=["permutation", "merged rows", "both", "columns move", "columns split", "columns join rows"],
)
def test_what_sinks(move: Callable[[Program, Value], Value], sinks: bool) -> None:
    p = Program()
    moved = move(p, p.input("x", p.size("batch"), p.size("length"), WIDTH))
    graph = p.graph(linear(p, moved, "w", 5, moved.shape[-1].value))
    changed = sink_row_movements(graph)
    assert (changed.nodes[0].op.name == "linear") == sinks
    same_values(graph, changed, 2, 3, WIDTH)
