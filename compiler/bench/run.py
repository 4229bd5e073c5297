"""Run cases: compile ours cold and warm, check the answers, time everyone side by side at each size, then at
sizes never seen before. Rows come out as plain data; `bench.report` prints and keeps them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dlcb.compiler import artifact as artifacts
from dlcb.compiler.bench.contestants import Call, Contestant, Ours, OursStatic, TorchCompile, peers
from dlcb.compiler.bench.floors import bytes_at_least
from dlcb.compiler.bench.measure import interleaved, once
from dlcb.compiler.bench.schedules import is_scalar, with_variants
from dlcb.compiler.bench.suites import Case, case_inputs
from dlcb.compiler.bridge.agreement import Reference, compare, without_tf32
from dlcb.compiler.bridge.capture import load_eager
from dlcb.compiler.driver import CompiledModel, compile_model, load_model, options_for
from dlcb.compiler.runtime.cuda import CudaDevice
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.kernel_cache import Store, open_store

_UNSEEN_STEP = 1  # a size never seen before is the next odd one
_TF32 = 2.0**-11  # half of the last of its eleven binary digits
_WITH_PEAK = ("eager", "ours, no graphs")


@dataclass
class Row:
    """One case at one size: seconds a call by contestant, and the worst deviation of ours."""

    case: str
    sizes: Mapping[str, int]
    seconds: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    error: float = 0.0
    eager_error: float = 0.0
    agrees: bool = True
    first_call: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    least_bytes: int = 0  # inputs read once and outputs written once, parameters left out

    def ratio(self, base: str, other: str = "ours") -> float | None:
        """How many times faster `other` is than `base`."""
        if base not in self.seconds or other not in self.seconds:
            return None
        return self.seconds[base] / self.seconds[other]


@dataclass
class CaseResult:
    """Rows of a case and what compiling cost: ours by stage, cold, found in a warm store (which reads no
    weights) and loaded from it (which does); peers' first calls."""

    case: str
    rows: list[Row]
    compile_seconds: dict[str, float]
    stages: dict[str, float]
    kernels: int
    library_calls: int
    eager_nodes: int


def run_case(
    case: Case,
    device: str,
    peer_names: Sequence[str],
    *,
    rounds: int = 7,
    seed: int = 0,
) -> CaseResult:
    """Measure one case. Raises CompilerError where ours cannot be compiled."""
    options = options_for(device)
    with tempfile.TemporaryDirectory(prefix="dlcb-bench-") as folder, torch.no_grad():
        store = open_store(Path(folder))
        compilation, cold = _timed(lambda: compile_model(case.source, store, options))
        warm = open_store(Path(folder))
        _, found = _timed(lambda: compile_model(case.source, warm, options))
        model, loaded = _timed(lambda: load_model(case.source, compilation.artifact_key, warm, device=device))
        module = load_eager(case.source).to(device)
        plain = load_model(case.source, compilation.artifact_key, store, device=device)
        contestants: list[Contestant] = [
            *peers(module, peer_names, case.source, store, device),
            Ours(partial(model.call, wait=False), promote=model.promote),
        ]
        if device == "cuda" and case.single_kernel:
            contestants.append(Ours(_scalar(compilation.artifact_key, store), "ours, width 1"))
        elif device == "cuda":
            contestants.append(Ours(partial(plain.call, wait=False), "ours, no graphs"))
        reference = Reference(module)
        rows = [
            _measure(case, sizes, contestants, reference, model, device, rounds, seed + k)
            for k, sizes in enumerate(case.sizes)
        ]
        for row in rows if not case.single_kernel else ():
            row.first_call = _first_calls(case, row.sizes, module, plain, device, seed)
    compiles = {c.name: c.seconds for c in contestants if isinstance(c, (TorchCompile, OursStatic))}
    report = compilation.report
    ours = {"ours cold": cold, "ours found": found, "ours loaded": loaded}
    return CaseResult(
        case.source.name, rows, {**ours, **compiles}, dict(report.seconds),
        len(report.kernels), report.library_calls, report.eager_nodes,
    )  # fmt: skip


def _scalar(artifact_key: str, store: Store) -> Callable[..., Sequence[torch.Tensor]]:
    """A single kernel without weights, of which only variants that move one element an access may run."""
    program = artifacts.load(artifact_key, store).program
    assert program is not None
    device = CudaDevice()
    device.checks.later = True  # as the others' are
    thunk = ProgramThunk(with_variants(program, is_scalar), {}, store, device)
    return lambda *tensors: thunk.run(tensors).outputs


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


def _measure(
    case: Case,
    sizes: Mapping[str, int],
    contestants: Sequence[Contestant],
    reference: Reference,
    model: CompiledModel,
    device: str,
    rounds: int,
    seed: int,
) -> Row:
    inputs = case_inputs(case, sizes, device, seed)
    row = Row(case.source.name, dict(sizes))
    ours = [c.call for c in contestants if isinstance(c, Ours)] if case.single_kernel else [model.call]
    tensors = list(inputs.values())
    row.least_bytes = bytes_at_least(tensors, model.call(*tensors))
    with without_tf32():
        _judge(row, ours, reference, inputs, case.source.outputs)
    prepared = {c.name: c.prepare(tensors) for c in contestants}
    # a hot plan may use other kernels, and those that were recorded round as PyTorch is set to
    _judge(row, ours, reference, inputs, case.source.outputs, _rounding(model, device))
    timings = interleaved(prepared, device, rounds)
    model.check()
    row.seconds = {name: timing.seconds for name, timing in timings.items()}
    row.spread = {name: timing.spread for name, timing in timings.items()}
    if device == "cuda":
        # a graph's memory lies in a pool, taken when it was recorded: without graphs all of it shows
        row.peak_bytes = {c.name: _peak(c.prepare(tensors)) for c in contestants if c.name in _WITH_PEAK}
    return row


def _judge(
    row: Row,
    calls: Sequence[Callable[..., Sequence[torch.Tensor]]],
    reference: Reference,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    rounding: float = 0.0,
) -> None:
    """`rounding`: an error that is none, whichever kernel eager was given."""
    for deviation in (d for call in calls for d in compare(call, reference, inputs, outputs)):
        row.agrees &= deviation.agrees or deviation.error <= rounding
        row.error = max(row.error, deviation.error)
        row.eager_error = max(row.eager_error, deviation.eager_error)


def _rounding(model: CompiledModel, device: str) -> float:
    """What convolutions may lose by TF32, which PyTorch allows them, and uses in some of its kernels."""
    rounds = device == "cuda" and torch.backends.cudnn.allow_tf32
    convolves = any("convolution" in line.operator for line in model.report.calls)
    return _TF32 if rounds and convolves else 0.0


def _peak(call: Call) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _first_calls(
    case: Case, sizes: Mapping[str, int], module: nn.Module, model: CompiledModel, device: str, seed: int
) -> dict[str, float]:
    """Seconds of the first call at sizes nobody has seen; two such sizes, so that each contestant once goes
    first."""
    totals = {"eager": 0.0, "ours": 0.0}
    for turn in range(2):
        unseen = {
            name: size + _UNSEEN_STEP + turn if name == next(iter(sizes)) else size
            for name, size in sizes.items()
        }
        tensors = list(case_inputs(case, unseen, device, seed + 100 + turn).values())
        order: list[tuple[str, Callable[..., object]]] = [("eager", module), ("ours", model.call)]
        for name, call in order if turn % 2 else reversed(order):
            totals[name] += once(partial(call, *tensors), device)
    return totals
