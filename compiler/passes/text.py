"""A schedule as text: one step a line, with what it reads and writes,
as golden files and `dlcb explain` show it."""

from __future__ import annotations

from dlcb.compiler.passes.steps import EagerStep, KernelStep, Schedule, Step, ViewStep


def show(schedule: Schedule) -> str:
    """Prologue and steps in order."""
    lines = [f"schedule {schedule.graph.name} {{"]
    if schedule.prologue:
        lines += ["  prologue {", *(f"    {_step(step)}" for step in schedule.prologue), "  }"]
    lines += [f"  {_step(step)}" for step in schedule.steps]
    outputs = ", ".join(map(repr, schedule.graph.outputs))
    return "\n".join([*lines, f"  return {outputs}", "}"]) + "\n"


def _step(step: Step) -> str:
    reads, writes = (", ".join(map(repr, values)) for values in (step.inputs, step.outputs))
    if isinstance(step, ViewStep):
        strides = ", ".join(map(repr, step.layout.strides))
        return f"{writes} = view {reads} strides ({strides}) offset {step.layout.offset!r}"
    if isinstance(step, KernelStep):
        fused = " ".join(node.op.name for node in step.group.nodes)
        return f"{writes} = kernel {step.group.name}({reads}) rows {step.group.rows}: {fused}"
    kind = "eager" if isinstance(step, EagerStep) else "library"
    return f"{writes} = {kind} {step.node.op.name}({reads})"
