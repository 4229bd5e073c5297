"""A compiled model in a worker: arrays or tensors in, outputs and the tier that made them out. The program's
tier serves what its guards cover, eager PyTorch what only they exclude; what the signature or PyTorch itself
refuses is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy
import torch

from dlcb.compiler.artifact import Artifact
from dlcb.compiler.build.toolchain import calls as compiler_calls
from dlcb.compiler.errors import (
    ContractError,
    GuardError,
    IndexRangeError,
)
from dlcb.compiler.report import Report
from dlcb.compiler.runtime.device import Device
from dlcb.compiler.runtime.executor import Ran
from dlcb.compiler.runtime.graphs import Recorder
from dlcb.compiler.runtime.types import TORCH
from dlcb.compiler.signature import Signature, TensorSpec
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.arrays import has_dtype, to_array, to_tensor
from dlcb.compiler.thunks.contract import check_declared
from dlcb.compiler.thunks.dynamic import ProgramThunk
from dlcb.compiler.thunks.eager import EagerThunk
from dlcb.compiler.thunks.graphs import GraphsThunk
from dlcb.compiler.thunks.jit import JitThunk
from dlcb.compiler.thunks.thunk import Thunk
from dlcb.compiler.thunks.unproven import Unconfirmed, UnprovenThunk


@dataclass(frozen=True)
class Outcome:
    """Outputs by name; the tier that made them: "static", "dynamic", "jit" or "eager"; "hit" where a prepared
    plan served the call, else "miss"."""

    outputs: dict[str, numpy.ndarray]
    tier: str
    result: str


@dataclass(frozen=True)
class PlanSummary:
    """What a call at some shapes will need. A shape is None where only the call tells; `bytes` are beside
    parameters, inputs and the libraries' own workspaces."""

    output_shapes: dict[str, tuple[int, ...] | None]
    tier: str
    bytes: int
    cached: bool
    would_compile: bool


@dataclass
class Counters:
    """Since the model was loaded. `entries` are prepared plans; `guard_failures` calls that the program's
    derived guards sent to eager PyTorch; `quarantined` whether every call goes there; `compiles_requested`
    new ranks. Of a model that is confirmed shape by shape, `confirmed` and `refuted` count its shapes."""

    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    guard_failures: int = 0
    quarantined: bool = False
    compiles_requested: int = 0
    confirmed: int = 0
    refuted: int = 0
    graphs: int = 0  # plans that are recorded as CUDA graphs
    graph_bytes: int = 0
    compiler_calls: int = 0  # runs of g++ or NVRTC in this process


