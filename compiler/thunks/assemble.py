"""From an artifact to a model that runs: its programs loaded on a device, and PyTorch for what they leave
out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from dlcb.compiler import artifact as artifacts
from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.capture import load_eager
from dlcb.compiler.bridge.ranks import is_any_rank
from dlcb.compiler.errors import ArtifactError, CaptureError
from dlcb.compiler.made_of import require_agreement, require_same, require_same_code, require_same_files
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.parameters import load_parameters
from dlcb.compiler.report import Report
from dlcb.compiler.runtime.cpu import CpuDevice
from dlcb.compiler.runtime.cuda import CudaDevice, architecture
from dlcb.compiler.runtime.device import Device
from dlcb.compiler.runtime.memory import SharedArena
from dlcb.compiler.runtime.weights import aligned
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.contract import admission
from dlcb.compiler.thunks.dynamic import ProgramThunk, Tensors
from dlcb.compiler.thunks.eager import EagerThunk
from dlcb.compiler.thunks.graphs import GraphsThunk
from dlcb.compiler.thunks.jit import WAIT_SECONDS, JitThunk, RequestCompile
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.compiler.thunks.thunk import Thunk
from dlcb.compiler.thunks.unproven import Confirmations, UnprovenThunk
from dlcb.kernel_cache.pins import model_owner
from dlcb.kernel_cache.store import Store


def load_model(
    source: ModelSource,
    artifact_key: str,
    store: Store,
    *,
    device: str = "cpu",
    request_compile: RequestCompile | None = None,
    options: CompileOptions | None = None,
    capacity: int = 512,
    wait_seconds: float = WAIT_SECONDS,
    parameters: Tensors | None = None,
) -> CompiledModel:
    """Load a compiled model on "cpu" or "cuda". Nothing is captured and nothing compiled.

    `request_compile` is asked for an artifact when a model of unknown rank meets a new one; without it such a
    model runs what the store already holds, and eagerly otherwise. PyTorch runs the code that was compiled or
    none, with the weights that it was compiled with: ChangedCode from a call that needs what has changed, and
    at once where parameters lie in it. `options` find what was compiled for a
    rank before. `capacity` bounds the shape cache, `wait_seconds` how long requests of a model with
    `jit: wait` wait for a new rank before PyTorch serves them. `parameters` are the artifact's, where they
    are loaded already. ArtifactError when the store lacks what the artifact names.
    """
    place: Device = CudaDevice() if device.startswith("cuda") else CpuDevice()
    artifact = artifacts.load(artifact_key, store)
    parts = _Parts(source, artifact, store, place, capacity)
    if artifact.program is not None and not artifact.quarantined:
        program, unmasked = parts.of(artifact, parameters)
        return CompiledModel(
            source, artifact, place, parts.eager, program, unmasked=unmasked, beside=parts.beside
        )
    if artifact.quarantined or not is_any_rank(source.inputs):
        return CompiledModel(source, artifact, place, parts.eager, None)
    chosen = options or CompileOptions(
        target=Target.cpp() if place.name == "cpu" else Target.cuda(architecture(device))
    )
    find = partial(_find_rank, artifact, chosen, store)
    jit = JitThunk(source, find, parts.of_rank, request_compile, parts.eager, wait_seconds=wait_seconds)
    return CompiledModel(source, artifact, place, parts.eager, None, jit, reports=parts.reports)


class _Parts:
    """What serves a model on one device. Its programs share an arena and the declared contract."""

    def __init__(
        self, source: ModelSource, artifact: Artifact, store: Store, place: Device, capacity: int
    ) -> None:
        self._source, self._artifact, self._store = source, artifact, store
        self._place, self._capacity = place, capacity
        self._memory, self._admit = SharedArena(place.torch_device), admission(source)
        self._names = [declared.name for declared in source.inputs]
        self.reports: dict[str, Report] = {}  # of ranks that were loaded, by their artifacts' keys
        # Where a guard failed nothing is known about indices inside the model, and a bad one would stop a GPU
        # for good: such calls run on the CPU.
        beyond_guards = artifact.program is not None and not artifact.quarantined
        self.eager = self._eager(torch.device("cpu") if beyond_guards else place.torch_device)
        apart = beyond_guards and place.torch_device.type != "cpu"
        self.beside = self._eager(place.torch_device) if apart else self.eager

    def _eager(self, device: torch.device) -> EagerThunk:
        made_of = self._source, self._artifact.modules
        return EagerThunk(
            partial(_eager_module, *made_of), self._names, device, partial(require_same_code, *made_of)
        )

    def of(
        self, compiled: Artifact, parameters: Tensors | None = None
    ) -> tuple[ProgramThunk | GraphsThunk | UnprovenThunk, ProgramThunk | UnprovenThunk | None]:
        """What serves any values, and what serves calls in which nothing is masked. CaptureError for an
        artifact that cannot run compiled, ArtifactError for one of other inputs."""
        name = self._source.name
        if compiled.program is None or compiled.quarantined:
            reason = compiled.quarantined or "it has no program"
            raise CaptureError(f"'{name}' cannot run compiled: {reason}", stage="load")
        taken = [given.name for given in compiled.program.inputs]
        if taken != self._names:
            raise ArtifactError(f"'{name}' has inputs {self._names}, its artifact {taken}", stage="load")
        programs = self._programs(compiled, self._own(compiled) if parameters is None else parameters)
        if parameters is None:  # while they were read somebody may have written to their files
            files = {reference.file for reference in (compiled.references or {}).values()}
            require_same_files(self._source, compiled.modules, files)
        unmasked = programs.pop() if compiled.unmasked is not None else None
        program = programs[0] if len(programs) == 1 else GraphsThunk(programs, self._capacity)
        if compiled.confirmed is None:
            return program, unmasked
        known = Confirmations(self._source, compiled, self.beside)
        return UnprovenThunk(program, known), unmasked and UnprovenThunk(unmasked, known)

    def _own(self, compiled: Artifact) -> Tensors:
        """The parameters, which nobody changes from now on: a registered file that is mapped would show what
        is written to it, and end the process once it is shorter. (On a GPU they are copies anyway.)"""
        loaded = load_parameters(compiled, self._source, self._store)
        if self._place.torch_device.type == "cpu":
            loaded |= {name: loaded[name].clone() for name in compiled.references or ()}
        return loaded

    def _programs(self, compiled: Artifact, loaded: Tensors) -> list[ProgramThunk]:
        device = self._place.torch_device
        if len(compiled.every_program) > 1:  # one copy of the weights serves all of them
            loaded = {name: aligned(value, device) for name, value in loaded.items()}
        return [
            ProgramThunk(program, loaded, self._store, self._place, self._memory, self._capacity, self._admit)
            for program in compiled.every_program
        ]

    def of_rank(self, key: str) -> Thunk:
        """What serves one rank of a model of unknown rank; the store keeps it from now on. ChangedCode where
        it was made of other code, or of other files, than the model."""
        compiled = artifacts.load(key, self._store)
        require_agreement(self._source, self._artifact.modules, compiled.modules)
        thunk, _ = self.of(compiled)
        self.reports[key] = compiled.report
        for needed in (key, *compiled.needs):
            self._store.pin(needed, model_owner(self._source.name, self._source.version))
        return thunk


def _find_rank(
    artifact: Artifact, options: CompileOptions, store: Store, specialised: ModelSource
) -> str | None:
    """The key of what was compiled before for a rank of this artifact's model, of the same code."""
    try:
        found = artifacts.find(specialised, options, store, artifact.modules)
    except CaptureError:  # the file of a factory whose code is not known is gone
        return None
    return None if found is None else found[0]


def _eager_module(source: ModelSource, made_of: Mapping[str, str]) -> torch.nn.Module:
    """The user's module. What it is made of is compared before the user's code is run, and after that, which
    has loaded and read more."""
    require_same(source, made_of)
    module = load_eager(source)
    require_same(source, made_of)
    return module
