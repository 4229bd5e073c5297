"""Generated kernels against the oracle. All programs of one target are compiled as one unit, then run at all
their sizes."""

import os

import numpy as np
import pytest
from cuda_on_cpu import EmulatedRun
from kernel_rows import ROWS, Row
from kernel_runs import Case, CppRun, CudaRun, Unit, from_storage, to_storage

from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.kgen import split, windows
from dlcb.compiler.options import Target

SEED = int(os.environ.get("SEED", "0")) or int.from_bytes(os.urandom(4), "little")


@pytest.fixture(scope="module")
def cpp_unit() -> Unit:
    target = Target.cpp()
    return Unit({name: Case(row.graph(name), target) for name, row in ROWS.items()}, target)


@pytest.fixture(scope="module")
def cuda_unit() -> Unit:
    """With the variants that are meant for large sizes at small ones as well."""
    target = Target.cuda()
    unit = Unit({name: Case(row.graph(name), target) for name, row in ROWS.items()}, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "ENOUGH_THREADS", 1)
        patch.setattr(split, "ROWS", split.Limits(results=256, length=64, part=32, parts=8))
        patch.setattr(split, "COLUMNS", split.Limits(results=1 << 16, length=16, part=8, parts=64))
        assert unit.text
    return unit


def drawn(row: Row, graph: Graph, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Inputs as the kernels will see them: already rounded to their types."""
    arrays = row.inputs(graph, sizes, np.random.default_rng(SEED))
    return {v.name: from_storage(to_storage(arrays[v.name], v.dtype), v.dtype) for v in graph.inputs}


def agree(row: Row, got: list[np.ndarray], want: list[np.ndarray], sizes: dict[str, int]) -> None:
    for mine, expected in zip(got, want, strict=True):
        assert mine.shape == expected.shape
        exact = expected.astype(np.float64)
        finite = np.abs(exact[np.isfinite(exact)])
        scale = max(1.0, float(finite.max(initial=0.0)))
        message = f"sizes {sizes}, seed {SEED}"
        np.testing.assert_allclose(
            mine.astype(np.float64), exact, row.tolerance, row.tolerance * scale, err_msg=message
        )


@pytest.mark.parametrize("name", ROWS)
def test_cpp_agrees_with_the_oracle(name: str, cpp_unit: Unit) -> None:
    case, row = cpp_unit.cases[name], ROWS[name]
    for sizes in row.sizes:
        arrays = drawn(row, case.graph, sizes)
        for threads in (1, 2):
            agree(row, CppRun(cpp_unit, name, threads)(arrays), evaluate(case.graph, arrays), sizes)
        assert case.status[0] == 0


def test_every_cuda_kernel_compiles_without_a_gpu(cuda_unit: Unit) -> None:
    assert cuda_unit.binary[:4] == b"\x7fELF"


@pytest.mark.parametrize("run", [EmulatedRun, pytest.param(CudaRun, marks=pytest.mark.device)])
@pytest.mark.parametrize("name", ROWS)
def test_cuda_agrees_with_the_oracle(
    name: str, run: type[EmulatedRun] | type[CudaRun], cuda_unit: Unit
) -> None:
    """Each variant whose guards hold is run, not the best one alone, and one off every alignment."""
    case, row = cuda_unit.cases[name], ROWS[name]
    for sizes in row.sizes:
        arrays = drawn(row, case.graph, sizes)
        want = evaluate(case.graph, arrays)
        for choice in range(max(len(kernels.variants) for kernels in case.kernels)):
            agree(row, run(cuda_unit, name, choice=choice)(arrays), want, sizes)
        agree(row, run(cuda_unit, name, shift=1)(arrays), want, sizes)
