"""Views are found by running coordinate rules; batch rows are proven independent the same way."""

from __future__ import annotations

import pytest
from pass_programs import Program, encoder_layer

from dlcb.compiler.dtype import INT64
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import batch_axes
from dlcb.compiler.passes.views import Views
from dlcb.compiler.signature import BatchAxes


def proof(graph: Graph) -> BatchAxes | None:
    return batch_axes(decompose(graph, keep=frozenset()))


def view_of(p: Program, value) -> tuple[str, tuple[str, ...], str] | None:
    found = Views(p.build.system).of(value)
    return (
        None if found is None else (found[0].name, tuple(map(repr, found[1].strides)), repr(found[1].offset))
    )


def test_movements_of_a_tensor_are_views() -> None:
    p = Program()
    n, m = p.size("n"), p.size("m")
    x = p.input("x", n, m, 6)
    assert view_of(p, p.permute(x, order=(2, 0, 1))) == ("x", ("1", "m * 6", "6"), "0")
    assert view_of(p, p.reshape(x, n, m, 2, 3)) == ("x", ("m * 6", "6", "3", "1"), "0")
    sliced = p.slice(x, axis=2, start=as_expr(1), stop=as_expr(6), step=2)
    assert view_of(p, sliced) == ("x", ("m * 6", "6", "2"), "1")
    assert view_of(p, p.expand(p.reshape(x, n, 1, m, 6), shape=(n, as_expr(5), m, as_expr(6)))) == (
        "x", ("m * 6", "0", "6", "1"), "0",
    )  # fmt: skip


def test_what_is_not_linear_in_its_coordinates_is_no_view() -> None:
    p = Program()
    n, m = p.size("n"), p.size("m")
    x = p.input("x", n, m)
    merged = p.reshape(p.permute(x, order=(1, 0)), n * m)
    assert view_of(p, merged) is None
    assert view_of(p, p.pad(x, low=(0, 1), high=(0, 0), value=0.0)) is None
    assert view_of(p, p.exp(x)) is None


def test_what_runs_backwards_is_no_view() -> None:
    p = Program()
    x = p.input("x", p.size("n"), p.size("m"))
    assert view_of(p, p.flip(x, axes=(1,))) is None
    assert view_of(p, p.flip(p.flip(x, axes=(1,)), axes=(1,))) == ("x", ("m", "1"), "0")


def test_a_view_may_lead_over_what_is_none() -> None:
    """Heads of sequence-first attention: rows and heads are merged into one axis and split again."""
    p = Program()
    rows, length = p.size("rows"), p.size("length")
    x = p.input("x", length, rows, 12)
    merged = p.permute(p.reshape(x, length, rows * 4, 3), order=(1, 0, 2))
    split = p.reshape(merged, rows, 4, length, 3)
    assert view_of(p, split) == ("x", ("12", "3", "rows * 12", "1"), "0")


def test_an_encoder_layer_keeps_rows_apart() -> None:
    assert proof(encoder_layer()) == BatchAxes("batch", {"x": 0, "mask": 0}, {"0": 0})


def test_a_batch_on_an_inner_axis_is_found() -> None:
    p = Program()
    x = p.input("x", p.size("length"), p.size("rows"))
    assert proof(p.graph(p.softmax(x, axis=0))) == BatchAxes("rows", {"x": 1}, {"0": 1})


def mean_over_batch(p: Program, x):
    return p.sub(x, p.mean(x, axes=(0,), keepdim=True))


def position_in_batch(p: Program, x):
    rows = p.arange(start=as_expr(0), stop=x.shape[0], step=1, dtype=INT64)
    return p.add(x, p.cast(p.reshape(rows, x.shape[0], 1), dtype=x.dtype))


def reversed_batch(p: Program, x):
    return p.flip(x, axes=(0,))


def divided_by_batch(p: Program, x):
    return p.div(x, p.full(shape=(), value=x.shape[0], dtype=x.dtype))


@pytest.mark.parametrize("mixing", [mean_over_batch, position_in_batch, reversed_batch, divided_by_batch])
def test_rows_that_depend_on_others_or_on_their_place_are_not_stacked(mixing) -> None:
    p = Program()
    x = p.softmax(p.input("x", p.size("batch"), 7), axis=1)
    assert proof(p.graph(mixing(p, x))) is None


def test_an_input_without_rows_is_no_obstacle() -> None:
    p = Program()
    x, scale = p.input("x", p.size("batch"), 7), p.input("scale", 7)
    assert proof(p.graph(p.mul(x, scale))) == BatchAxes("batch", {"x": 0}, {"0": 0})
