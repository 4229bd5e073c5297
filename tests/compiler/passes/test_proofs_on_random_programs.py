"""Random small programs over rows, lengths and masks: what the proofs allow is held against the NumPy oracle.
Many of the steps mix rows or positions on purpose, so that a proof which allows too much is caught."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from pass_programs import Program
from proof_programs import WIDTH, agree_when_padded, agree_when_stacked, obstacles, proof

from dlcb.compiler.dtype import BOOL, FLOAT32, INT64
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, as_expr, product
from dlcb.compiler.ir.graph import Graph, Value

FILL = {"x": 0.0, "mask": 1}
QUICK, LONG = 100, 6000  # programs


class Draft:
    """A program that grows by random steps."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.p = Program()
        self.batch, self.length = self.p.size("batch"), self.p.size("length")
        shape = (self.batch, self.length) if self.draw.random() < 0.6 else (self.length, self.batch)
        self.x = self.p.input("x", *shape, WIDTH)
        self.mask = self.p.input("mask", *shape, dtype=BOOL)
        self.pool = [self.x]

    def grow(self, steps: int) -> Graph:
        for _ in range(steps):
            step = STEPS[self.draw.integers(len(STEPS))]
            newest = self.pool[-1] if self.draw.random() < 0.8 else self.pick(self.pool)
            try:
                made = step(self, newest)
            except ShapeError:
                continue  # what does not fit is no program
            if made is not None and made.rank <= 4:
                self.pool.append(made)
        return self.p.graph(self.pool[-1])

    def pick(self, choices):
        return choices[self.draw.integers(len(choices))]

    def axis(self, x: Value) -> int:
        return int(self.draw.integers(x.rank))

    def line(self, extent: Expr) -> Value:
        return self.p.arange(start=as_expr(0), stop=extent, step=1, dtype=INT64)


def pointwise(d: Draft, x: Value) -> Value:
    return d.p.tanh(d.p.mul(x, d.p.constant(d.pick((-1.5, 0.5, 2.0)))))


def joined(d: Draft, x: Value) -> Value | None:
    others = [y for y in d.pool if y.rank == x.rank and y.shape == x.shape]
    return d.p.add(x, d.pick(others)) if others else None


def reordered(d: Draft, x: Value) -> Value:
    return d.p.permute(x, order=tuple(map(int, d.draw.permutation(x.rank))))


def with_axes_merged(d: Draft, x: Value) -> Value | None:
    if x.rank < 2:
        return None
    first = int(d.draw.integers(x.rank - 1))
    return d.p.reshape(x, *x.shape[:first], x.shape[first] * x.shape[first + 1], *x.shape[first + 2 :])


def taken_apart(d: Draft, x: Value) -> Value | None:
    """One axis as two or three, in an order that may not be the one in which they were merged."""
    axis, factors = d.axis(x), (d.batch, d.length, as_expr(2), as_expr(WIDTH))
    whole, simplify = x.shape[axis], d.p.build.system.simplify
    ways = [parts for n in (2, 3) for parts in permutations(factors, n) if simplify(product(parts)) is whole]
    return d.p.reshape(x, *x.shape[:axis], *d.pick(ways), *x.shape[axis + 1 :]) if ways else None


def folded(d: Draft, x: Value) -> Value:
    fold = d.pick((d.p.sum, d.p.mean, partial(d.p.max, empty=True)))
    return d.p.sub(x, fold(x, axes=(d.axis(x),), keepdim=True))


def softened(d: Draft, x: Value) -> Value:
    return d.p.softmax(x, axis=d.axis(x))


def running(d: Draft, x: Value) -> Value:
    return d.p.cumsum(x, axis=d.axis(x))


def moved(d: Draft, x: Value) -> Value:
    axis = d.axis(x)
    return d.p.flip(x, axes=(axis,)) if d.draw.random() < 0.5 else d.p.roll(x, axis=axis, shift=1)


def shifted(d: Draft, x: Value) -> Value:
    """Each place holds what stood before it on one axis, 0 at the first; or behind it, 0 at the last."""
    axis = d.axis(x)
    one = tuple(int(k == axis) for k in range(x.rank))
    back = d.draw.random() < 0.6
    low, high = (one, (0,) * x.rank) if back else ((0,) * x.rank, one)
    start = as_expr(0 if back else 1)
    padded = d.p.pad(x, low=low, high=high, value=0.0)
    return d.p.slice(padded, axis=axis, start=start, stop=start + x.shape[axis], step=1)


def doubled(d: Draft, x: Value) -> Value:
    """An axis twice behind itself."""
    return d.p.concat(x, x, axis=d.axis(x))


