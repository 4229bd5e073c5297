"""Compiles many programs in one translation unit, since starting a C++ compiler is what costs time, and
loads each as the server would: a CompiledModel with a host program of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dlcb.compiler.artifact import Artifact
from dlcb.compiler.build import build_unit
from dlcb.compiler.errors import GuardError, RequestError
from dlcb.compiler.expr.node import evaluate, size
from dlcb.compiler.host.lower import lower
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.kgen import KernelSet, translation_unit
from dlcb.compiler.kgen.deadline import Allowance
from dlcb.compiler.kgen.regions import generate_all
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import KernelStep, Schedule, Step
from dlcb.compiler.report import Report
from dlcb.compiler.runtime.cpu import CpuDevice
from dlcb.compiler.runtime.cuda import CudaDevice
from dlcb.compiler.runtime.device import Device
from dlcb.compiler.runtime.executor import Ran
from dlcb.compiler.shapes.system import Solution
from dlcb.compiler.signature import Dim, Signature, TensorSpec
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.compiler.thunks.thunk import Forecast, Shapes
from dlcb.kernel_cache import LayeredStore

CPP = Target.cpp()


@dataclass(frozen=True)
class Ready:
    """A graph on its way: its schedule with kernels named apart from other programs', and what was solved."""

    graph: Graph
    plan: Schedule
    kernels: tuple[KernelSet, ...]
    solution: Solution
    target: Target

    def bind(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """`sizes` with pinned dims at their literal and equal dims at their representative's."""
        return {name: evaluate(self.solution.apply(size(name)), sizes) for name in sizes}


def ready(graph: Graph, target: Target = CPP, values: int = CompileOptions.region_values) -> Ready:
    """Passes, fusion and kernels of one program, none of which computes more than `values` for an element."""
    solution = graph.system.solve()
    plan = schedule(run_passes(graph, target.kind))
    plan = replace(
        plan,
        prologue=tuple(_renamed(step, graph.name) for step in plan.prologue),
        steps=tuple(_renamed(step, graph.name) for step in plan.steps),
    )
    options = CompileOptions(target=target, region_values=values)
    allowance = Allowance(options.region_seconds, options.generate_seconds)
    plan, kernels, _ = generate_all(plan, options, allowance, lambda made: made)
    return Ready(graph, plan, tuple(kernels), solution, target)


def _renamed(step: Step, prefix: str) -> Step:
    if not isinstance(step, KernelStep):
        return step
    return KernelStep(replace(step.group, name=f"{prefix}_{step.group.name}"))


def load(
    programs: Sequence[Ready],
    parameters: Sequence[Mapping[str, torch.Tensor]],
    store: LayeredStore,
    optimisation: str = "-O1",
) -> list[CompiledModel]:
    """The programs' models, compiled together by one run of a compiler (none where the store holds the
    unit)."""
    kernels = [kernel_set for each in programs for kernel_set in each.kernels]
    names = [kernel.name for kernel_set in kernels for kernel in kernel_set.variants]
    unit = ""
    if kernels:
        options = CompileOptions(target=programs[0].target, optimisation=optimisation)
        text = translation_unit(kernels, options.target)
        unit = build_unit(text, names, options.target, options, store)
    device: Device = CpuDevice() if not programs or programs[0].target.kind == "cpp" else CudaDevice()
    return [model(each, given, unit, store, device) for each, given in zip(programs, parameters, strict=True)]


def model(
    each: Ready, parameters: Mapping[str, torch.Tensor], unit: str, store: LayeredStore, device: Device
) -> CompiledModel:
    """One program whose kernels `device` finds in `unit`."""
    graph = each.graph
    names = tuple(f"out{k}" for k in range(len(graph.outputs)))
    program = lower(each.plan, each.kernels, (unit,) if each.kernels else (), each.solution, names)
    thunk = ProgramThunk(program, parameters, store, device)
    inputs = tuple(
        TensorSpec(
            v.name, v.dtype.name, tuple(Dim(repr(s), 0, None) if not s.is_const else s.value for s in v.shape)
        )
        for v in graph.inputs
    )
    signature = Signature(
        inputs, tuple(TensorSpec(n, v.dtype.name, None) for n, v in zip(names, graph.outputs, strict=True))
    )
    declared = tuple(InputDeclaration(v.name, v.dtype.name, tuple(map(str, v.shape))) for v in graph.inputs)
    source = ModelSource(graph.name, "1", factory="fuzz", inputs=declared, outputs=names)
    return CompiledModel(source, Artifact(signature, Report("dynamic"), program), device, _Nothing(), thunk)


class _Nothing:
    """In place of eager PyTorch: what only that could serve is refused, so that no other tier hides a wrong
    result."""

    tier = "eager"

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        raise GuardError("a derived guard does not hold")

    def forecast(self, shapes: Shapes) -> Forecast:
        return Forecast(self.tier, (), 0, False)


def accepts(model: CompiledModel, graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether the compiled program's guards hold at these sizes. Nothing runs."""
    shapes = {v.name: tuple(evaluate(s, sizes) for s in v.shape) for v in graph.inputs}
    try:
        return model.plan(shapes).tier != "eager"
    except RequestError:
        return False
