"""Rank and sizes inferred together: lists, shape variables and appends, unpacked from both ends."""

from __future__ import annotations

import pytest

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.node import const
from dlcb.compiler.shapes.shape import Shape, Shapes, ShapeVariable, shape
from dlcb.compiler.shapes.statement import Provenance
from dlcb.compiler.shapes.system import System

WHY = Provenance("matmul", "model.py:7", "%a, %b")


@pytest.fixture
def system() -> System:
    return System()


@pytest.fixture
def shapes(system: System) -> Shapes:
    return Shapes(system)


def matmul(shapes: Shapes, a: Shape, b: Shape, why: Provenance = WHY) -> Shape:
    """*batch ++ [n, k] times *batch ++ [k, m]: one rule for every rank."""
    system = shapes.system
    batch, n, k, m = shapes.fresh("batch"), system.fresh("n"), system.fresh("k"), system.fresh("m")
    shapes.same(a, shape(batch, n, k), why)
    shapes.same(b, shape(batch, k, m), why)
    return shapes.resolve(shape(batch, n, m))


def test_one_matmul_at_rank_2_3_and_4(system: System, shapes: Shapes) -> None:
    s, t, d = system.fresh("s"), system.fresh("t"), system.fresh("d")
    assert matmul(shapes, shape(s, 8), shape(8, t)) == shape(s, t)
    assert matmul(shapes, shape(d, s, 8), shape(d, 8, t)) == shape(d, s, t)
    assert matmul(shapes, shape(2, d, s, 8), shape(2, d, 8, t)) == shape(2, d, s, t)
    assert not shapes.residual


def test_rank_flows_backwards(system: System, shapes: Shapes) -> None:
    """What is known of one operand gives the rank of the other."""
    x, s = shapes.fresh("x"), system.fresh("s")
    out = matmul(shapes, shape(x), shape(3, s, 5, 6))
    assert shapes.resolve(shape(x)).rank == 4
    assert shapes.resolve(shape(x)).dims[:2] == (const(3), s)
    assert shapes.resolve(shape(x)).dims[3] is const(5)
    assert out.rank == 4


def test_undecided_stays_symbolic(shapes: Shapes) -> None:
    x, y = shapes.fresh("x"), shapes.fresh("y")
    shapes.same(shape(x, y), shape(2, 3))
    assert shapes.resolve(shape(x)).rank is None
    assert len(shapes.residual) == 1
    shapes.same(shape(x), shape(2))  # decides the other
    assert shapes.resolve(shape(y)) == shape(3)
    assert not shapes.residual


def test_rank_of_an_undecided_shape_is_an_error(shapes: Shapes) -> None:
    with pytest.raises(ShapeError, match=r"the rank of"):
        shape(shapes.fresh("x")).dims  # noqa: B018 - asking is the test


def test_appends_are_flat(system: System, shapes: Shapes) -> None:
    x, y, n = shapes.fresh("x"), shapes.fresh("y"), system.fresh("n")
    assert shape(shape(x, n), shape(y)) == shape(x, shape(n, y)) == shape(x) + shape(n) + shape(y)
    shapes.same(shape(shape(x, n), shape(y)), shape(x, 4, y))
    assert system.simplify(n) is const(4)


def test_both_ends_then_the_middle(system: System, shapes: Shapes) -> None:
    x, n, m = shapes.fresh("x"), system.fresh("n"), system.fresh("m")
    shapes.same(shape(n, x, m), shape(2, 3, 4, 5, 6))
    assert shapes.resolve(shape(x)) == shape(3, 4, 5)
    assert (system.simplify(n), system.simplify(m)) == (const(2), const(6))


def test_nothing_left_binds_to_nothing(shapes: Shapes) -> None:
    x, y = shapes.fresh("x"), shapes.fresh("y")
    shapes.same(shape(2, x, y), shape(2))
    assert shapes.resolve(shape(x)) == shapes.resolve(shape(y)) == shape()


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (2, 3, 4)), ((), (1,)), ((ShapeVariable("z"), 1, 2, 3), (2, 3))]
)
def test_ranks_that_differ(shapes: Shapes, left: tuple, right: tuple) -> None:
    with pytest.raises(
        ShapeError, match=r"matmul: shapes \[.*\] and \[.*\] differ in rank.*%a, %b.*model.py:7"
    ):
        shapes.same(shape(*left), shape(*right), WHY)


def test_a_shape_within_itself(shapes: Shapes) -> None:
    x = shapes.fresh("x")
    with pytest.raises(ShapeError, match="rank"):
        shapes.same(shape(x), shape(x, 3))


def test_dims_that_differ_name_both_shapes(shapes: Shapes) -> None:
    with pytest.raises(ShapeError, match=r"3 must equal 4.*\[2, 3\] and \[2, 4\]"):
        shapes.same(shape(2, 3), shape(2, 4), WHY)


def test_loop_keeps_its_state_shape(system: System, shapes: Shapes) -> None:
    """A loop's state has one shape before and after: here that makes the cell's two widths equal, at any
    leading rank."""
    state, width, hidden = shapes.fresh("state"), system.fresh("width"), system.fresh("hidden")
    before = shape(state, width)
    after = shape(state, hidden)  # what the body gives back
    shapes.same(before, after, Provenance("loop", "cell.py:3", "state"))
    assert system.simplify(hidden) is width
    with pytest.raises(ShapeError, match=r"loop: .*differ in rank"):
        shapes.same(before, shape(state, width, 1), Provenance("loop", "cell.py:3", "state"))


