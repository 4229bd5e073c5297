"""A model's way through the compiler as text: any stage's result, for `dlcb explain --stage` and for golden
files. Nothing is looked up or kept in a store, and no C++ or CUDA compiler is needed.

    capture -> solve -> (each pass by its name) -> passes -> schedule -> generate -> lower"""

from __future__ import annotations

import json

from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.errors import UnknownName
from dlcb.compiler.host.lower import lower
from dlcb.compiler.ir import text as graph_text
from dlcb.compiler.kgen import translation_unit
from dlcb.compiler.kgen.deadline import Allowance
from dlcb.compiler.kgen.regions import generate_all
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes import text as schedule_text
from dlcb.compiler.passes.pipeline import PASSES, run_passes, schedule
from dlcb.compiler.shapes.system import Solution
from dlcb.compiler.source import ModelSource

_PASSES = tuple(dict.fromkeys(each.name for each in PASSES))  # some have a row a target
STAGES = ("capture", "solve", *_PASSES, "passes", "schedule", "generate", "lower")


def stage_text(source: ModelSource, stage: str, options: CompileOptions | None = None) -> str:
    """What `source` is after `stage`, one of STAGES: a graph, the solved sizes, a schedule, the
    kernels' source, or the host program as JSON. CaptureError and ShapeError as from a
    compilation; UnknownName lists the stages."""
    if stage not in STAGES:
        raise UnknownName(f"unknown stage {stage!r}: expected one of {', '.join(STAGES)}")
    options = options or CompileOptions()
    captured = generalize(source, options=options)
    if stage == "capture":
        return graph_text.show(captured.graph)
    solution = captured.graph.system.solve()
    if stage == "solve":
        return _show_solution(solution)
    last = None if stage == "passes" else stage
    graph = run_passes(captured.graph, options.target.kind, stop_after=last, tf32=options.tf32)
    if stage == "passes" or stage in _PASSES:
        return graph_text.show(graph)
    plan = schedule(graph)
    if stage == "schedule":
        return schedule_text.show(plan)
    allowance = Allowance(options.region_seconds, options.generate_seconds)
    plan, kernels, _ = generate_all(plan, options, allowance, lambda made: made)
    if stage == "generate":
        return translation_unit(kernels, options.target) if kernels else ""
    return json.dumps(lower(plan, kernels, (), solution, captured.outputs).to_json(), indent=1)


def _show_solution(solution: Solution) -> str:
    lines = [
        f"{name} = {verdict.value!r}  {verdict.kind}, {_range(verdict.low, verdict.high, verdict.multiple)}"
        for name, verdict in solution.verdicts.items()
    ]
    lines += [f"check {guard.condition!r}" for guard in solution.guards]
    report = solution.report
    fired = ", ".join(
        f"{rule} {count}" for rule, count in sorted(report.fired.items(), key=lambda item: -item[1])
    )
    lines.append(
        f"stopped at {report.stopped} after {report.steps} steps, {report.seconds:.3f} s; rules {fired}"
    )
    return "\n".join(lines) + "\n"


def _range(low: int, high: int | None, multiple: int) -> str:
    span = f"{low} to {'any' if high is None else high}"
    return span if multiple == 1 else f"{span}, multiple of {multiple}"
