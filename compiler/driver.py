"""The compiler's whole story on one screen: a registered model goes in; kernels in the store and an artifact that a worker
loads come out. Each stage has a spoken name, seen again in progress, timings and `stop_after`.

    source -> capture -> generalise -> solve -> passes -> generate -> build -> lower -> publish -> check"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dlcb.compiler import artifact as artifacts
from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.build.build import build_unit
from dlcb.compiler.check import check_artifact
from dlcb.compiler.host.lower import lower
from dlcb.compiler.kgen import generate, translation_unit
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.report import Report, describe
from dlcb.compiler.signature import Signature
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.model import CompiledModel, load_model
from dlcb.kernel_cache import Store

__all__ = ["Compilation", "CompiledModel", "compile_model", "load_model"]

Progress = Callable[[str, float], None]  # stage name, share of the whole that is done
STAGES = ("capture", "generalise", "solve", "passes", "generate", "build", "lower", "publish", "check")


@dataclass(frozen=True)
class Compilation:
    """What a compilation leaves: the artifact's key in the store, the model's signature and the report."""

    artifact_key: str
    signature: Signature
    report: Report


@dataclass
class _Clock:
    """Times stages and tells progress."""

    progress: Progress | None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        if self.progress:
            self.progress(stage, STAGES.index(stage) / len(STAGES))
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start


def compile_model(
    source: ModelSource,
    store: Store,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> Compilation:
    """Compile `source`, or find it in `store` by its identity (then nothing is captured and no weight is read).

    Raises CaptureError, ShapeError, ToolchainError; an operator without a rule is no error, PyTorch runs it."""
    options = options or CompileOptions()
    found = artifacts.find(source, options, store)
    if found is not None:
        key, artifact = found
        return Compilation(key, artifact.signature, artifact.report.as_cached())
    if any(declared.shape is None for declared in source.inputs):
        return _publish_any_rank(source, store, options)
    clock = _Clock(progress)
    with clock("capture"):
        module = load_module(source)
    with clock("generalise"):
        captured = generalize(source, module, options)
    artifact = compile_captured(source, captured, store, options, clock)
    with clock("publish"):
        key = artifacts.publish(artifact, source, options, captured.parameters, store)
    if options.check_shapes:
        with clock("check"):
            artifact, key = check_artifact(artifact, key, source, module, options, store)
    if progress:
        progress("done", 1.0)
    return Compilation(key, artifact.signature, artifact.report.with_seconds(clock.seconds))


def compile_captured(
    source: ModelSource, captured: Captured, store: Store, options: CompileOptions, clock: _Clock
) -> Artifact:
    """From a captured graph to an artifact whose kernels are in the store."""
    with clock("solve"):
        solution = captured.graph.system.solve()
    with clock("passes"):
        graph = run_passes(captured.graph)
        plan = schedule(graph)
    with clock("generate"):
        kernels = [generate(group, plan.layouts, graph.system, options.target, options.static) for group in plan.groups]
        text = translation_unit(kernels, options.target) if kernels else ""
    with clock("build"):
        unit = build_unit(text, [k.name for s in kernels for k in s.variants], options.target, options, store) if text else ""
    with clock("lower"):
        program = lower(plan, kernels, unit, solution, names=source.outputs)
    return describe(source, captured, solution, graph, plan, kernels, program, text)
