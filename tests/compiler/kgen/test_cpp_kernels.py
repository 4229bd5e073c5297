"""Generated C++ against the oracle. All programs are compiled as one unit, then run at all their sizes."""

import numpy as np
import pytest
from kernel_agreement import agree, cpp_unit, drawn
from kernel_programs import Program
from kernel_rows import ROWS
from kernel_runs import Case, CppRun, Unit

from dlcb.compiler.dtype import BOOL, INT64, UINT8
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.options import Target


@pytest.fixture(scope="module", params=[False, True], ids=["shipped", "held"])
def unit(request: pytest.FixtureRequest) -> Unit:
    return cpp_unit(request.param)


@pytest.mark.parametrize("name", ROWS)
def test_cpp_agrees_with_the_oracle(name: str, unit: Unit) -> None:
    case, row = unit.cases[name], ROWS[name]
    for sizes in row.sizes:
        arrays = drawn(row, case.graph, sizes)
        want = evaluate(case.graph, arrays)
        for threads in (1, 2):
            agree(row, CppRun(unit, name, threads)(arrays), want, sizes)
        assert case.status[0] == 0


def test_a_choice_of_two_truths_is_a_truth() -> None:
    """In C it is an int, which joins no bool."""
    p = Program("choice")
    differ = p.logical_xor(p.tensor("x", "n m", UINT8), p.tensor("y", "m", BOOL))
    rows = p.index_select(differ, p.tensor("ids", "k", INT64), axis=0)
    case = Case(p.builder.build(p.max(rows, axes=(0, 1), keepdim=True)), Target.cpp())
    x, y = np.array([[0, 3], [1, 0]]), np.array([True, False])
    for ids, largest in (([0, 1], True), ([1, 1], False)):
        run = CppRun(Unit({"choice": case}, Target.cpp()), "choice")
        assert run({"x": x, "y": y, "ids": np.array(ids)})[0].item() is largest
