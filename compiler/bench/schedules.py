"""Kernels on a GPU under other schedules than the one the host would launch: each variant of a case by
itself, and rows shared among other numbers of threads. The choices in kgen.variants come from here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from dlcb.compiler.bench.floors import bytes_at_least, copy_bandwidth
from dlcb.compiler.bench.measure import Call, interleaved
from dlcb.compiler.bench.suites import Case, case_inputs
from dlcb.compiler.bridge.agreement import Reference, compare
from dlcb.compiler.bridge.capture import load_eager
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.build import build_unit
from dlcb.compiler.driver import options_for
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.host.lower import lower
from dlcb.compiler.host.program import Launch, Program, Step, Variant
from dlcb.compiler.kgen import KernelSet, generate, translation_unit
from dlcb.compiler.kgen.coords import infer
from dlcb.compiler.kgen.generate import cuda_kernel
from dlcb.compiler.kgen.schedule import Nest, plan
from dlcb.compiler.kgen.variants import TEAMS, row_length, wide_guards, widest
from dlcb.compiler.kgen.variants import Variant as Choice
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import Schedule
from dlcb.compiler.runtime.cuda import CudaDevice
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.kernel_cache import Store, open_store

_MOST_TURNS = 16


def with_variants(program: Program, keep: Callable[[Variant], bool]) -> Program:
    """`program` whose launches have only the variants that `keep` holds for, and the last one, which always
    may run."""

    def kept(step: Step) -> Step:
        if not isinstance(step, Launch):
            return step
        return Launch((*(v for v in step.variants[:-1] if keep(v)), step.variants[-1]))

    segments = tuple(replace(s, steps=tuple(map(kept, s.steps))) for s in program.segments)
    return replace(program, segments=segments)


def is_scalar(variant: Variant) -> bool:
    """Does every access of this kernel move one element?"""
    return variant.alignment == 1


@dataclass(frozen=True)
class Programs:
    """A case's program by the schedule that it is limited to, and the parameters that all of them read."""

    by_schedule: Mapping[str, Program]
    parameters: Mapping[str, torch.Tensor]


def programs(case: Case, options: CompileOptions, build: Callable[[str, list[str]], str]) -> Programs:
    """Schedules for the first size of `case`. `build` makes a unit of a text and its kernels' names."""
    captured = generalize(case.source, options=options)
    solution = captured.graph.system.solve()
    graph = run_passes(captured.graph, options.target.kind)
    steps = schedule(graph)
    sets = [generate(group, steps.layouts, graph.system, options.target) for group in steps.groups]
    tried = dict(_tried(steps, sets, case.sizes[0]))
    every = [*sets, *(kernels for alternative in tried.values() for kernels in alternative)]
    names = dict.fromkeys(kernel.name for kernels in every for kernel in kernels.variants)
    unit = build(translation_unit(every, options.target), list(names))
    chosen = lower(steps, sets, (unit,), solution, captured.outputs)
    made = {"chosen": chosen, "width 1": with_variants(chosen, is_scalar)}
    for kernel in dict.fromkeys(kernel.name for kernels in sets for kernel in kernels.variants):
        made[f"only {kernel}"] = with_variants(chosen, partial(_is_kernel, kernel))
    for name, alternative in tried.items():
        made[name] = lower(steps, alternative, (unit,), solution, captured.outputs)
    return Programs(made, captured.parameters)


def _is_kernel(name: str, variant: Variant) -> bool:
    return variant.kernel == name


def _tried(
    steps: Schedule, sets: Sequence[KernelSet], sizes: Mapping[str, int]
) -> Iterator[tuple[str, list[KernelSet]]]:
    """Kernel sets in which the first row kernel has another team."""
    system = steps.graph.system
    for place, group in enumerate(steps.groups):
        scalars = infer(group, steps.layouts, system)
        nest = plan(scalars, group, system)
        if nest.kind != "row":
            continue
        for variant in _teams(nest, sizes):
            wide = wide_guards(nest, variant.width, system) or ()
            kernel = cuda_kernel(group.anchor.made_by.op.name, scalars, nest, system, variant, wide)
            made = list(sets)
            made[place] = replace(sets[place], variants=(kernel, sets[place].variants[-1]))
            yield f"row {variant.suffix[1:]}", made
        return


def _teams(nest: Nest, sizes: Mapping[str, int]) -> Iterator[Choice]:
    length, widths = evaluate(row_length(nest), sizes), (widest(nest), 1)
    for width in widths:
        for team in TEAMS:
            turns = -(-length // (team * width))
            if length % width == 0 and turns <= _MOST_TURNS and team * width <= length * 2:
                yield Choice(width, 32, team, turns)


def print_schedules(cases: Sequence[Case], rounds: int = 7) -> None:
    """Milliseconds, share of a copy's bandwidth and agreement of each schedule of each case, on the GPU."""
    console, bandwidth = Console(width=150), copy_bandwidth("cuda")
    for case in cases:
        table = Table(title=f"{case.source.name} {dict(case.sizes[0])}", title_justify="left")
        for column in ("schedule", "ms", "times the floor", "error / eager's"):
            table.add_column(column)
        for name, seconds, floor, error in measure(case, bandwidth, rounds):
            table.add_row(name, f"{1e3 * seconds:.4f}", f"{seconds / floor:.2f}", error)
        console.print(table)


def measure(case: Case, bandwidth: float, rounds: int) -> list[tuple[str, float, float, str]]:
    """For each schedule: its name, seconds a call, the floor's seconds, the error."""
    options = options_for("cuda")
    with tempfile.TemporaryDirectory(prefix="dlcb-bench-") as folder, torch.no_grad():
        store, device = open_store(Path(folder)), CudaDevice()
        made = programs(case, options, partial(_build, options, store))
        parameters = {name: tensor.cuda() for name, tensor in made.parameters.items()}
        thunks = {
            name: ProgramThunk(program, parameters, store, device)
            for name, program in made.by_schedule.items()
        }
        inputs = case_inputs(case, case.sizes[0], "cuda", 0)
        tensors, reference = list(inputs.values()), Reference(load_eager(case.source).to("cuda"))
        errors = {name: _error(thunk, reference, inputs, case) for name, thunk in thunks.items()}
        floor = bytes_at_least(tensors, thunks["chosen"].run(tensors).outputs) / bandwidth
        calls: dict[str, Call] = {name: partial(thunk.run, tensors) for name, thunk in thunks.items()}
        calls["eager"] = partial(reference.eager, tensors)
        timings = interleaved(calls, "cuda", rounds)
    return [(name, timing.seconds, floor, errors.get(name, "")) for name, timing in timings.items()]


def _build(options: CompileOptions, store: Store, text: str, names: list[str]) -> str:
    return build_unit(text, names, options.target, options, store)


def _error(thunk: ProgramThunk, reference: Reference, inputs: Mapping[str, torch.Tensor], case: Case) -> str:
    found = compare(lambda *tensors: thunk.run(tensors).outputs, reference, inputs, case.source.outputs)
    wrong = "" if all(deviation.agrees for deviation in found) else " WRONG"
    worst = max(found, key=lambda deviation: deviation.error)
    return f"{worst.error:.1e} / {worst.eager_error:.1e}{wrong}"
