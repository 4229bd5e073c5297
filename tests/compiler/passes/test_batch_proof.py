"""What the batch proof allows is held against the NumPy oracle: rows run together are what they are alone,
also where an axis merges rows with positions or heads. What mixes rows is refused, and what counts them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_programs import Program

from dlcb.compiler.dtype import FLOAT32, INT64
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import reference
from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import batch_axes
from dlcb.compiler.signature import BatchAxes

Step = Callable[[Program, Value], Value]
WIDTH = 4
OWN_ROWS = BatchAxes("batch", {"x": 0}, {"0": 0})


def proof(graph: Graph) -> BatchAxes | None:
    return batch_axes(decompose(graph, keep=frozenset()))


def merged(step: Step) -> Step:
    """`step` on [batch * length, width], as in `x.view(-1, width)` and back."""

    def around(p: Program, x: Value) -> Value:
        batch, length, width = x.shape
        return p.reshape(step(p, p.reshape(x, batch * length, width)), batch, length, width)

    return around


def linear(p: Program, x: Value) -> Value:
    return p.linear(x, p.parameter(f"w{len(p.build.parameters)}", WIDTH, WIDTH))


def heads(p: Program, x: Value) -> Value:
    """Self-attention whose two heads are merged with the rows."""
    batch, length, _ = x.shape
    apart = p.permute(p.reshape(x, batch, length, 2, 2), order=(0, 2, 1, 3))
    rows = p.reshape(apart, batch * 2, length, 2)
    scores = p.softmax(p.matmul(rows, p.permute(rows, order=(0, 2, 1))), axis=2)
    back = p.permute(p.reshape(p.matmul(scores, rows), batch, 2, length, 2), order=(0, 2, 1, 3))
    return p.reshape(back, batch, length, WIDTH)


def mean_of_halves(p: Program, x: Value) -> Value:
    """Halves of the features become rows of their own; their mean, [batch, length, 2]."""
    batch, length, _ = x.shape
    halves = p.reshape(p.exp(p.neg(p.reshape(x, batch * length * 2, 2))), batch * length, 2, 2)
    return p.reshape(p.mean(halves, axes=(1,), keepdim=True), batch, length, 2)


def repeated(p: Program, x: Value) -> Value:
    """Each row three times in a row, and their mean."""
    batch, length, width = x.shape
    three = p.expand(p.reshape(x, batch, 1, length, width), shape=(batch, as_expr(3), length, width))
    together = p.exp(p.neg(p.reshape(three, batch * 3, length, width)))
    return p.mean(p.reshape(together, batch, 3, length, width), axes=(1,), keepdim=False)


def first_of_pairs(p: Program, x: Value) -> Value:
    """Every second element of the merged axis."""
    batch, length, width = x.shape
    pairs = p.reshape(x, batch * length * 2, width // 2)
    first = p.slice(pairs, axis=0, start=as_expr(0), stop=batch * length * 2, step=2)
    return p.concat(*(p.reshape(first, batch, length, 2),) * 2, axis=2)


# each takes [batch, length, width] to the same shape
SEPARATE: dict[str, Step] = {
    "linear": linear,
    "merged linear": merged(linear),
    "merged norm": merged(lambda p, x: p.layer_norm(x, dims=1, eps=1e-5)),
    "merged reversal of features": merged(lambda p, x: p.flip(x, axes=(1,))),
    "heads": heads,
    "halves": lambda p, x: p.concat(*(mean_of_halves(p, x),) * 2, axis=2),
    "repeated": repeated,
    "first of pairs": first_of_pairs,
    "positions mixed": lambda p, x: p.add(p.softmax(x, axis=1), p.flip(x, axes=(1,))),
}


def other_order(p: Program, x: Value) -> Value:
    """Positions outermost, then taken apart as if rows were."""
    batch, length, width = x.shape
    return p.reshape(p.reshape(p.permute(x, order=(1, 0, 2)), length * batch, width), batch, length, width)


def number_of_rows(p: Program, x: Value) -> Value:
    return p.full(shape=(), value=x.shape[0], dtype=FLOAT32)


def counted(p: Program, x: Value) -> Value:
    """The sum of the rows' numbers."""
    line = p.arange(start=as_expr(0), stop=x.shape[0], step=1, dtype=INT64)
    return p.cast(p.sum(line, axes=(0,), keepdim=False), dtype=FLOAT32)


def mean_of_next(p: Program, x: Value) -> Value:
    """The batch twice, one behind the other: row r of the merged pairs is no row of the batch."""
    batch, length, width = x.shape
    return p.mean(p.reshape(p.concat(x, x, axis=0), batch, 2, length, width), axes=(1,), keepdim=False)


