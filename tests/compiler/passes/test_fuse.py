"""What fusion promises: every value is written by one step, steps come in order,
and the expected kernels come out."""

from __future__ import annotations

import pytest
from pass_programs import Program, encoder_layer

from dlcb.compiler.dtype import BFLOAT16, FLOAT32, INT64
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.passes import text
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import EagerStep, KernelStep, LibraryStep, Schedule, ViewStep


def planned(graph) -> Schedule:
    plan = schedule(run_passes(graph))
    assert_well_formed(plan)
    return plan


def assert_well_formed(plan: Schedule) -> None:
    """Nothing is read before it is written, nothing is written twice, every output has memory."""
    ready = {*plan.graph.inputs, *plan.graph.parameters}
    for step in (*plan.prologue, *plan.steps):
        missing = [value for value in step.inputs if value not in ready]
        assert not missing, f"{step} reads {missing} before they are written"
        again = [value for value in step.outputs if value in ready]
        assert not again, f"{step} writes {again} again"
        ready.update(step.outputs)
    assert ready.issuperset(plan.graph.outputs)
    assert set(plan.layouts) == ready


def kernels(plan: Schedule) -> list[list[str]]:
    return [
        [n.op.name for n in s.group.nodes if n.op.name != "full"]
        for s in plan.steps
        if isinstance(s, KernelStep)
    ]


def test_an_encoder_layer_is_three_kernels_and_five_library_calls(golden) -> None:
    plan = planned(encoder_layer())
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == 1 + 3, "the mask, once for all layers"
    assert sum(isinstance(step, LibraryStep) for step in plan.steps) == 5
    golden("passes/encoder_layer.txt", text.show(plan))


def test_softmax_is_one_row_kernel() -> None:
    p = Program()
    x = p.input("x", p.size("rows"), p.size("columns"))
    plan = planned(p.graph(p.softmax(x, axis=1)))
    (step,) = plan.steps
    assert isinstance(step, KernelStep) and step.group.rows == 1


def test_softmax_over_an_outer_axis_still_computes_every_exponential_once() -> None:
    p = Program()
    x = p.input("x", p.size("rows"), p.size("middle"), p.size("columns"))
    plan = planned(p.graph(p.softmax(x, axis=1)))
    for names in kernels(plan):
        assert not ("exp" in names and "sum" in names and "div" in names)


def test_a_value_read_outside_and_inside_becomes_a_second_output() -> None:
    p = Program()
    shape = p.size("rows"), 64
    total = p.add(p.input("x", *shape), p.input("y", *shape))
    normed = p.layer_norm(total, dims=1, eps=1e-5)
    hidden = p.linear(normed, p.parameter("w", 64, 64))
    plan = planned(p.graph(p.add(hidden, total)))
    first = next(step for step in plan.steps if isinstance(step, KernelStep))
    assert [value.producer.op.name for value in first.outputs] == ["mul", "add"]


def test_a_residual_stream_is_not_added_up_again_in_every_layer() -> None:
    p = Program()
    stream = p.input("x", p.size("rows"), 64)
    for layer in range(6):
        branch = p.linear(p.layer_norm(stream, dims=1, eps=1e-5), p.parameter(f"w{layer}", 64, 64))
        stream = p.add(stream, branch)
    plan = planned(p.graph(stream))
    assert max(len(step.inputs) for step in plan.steps if isinstance(step, KernelStep)) == 2


def test_no_second_output_when_its_reader_leads_back_into_the_kernel() -> None:
    p = Program()
    shape = p.size("rows"), 64
    x = p.exp(p.input("x", *shape))
    # the library call reads x and the kernel that reads x as well needs its result: one step cannot be both
    plan = planned(p.graph(p.add(p.linear(x, p.parameter("w", 64, 64)), x)))
    assert kernels(plan) == [["exp"], ["add"]]


def test_a_reduction_inside_another_reductions_loop_is_written_to_memory() -> None:
    p = Program()
    x = p.input("x", p.size("batch"), p.size("length"), 32)
    pooled = p.sum(x, axes=(1,), keepdim=False)
    plan = planned(p.graph(p.sum(p.mul(pooled, pooled), axes=(1,), keepdim=True)))
    assert len(plan.steps) == 2


def test_an_expensive_value_is_not_repeated_by_a_broadcast() -> None:
    p = Program()
    rows = p.size("rows")
    row = p.exp(p.input("x", 1, p.size("columns")))
    plan = planned(p.graph(p.mul(row, p.input("y", rows, row.shape[1]))))
    assert kernels(plan) == [["exp"], ["mul"]]


