"""Generated C++ against the oracle. All programs are compiled as one unit, then run at all their sizes."""

import pytest
from kernel_agreement import agree, cpp_unit, drawn
from kernel_rows import ROWS
from kernel_runs import CppRun, Unit

from dlcb.compiler.ir.reference import evaluate


@pytest.fixture(scope="module")
def unit() -> Unit:
    return cpp_unit()


@pytest.mark.parametrize("name", ROWS)
def test_cpp_agrees_with_the_oracle(name: str, unit: Unit) -> None:
    case, row = unit.cases[name], ROWS[name]
    for sizes in row.sizes:
        arrays = drawn(row, case.graph, sizes)
        want = evaluate(case.graph, arrays)
        for threads in (1, 2):
            agree(row, CppRun(unit, name, threads)(arrays), want, sizes)
        assert case.status[0] == 0