def placed(d: Draft, x: Value) -> Value:
    axis = d.axis(x)
    shape = [ONE] * x.rank
    shape[axis] = x.shape[axis]
    line = d.line(x.shape[axis])
    line = d.p.flip(line, axes=(0,)) if d.draw.random() < 0.3 else line
    return d.p.add(x, d.p.reshape(d.p.cast(line, dtype=FLOAT32), *shape))


def counted(d: Draft, x: Value) -> Value:
    return d.p.mul(x, d.p.full(shape=(), value=x.shape[d.axis(x)], dtype=FLOAT32))


def multiplied(d: Draft, x: Value) -> Value | None:
    last = x.shape[-1]
    if not last.is_const:
        return None
    weight = d.p.parameter(f"w{len(d.p.build.parameters)}", last, last)
    return d.p.matmul(x, weight)


def triangles(d: Draft, x: Value) -> Value | None:
    if x.rank < 2:
        return None
    return d.pick((d.p.tril, d.p.triu))(x, diagonal=int(d.draw.integers(-1, 2)))


def masked(d: Draft, x: Value) -> Value | None:
    """x where the mask shows it, or hides it."""
    if x.rank < 2 or x.shape[:2] != d.mask.shape:
        return None
    mask = d.p.reshape(d.mask, *d.mask.shape, *(1 for _ in x.shape[2:]))
    zero = d.p.constant(0.0)
    return d.p.where(mask, zero, x) if d.draw.random() < 0.7 else d.p.where(mask, x, zero)


def attended(d: Draft, x: Value) -> Value | None:
    if x.rank < 3 or not x.shape[-1].is_const:
        return None
    masks: list[Callable[[], Value | None]] = [
        lambda: None,
        lambda: _triangle(d, x.shape[-2]),
        lambda: d.p.where(_later(d, x.shape[-2]), d.p.constant(-math.inf), d.p.constant(0.0)),
        lambda: _keys(d, x),
    ]
    mask = d.pick(masks)()
    return d.p.attention(x, x, x, *filter(None, [mask]), scale=None, causal=bool(d.draw.random() < 0.2))


def _triangle(d: Draft, length: Expr) -> Value:
    ones = d.p.full(shape=(length, length), value=True, dtype=BOOL)
    return d.p.tril(ones, diagonal=int(d.draw.integers(-1, 2)))


def _later(d: Draft, length: Expr) -> Value:
    row, column = d.p.reshape(d.line(length), length, 1), d.p.reshape(d.line(length), 1, length)
    return d.p.gt(*((column, row) if d.draw.random() < 0.7 else (row, column)))


def _keys(d: Draft, x: Value) -> Value | None:
    first, second = d.mask.shape
    batch, length = x.shape[0], x.shape[-2]
    mask = d.mask if (first, second) == (batch, length) else d.p.permute(d.mask, order=(1, 0))
    if mask.shape != (batch, length):
        return None
    mask = mask if d.draw.random() < 0.3 else d.p.logical_not(mask)
    return d.p.reshape(mask, batch, *(1 for _ in x.shape[1:-2]), 1, length)


STEPS: tuple[Callable[[Draft, Value], Value | None], ...] = (
    pointwise, joined, joined, reordered, reordered, with_axes_merged, with_axes_merged, with_axes_merged,
    taken_apart, taken_apart, taken_apart, taken_apart, taken_apart, folded, softened, running, moved,
    shifted, doubled, placed, counted, multiplied, multiplied, triangles, masked, masked, attended, attended,
)  # fmt: skip


def hold(seed: int) -> tuple[bool, bool]:
    """Whether rows, and padding, of a random program are proven; if so, they are compared."""
    draft = Draft(seed)
    graph = draft.grow(int(draft.draw.integers(2, 9)))
    axes = proof(graph)
    if axes is not None and axes.symbol == "batch":
        agree_when_stacked(graph, axes, {"batch": 5, "length": 3}, 2, draft.draw)
    padded = obstacles(graph, FILL)["length"] == ""
    if padded:
        sizes = {"batch": 2, "length": 3}
        agree_when_padded(graph, sizes, {"batch": 2, "length": 5}, draft.draw, FILL)
    return axes is not None, padded


@pytest.mark.parametrize("first", [0, pytest.param(QUICK, marks=pytest.mark.slow)])
def test_what_is_proven_of_random_programs_is_true(first: int) -> None:
    found = [hold(seed) for seed in range(first, first + (LONG if first else QUICK))]
    stacked, padded = (sum(column) for column in zip(*found, strict=True))
    least = len(found) // 10
    assert least < stacked < len(found) - least
    assert least < padded < len(found) - least
