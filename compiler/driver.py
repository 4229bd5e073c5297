"""The compiler's whole story on one screen: a registered model goes in; kernels in the store and an artifact
that a worker loads come out. Each stage has a spoken name, seen again in progress, timings and `stop_after`.

    source -> capture -> generalise -> solve -> passes -> generate -> lower -> reference -> publish -> build
    -> check

Kernels are compiled on other threads from `generate` on, and weights stored after `lower`. PyTorch, which
loads its libraries from `solve` on, gives its answers for the check meanwhile (`reference`). `publish` and
`build` are what is left of those two."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock

import torch
from torch import nn
from torch.export import ExportedProgram

from dlcb.compiler import artifact as artifacts
from dlcb.compiler import modules
from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.agreement import Reference
from dlcb.compiler.bridge.call_by_call import uncompiled
from dlcb.compiler.bridge.capture import load_module, load_program
from dlcb.compiler.bridge.exported import as_exported
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.bridge.one_device import settle
from dlcb.compiler.bridge.ranks import is_any_rank, survey
from dlcb.compiler.bridge.untraced import Untraced, untraced
from dlcb.compiler.build import Builder
from dlcb.compiler.build.toolchain import calls, toolchain
from dlcb.compiler.check import Answers, Verdict, check, prepared
from dlcb.compiler.compilation import Compilation, Progress, compile_model
from dlcb.compiler.describe import (
    any_rank_signature,
    describe_ranks,
    describe_report,
    describe_signature,
    untraced_signature,
)
from dlcb.compiler.errors import (
    CaptureError,
    CompilerError,
    Incomparable,
    OperatorTooLong,
    RefusedCode,
    TooLong,
    UnsupportedOperator,
)
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.garbage import no_collections
from dlcb.compiler.host.lower import lower
from dlcb.compiler.ir import text
from dlcb.compiler.kgen.deadline import Allowance
from dlcb.compiler.kgen.processes import KernelProcesses, kernel_processes
from dlcb.compiler.kgen.regions import generate_all
from dlcb.compiler.loading import load_model, options_for
from dlcb.compiler.made_of import require_same_files
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.parameters import load_parameters, place
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.unmasked import without_mask
from dlcb.compiler.refused import narrowed
from dlcb.compiler.report import Report
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import Store

__all__ = ["Compilation", "CompiledModel", "compile_model", "compile_source", "load_model", "options_for"]

logger = logging.getLogger("dlcb.compiler.driver")

# Held by the one thread of a process that compiles. While a model is traced, methods of torch.SymInt,
# functions of `math`, names in the user's modules, listeners to Python's calls and the garbage collector are
# not as otherwise. They belong to the process: another thread's trace would show them, and put them back.
_COMPILING = RLock()

# on the CPU it gains little, and its attention gives 0 for a query of NaN without a mask, NaN with one
UNMASKED_TARGETS = frozenset({"cuda"})
_TURN = 5e-4  # seconds that a thread may run Python while others wait to
_MOST_LEFT = 4  # lines of a model whose calls are left to PyTorch, each after a compilation in vain
STAGES = (
    *("capture", "generalise", "solve", "passes", "generate"),
    *("lower", "reference", "publish", "build", "check"),
)


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
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def compile_source(
    source: ModelSource, store: Store, options: CompileOptions, progress: Progress | None = None
) -> tuple[str, Artifact]:
    """What `compile_model` does where the store has nothing; the same errors. Gives the artifact and its key,
    by which the source finds it from now on. One thread of a process compiles at a time, others wait."""
    clock = Clock(progress)
    files = source.file_digests()
    with _COMPILING:
        if is_any_rank(source.inputs):
            with clock("capture"), uncompiled():
                ranks = survey(source, _load(source), options.target.kind)
            report = replace(describe_ranks(ranks), seconds=clock.seconds)
            key, artifact = _put(Artifact(any_rank_signature(source, ranks), report), source, store)
        else:
            with no_collections():
                key, artifact = _compile(source, store, options, clock)
        require_same_files(source, files)  # else part of it may be of one version, and part of another
        artifacts.enter(key, source, options, store)
    return key, artifact


def _load(source: ModelSource) -> nn.Module | ExportedProgram:
    module = load_program(source.program) if source.program else settle(load_module(source), "cpu")
    modules.loaded(source.factory)  # reads their files now, since they may change while this compiles
    return module


@contextmanager
def _short_turns() -> Iterator[None]:
    """While it is entered, a thread that comes back from PyTorch or a C++ or CUDA compiler waits a tenth as
    long as otherwise for the one that runs Python: it has little to do before its next call, of which
    there are hundreds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, _TURN))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def _only_new_garbage() -> Iterator[None]:
    """At the end garbage is looked for in what was made within, and not in what was there before: that are
    the modules that a factory imports, and the model, more objects than a compile makes."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect(1)
        if not frozen:
            gc.unfreeze()


def _compile(
    source: ModelSource, store: Store, options: CompileOptions, clock: Clock
) -> tuple[str, Artifact]:
    _ = toolchain(options.target, options).version  # a missing compiler is said at once, not after tracing
    with kernel_processes(options) as processes:  # they start while the model is made
        with clock("capture"):
            module = _load(source)
            if isinstance(module, ExportedProgram):
                source = as_exported(source, module)
        with _only_new_garbage():
            return _compile_module(source, module, store, options, processes, clock)


def _compile_module(
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    store: Store,
    options: CompileOptions,
    processes: KernelProcesses | None,
    clock: Clock,
) -> tuple[str, Artifact]:
    before = calls.total
    left: dict[str, str] = {}
    while True:
        with clock("generalise"):
            captured = _generalized(source, module, options, left)
        if isinstance(captured, Untraced):
            return _put_eager(source, captured, store, clock)
        try:
            artifact, verdict = _checked(source, module, captured, store, options, processes, clock)
            break
        except (RefusedCode, TooLong) as error:
            if isinstance(module, nn.Module):
                settle(module, "cpu")  # from where the load check would have asked it
            line = error.source_line if isinstance(error, OperatorTooLong) else ""
            if not line or line in left or len(left) == _MOST_LEFT:
                return _put_eager(source, _eager(source, module, error, options), store, clock)
            left = {**left, line: error.message}
            logger.warning("%s: PyTorch runs the calls of %s: %s", source.name, line, error.message)
    reason = verdict.quarantined
    artifact = narrowed(artifact, verdict.refusals)
    report = replace(
        artifact.report,
        seconds=clock.seconds,
        compiler_calls=calls.total - before,
        quarantined=reason,
        notes=(*artifact.report.notes, *verdict.notes),
    )
    confirmed = verdict.confirmed if report.unproven else None
    artifact = replace(artifact, report=report, quarantined=reason, confirmed=confirmed)
    if reason:  # what was proven was proven of a graph that is not the model's
        signature = replace(artifact.signature, batch=None, padding={})
        report = replace(report, tier="eager", batching=("PyTorch runs the model: each request runs alone",))
        artifact = replace(artifact, report=report, signature=signature)
    return _put(artifact, source, store)


def _checked(
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    captured: Captured,
    store: Store,
    options: CompileOptions,
    processes: KernelProcesses | None,
    clock: Clock,
) -> tuple[Artifact, Verdict]:
    """The artifact of a captured model, which is in the store, and what the load check says of it. Raises
    RefusedCode and TooLong."""
    with (
        _short_turns(),
        Builder(options.target, options, store) as builder,
        ThreadPoolExecutor(1) as beside,
    ):
        eager = beside.submit(_prepared, source, module, captured, options)
        artifact = compile_captured(source, captured, builder, options, processes, clock)
        published = beside.submit(_publish, artifact, source, captured.all_parameters, store)
        with clock("reference"):
            reference = _reference(source, module, eager.result(), captured, artifact, options)
        with clock("publish"):
            key, artifact, parameters = published.result()
        with clock("build"):
            builder.wait()
    with clock("check"):
        verdict = Verdict()
        if reference is not None:
            verdict = check(artifact, key, reference, store, parameters, captured.examples)
    return artifact, verdict


def _generalized(
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    options: CompileOptions,
    left: Mapping[str, str],
) -> Captured | Untraced:
    """A model that cannot be traced, though it runs, is PyTorch's; a contradiction to what was declared is
    an error."""
    try:
        captured = generalize(source, module, options, left)
        _refuse_chance(captured)
        return captured
    except (CaptureError, UnsupportedOperator, Incomparable) as error:
        if isinstance(module, ExportedProgram):
            raise
        return _eager(source, module, error, options)


def _refuse_chance(captured: Captured) -> None:
    """Raises Incomparable where shapes would be confirmed one by one by answers that no two calls share."""
    unproven = next((each.unproven for each in (captured, *captured.others) if each.unproven), "")
    if unproven and captured.draws:
        raise Incomparable(
            f"it draws random numbers ({captured.draws}), so that PyTorch's answers cannot tell at which "
            f"shapes the program is right, and that is not proven: {unproven}"
        )


def _eager(
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    error: CompilerError,
    options: CompileOptions,
) -> Untraced:
    """What is known of a model that stays PyTorch's because of `error`. On a GPU it may run what a CPU does
    not, as Fourier transforms of half types, and give other types, as autocast's. A CPU runs it first: what
    that refuses may end a GPU's context."""
    runnable = settle(module.module(), "cpu") if isinstance(module, ExportedProgram) else module
    device, found = _device(options), None
    on_gpu = device != "cpu" and torch.cuda.is_available()
    try:
        found = untraced(source, runnable, error)
    except CaptureError:
        if not on_gpu:
            raise
    if on_gpu:
        try:
            found = untraced(source, settle(runnable, device), error, device)
        except (CompilerError, torch.OutOfMemoryError):
            if found is None:
                raise
    assert found is not None
    logger.error("%s is served by eager PyTorch: %s", source.name, found.why)
    return found


