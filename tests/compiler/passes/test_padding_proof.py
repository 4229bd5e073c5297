"""What the padding proof allows is held against the NumPy oracle: filled up with anything, the elements that
were there stay as they were. What mixes an axis is refused, and so is what depends on its length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_programs import Program, encoder_layer

from dlcb.compiler.dtype import BOOL, INT64
from dlcb.compiler.expr.node import as_expr, evaluate
from dlcb.compiler.ir import reference
from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.padding import WHOLE, padding_obstacles

Step = Callable[[Program, Value], Value]
WIDTH = 4


def obstacles(graph: Graph) -> dict[str, str]:
    return padding_obstacles(decompose(graph, keep=WHOLE), {})


def positions(p: Program, x: Value) -> Value:
    line = p.arange(start=as_expr(0), stop=x.shape[1], step=1, dtype=INT64)
    return p.reshape(p.cast(line, dtype=x.dtype), x.shape[1], 1)


def linear(p: Program, x: Value) -> Value:
    number = len(p.build.parameters)
    return p.linear(x, p.parameter(f"w{number}", WIDTH, WIDTH), p.parameter(f"bias{number}", WIDTH))


# each takes [batch, length, width] to the same rank
HARMLESS: dict[str, Step] = {
    "exp": lambda p, x: p.exp(p.neg(p.mul(x, x))),
    "linear": linear,
    "layer_norm": lambda p, x: p.layer_norm(x, dims=1, eps=1e-5),
    "softmax over features": lambda p, x: p.softmax(x, axis=2),
    "mean over features": lambda p, x: p.sub(x, p.mean(x, axes=(2,), keepdim=True)),
    "position added": lambda p, x: p.add(x, positions(p, x)),
    "cumsum": lambda p, x: p.cumsum(x, axis=1),
    "causal attention": lambda p, x: p.attention(x, x, x, scale=None, causal=True),
    "heads split and merged": lambda p, x: p.exp(
        p.reshape(
            p.permute(p.permute(p.reshape(x, *x.shape[:2], 2, 2), order=(0, 2, 1, 3)), order=(0, 2, 1, 3)),
            *x.shape[:2], WIDTH,
        )
    ),
    "causal window": lambda p, x: p.add(
        x, p.slice(p.pad(x, low=(0, 2, 0), high=(0, 0, 0), value=0.0), axis=1, start=as_expr(0),
                   stop=x.shape[1], step=1),
    ),
}  # fmt: skip
HARMFUL: dict[str, Step] = {
    "mean": lambda p, x: p.sub(x, p.mean(x, axes=(1,), keepdim=True)),
    "softmax": lambda p, x: p.softmax(x, axis=1),
    "maximum": lambda p, x: p.sub(x, p.max(x, axes=(1,), keepdim=True, empty=True)),
    "flip": lambda p, x: p.flip(x, axes=(1,)),
    "roll": lambda p, x: p.roll(x, axis=1, shift=1),
    "cumsum from the end": lambda p, x: p.flip(p.cumsum(p.flip(x, axes=(1,)), axis=1), axes=(1,)),
    "position from the end": lambda p, x: p.add(x, p.flip(positions(p, x), axes=(0,))),
    "attention": lambda p, x: p.attention(x, x, x, scale=None, causal=False),
    "divided by the length": lambda p, x: p.div(x, p.full(shape=(), value=x.shape[1], dtype=x.dtype)),
    "last": lambda p, x: p.add(x, p.slice(x, axis=1, start=x.shape[1] - 1, stop=x.shape[1], step=1)),
    "rows and positions merged": lambda p, x: p.reshape(
        p.reshape(p.permute(x, order=(0, 2, 1)), x.shape[0], WIDTH * x.shape[1]), *x.shape[:2], WIDTH
    ),
}


def program(*steps: Step) -> Graph:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    for step in steps:
        x = step(p, x)
    return p.graph(x)


def agree_when_padded(graph: Graph, length: int, more: int, draw: np.random.Generator) -> None:
    """The oracle's outputs at `length`, held against those with `more` positions of anything behind."""
    parameters = {
        value.name: draw.standard_normal([size.value for size in value.shape]) for value in graph.parameters
    }
    x = draw.standard_normal((2, length + more, WIDTH))
    alone = reference.evaluate(graph, {"x": x[:, :length]}, parameters)
    padded = reference.evaluate(graph, {"x": x}, parameters)
    for own, longer in zip(alone, padded, strict=True):
        np.testing.assert_allclose(longer[tuple(map(slice, own.shape))], own, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=15)  # a busy machine is no failure
