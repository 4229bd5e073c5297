"""The kernels of a whole schedule. A region that goes beyond its limits is divided, again and again if need
be, so that what is right but does not pay as one kernel costs memory accesses and not the model."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from dlcb.compiler.errors import OperatorTooLong, TooLong
from dlcb.compiler.kgen.alike import structure
from dlcb.compiler.kgen.deadline import Allowance
from dlcb.compiler.kgen.generate import generate
from dlcb.compiler.kgen.kernel import KernelSet
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.divide import divide, is_divisible, movable
from dlcb.compiler.passes.steps import Group, Schedule


def generate_all(
    plan: Schedule, options: CompileOptions, allowance: Allowance, add: Callable[[KernelSet], KernelSet]
) -> tuple[Schedule, list[KernelSet], tuple[str, ...]]:
    """`plan` as it is generated, the kernels of its groups, each given to `add` at once, and what was divided
    and why. Raises TooLong where the model's time is over, and OperatorTooLong for an operator that takes too
    long alone."""
    whole, waiting = set(plan.groups), [*reversed(plan.groups)]
    kernels, notes = list[KernelSet](), list[str]()
    refused: dict[Hashable, TooLong] = {}  # by the structure of groups: equal layers are tried once
    while waiting:
        group = waiting.pop()
        alike = structure(group, plan.layouts) if refused else None
        try:
            if alike in refused:
                raise refused[alike]
            kernels.append(add(_generated(group, plan, options, allowance)))
        except TooLong as error:
            plan, parts = divide(plan, group)
            if allowance.is_spent:
                raise
            if not parts:
                (node,) = movable(group)
                raise OperatorTooLong(
                    f"{node.op.name}: {error.message}", stage=error.stage, source_line=node.source
                ) from error
            refused[structure(group, plan.layouts)] = error
            if group in whole:
                notes.append(f"{group.name} is several kernels: {error}")
            waiting += reversed(parts)
    return plan, kernels, tuple(notes)


def _generated(group: Group, plan: Schedule, options: CompileOptions, allowance: Allowance) -> KernelSet:
    with allowance.spent_on(group.name, group.nodes[0].source, most_values(group, options)):
        return generate(group, plan.layouts, plan.graph.system, options.target, options.static)


def most_values(group: Group, options: CompileOptions) -> float:
    """How many values one kernel may compute for an element of `group`."""
    return options.region_values if is_divisible(group) else float("inf")
