"""What the batch proof allows is held against the NumPy oracle: rows run together are what they are alone,
also where an axis merges rows with positions or heads. What mixes rows is refused, and what counts them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_programs import Program
from proof_programs import (
    OWN_ROWS,
    WIDTH,
    Step,
    agree_when_stacked,
    linear,
    merged,
    program,
    proof,
    sequence_first,
    torch_heads,
)

from dlcb.compiler.dtype import FLOAT32, INT64
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import stacking_obstacles
from dlcb.compiler.signature import BatchAxes

ROWS_OF_X = BatchAxes("batch", {"x": 0}, {"0": 0})


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


def pairs(p: Program, x: Value) -> Value:
    """A third merge: positions, rows and halves of the features on one axis."""
    rows, width = x.shape
    halves = p.softmax(p.reshape(x, rows * 2, width // 2), axis=1)
    return p.reshape(halves, rows, width)


def positions_mixed_between(p: Program, x: Value) -> Value:
    """Positions are mixed where rows lie behind them, before both are merged."""
    batch, length, width = x.shape
    first = p.flip(p.softmax(p.permute(x, order=(1, 0, 2)), axis=0), axes=(0,))
    together = p.exp(p.reshape(first, length * batch, width))
    return p.permute(p.reshape(together, length, batch, width), order=(1, 0, 2))


# each takes [batch, length, width] to the same shape
SEPARATE: dict[str, Step] = {
    "linear": linear,
    "merged linear": merged(linear),
    "merged norm": merged(lambda p, x: p.layer_norm(x, dims=1, eps=1e-5)),
    "merged reversal of features": merged(lambda p, x: p.flip(x, axes=(1,))),
    "heads": heads,
    "heads as torch merges them": torch_heads,
    "linear behind positions": sequence_first(linear),
    "norm behind positions": sequence_first(lambda p, x: p.layer_norm(x, dims=1, eps=1e-5)),
    "pairs of features behind positions": sequence_first(pairs),
    "positions mixed between": positions_mixed_between,
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


def apart_in_other_order(p: Program, x: Value) -> Value:
    """Merged as positions and rows, taken apart as rows and positions."""
    batch, length, width = x.shape
    together = p.exp(p.reshape(p.permute(x, order=(1, 0, 2)), length * batch, width))
    return p.reshape(together, batch, length, width)


def heads_in_front(p: Program, x: Value) -> Value:
    """Heads merged in front of rows, and taken apart as if they lay behind."""
    batch, length, _ = x.shape
    apart = p.permute(p.reshape(x, batch, length, 2, 2), order=(2, 0, 1, 3))
    rows = p.exp(p.reshape(apart, 2 * batch, length, 2))
    back = p.permute(p.reshape(rows, batch, 2, length, 2), order=(0, 2, 1, 3))
    return p.reshape(back, batch, length, WIDTH)


def positions_and_rows_added(p: Program, x: Value) -> Value:
    """Two merged axes of the same extent, whose rows lie elsewhere."""
    batch, length, width = x.shape
    a = p.reshape(x, batch * length, width)
    b = p.reshape(p.permute(x, order=(1, 0, 2)), batch * length, width)
    return p.reshape(p.add(p.exp(a), p.exp(b)), batch, length, width)


MIXING: dict[str, Step] = {
    "apart in other order": apart_in_other_order,
    "heads in front": heads_in_front,
    "positions and rows added": positions_and_rows_added,
    "softmax behind positions": sequence_first(lambda p, x: p.softmax(x, axis=0)),
    "roll behind positions": sequence_first(lambda p, x: p.roll(x, axis=0, shift=1)),
    "heads rolled": lambda p, x: p.reshape(
        p.roll(p.reshape(p.permute(x, order=(0, 2, 1)), x.shape[0] * WIDTH, x.shape[1]), axis=0, shift=2),
        x.shape[0], x.shape[1], WIDTH,
    ),
    "statistics of the batch": lambda p, x: p.div(x, p.sqrt(p.var(x, axes=(0,), keepdim=True, correction=0))),
    "place behind positions": sequence_first(
        lambda p, x: p.add(x, p.reshape(p.cast(
            p.arange(start=as_expr(0), stop=x.shape[0], step=1, dtype=INT64), dtype=FLOAT32), x.shape[0], 1))
    ),
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
}  # fmt: skip


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
    sizes = {"batch": rows + others, "length": length}
    agree_when_stacked(graph, OWN_ROWS, sizes, rows, np.random.default_rng(seed))


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
        sizes = {"batch": 5, "length": 4}
        agree_when_stacked(program(MIXING[mixing]), OWN_ROWS, sizes, 2, np.random.default_rng(1))


def test_outputs_have_one_row_for_each_of_the_inputs() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    assert proof(p.graph(p.reshape(x, x.shape[0] * x.shape[1], WIDTH))) is None
    square = Program()
    x = square.input("x", square.size("batch"), 1)
    assert proof(square.graph(square.expand(x, shape=(x.shape[0], x.shape[0])))) is None


def test_what_stands_against_each_size_is_said() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"))
    centred = p.sub(x, p.sum(x, axes=(0,), keepdim=True))
    obstacles = stacking_obstacles(decompose(p.graph(centred), keep=frozenset()))
    assert obstacles == {"batch": "sum uses it", "length": ""}
    y = p.reshape(x, x.shape[0] * x.shape[1])
    obstacles = stacking_obstacles(p.graph(y))
    assert set(obstacles.values()) == {"an output has shape [batch * length]"}


def test_an_input_that_has_a_size_twice_is_said_with_its_axes() -> None:
    p = Program()
    n, q = p.size("n"), p.size("q")
    x, y, z = p.input("x", n, WIDTH), p.input("y", n, q), p.input("z", n, n)
    obstacles = stacking_obstacles(p.graph(p.exp(x), p.exp(y), p.exp(z)))
    assert obstacles["n"] == "it is the size of axes 0 and 1 of input 'z'"
    p.build.system.equal(q, n)
    obstacles = stacking_obstacles(p.graph(p.exp(x), p.exp(y)))
    assert obstacles["n"] == "axis 1 of input 'y' follows it: q == n must hold"


def test_pytorch_may_not_see_how_many_rows_there_are() -> None:
    p = Program()
    x, scale = p.input("x", p.size("batch"), WIDTH), p.input("scale", WIDTH)

    def run(value: Value) -> Value:
        return p.eager(value, target="t", arguments=(), shapes=(value.shape,), dtypes=(value.dtype,))

    assert proof(p.graph(p.mul(x, run(scale)))) == ROWS_OF_X
    assert proof(p.graph(p.mul(x, run(number_of_rows(p, x))))) is None


def test_a_bias_does_not_count_the_rows() -> None:
    p = Program()
    x, weight = p.input("x", p.size("batch"), WIDTH, 9), p.parameter("w", 2, WIDTH, 3)
    options = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    assert proof(p.graph(p.convolution(x, weight, p.parameter("bias", 2), **options))) == ROWS_OF_X
    rows = p.expand(number_of_rows(p, x), shape=(as_expr(2),))
    assert proof(p.graph(p.convolution(x, weight, rows, **options))) is None
