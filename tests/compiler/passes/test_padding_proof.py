"""What the padding proof allows is held against the NumPy oracle: filled up with anything, the elements that
were there stay as they were. What mixes an axis is refused, and so is what depends on its length."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_programs import Program, encoder_layer
from proof_programs import (
    WIDTH,
    Step,
    agree_when_padded,
    attended,
    linear,
    merged,
    obstacles,
    program,
    scores_of,
    sequence_first,
)

from dlcb.compiler.dtype import BOOL, INT64
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, evaluate
from dlcb.compiler.ir.graph import Value

HIDDEN = {"mask": 1}  # True means padding; x is filled up with anything


def positions(p: Program, x: Value) -> Value:
    line = p.arange(start=as_expr(0), stop=x.shape[1], step=1, dtype=INT64)
    return p.reshape(p.cast(line, dtype=x.dtype), x.shape[1], 1)


def triangle(p: Program, length: Expr, diagonal: int = 0) -> Value:
    """True at keys that a row may see: none behind it."""
    return p.tril(p.full(shape=(length, length), value=True, dtype=BOOL), diagonal=diagonal)


def later(p: Program, length: Expr) -> Value:
    """True at keys behind a row, by comparing places."""
    line = p.arange(start=as_expr(0), stop=length, step=1, dtype=INT64)
    return p.gt(p.reshape(line, 1, length), p.reshape(line, length, 1))


def banned(p: Program, hidden: Value, by: float = -math.inf) -> Value:
    return p.where(hidden, p.constant(by), p.constant(0.0))


def keys(p: Program, mask: Value) -> Value:
    batch, length = mask.shape
    return p.reshape(mask, batch, 1, length)


def attend(p: Program, x: Value, mask: Value) -> Value:
    return p.attention(x, x, x, mask, scale=None, causal=False)


def spelt_out(p: Program, x: Value, mask: Value) -> Value:
    """Attention in its own operators. Each row sees itself: one with all keys hidden were no number."""
    length = x.shape[1]
    line = p.arange(start=as_expr(0), stop=length, step=1, dtype=INT64)
    itself = p.eq(p.reshape(line, 1, length), p.reshape(line, length, 1))
    return attended(p, p.add(scores_of(p, x), p.where(itself, p.constant(0.0), mask)), x)


def hidden_as(p: Program, x: Value, other: Value) -> Value:
    """x where the mask shows it, `other` elsewhere."""
    return p.where(p.reshape(p.mask, *p.mask.shape, 1), other, x)


def shown(p: Program, x: Value) -> Value:
    return hidden_as(p, x, p.constant(0.0))


def mean_shown(p: Program, x: Value) -> Value:
    """The mean of what the mask shows, as sentences are pooled."""
    weights = p.reshape(p.cast(p.logical_not(p.mask), dtype=x.dtype), *p.mask.shape, 1)
    total = p.sum(p.mul(x, weights), axes=(1,), keepdim=True)
    return p.sub(x, p.div(total, p.maximum(p.sum(weights, axes=(1,), keepdim=True), p.constant(1e-9))))


# each takes [batch, length, width] to the same rank
HARMLESS: dict[str, Step] = {
    "exp": lambda p, x: p.exp(p.neg(p.mul(x, x))),
    "linear": linear,
    "layer_norm": lambda p, x: p.layer_norm(x, dims=1, eps=1e-5),
    "softmax over features": lambda p, x: p.softmax(x, axis=2),
    "mean over features": lambda p, x: p.sub(x, p.mean(x, axes=(2,), keepdim=True)),
    "position added": lambda p, x: p.add(x, positions(p, x)),
    "cumsum": lambda p, x: p.cumsum(x, axis=1),
    "merged linear": merged(linear),
    "linear behind positions": sequence_first(linear),
    "merged norm": merged(lambda p, x: p.layer_norm(x, dims=1, eps=1e-5)),
    "merged halves": merged(
        lambda p, x: p.reshape(p.softmax(p.reshape(x, x.shape[0] * 2, 2), axis=1), *x.shape)
    ),
    "masked attention": lambda p, x: attend(p, x, keys(p, p.logical_not(p.mask))),
    "attention under a mask to add": lambda p, x: attend(p, x, banned(p, keys(p, p.mask))),
    "triangle": lambda p, x: attend(p, x, triangle(p, x.shape[1])),
    "places compared": lambda p, x: attend(p, x, banned(p, later(p, x.shape[1]))),
    "places compared or masked": lambda p, x: attend(
        p, x, p.logical_not(p.logical_or(keys(p, p.mask), later(p, x.shape[1])))
    ),
    "places compared and a mask to add": lambda p, x: attend(
        p, x, p.add(banned(p, keys(p, p.mask)), banned(p, later(p, x.shape[1])))
    ),
    "masked softmax": lambda p, x: spelt_out(p, x, banned(p, later(p, x.shape[1]))),
    "sum of what is shown": lambda p, x: p.sub(x, p.sum(shown(p, x), axes=(1,), keepdim=True)),
    "mean of what is shown": mean_shown,
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
    "mask upside down": lambda p, x: attend(p, x, keys(p, p.mask)),
    "mask that only weakens": lambda p, x: attend(p, x, banned(p, keys(p, p.mask), -1.0)),
    "mask from the end": lambda p, x: attend(p, x, keys(p, p.flip(p.logical_not(p.mask), axes=(1,)))),
    "one key too far": lambda p, x: attend(p, x, triangle(p, x.shape[1], 1)),
    "triangle of later keys": lambda p, x: attend(p, x, later(p, x.shape[1])),
    "triangle from the end": lambda p, x: attend(p, x, p.flip(triangle(p, x.shape[1]), axes=(0, 1))),
    "places compared without effect": lambda p, x: attend(p, x, banned(p, later(p, x.shape[1]), 1.0)),
    "either masked or later": lambda p, x: attend(
        p, x, p.logical_or(keys(p, p.mask), p.logical_not(later(p, x.shape[1])))
    ),
    "merged softmax": merged(lambda p, x: p.softmax(x, axis=0)),
    "merged roll": merged(lambda p, x: p.roll(x, axis=0, shift=1)),
    "merged and taken apart in other order": lambda p, x: p.permute(
        p.reshape(p.exp(p.reshape(x, x.shape[0] * x.shape[1], WIDTH)), x.shape[1], x.shape[0], WIDTH),
        order=(1, 0, 2),
    ),
    "sum of what is hidden": lambda p, x: p.sub(x, p.sum(p.sub(x, shown(p, x)), axes=(1,), keepdim=True)),
    "places of what is hidden": lambda p, x: p.sub(
        x, p.max(hidden_as(p, x, positions(p, x)), axes=(1,), keepdim=True, empty=True)
    ),
    "a factor of 2 for what is hidden": lambda p, x: p.sub(
        x, p.prod(hidden_as(p, x, p.constant(2.0)), axes=(1,), keepdim=True)
    ),
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


@settings(deadline=None, max_examples=15)  # a busy machine is no failure
@given(
    names=st.lists(st.sampled_from(sorted(HARMLESS)), min_size=1, max_size=5),
    length=st.integers(1, 4),
    more=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_what_is_proven_is_true(names: list[str], length: int, more: int, seed: int) -> None:
    graph = program(*(HARMLESS[name] for name in names))
    assert obstacles(graph, HIDDEN)["length"] == ""
    sizes = {"batch": 2, "length": length}
    longer = {"batch": 2, "length": length + more}
    agree_when_padded(graph, sizes, longer, np.random.default_rng(seed), HIDDEN)


@settings(deadline=None, max_examples=15)  # a busy machine is no failure
@given(
    harmful=st.sampled_from(sorted(HARMFUL)),
    before=st.lists(st.sampled_from(sorted(HARMLESS)), max_size=2),
    after=st.lists(st.sampled_from(sorted(HARMLESS)), max_size=2),
)
def test_what_mixes_is_refused_wherever_it_stands(harmful: str, before: list[str], after: list[str]) -> None:
    steps = [HARMLESS[name] for name in before] + [HARMFUL[harmful]] + [HARMLESS[name] for name in after]
    assert "uses it" in obstacles(program(*steps), HIDDEN)["length"]


@pytest.mark.parametrize("harmful", sorted(HARMFUL))
def test_what_is_refused_would_have_changed_results(harmful: str) -> None:
    graph = program(HARMFUL[harmful])
    with pytest.raises(AssertionError):
        sizes, longer = {"batch": 2, "length": 3}, {"batch": 2, "length": 5}
        agree_when_padded(graph, sizes, longer, np.random.default_rng(1), HIDDEN)


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
    agree_when_padded(graph, {"batch": 2, "length": 5}, {"batch": 2, "length": 9}, np.random.default_rng(0))
    shapes = [tuple(evaluate(size, {"batch": 2, "length": 5}) for size in v.shape) for v in graph.outputs]
    assert shapes == [(2, 5, 5), (2, 4, 4), (2, 20), (2, 4), (2, 3, 4)]


def test_an_output_that_may_be_shorter_when_padded_is_not_cut_back() -> None:
    for stop, harmless in ((lambda n: n // 2, True), (lambda n: n % 3, False), (lambda n: 2 - n % 2, False)):
        p = Program()
        x = p.input("x", p.size("batch"), p.size("length", 3), WIDTH)
        y = p.slice(x, axis=1, start=as_expr(0), stop=stop(x.shape[1]), step=1)
        assert (obstacles(p.graph(y))["length"] == "") == harmless


def test_an_output_on_an_axis_with_rows_in_front_is_not_cut_back() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    y = p.reshape(p.exp(x), x.shape[0] * x.shape[1], WIDTH)
    assert obstacles(p.graph(y))["length"] == "an output has shape [batch * length, 4]"


def test_what_inputs_are_filled_up_with_decides() -> None:
    """Zeros do not change a sum, and ids of 0 hide themselves where the program says so."""
    graph = program(lambda p, x: p.sub(x, p.sum(x, axes=(1,), keepdim=True)))
    assert obstacles(graph, {"x": 0.0})["length"] == ""
    assert obstacles(graph, {"x": 1.0})["length"] == obstacles(graph)["length"] == "sum uses it"
    p = Program()
    ids = p.input("ids", p.size("batch"), p.size("length"), dtype=INT64)
    x = p.embedding(p.parameter("table", 9, WIDTH), ids)
    zero = p.full(shape=(), value=0, dtype=INT64)
    graph = p.graph(attend(p, x, keys(p, p.ne(ids, zero))))
    assert obstacles(graph, {"ids": 0})["length"] == ""
    assert obstacles(graph, {"ids": 1})["length"] == "attention uses it"


@pytest.mark.parametrize(("power", "obstacle"), [(60.0, ""), (600.0, "sum uses it")])
def test_what_overflows_is_not_taken_away_by_a_zero(power: float, obstacle: str) -> None:
    """Infinity times 0 is no number: by its type, not as Python calculates."""

    def masked_sum(p: Program, x: Value) -> Value:
        large = p.exp(p.add(x, p.constant(power)))
        weight = p.reshape(p.cast(p.mask, dtype=x.dtype), *x.shape[:2], 1)
        return p.sub(x, p.sum(p.mul(large, weight), axes=(1,), keepdim=True))

    assert obstacles(program(masked_sum), {"x": 0.0, "mask": 0})["length"] == obstacle


def test_lengths_from_outside_may_reach_into_padding() -> None:
    """Nothing says that they end where the request does."""
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    lengths = p.input("lengths", x.shape[0], dtype=INT64)
    line = p.arange(start=as_expr(0), stop=x.shape[1], step=1, dtype=INT64)
    seen = p.lt(p.reshape(line, 1, 1, x.shape[1]), p.reshape(lengths, x.shape[0], 1, 1))
    graph = p.graph(attend(p, x, p.reshape(seen, x.shape[0], 1, x.shape[1])))
    assert obstacles(graph, {"x": 0, "lengths": 0})["length"] == "attention uses it"


def test_keys_of_another_length_are_hidden_by_their_own_mask() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    memory = p.input("memory", x.shape[0], p.size("width"), WIDTH)
    mask = p.input("mask", *memory.shape[:2], dtype=BOOL)
    y = p.attention(x, memory, memory, keys(p, mask), scale=None, causal=False)
    found = obstacles(p.graph(y), {"mask": 0})
    assert found == {"batch": "", "length": "", "width": ""}
    agree_when_padded(
        p.graph(y),
        {"batch": 2, "length": 3, "width": 4},
        {"batch": 2, "length": 5, "width": 6},
        np.random.default_rng(0),
        {"mask": 0},
    )


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
    seen = p.eager(x, target="aten.sort.default", arguments=(), shapes=(x.shape,), dtypes=(x.dtype,))
    unseen = p.eager(scale, target="t", arguments=(), shapes=(scale.shape,), dtypes=(scale.dtype,))
    assert obstacles(p.graph(p.exp(seen)))["length"] == "aten.sort.default uses it"
    assert obstacles(p.graph(p.mul(x, unseen)))["length"] == ""