MIXING: dict[str, Step] = {
    "merged flip": merged(lambda p, x: p.flip(x, axes=(0,))),
    "merged softmax": merged(lambda p, x: p.softmax(x, axis=0)),
    "merged roll": merged(lambda p, x: p.roll(x, axis=0, shift=1)),
    "merged cumsum": merged(lambda p, x: p.cumsum(x, axis=0)),
    "merged mean": merged(lambda p, x: p.sub(x, p.mean(x, axes=(0,), keepdim=True))),
    "positions outermost": other_order,
    "merged with all features": merged(lambda p, x: p.reshape(p.permute(x, order=(1, 0)), *x.shape)),
    "batch behind batch": mean_of_next,
    "times the rows": lambda p, x: p.mul(x, number_of_rows(p, x)),
    "weights times the rows": lambda p, x: p.add(
        x, p.mul(p.parameter(f"v{len(p.build.parameters)}", WIDTH), number_of_rows(p, x))
    ),
    "rows counted": lambda p, x: p.add(x, counted(p, x)),
}


def program(*steps: Step) -> Graph:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    for step in steps:
        x = step(p, x)
    return p.graph(x)


def agree_when_stacked(graph: Graph, rows: int, others: int, length: int, draw: np.random.Generator) -> None:
    """The oracle's first rows of a batch, held against those rows alone."""
    parameters = {
        value.name: draw.standard_normal([size.value for size in value.shape]) for value in graph.parameters
    }
    x = draw.standard_normal((rows + others, length, WIDTH))
    for chosen in (slice(0, rows), slice(rows, None)):
        (alone,) = reference.evaluate(graph, {"x": x[chosen]}, parameters)
        (together,) = reference.evaluate(graph, {"x": x}, parameters)
        np.testing.assert_allclose(together[chosen], alone, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=15)  # a busy machine is no failure
@given(
    names=st.lists(st.sampled_from(sorted(SEPARATE)), min_size=1, max_size=4),
    rows=st.integers(1, 3),
    others=st.integers(1, 2),
    length=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_what_is_proven_is_true(names: list[str], rows: int, others: int, length: int, seed: int) -> None:
    graph = program(*(SEPARATE[name] for name in names))
    assert proof(graph) == OWN_ROWS
    agree_when_stacked(graph, rows, others, length, np.random.default_rng(seed))


@settings(deadline=None, max_examples=15)  # a busy machine is no failure
@given(
    mixing=st.sampled_from(sorted(MIXING)),
    before=st.lists(st.sampled_from(sorted(SEPARATE)), max_size=2),
    after=st.lists(st.sampled_from(sorted(SEPARATE)), max_size=2),
)
def test_what_mixes_is_refused_wherever_it_stands(mixing: str, before: list[str], after: list[str]) -> None:
    steps = [SEPARATE[name] for name in before] + [MIXING[mixing]] + [SEPARATE[name] for name in after]
    found = proof(program(*steps))
    assert found is None or found.symbol != "batch"


@pytest.mark.parametrize("mixing", sorted(MIXING))
def test_what_is_refused_would_have_changed_results(mixing: str) -> None:
    with pytest.raises(AssertionError):
        agree_when_stacked(program(MIXING[mixing]), 2, 3, 4, np.random.default_rng(1))


def test_outputs_have_one_row_for_each_of_the_inputs() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    assert proof(p.graph(p.reshape(x, x.shape[0] * x.shape[1], WIDTH))) is None
    square = Program()
    x = square.input("x", square.size("batch"), 1)
    assert proof(square.graph(square.expand(x, shape=(x.shape[0], x.shape[0])))) is None


def test_pytorch_may_not_see_how_many_rows_there_are() -> None:
    p = Program()
    x, scale = p.input("x", p.size("batch"), WIDTH), p.input("scale", WIDTH)

    def run(value: Value) -> Value:
        return p.eager(value, target="t", arguments=(), shapes=(value.shape,), dtypes=(value.dtype,))

    assert proof(p.graph(p.mul(x, run(scale)))) == OWN_ROWS
    assert proof(p.graph(p.mul(x, run(number_of_rows(p, x))))) is None


def test_a_bias_does_not_count_the_rows() -> None:
    p = Program()
    x, weight = p.input("x", p.size("batch"), WIDTH, 9), p.parameter("w", 2, WIDTH, 3)
    options = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    assert proof(p.graph(p.convolution(x, weight, p.parameter("bias", 2), **options))) == OWN_ROWS
    rows = p.expand(number_of_rows(p, x), shape=(as_expr(2),))
    assert proof(p.graph(p.convolution(x, weight, rows, **options))) is None