def _put_eager(source: ModelSource, found: Untraced, store: Store, clock: Clock) -> tuple[str, Artifact]:
    report = Report("eager", seconds=clock.seconds, quarantined=found.why)
    return _put(Artifact(untraced_signature(source, found), report, quarantined=found.why), source, store)


def _put(artifact: Artifact, source: ModelSource, store: Store) -> tuple[str, Artifact]:
    """Put what a compilation has come to, which says now which of the user's modules it was made of."""
    artifact = replace(artifact, modules=modules.imported(source.factory) | source.file_digests())
    return artifacts.put(artifact, source, store), artifact


def _publish(
    artifact: Artifact, source: ModelSource, parameters: Mapping[str, torch.Tensor], store: Store
) -> tuple[str, Artifact, Mapping[str, torch.Tensor]]:
    """The artifact with its parameters in the store, its key there, and the parameters as a worker loads
    them, verified."""
    artifact = place(artifact, source, parameters, store)
    return artifacts.put(artifact, source, store), artifact, load_parameters(artifact, source, store)


def _prepared(
    source: ModelSource, module: nn.Module | ExportedProgram, captured: Captured, options: CompileOptions
) -> Reference | None:
    """The eager module where the load check asks it; None where that is left out."""
    device = _device(options)
    if not options.check_shapes:
        return None
    if device == "cuda" and not torch.cuda.is_available():
        logger.warning("%s: compiled for CUDA without a GPU: not checked against eager", source.name)
        return None
    first = None
    if device == "cuda" and not captured.draws:  # a call more would draw others
        sizes = captured.examples[0]
        first = {v.name: tuple(evaluate(e, sizes) for e in v.shape) for v in captured.graph.inputs}
    return prepared(source, module, device, first)


