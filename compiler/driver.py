"""The compiler's whole story on one screen: a registered model goes in; kernels in the store and an artifact
that a worker loads come out. Each stage has a spoken name, seen again in progress, timings and `stop_after`.

    source -> capture -> generalise -> solve -> passes -> generate -> build -> lower -> publish -> check"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from dlcb.compiler import artifact as artifacts
from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.capture import load_module, load_program
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.build import build_unit
from dlcb.compiler.build.toolchain import calls, toolchain
from dlcb.compiler.check import check
from dlcb.compiler.describe import any_rank_signature, describe_report, describe_signature
from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.host.lower import lower
from dlcb.compiler.ir import text
from dlcb.compiler.kgen import generate, translation_unit
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.report import Report
from dlcb.compiler.runtime.cuda import architecture
from dlcb.compiler.signature import Signature
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks import model
from dlcb.compiler.thunks.jit import RequestCompile, in_thread
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import Store

__all__ = ["Compilation", "CompiledModel", "compile_model", "load_model", "options_for"]

Progress = Callable[[str, float], None]  # stage name, share of the whole that is done
STAGES = ("capture", "generalise", "solve", "passes", "generate", "build", "lower", "publish", "check")


@dataclass(frozen=True)
class Compilation:
    """What a compilation leaves: the artifact's key in the store, the model's signature and the report."""

    artifact_key: str
    signature: Signature
    report: Report


@dataclass
class Clock:
    """Times stages and tells progress."""

    progress: Progress | None = None
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
    """Compile `source`, or find it in `store` by its identity
    (then nothing is captured and no weight is read).

    Raises CaptureError, ShapeError, ToolchainError, and ArtifactError where `options` refuse to compile.
    An operator without a rule is no error, PyTorch runs it."""
    options = options or CompileOptions()
    found = artifacts.find(source, options, store)
    if found is not None:
        key, artifact = found
        return Compilation(key, artifact.signature, artifact.report.as_cached())
    if options.only_stored:
        raise ArtifactError(f"'{source.name}' is not in the store, and compiling is refused", stage="find")
    if any(declared.shape is None for declared in source.inputs):
        artifact = Artifact(any_rank_signature(source), Report("jit"))
        key = artifacts.publish(artifact, source, {}, store)
    else:
        key, artifact = _compile(source, store, options, Clock(progress))
    artifacts.enter(key, source, options, store)
    return Compilation(key, artifact.signature, artifact.report)


def load_model(
    source: ModelSource,
    artifact_key: str,
    store: Store,
    *,
    device: str = "cpu",
    request_compile: RequestCompile | None = None,
) -> CompiledModel:
    """Load what `compile_model` left, on "cpu" or "cuda". Nothing is captured;
    nothing is compiled but new ranks of a model of unknown rank, by
    `request_compile`, or on a thread of this process where it is None."""
    options = options_for(device)
    compile_rank = request_compile or in_thread(
        lambda ranked: compile_model(ranked, store, options).artifact_key
    )
    return model.load_model(
        source, artifact_key, store, device=device, request_compile=compile_rank, options=options
    )


def options_for(device: str) -> CompileOptions:
    """The options that kernels for `device` ("cpu", or "cuda" for this machine's GPU) are compiled with."""
    return CompileOptions() if device == "cpu" else CompileOptions(target=Target.cuda(architecture(device)))


def _compile(
    source: ModelSource, store: Store, options: CompileOptions, clock: Clock
) -> tuple[str, Artifact]:
    before = calls.total
    _ = toolchain(options.target, options).version  # a missing compiler is said at once, not after tracing
    with clock("capture"):
        module = load_program(source.program) if source.program else load_module(source)
    with clock("generalise"):
        captured = generalize(source, module, options)
    artifact = compile_captured(source, captured, store, options, clock)
    with clock("publish"):
        key = artifacts.publish(artifact, source, captured.parameters, store)
    with clock("check"):
        reason = check(artifact, key, source, module, options, store) if options.check_shapes else ""
    report = replace(
        artifact.report, seconds=clock.seconds, compiler_calls=calls.total - before, quarantined=reason
    )
    if reason:
        report = replace(report, tier="eager")
    artifact = replace(artifacts.load(key, store), report=report, quarantined=reason)
    return artifacts.put(artifact, source, store), artifact


def compile_captured(
    source: ModelSource, captured: Captured, store: Store, options: CompileOptions, clock: Clock
) -> Artifact:
    """From a captured graph to an artifact whose kernels are in the store."""
    with clock("solve"):
        solution = captured.graph.system.solve()
    with clock("passes"):
        graph = run_passes(captured.graph, options.target.kind)
        plan = schedule(graph)
    with clock("generate"):
        kernels = [
            generate(group, plan.layouts, graph.system, options.target, options.static)
            for group in plan.groups
        ]
        unit_text = translation_unit(kernels, options.target) if kernels else ""
    with clock("build"):
        names = [kernel.name for kernel_set in kernels for kernel in kernel_set.variants]
        unit = build_unit(unit_text, names, options.target, options, store) if unit_text else ""
    with clock("lower"):
        program = lower(plan, kernels, unit, solution, captured.outputs)
        signature = describe_signature(source, captured, solution, graph, program)
        report = describe_report(captured, solution, plan, kernels, signature, options.static)
    return Artifact(signature, report, program, text.show(graph))
