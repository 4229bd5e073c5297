"""The text form: what is printed is what is expected, and it reads back to a program that prints the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from programs import encoder_layer, small_convnet

from dlcb.compiler.dtype import FLOAT32, INT64
from dlcb.compiler.errors import CompilerError, ShapeError
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, GraphBuilder
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.ir.text import parse, show
from dlcb.compiler.ir.verify import verify
from dlcb.compiler.passes.decompose import decompose


def every_attribute() -> Graph:
    """One node for each kind of attribute that has a text form."""
    g = GraphBuilder("every_attribute")
    n = g.system.fresh("n", 2, 64)
    x = g.input("x", (n, 4), FLOAT32)
    rows = g.apply(ops.slice, x, axis=0, start=as_expr(1), stop=n // 2 + 1, step=1)
    padded = g.apply(ops.pad, rows, low=(0, 1), high=(2, 0), value=-math.inf)
    sizes = g.apply(ops.full, shape=(), value=n * 2, dtype=FLOAT32)
    eager = g.apply_all(
        ops.eager,
        x,
        target="aten.topk.default",
        arguments=("$0", 2, ("dim=", -1), 'it\'s, "quoted"', None, True, 1e-05),
        shapes=((n, as_expr(2)), (n, as_expr(2))),
        dtypes=(FLOAT32, INT64),
    )
    return g.build(g.apply(ops.repeat, padded, counts=(1, 3)), sizes, *eager)


PROGRAMS = {
    "encoder_layer": encoder_layer,
    "encoder_layer_decomposed": lambda: decompose(encoder_layer(), keep={"attention", "linear"}),
    "small_convnet": small_convnet,
    "every_attribute": every_attribute,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"ir/{name}.txt", show(PROGRAMS[name]()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_printed_reads_back(name: str) -> None:
    text = show(PROGRAMS[name]())
    again = parse(text)
    verify(again, "captured")
    assert show(again) == text


def test_a_program_that_was_read_means_the_same() -> None:
    graph = small_convnet()
    random = np.random.default_rng(5)
    image = {"image": random.normal(size=(2, 3, 12, 17))}
    shapes = {value.name: [extent.value for extent in value.shape] for value in graph.parameters}
    parameters = {name: random.normal(size=shape) for name, shape in shapes.items()}
    for expected, found in zip(
        evaluate(graph, image, parameters), evaluate(parse(show(graph)), image, parameters), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


PROGRAM = """program tiny
size n in 0..
input x: float32[n, 3]
%y = neg(%x) : float32[n, 3]
return %y
"""


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("neg(%x)", "negate(%x)", CompilerError, "line 4.*negate"),
        ("neg(%x)", "neg(%z)", CompilerError, "line 4.*%z"),
        ("return %y\n", "", CompilerError, "without 'return'"),
        ("input x:", "inputs x:", CompilerError, "line 3 does not read"),
        (
            ": float32[n, 3]\nreturn",
            ": float64[n, 3]\nreturn",
            CompilerError,
            "has the type float32, where float64",
        ),
        (": float32[n, 3]\nreturn", ": float32[n, 4]\nreturn", ShapeError, "4"),
    ],
)
def test_what_does_not_read(old: str, new: str, error: type[Exception], message: str) -> None:
    assert show(parse(PROGRAM)) == PROGRAM
    assert old in PROGRAM
    with pytest.raises(error, match=message):
        parse(PROGRAM.replace(old, new))