def _reference(
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    eager: Reference | None,
    captured: Captured,
    artifact: Artifact,
    options: CompileOptions,
) -> Answers | None:
    """PyTorch's answers at the sizes of the load check; None where it is left out."""
    if eager is None:
        return None
    further = [sizes for each in captured.others for sizes in each.examples[:2]]
    if captured.within:  # what it is limited to may hold no size that is drawn
        further += captured.examples[:1]
    mask = artifact.unmasked[0] if artifact.unmasked else ""
    signature, draws = artifact.signature, bool(captured.draws)
    count = options.check_shapes
    return Answers(source, module, eager, signature, mask, _device(options), count, further, draws)


def _device(options: CompileOptions) -> str:
    return "cuda" if options.target.kind == "cuda" else "cpu"


def compile_captured(
    source: ModelSource,
    captured: Captured,
    builder: Builder,
    options: CompileOptions,
    processes: KernelProcesses | None,
    clock: Clock,
) -> Artifact:
    """From the captured graphs of a model to an artifact whose kernels `builder` is compiling."""
    every = (captured, *captured.others)
    passed = partial(run_passes, target=options.target.kind, tf32=options.tf32)
    with clock("solve"):
        solutions = [each.graph.system.solve() for each in every]
    with clock("passes"):
        graphs = [passed(each.graph) for each in every]
        masks = _masks(source) if options.target.kind in UNMASKED_TARGETS else []
        bare = without_mask(captured.graph, masks, passed)
        plans = [schedule(graph) for graph in (*graphs, *((bare[1],) if bare else ()))]
    with clock("generate"):
        if processes is not None:
            for plan in plans:
                processes.generate(plan, options)
        allowance = Allowance(options.region_seconds, options.generate_seconds)
        made = [generate_all(plan, options, allowance, builder.add) for plan in plans]
        plans, kernels = [plan for plan, _, _ in made], [of_graph for _, of_graph, _ in made]
        divided = tuple(note for _, _, notes in made for note in notes)
        units = builder.keys()
    with clock("lower"):
        origins = [*zip(every, solutions, strict=True), (captured, solutions[0])][: len(plans)]
        programs = [
            lower(plan, of_graph, units, solution, each.outputs)
            for plan, of_graph, (each, solution) in zip(plans, kernels, origins, strict=True)
        ]
        unmasked = (bare[0], programs.pop()) if bare else None
        own = len(programs)
        signature = describe_signature(source, every, solutions, graphs, programs)
        report = describe_report(
            source, every, solutions, plans[:own], kernels[:own], signature, options.static
        )
        report = replace(report, notes=(*report.notes, *divided))
    if bare:
        said = f"while every value of '{bare[0]}' is 1, a second program runs attention without a mask"
        report = replace(report, notes=(*report.notes, said))
    shown = text.show(graphs[0])
    return Artifact(signature, report, programs[0], shown, others=tuple(programs[1:]), unmasked=unmasked)


def _masks(source: ModelSource) -> list[str]:
    """Inputs whose declared values are 0 and 1."""
    return [d.name for d in source.inputs if d.dtype == "bool" or ("int" in d.dtype and d.values == (0, 2))]
