"""A group in two is the same program: what crosses lies in memory, and fills alone are computed twice."""

from __future__ import annotations

from pass_programs import Program, encoder_layer
from test_fuse import assert_well_formed

from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.passes.divide import divide, is_divisible
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import Schedule


def divided(graph: Graph) -> Schedule:
    """`graph` with every group divided until each is one operator."""
    plan = schedule(run_passes(graph))
    while group := next(filter(is_divisible, plan.groups), None):
        plan, parts = divide(plan, group)
        assert len(parts) > 1
        assert_well_formed(plan)
    return plan


def test_every_operator_can_be_a_kernel_of_its_own() -> None:
    graph = encoder_layer()
    plan = divided(graph)
    computed = [node for group in plan.groups for node in group.nodes if node.op.kind != "create"]
    whole = [node for group in schedule(run_passes(graph)).groups for node in group.nodes]
    assert len(computed) == len(set(computed)) == sum(node.op.kind != "create" for node in set(whole))
    assert len({group.name for group in plan.groups}) == len(plan.groups)


def test_a_fill_stands_where_it_is_read_and_is_written_once() -> None:
    p = Program()
    x = p.input("x", p.size("n"), 4)
    one = p.constant(1.0)
    plan = divided(p.graph(p.exp(p.add(p.exp(p.add(x, one)), one)), one))
    assert [one in group.outputs for group in plan.groups].count(True) == 1


def test_an_operator_alone_is_not_divided() -> None:
    p = Program()
    plan = schedule(run_passes(p.graph(p.exp(p.input("x", p.size("n"))))))
    (group,) = plan.groups
    assert divide(plan, group) == (plan, ())
