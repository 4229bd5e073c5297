"""What the tests of both proofs share: programs over [batch, length, width], and their outputs by the NumPy
oracle together and alone, padded and unpadded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from pass_programs import Program

from dlcb.compiler.dtype import BOOL
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.ir import reference
from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import batch_axes
from dlcb.compiler.passes.padding import WHOLE, padding_obstacles
from dlcb.compiler.signature import BatchAxes

Step = Callable[[Program, Value], Value]  # takes [batch, length, WIDTH] to the same rank
WIDTH = 4
OWN_ROWS = BatchAxes("batch", {"x": 0, "mask": 0}, {"0": 0})  # of `program`


def program(*steps: Step) -> Graph:
    """The steps one after the other, over x [batch, length, WIDTH] and `p.mask`, True or False for each of
    batch and length."""
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), WIDTH)
    p.mask = p.input("mask", *x.shape[:2], dtype=BOOL)
    for step in steps:
        x = step(p, x)
    return p.graph(x)


def linear(p: Program, x: Value) -> Value:
    number = len(p.build.parameters)
    return p.linear(x, p.parameter(f"w{number}", WIDTH, WIDTH), p.parameter(f"bias{number}", WIDTH))


def proof(graph: Graph) -> BatchAxes | None:
    return batch_axes(decompose(graph, keep=frozenset()))


def merged(step: Step) -> Step:
    """`step` on [batch * length, width], as in `x.view(-1, width)` and back."""

    def around(p: Program, x: Value) -> Value:
        batch, length, width = x.shape
        return p.reshape(step(p, p.reshape(x, batch * length, width)), batch, length, width)

    return around


def sequence_first(step: Step) -> Step:
    """`step` on [length * batch, width]: rows lie behind positions, and both on one axis."""

    def around(p: Program, x: Value) -> Value:
        batch, length, width = x.shape
        together = p.reshape(p.permute(x, order=(1, 0, 2)), length * batch, width)
        return p.permute(p.reshape(step(p, together), length, batch, width), order=(1, 0, 2))

    return around


def attended(p: Program, scores: Value, x: Value) -> Value:
    return p.matmul(p.softmax(scores, axis=scores.rank - 1), x)


def scores_of(p: Program, x: Value) -> Value:
    return p.matmul(x, p.permute(x, order=(*range(x.rank - 2), x.rank - 1, x.rank - 2)))


def torch_heads(p: Program, x: Value) -> Value:
    """Self-attention as torch's own layers spell it: heads merged behind rows, positions in front of both."""
    batch, length, _ = x.shape
    first = p.permute(x, order=(1, 0, 2))
    rows = p.permute(p.reshape(first, length, batch * 2, 2), order=(1, 0, 2))
    y = p.permute(attended(p, scores_of(p, rows), rows), order=(1, 0, 2))
    y = linear(p, p.reshape(y, length * batch, WIDTH))
    return p.permute(p.reshape(y, length, batch, WIDTH), order=(1, 0, 2))


def obstacles(graph: Graph, fill: Mapping[str, float] | None = None) -> dict[str, str]:
    """Where `fill` is not given inputs may be filled up with anything."""
    return padding_obstacles(decompose(graph, keep=WHOLE), fill or {})


def drawn(
    values: tuple[Value, ...], sizes: Mapping[str, int], draw: np.random.Generator
) -> dict[str, np.ndarray]:
    arrays = {}
    for value in values:
        shape = [evaluate(extent, sizes) for extent in value.shape]
        flags = value.dtype is BOOL
        arrays[value.name] = draw.random(shape) < 0.6 if flags else draw.standard_normal(shape)
    return arrays


def agree_when_stacked(
    graph: Graph, axes: BatchAxes, sizes: Mapping[str, int], rows: int, draw: np.random.Generator
) -> None:
    """The oracle's outputs for a batch, held against those of its first `rows` alone and of the others."""
    weights = drawn(graph.parameters, sizes, draw)
    inputs = drawn(graph.inputs, sizes, draw)
    together = reference.evaluate(graph, inputs, weights)
    for part in (slice(0, rows), slice(rows, None)):
        own = {
            name: _cut(array, axes.input_axes[name], part) if name in axes.input_axes else array
            for name, array in inputs.items()
        }
        for k, alone in enumerate(reference.evaluate(graph, own, weights)):
            assert_close(_cut(together[k], axes.output_axes[str(k)], part), alone)


def agree_when_padded(
    graph: Graph,
    sizes: Mapping[str, int],
    longer: Mapping[str, int],
    draw: np.random.Generator,
    fill: Mapping[str, float] | None = None,
) -> None:
    """The oracle's outputs at `sizes`, held against those at `longer` sizes, where inputs are filled up with
    their value in `fill`, and with anything where they have none."""
    weights = drawn(graph.parameters, sizes, draw)
    inputs, padded = drawn(graph.inputs, sizes, draw), drawn(graph.inputs, longer, draw)
    for name, own in inputs.items():
        if name in (fill or {}):
            padded[name][...] = fill[name]
        padded[name][tuple(map(slice, own.shape))] = own
    alone = reference.evaluate(graph, inputs, weights)
    together = reference.evaluate(graph, padded, weights)
    for own, more in zip(alone, together, strict=True):
        assert_close(more[tuple(map(slice, own.shape))], own)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def _cut(array: np.ndarray, axis: int, part: slice) -> np.ndarray:
    return array[(slice(None),) * axis + (part,)]
