"""Generated CUDA against the oracle, on emulated threads and, where there is one, on a GPU. All programs are
compiled as one unit, then run at all their sizes."""

import pytest
from cuda_on_cpu import EmulatedRun
from kernel_agreement import agree, cuda_unit, drawn
from kernel_rows import ROWS
from kernel_runs import CudaRun, Unit

from dlcb.compiler.ir.reference import evaluate


@pytest.fixture(scope="module")
def unit() -> Unit:
    return cuda_unit()


@pytest.mark.parametrize("run", [EmulatedRun, pytest.param(CudaRun, marks=pytest.mark.device)])
@pytest.mark.parametrize("name", ROWS)
def test_cuda_agrees_with_the_oracle(name: str, run: type[EmulatedRun] | type[CudaRun], unit: Unit) -> None:
    """Each variant whose guards hold is run, not the best one alone, each of those that are launched before
    the best one, and one off every alignment."""
    case, row = unit.cases[name], ROWS[name]
    choices = [{"choice": k} for k in range(max(len(made.variants) for made in case.kernels))]
    choices += [{"before": k} for k in range(1, max(len(made.before) for made in case.kernels))]
    for sizes in row.sizes:
        arrays = drawn(row, case.graph, sizes)
        want = evaluate(case.graph, arrays)
        for choice in choices:
            agree(row, run(unit, name, **choice)(arrays), want, sizes)
        agree(row, run(unit, name, shift=1)(arrays), want, sizes)