@given(
    names=st.lists(st.sampled_from(sorted(HARMLESS)), min_size=1, max_size=5),
    length=st.integers(1, 4),
    more=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_what_is_proven_is_true(names: list[str], length: int, more: int, seed: int) -> None:
    graph = program(*(HARMLESS[name] for name in names))
    assert obstacles(graph)["length"] == ""
    agree_when_padded(graph, length, more, np.random.default_rng(seed))


@settings(deadline=None, max_examples=15)  # a busy machine is no failure
@given(
    harmful=st.sampled_from(sorted(HARMFUL)),
    before=st.lists(st.sampled_from(sorted(HARMLESS)), max_size=2),
    after=st.lists(st.sampled_from(sorted(HARMLESS)), max_size=2),
)
def test_what_mixes_is_refused_wherever_it_stands(harmful: str, before: list[str], after: list[str]) -> None:
    steps = [HARMLESS[name] for name in before] + [HARMFUL[harmful]] + [HARMLESS[name] for name in after]
    assert "uses it" in obstacles(program(*steps))["length"]


@pytest.mark.parametrize("harmful", sorted(HARMFUL))
def test_what_is_refused_would_have_changed_results(harmful: str) -> None:
    graph = program(HARMFUL[harmful])
    with pytest.raises(AssertionError):
        agree_when_padded(graph, 3, 2, np.random.default_rng(1))


def test_outputs_of_other_sizes_keep_what_they_had() -> None:
    p = Program()
    batch, length = p.size("batch"), p.size("length", 3)
    x = p.input("x", batch, length, WIDTH)
    pairs = p.matmul(x, p.permute(x, order=(0, 2, 1)))
    differences = p.sub(
        p.slice(x, axis=1, start=as_expr(1), stop=length, step=1),
        p.slice(x, axis=1, start=as_expr(0), stop=length - 1, step=1),
    )
    flat = p.reshape(x, batch, length * WIDTH)
    first = p.select(x, axis=1, index=as_expr(0))
    every_other = p.slice(x, axis=1, start=as_expr(0), stop=length, step=2)
    graph = p.graph(pairs, differences, flat, first, every_other)
    assert obstacles(graph) == {"batch": "", "length": ""}
    agree_when_padded(graph, 5, 4, np.random.default_rng(0))
    shapes = [tuple(evaluate(size, {"batch": 2, "length": 5}) for size in v.shape) for v in graph.outputs]
    assert shapes == [(2, 5, 5), (2, 4, 4), (2, 20), (2, 4), (2, 3, 4)]


def test_a_convolution_may_look_back_and_not_over_the_end() -> None:
    for padding, harmless in (((0,), True), ((1,), False)):
        p = Program()
        x = p.input("x", p.size("batch"), WIDTH, p.size("length", 3))
        weight = p.parameter("w", 2, WIDTH, 3)
        y = p.convolution(x, weight, stride=(1,), padding=padding, dilation=(1,), groups=1)
        assert (obstacles(p.graph(y))["length"] == "") == harmless


def test_a_mask_over_keys_does_not_make_an_encoder_harmless() -> None:
    assert obstacles(encoder_layer()) == {"batch": "", "length": "attention uses it"}


def test_a_causal_layer_with_a_mask_of_its_own_is_harmless() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    mask = p.input("mask", x.shape[0], x.shape[1], x.shape[1], dtype=BOOL)
    assert obstacles(p.graph(p.attention(x, x, x, mask, scale=None, causal=True)))["length"] == ""
    other = Program()
    x = other.input("x", other.size("batch"), other.size("length"), WIDTH)
    keys = other.input("keys", x.shape[0], other.size("memory"), WIDTH)
    crossed = obstacles(other.graph(other.attention(x, keys, keys, scale=None, causal=False)))
    assert crossed == {"batch": "", "length": "", "memory": "attention uses it"}


def test_sizes_that_are_tied_to_others_are_not_padded() -> None:
    p = Program()
    half, whole = p.size("half"), p.size("whole")
    x, y = p.input("x", half, WIDTH), p.input("y", whole, WIDTH)
    p.build.system.equal(whole, half * 2)
    both = obstacles(p.graph(p.exp(x), p.exp(y)))
    assert both["half"] and both["whole"]


def test_an_operator_that_pytorch_runs_ends_the_proof_only_where_it_sees_the_size() -> None:
    p = Program()
    x, scale = p.input("x", p.size("batch"), p.size("length"), WIDTH), p.input("scale", WIDTH)
    seen = p.eager(x, target="t", arguments=(), shapes=(x.shape,), dtypes=(x.dtype,))
    unseen = p.eager(scale, target="t", arguments=(), shapes=(scale.shape,), dtypes=(scale.dtype,))
    assert obstacles(p.graph(p.exp(seen)))["length"] == "eager uses it"
    assert obstacles(p.graph(p.mul(x, unseen)))["length"] == ""
