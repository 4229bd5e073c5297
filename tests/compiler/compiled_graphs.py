"""Graphs written with the builder, taken through passes, kernel generation, build and lowering to a thunk
that runs."""

from collections.abc import Mapping, Sequence

import torch

from dlcb.compiler.build.build import build_unit
from dlcb.compiler.host.lower import lower
from dlcb.compiler.host.program import Program
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.kgen import generate, translation_unit
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.runtime.cpu import CpuDevice
from dlcb.compiler.runtime.cuda import CudaDevice
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.kernel_cache import LayeredStore


def host_program(graph: Graph, names: Sequence[str], store: LayeredStore, target: Target) -> Program:
    """The graph's host program; its kernels are in the store."""
    solution = graph.system.solve()
    steps = schedule(run_passes(graph))
    kernel_sets = [generate(g, steps.layouts, steps.graph.system, target) for g in steps.groups]
    units: tuple[str, ...] = ()
    if kernel_sets:
        options = CompileOptions(target=target, optimisation="-O1")
        text = translation_unit(kernel_sets, target)
        names_of_kernels = [k.name for s in kernel_sets for k in s.variants]
        units = (build_unit(text, names_of_kernels, target, options, store),)
    return lower(steps, kernel_sets, units, solution, names)


def compiled(
    graph: Graph,
    parameters: Mapping[str, torch.Tensor],
    store: LayeredStore,
    *,
    cuda: bool = False,
    capacity: int = 512,
) -> ProgramThunk:
    """The graph, ready to run on the CPU or on the GPU."""
    names = [f"out{k}" for k in range(len(graph.outputs))]
    target = _cuda_target() if cuda else Target.cpp()
    program = host_program(graph, names, store, target)
    return ProgramThunk(program, parameters, store, CudaDevice() if cuda else CpuDevice(), capacity=capacity)


def _cuda_target() -> Target:
    major, minor = torch.cuda.get_device_capability()
    return Target.cuda(f"sm_{major}{minor}")
