"""Casts give exactly the number that PyTorch gives, also where it never leaves a register: it is stored, and
cast again in the same kernel."""

import numpy as np
import pytest
import torch
from cuda_on_cpu import EmulatedRun
from kernel_programs import Program
from kernel_runs import Case, CppRun, CudaRun, Run, Unit

from dlcb.compiler.bridge.emit import to_torch
from dlcb.compiler.dtype import DTYPES, FLOAT64, INT64, DType
from dlcb.compiler.options import Target

FRACTIONS = [0.0, -0.0, 0.1, -0.5, 0.9, 1 / 3, 1e-8, -1.5, 255.5, 300.7, -129.3, 40000.7, 16777217.0, 65504.0]
BEYOND = [np.nan, np.inf, -np.inf, 65519.0, 65520.0, 3e9, -3e9, 4294967295.0, 9.3e18, -9.3e18, 1e20, 1e300]
WHOLE = [0, 1, -1, 127, 128, -129, 255, 300, 2049, 65535, -32769, 2**24 + 1, 2**31, -(2**31) - 1, 2**53 + 1]
REAL = {name: dtype for name, dtype in DTYPES.items() if not dtype.is_complex}  # kernels compute of no others
TARGETS = {CppRun: Target.cpp(), EmulatedRun: Target.cuda(), CudaRun: Target.cuda()}
RUNS = [CppRun, EmulatedRun, pytest.param(CudaRun, marks=pytest.mark.device)]


def others(dtype: DType) -> list[DType]:
    return [other for other in REAL.values() if other is not dtype]


def wide(dtype: DType) -> DType:
    return FLOAT64 if dtype.is_float else INT64


def casts(dtype: DType, target: Target) -> Case:
    """To every other type, and from there to a type that holds it."""
    p = Program(dtype.name)
    x = p.tensor("x", "n", dtype)
    made = [p.cast(x, dtype=other) for other in others(dtype)]
    again = [p.cast(y, dtype=wide(y.dtype)) for y in made if wide(y.dtype) is not y.dtype]
    return Case(p.builder.build(*made, *again), target)


@pytest.fixture(scope="module", params=RUNS)
def compiled(request: pytest.FixtureRequest) -> tuple[Unit, type[Run]]:
    target = TARGETS[request.param]
    return Unit({name: casts(dtype, target) for name, dtype in REAL.items()}, target), request.param


def drawn(dtype: DType) -> torch.Tensor:
    """Thrice, so that each number stands in vector code and in what is left over."""
    x = torch.tensor([*FRACTIONS, *BEYOND] if dtype.is_float else WHOLE, dtype=to_torch(wide(dtype)))
    return torch.cat([x.repeat(3), x[:1]]).to(to_torch(dtype))


@pytest.mark.parametrize("name", REAL)
def test_a_cast_is_pytorch_s(compiled: tuple[Unit, type[Run]], name: str) -> None:
    unit, run = compiled
    x = drawn(REAL[name])
    got = run(unit, name)({"x": numbers(x)})
    # of what an integer does not hold a GPU makes something else
    here = x.cuda() if run is CudaRun else x
    made = {other: here.to(to_torch(other)) for other in others(REAL[name])}
    again = [y.to(to_torch(wide(other))) for other, y in made.items() if wide(other) is not other]
    for mine, right in zip(got, [*made.values(), *again], strict=True):
        np.testing.assert_array_equal(mine, numbers(right.cpu()), err_msg=str(right.dtype))


def numbers(x: torch.Tensor) -> np.ndarray:
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy()