def test_a_cheap_value_with_readers_in_two_kernels_is_repeated() -> None:
    p = Program()
    x = p.neg(p.input("x", p.size("rows"), 8))
    plan = planned(p.graph(p.sum(x, axes=(0,), keepdim=False), p.exp(x)))
    assert sorted(kernels(plan)) == [["neg", "exp"], ["neg", "sum"]]


def test_gather_reads_a_table_that_lies_in_memory() -> None:
    p = Program()
    table = p.exp(p.input("table", 100, 16))
    ids = p.input("ids", p.size("batch"), p.size("length"), dtype=INT64)
    plan = planned(p.graph(p.embedding(table, ids)))
    assert kernels(plan) == [["exp"], ["embedding"]]


def test_parameter_arithmetic_runs_in_the_prologue() -> None:
    p = Program()
    w = p.mul(p.parameter("w", 8, 8), p.parameter("scale", 8, 1))
    plan = planned(p.graph(p.linear(p.input("x", p.size("rows"), 8), w)))
    assert [step.outputs[0].producer.op.name for step in plan.prologue] == ["mul"]
    assert [type(step) for step in plan.steps] == [LibraryStep]


def test_calls_of_parameters_alone_run_in_the_prologue_but_not_those_that_draw() -> None:
    p = Program()
    w, eight = p.parameter("w", 8, 8), as_expr(8)
    called = {"arguments": ("$0",), "shapes": ((eight, eight),), "dtypes": (FLOAT32,)}
    inverse = p.eager(w, target="aten.linalg_inv.default", **called)
    noise = p.eager(w, target="aten.randn_like.default", draw=1, **called)
    plan = planned(p.graph(p.add(p.linear(p.input("x", p.size("rows"), 8), inverse), noise)))
    assert [step.node.attributes["target"] for step in plan.prologue] == ["aten.linalg_inv.default"]
    assert "aten.randn_like.default" in [
        step.node.attributes["target"] for step in plan.steps if isinstance(step, EagerStep)
    ]


def test_what_takes_a_size_from_the_inputs_is_not_in_the_prologue() -> None:
    p = Program()
    rows = p.size("rows")
    w, scale = p.parameter("w", 8, 8), p.full(shape=(), value=rows, dtype=FLOAT32)
    half = p.select(p.parameter("table", 100, 8), axis=0, index=rows // 2)
    plan = planned(p.graph(p.mul(p.add(p.input("x", rows, 8), p.neg(half)), p.div(p.exp(w), scale))))
    assert [step.outputs[0].producer.op.name for step in plan.prologue] == ["exp"]


def test_views_of_an_output_are_views_in_every_compilation() -> None:
    for _ in range(8):  # graphs whose values lie elsewhere in memory
        p = Program()
        x = p.input("x", p.size("rows"), p.size("columns"))
        y = p.exp(x)
        plan = planned(p.graph(y, *(p.permute(y, order=(1, 0)) for _ in range(4))))
        assert [type(step) for step in plan.steps].count(KernelStep) == 1


def test_a_transposed_weight_is_a_view_and_moves_nothing() -> None:
    p = Program()
    w = p.permute(p.parameter("w", 8, 16), order=(1, 0))
    plan = planned(p.graph(p.matmul(p.input("x", p.size("rows"), 16), w)))
    assert [type(step) for step in (*plan.prologue, *plan.steps)] == [ViewStep, LibraryStep]


@pytest.mark.parametrize("depth", [50, 400])
def test_a_long_chain_is_cut_into_bounded_kernels(depth: int) -> None:
    p = Program()
    x = p.input("x", p.size("n"), dtype=FLOAT32)
    for _ in range(depth):
        x = p.sin(x)
    plan = planned(p.graph(x))
    assert sum(len(names) for names in kernels(plan)) == depth
    assert max(len(names) for names in kernels(plan)) <= 128


def test_a_second_output_never_waits_for_its_own_kernel() -> None:
    """gelu is read by the kernel of the maximum,
    through a cast that is computed in the kernel of the difference as well."""
    p = Program()
    x = p.input("x", p.size("rows"), p.size("columns"), dtype=BFLOAT16)
    y = p.gelu(x, approximate="none")
    planned(p.graph(p.log_softmax(y, axis=0)))