def test_polymorphic_linear_at_two_ranks(system: System, shapes: Shapes) -> None:
    def linear(x: Shape) -> Shape:
        lead = shapes.fresh("lead")
        shapes.same(x, shape(lead, 768), Provenance("linear"))
        return shapes.resolve(shape(lead, 3072))

    b, s = system.fresh("b"), system.fresh("s")
    assert linear(shape(b, 768)) == shape(b, 3072)
    assert linear(shape(b, s, 768)) == shape(b, s, 3072)
    with pytest.raises(ShapeError, match="512 must equal 768"):
        linear(shape(b, 512))


def test_an_exhausted_budget_leaves_statements(system: System) -> None:
    shapes = Shapes(system, budget=3)
    shapes.same(shape(*range(2, 12)), shape(*range(2, 12)))
    assert shapes.report().stopped == "budget"
    assert shapes.residual


def test_it_stops_because_nothing_applies(system: System, shapes: Shapes) -> None:
    matmul(shapes, shape(2, 3), shape(3, 4))
    assert shapes.report().stopped == "fixed point"


# ---- broadcasting of unknown rank


def test_broadcast_from_the_last_axis(system: System, shapes: Shapes) -> None:
    s, n, m = shapes.fresh("s"), system.fresh("n"), system.fresh("m")
    whole = shape(s, n)
    for other in (whole, shape(n), shape(s, 1), shape(1), shape()):
        assert shapes.broadcast(whole, other) == shapes.broadcast(other, whole) == whole
    assert shapes.broadcast(shape(s, 1), shape(m)) == shape(s, m)
    assert shapes.broadcast(shape(s, n, 1), shape(n, m)) == shape(s, n, m)
    assert shapes.broadcast(shape(2, n), shape(3, 1, 1)) == shape(3, 2, n)
    assert not shapes.residual


def batched(shapes: Shapes, a: Shape, b: Shape, why: Provenance = WHY) -> Shape:
    """The product of matrices whose leading dims broadcast."""
    system = shapes.system
    left, right = shapes.fresh("left"), shapes.fresh("right")
    n, k, m = system.fresh("n"), system.fresh("k"), system.fresh("m")
    shapes.same(a, shape(left, n, k), why)
    shapes.same(b, shape(right, k, m), why)
    return shapes.resolve(shape(shapes.broadcast(shape(left), shape(right), why), n, m))


def test_a_leading_list_of_dims_against_a_matrix(system: System, shapes: Shapes) -> None:
    """One product of unknown rank; at run time it is found to be of rank 2, 3 and 4."""
    s, n = shapes.fresh("s"), system.fresh("n")
    product = batched(shapes, shape(s, n, 8), shape(8, 5))
    assert product == shape(s, n, 5)
    assert not shapes.residual
    for lead in (shape(), shape(2), shape(3, 2)):
        assert shapes.at({s: lead}).resolve(product) == shape(lead, n, 5)
    with pytest.raises(ShapeError, match=r"matmul: .*6 must equal 8|matmul: .*8 must equal 6"):
        batched(shapes, shape(s, n, 8), shape(6, 5))


def test_lists_that_may_differ_stay_symbolic_and_are_checked_at_run_time(
    system: System, shapes: Shapes
) -> None:
    s, t, n = shapes.fresh("s"), shapes.fresh("t"), system.fresh("n")
    add = Provenance("add", "model.py:4", "%x, %y")
    joined = shapes.broadcast(shape(s, n), shape(t, n), add)
    assert joined.rank is None and joined.parts[-1] is n and len(shapes.residual) == 1
    product = batched(shapes, joined, shape(n, 3))
    for a, b, lead in ((shape(), shape(4), shape(4)), (shape(2, 1), shape(7), shape(2, 7))):
        there = shapes.at({s: a, t: b})
        assert there.resolve(joined) == shape(lead, n)
        assert there.resolve(product) == shape(lead, 3) if lead.rank == 0 else True
    with pytest.raises(ShapeError, match=r"add: 2 does not broadcast with 3, for %x, %y, shapes.*model.py:4"):
        shapes.at({s: shape(2), t: shape(3)})
    with pytest.raises(ShapeError, match=r"add: shapes \[\*s, n\] and \[\*t, n\] are not known well enough"):
        shapes.at({s: shape(2)})
    # what is said later decides it
    shapes.same(shape(s), shape(t), WHY)
    assert shapes.resolve(joined) == shapes.resolve(shape(s, n))
    assert not shapes.residual


def test_two_lists_that_must_be_the_same(shapes: Shapes) -> None:
    s, t = shapes.fresh("s"), shapes.fresh("t")
    shapes.same(shape(s), shape(t), WHY)
    assert shapes.at({s: shape(2, 3), t: shape(2, 3)}).resolve(shape(t)) == shape(2, 3)
    with pytest.raises(ShapeError, match=r"matmul: 4 must equal 3|matmul: 3 must equal 4"):
        shapes.at({s: shape(2, 3), t: shape(2, 4)})
    with pytest.raises(ShapeError, match=r"matmul: shapes \[\*s\] and \[\*t\] differ in rank"):
        shapes.at({s: shape(2, 3), t: shape(2, 3, 4)})


def test_a_statement_that_waits_is_kept_when_another_is_bound(shapes: Shapes) -> None:
    s, t, u = shapes.fresh("s"), shapes.fresh("t"), shapes.fresh("u")
    shapes.same(shape(s, 3), shape(u, t, 3))  # binds nothing, or `s`
    shapes.broadcast(shape(u), shape(t))
    shapes.same(shape(u), shape(5))
    assert shapes.resolve(shape(s)) == shape(5, t)
    assert len(shapes.residual) == 1
