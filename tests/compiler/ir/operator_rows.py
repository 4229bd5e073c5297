"""What the operator tests share: rows of (operator, how eager PyTorch spells it, samples of inputs) and the
comparison.

A row's graph is built twice: with every size of every input free, and with all sizes fixed. Values are
compared in float64 with eager PyTorch, shapes and element types too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from dlcb.compiler.dtype import DTYPES
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.reference import evaluate


@dataclass(frozen=True)
class Draw:
    """A random input: its shape, type, and the range of its values; `special` adds NaN and infinities."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    low: float = -3
    high: float = 3
    special: bool = False

    def array(self, random: np.random.Generator) -> np.ndarray:
        if self.dtype == "bool":
            return random.random(self.shape) < 0.5
        if self.dtype == "float64":
            array = np.asarray(random.uniform(self.low, self.high, self.shape))
            if self.special and array.size:
                flat = array.reshape(-1)
                for k, value in enumerate((math.nan, math.inf, -math.inf, 0.0, 2.5, -0.5)):
                    flat[(k * 7 + 1) % flat.size] = value
            return array
        return np.asarray(random.integers(int(self.low), int(self.high), self.shape, dtype=self.dtype))


def f(*shape: int, **options: Any) -> Draw:
    return Draw(shape, **options)


def special(*shape: int) -> Draw:
    return Draw(shape, special=True)


def i(*shape: int, low: int = -5, high: int = 6, dtype: str = "int64") -> Draw:
    return Draw(shape, dtype, low, high)


def b(*shape: int) -> Draw:
    return Draw(shape, "bool")


@dataclass(frozen=True)
class Row:
    name: str
    build: Callable[..., Value]  # (builder, *values) -> value
    eager: Callable[..., torch.Tensor]
    samples: tuple[tuple[Draw, ...], ...]
    free: bool = True  # tried with free sizes too


def row(
    name: str,
    build: Callable[..., Value],
    eager: Callable[..., torch.Tensor],
    *samples: Any,
    free: bool = True,
) -> Row:
    return Row(name, build, eager, tuple(s if isinstance(s, tuple) else (s,) for s in samples), free)


def op(name: str, eager: Callable[..., torch.Tensor], *samples: Any, **attributes: Any) -> Row:
    """A row whose operator takes attributes that do not depend on sizes."""
    shown = ",".join(f"{k}={v}" for k, v in attributes.items())
    return row(f"{name}({shown})", lambda g, *xs: g.apply(ops.OPS[name], *xs, **attributes), eager, *samples)


def sizes(*values: Any) -> tuple[Expr, ...]:
    return tuple(map(node.as_expr, values))


def graph_of(r: Row, sample: Sequence[Draw], free: bool) -> Any:
    """The row's graph for inputs x0, x1, .. like `sample`."""
    g = GraphBuilder(r.name)
    inputs = []
    for k, draw in enumerate(sample):
        shape = [g.system.fresh(f"x{k}_{axis}") if free else extent for axis, extent in enumerate(draw.shape)]
        inputs.append(g.input(f"x{k}", shape, DTYPES[draw.dtype]))
    return g.build(r.build(g, *inputs))


def cases(*tables: Sequence[Row]) -> list[Any]:
    """pytest parameters (row, sample, free) for every sample of every row."""
    return [
        pytest.param(r, sample, free, id=f"{r.name}-{' '.join(str(list(d.shape)) for d in sample)}-{kind}")
        for table in tables
        for r in table
        for sample in r.samples
        for free, kind in ((True, "free"), (False, "fixed"))
        if r.free or not free
    ]


def agrees(r: Row, sample: Sequence[Draw], free: bool) -> None:
    random = np.random.default_rng(7)
    arrays = [draw.array(random) for draw in sample]
    expected = r.eager(*map(torch.from_numpy, arrays))
    graph = graph_of(r, sample, free)
    (found,) = evaluate(graph, {f"x{k}": array for k, array in enumerate(arrays)})
    output = graph.outputs[0]
    values = {f"x{k}_{axis}": n for k, draw in enumerate(sample) for axis, n in enumerate(draw.shape)}
    assert tuple(node.evaluate(extent, values) for extent in output.shape) == tuple(expected.shape)
    # eager rounds a scalar result of integers to float32, which the oracle holds in float64
    assert output.dtype.name == str(expected.dtype).removeprefix("torch.")
    tolerance = 1e-6 if expected.dtype is torch.float32 else 1e-10
    np.testing.assert_allclose(found, expected.numpy(), rtol=tolerance, atol=tolerance)
