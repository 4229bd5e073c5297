"""Index values are data from outside: bad ones are reported, the first one wins, and nothing is read through
them."""

import numpy as np
import pytest
from cuda_on_cpu import EmulatedRun
from kernel_programs import Program
from kernel_runs import Case, CppRun, CudaRun, Run, Unit

from dlcb.compiler.dtype import INT64
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.options import Target

TABLE = 6  # rows of the table
WIDTHS = (32, 133)  # of its rows; long rows are copied by a kernel of their own, odd ones by shifted accesses


def lookup(width: int) -> Graph:
    p = Program(f"lookup {width}")
    table = p.tensor("table", f"{TABLE} {width}")
    return p.builder.build(p.exp(p.embedding(table, p.tensor("ids", "b s", INT64))))


def gathered() -> Graph:
    p = Program("gathered")
    return p.builder.build(p.gather(p.tensor("x", "n m"), p.tensor("index", "n k", INT64), axis=1))


def value_does_not_matter() -> Graph:
    p = Program("value_does_not_matter")
    x = p.gather(p.tensor("x", "n", INT64), p.tensor("index", "k", INT64), axis=0)
    return p.builder.build(p.isnan(x), p.isinf(x), p.mul(x, p.number(0, INT64)), p.sub(x, x), p.eq(x, x))


@pytest.fixture(scope="module", params=[CppRun, EmulatedRun, pytest.param(CudaRun, marks=pytest.mark.device)])
def compiled(request: pytest.FixtureRequest) -> tuple[Unit, type[Run]]:
    target = Target.cpp() if request.param is CppRun else Target.cuda()
    graphs = (*map(lookup, WIDTHS), gathered(), value_does_not_matter())
    cases = {graph.name: Case(graph, target) for graph in graphs}
    return Unit(cases, target, held=request.param is CppRun), request.param


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("bad", [TABLE, -1, 2**40, -(2**63), 2**63 - 1])
def test_a_bad_id_is_reported_with_its_place(compiled: tuple[Unit, type[Run]], bad: int, width: int) -> None:
    unit, run = compiled
    ids = np.arange(12).reshape(3, 4) % TABLE
    ids[2, 1] = bad
    table = np.random.default_rng(0).standard_normal((TABLE, width))
    (got,) = run(unit, f"lookup {width}")({"table": table, "ids": ids})
    case = unit.cases[f"lookup {width}"]
    number, position, value, _ = case.status
    checks = case.kernels[0].variants[0].checks
    assert (checks[number - 1].label, position, value) == ("ids", 9, bad)
    good = np.delete(np.arange(12), 9)
    np.testing.assert_allclose(got.reshape(12, width)[good], np.exp(table[ids.ravel()[good]]), rtol=1e-5)
    np.testing.assert_array_equal(got[2, 1], np.ones(width))  # the exponential of zero: nothing was read


def test_a_good_run_reports_nothing(compiled: tuple[Unit, type[Run]]) -> None:
    unit, run = compiled
    for width in WIDTHS:
        run(unit, f"lookup {width}")({"table": np.zeros((TABLE, width)), "ids": np.zeros((2, 5), int)})
        assert not unit.cases[f"lookup {width}"].status.any()


def test_an_index_of_a_free_axis_is_held_to_its_size(compiled: tuple[Unit, type[Run]]) -> None:
    unit, run = compiled
    x = np.arange(12.0).reshape(3, 4)
    index = np.array([[0, 3], [1, 4], [2, 2]])
    (got,) = run(unit, "gathered")({"x": x, "index": index})
    number, position, value, _ = unit.cases["gathered"].status
    assert (number, position, value) == (1, 3, 4)
    np.testing.assert_array_equal(got, [[0, 3], [5, 0], [10, 10]])


def test_the_range_of_a_check_is_data_for_the_host() -> None:
    for label, graph in (("ids", lookup(32)), ("index", gathered())):
        (check,) = Case(graph, Target.cpp()).kernels[0].variants[0].checks
        assert check.label == label and check.value_name == label and check.low.value == 0


def test_a_bad_index_is_reported_where_the_value_read_does_not_matter(
    compiled: tuple[Unit, type[Run]],
) -> None:
    unit, run = compiled
    x = np.arange(5)
    found = run(unit, "value_does_not_matter")({"x": x, "index": np.array([4, 0, 1])})
    assert [part.tolist() for part in found] == [[False] * 3, [False] * 3, [0] * 3, [0] * 3, [True] * 3]
    assert unit.cases["value_does_not_matter"].status[0] == 0
    run(unit, "value_does_not_matter")({"x": x, "index": np.array([4, 5, 1])})
    assert unit.cases["value_does_not_matter"].status[1:3].tolist() == [1, 5]
