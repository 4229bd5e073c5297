"""Long sums of generated C++ are as exact as PyTorch's, also where all that is added is equal: then every
addition rounds in the same direction. Compiled without vectors, so that no accumulator is there by chance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from kernel_programs import Program
from kernel_runs import Case, CppRun, Unit

from dlcb.compiler.dtype import BFLOAT16, FLOAT16, FLOAT32, INT64, DType
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.options import Target

Shape = tuple[int, int]
_SHAPES: tuple[Shape, ...] = ((41, 41), (100, 100), (1, 10_000), (10_000, 3), (1000, 1000))
_EQUAL = (0.1, 0.7310586, 1.3333334, 3.1415927)  # whose last digits are rounded differently


@dataclass(frozen=True)
class _Sum:
    """A program with inputs `x` and, if it asks for them, `ids`, and what PyTorch calls it."""

    program: Callable[[Program, Value], Value]
    eager: Callable[[torch.Tensor], torch.Tensor]
    dtype: DType = FLOAT32


def _all(p: Program, x: Value) -> Value:
    return p.sum(x, axes=(0, 1), keepdim=False)


def _rows(p: Program, x: Value) -> Value:
    return p.sum(x, axes=(1,), keepdim=False)


def _columns(p: Program, x: Value) -> Value:
    return p.sum(x, axes=(0,), keepdim=False)


def _chosen(p: Program, x: Value, axis: int) -> Value:
    """Of elements whose indices are checked in the loop."""
    return p.sum(p.index_select(x, p.tensor("ids", "k", INT64), axis=axis), axes=(axis,), keepdim=False)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype is torch.float64 else x.float()


_SUMS: Mapping[str, _Sum] = {
    "all": _Sum(_all, lambda x: x.sum()),
    "rows": _Sum(_rows, lambda x: x.sum(1)),
    "columns": _Sum(_columns, lambda x: x.sum(0)),
    "all of sigmoids": _Sum(lambda p, x: _all(p, p.sigmoid(x)), lambda x: x.sigmoid().sum()),
    "rows of sigmoids": _Sum(lambda p, x: _rows(p, p.sigmoid(x)), lambda x: x.sigmoid().sum(1)),
    "columns of sigmoids": _Sum(lambda p, x: _columns(p, p.sigmoid(x)), lambda x: x.sigmoid().sum(0)),
    "two loops": _Sum(lambda p, x: _all(p, p.flip(x, axes=(1,))), lambda x: x.sum()),
    "rows of chosen": _Sum(lambda p, x: _chosen(p, x, 1), lambda x: x.sum(1)),
    "columns of chosen": _Sum(lambda p, x: _chosen(p, x, 0), lambda x: x.sum(0)),
    "rows of float16": _Sum(
        lambda p, x: _rows(p, p.cast(x, dtype=FLOAT32)), lambda x: _wide(x).sum(1), FLOAT16
    ),
    "columns of float16": _Sum(
        lambda p, x: _columns(p, p.cast(x, dtype=FLOAT32)), lambda x: _wide(x).sum(0), FLOAT16
    ),
    "columns of bfloat16": _Sum(
        lambda p, x: _columns(p, p.cast(x, dtype=FLOAT32)), lambda x: _wide(x).sum(0), BFLOAT16
    ),
    "mean": _Sum(lambda p, x: p.mean(x, axes=(1,), keepdim=False), lambda x: x.mean(1)),
    "variance": _Sum(
        lambda p, x: p.var(x, axes=(0,), keepdim=False, correction=0), lambda x: x.var(0, correction=0)
    ),
    "softmax": _Sum(lambda p, x: p.softmax(x, axis=1), lambda x: x.softmax(1)),
    "softmax of columns": _Sum(lambda p, x: p.softmax(x, axis=0), lambda x: x.softmax(0)),
}


@pytest.fixture(scope="module")
def unit() -> Unit:
    def case(sum_of: _Sum) -> Case:
        p = Program("sum")
        return Case(p.builder.build(sum_of.program(p, p.tensor("x", "n m", sum_of.dtype))), Target.cpp())

    return Unit({name: case(sum_of) for name, sum_of in _SUMS.items()}, Target.cpp())


def _agrees(unit: Unit, name: str, x: np.ndarray) -> None:
    kind = getattr(torch, _SUMS[name].dtype.name)
    tensor = torch.from_numpy(x).to(kind)
    arrays = {"x": tensor.double().numpy()}
    if "chosen" in name:
        arrays["ids"] = np.arange(x.shape[1 if "rows" in name else 0])
    (got,) = CppRun(unit, name)(arrays)
    exact = _SUMS[name].eager(tensor.double())
    most = exact.abs().max().item() or 1.0
    error = (torch.from_numpy(np.asarray(got)).double() - exact).abs().max().item() / most
    of_eager = (_SUMS[name].eager(tensor).double() - exact).abs().max().item() / most
    assert error <= 1.5 * of_eager + 1e-6, (x.shape, x.flat[0], error, of_eager)


@pytest.mark.parametrize("name", _SUMS)
def test_sums_of_equal_elements_are_as_exact_as_pytorch_s(name: str, unit: Unit) -> None:
    for shape in _SHAPES:
        for value in _EQUAL:
            if name != "variance":  # which is nothing there
                _agrees(unit, name, np.full(shape, value, np.float32))


@pytest.mark.parametrize("name", _SUMS)
def test_sums_of_unlike_elements_are_as_exact_as_pytorch_s(name: str, unit: Unit) -> None:
    rng = np.random.default_rng(0)
    for shape in _SHAPES:
        _agrees(unit, name, rng.standard_normal(shape, np.float32))
        _agrees(unit, name, np.where(rng.random(shape) < 0.5, 0.1, 0.7310586).astype(np.float32))


@pytest.mark.parametrize("name", ["all", "rows", "columns"])
def test_sums_of_many_equal_elements_are_as_exact_as_pytorch_s(name: str, unit: Unit) -> None:
    for shape in ((1, 16_000_000), (1_000_000, 16)):
        _agrees(unit, name, np.full(shape, _EQUAL[1], np.float32))