class CompiledModel:
    """One model on one device. Thread-compatible: one call at a time, from whichever thread."""

    def __init__(
        self,
        source: ModelSource,
        artifact: Artifact,
        device: Device,
        eager: EagerThunk,
        program: ProgramThunk | GraphsThunk | UnprovenThunk | None,
        jit: JitThunk | None = None,
        unmasked: ProgramThunk | UnprovenThunk | None = None,
        beside: EagerThunk | None = None,
        reports: Mapping[str, Report] = MappingProxyType({}),
    ) -> None:
        self.source = source
        self.signature: Signature = artifact.signature
        self.report: Report = artifact.report
        self.device = device
        self.recorder = Recorder(device.torch_device) if device.name == "cuda" else None
        self._eager, self._program, self._jit, self._unmasked = eager, program, jit, unmasked
        self._reports = reports  # of what was loaded, by its artifact's key
        self._beside = beside or eager  # PyTorch for values that a program has taken: on the model's device
        # the input for which a second program serves calls in which all its values are 1; "": there is none
        self.mask = artifact.unmasked[0] if artifact.unmasked is not None and unmasked is not None else ""
        self._specs = artifact.signature.inputs
        self._dtypes = [TORCH[spec.dtype] for spec in self._specs]
        # what is tried in turn where the values of a mask are not known to be 1, and where they are
        served = () if program is None else (program,)
        self._tried = served, served if unmasked is None else (unmasked, *served)
        self._output_names = [spec.name for spec in artifact.signature.outputs]
        self._quarantined = bool(artifact.quarantined)
        self._guard_failures = 0
        self._turn = 0  # of its programs, to record a plan
        # an answer that is compared with PyTorch's must be known to be one
        self._waits = jit is not None or isinstance(program, UnprovenThunk)
        self._ranges = {d.name: d.values for d in source.inputs if d.values and "int" in d.dtype}

    def run(self, inputs: Mapping[str, numpy.ndarray]) -> Outcome:
        """Run on arrays by input name, of the signature's dtypes (bfloat16 as its bits in uint16).

        ContractError, GuardError or IndexRangeError where the inputs are at fault; the model goes on serving.
        """
        arrays = self._in_order(inputs)
        place = self.device.torch_device
        tensors = [to_tensor(a, spec.dtype, place) for a, spec in zip(arrays, self._specs, strict=True)]
        # asked of the array: a tensor on a GPU would have to be waited for
        unmasked = self._unmasked is not None and bool((inputs[self.mask] == 1).all())
        ran, tier = self._run(tensors, unmasked, wait=False)
        outputs = [to_array(tensor) for tensor in ran.outputs]  # which waits for the device
        self.check()
        return Outcome(
            dict(zip(self._output_names, outputs, strict=True)), tier, "hit" if ran.hit else "miss"
        )

    def call(
        self, *tensors: torch.Tensor, unmasked: bool = False, wait: bool = True
    ) -> tuple[torch.Tensor, ...]:
        """Run on tensors in the signature's order, on the model's device; other strides are copied first.
        `unmasked`: the caller knows that every value of the input `mask` is 1. Without `wait` a GPU may still
        be at work afterwards, as after a call of PyTorch's, and IndexRangeError comes from `check` or from a
        later call."""
        dtypes = self._dtypes
        if len(tensors) != len(dtypes):
            raise ContractError(
                f"'{self.source.name}' takes {len(dtypes)} inputs, found {len(tensors)}", stage="run"
            )
        given: list[torch.Tensor] = []
        for tensor, dtype in zip(tensors, dtypes, strict=True):
            if tensor.dtype is not dtype:
                spec = self._specs[len(given)]
                raise ContractError(
                    f"input '{spec.name}' is {tensor.dtype}, expected {spec.dtype}", stage="run"
                )
            given.append(tensor.contiguous())
        return self._run(given, unmasked, wait)[0].outputs

    def check(self) -> None:
        """Wait for the calls that did not. IndexRangeError when one of them met a bad index: its outputs are
        then to be thrown away."""
        self.device.checks.settle()

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> PlanSummary:
        """What `run` would do at these shapes by input name; the same errors, and nothing runs or
        compiles."""
        ordered = [tuple(shapes[spec.name]) for spec in self._specs if spec.name in shapes]
        if len(ordered) != len(shapes) or len(ordered) != len(self._specs):
            self._refuse_names(shapes)
        thunk = self._program or self._jit or self._eager
        try:
            forecast = thunk.forecast(ordered)
        except GuardError:
            forecast = self._eager.forecast(ordered)
        if forecast.tier == "eager":
            check_declared(self.source, ordered)
        outputs = forecast.output_shapes or (None,) * len(self._output_names)
        return PlanSummary(
            dict(zip(self._output_names, outputs, strict=True)),
            forecast.tier,
            forecast.bytes,
            forecast.cached,
            forecast.would_compile,
        )

    def promote(self) -> bool:
        """Use a moment in which nothing waits to run: record a hot plan as one CUDA graph, of each program in
        turn. False when there is nothing (more) to do; always on the CPU."""
        if self.recorder is None:
            return False
        programs = self._programs()
        for _ in programs:
            self._turn += 1
            if self.recorder.promote(programs[self._turn % len(programs)].executor):
                return True
        return False

    def _programs(self) -> list[ProgramThunk]:
        return [
            program
            for thunk in self._thunks()
            if isinstance(thunk, (ProgramThunk, GraphsThunk, UnprovenThunk))
            for program in thunk.programs
        ]

    def _thunks(self) -> list[Thunk | None]:
        return [self._program, self._unmasked, *(self._jit.thunks() if self._jit is not None else ())]

    @property
    def loaded_ranks(self) -> dict[tuple[int, ...], Report]:
        """Of a model of any rank: the ranks of its inputs that are compiled and loaded, each with its report.
        Any thread may ask."""
        loaded = self._jit.loaded() if self._jit is not None else {}
        return {ranks: self._reports[key] for ranks, key in loaded.items()}

    @property
    def counters(self) -> Counters:
        caches = [program.executor.cache for program in self._programs()]
        known = {thunk.known for thunk in self._thunks() if isinstance(thunk, UnprovenThunk)}
        return Counters(
            entries=sum(len(cache) for cache in caches),
            hits=sum(cache.hits for cache in caches),
            misses=sum(cache.misses for cache in caches),
            evictions=sum(cache.evictions for cache in caches),
            guard_failures=self._guard_failures,
            quarantined=self._quarantined or any(each.quarantined for each in known),
            compiles_requested=self._jit.requested if self._jit is not None else 0,
            confirmed=sum(each.confirmed for each in known),
            refuted=sum(len(each.refuted) for each in known),
            graphs=self.recorder.graphs if self.recorder is not None else 0,
            graph_bytes=self.recorder.bytes if self.recorder is not None else 0,
            compiler_calls=compiler_calls.total,
        )

    def _run(self, tensors: Sequence[torch.Tensor], unmasked: bool, wait: bool) -> tuple[Ran, str]:
        self.device.checks.later = not (wait or self._waits)
        broken: GuardError | None = None
        for program in self._tried[unmasked]:
            try:
                return program.run(tensors), program.tier
            except Unconfirmed as doubt:
                return self._run_unconfirmed(tensors, doubt), "eager"
            except GuardError as error:
                broken = error
        if broken is not None:
            self._guard_failures += 1
            return self._run_eager(tensors, broken), "eager"
        shapes = [tensor.shape for tensor in tensors]
        compiled = self._jit.thunk_for([len(shape) for shape in shapes]) if self._jit is not None else None
        if compiled is None:
            check_declared(self.source, shapes)
            return self._run_eager(tensors), "eager"
        try:
            return compiled.run(tensors), "jit"
        except Unconfirmed as doubt:
            return self._run_unconfirmed(tensors, doubt), "eager"
        except GuardError as error:
            self._guard_failures += 1
            return self._run_eager(tensors, error), "eager"

    def _run_unconfirmed(self, tensors: Sequence[torch.Tensor], doubt: Unconfirmed) -> Ran:
        """PyTorch's answer where it is not known that the program's is the same, and after that it is known.
        An index that the program refuses may be right in the module, which then runs where that is safe."""
        if doubt.wrong is not None:
            try:
                return self._run_eager(tensors)
            except GuardError:
                raise doubt.wrong from None
        try:
            ran = self._run_eager(tensors, thunk=self._beside)
        except torch.OutOfMemoryError:  # a GPU that was filled without the module
            ran = self._run_eager(tensors)
        doubt.settle(tensors, ran.outputs)
        return ran

    def _run_eager(
        self,
        tensors: Sequence[torch.Tensor],
        broken: GuardError | None = None,
        thunk: EagerThunk | None = None,
    ) -> Ran:
        """Run the module itself. `broken` is the guard that sent the call here: if PyTorch refuses too, it
        says which size would have been legal. Of a bad index PyTorch says too little, and on CUDA too late,
        when the device is lost: declared ranges say which it is."""
        if any(tensor.is_cuda for tensor in tensors):
            self._check_ranges(tensors)
        try:
            with torch.inference_mode(False), torch.no_grad():
                ran = (thunk or self._eager).run(tensors)
            if len(ran.outputs) != len(self._output_names):
                wanted = len(self._output_names)
                raise GuardError(f"PyTorch gives {len(ran.outputs)} outputs here, elsewhere {wanted}")
            return ran
        except GuardError as error:
            if "index" in error.message:
                self._check_ranges(tensors)
            if broken is None:
                raise
            raise GuardError(f"{broken.message}; {error.message}", stage="eager") from broken

    def _check_ranges(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, spec in zip(tensors, self._specs, strict=True):
            if spec.name in self._ranges and tensor.numel():
                _check_range(tensor, spec, *self._ranges[spec.name])

    def _in_order(self, inputs: Mapping[str, numpy.ndarray]) -> list[numpy.ndarray]:
        arrays = [inputs[spec.name] for spec in self._specs if spec.name in inputs]
        if len(arrays) != len(inputs) or len(arrays) != len(self._specs):
            self._refuse_names(inputs)
        for array, spec in zip(arrays, self._specs, strict=True):
            if not has_dtype(array, spec.dtype):
                raise ContractError(
                    f"input '{spec.name}' is {array.dtype}, expected {spec.dtype}", stage="run"
                )
        return arrays

    def _refuse_names(self, given: Mapping[str, object]) -> None:
        expected = ", ".join(f"'{spec.name}'" for spec in self._specs)
        found = ", ".join(f"'{name}'" for name in given) or "none"
        raise ContractError(f"'{self.source.name}' takes inputs {expected}, found {found}", stage="run")


def _check_range(tensor: torch.Tensor, spec: TensorSpec, low: float, high: float) -> None:
    least, most = (int(x) for x in torch.aminmax(tensor))
    if least >= low and most < high:
        return
    bad = ((tensor < low) | (tensor >= high)).nonzero()[0].tolist()
    raise IndexRangeError(spec.name, tuple(bad), int(tensor[tuple(bad)]), int(low), int(high), stage="eager")
