"""A compiled program as a thunk: its kernels loaded, its parameters in place, its prologue run. One with size
variables is the dynamic tier, one binary for all its shapes; one without is the static tier, its sizes
literal in the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.host.interpreter import ConcreteCall
from dlcb.compiler.host.program import EagerCall, LibraryCall, Program
from dlcb.compiler.runtime.calls import Binder
from dlcb.compiler.runtime.device import Device
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.runtime.executor import Executor, Ran, Shapes
from dlcb.compiler.runtime.memory import SharedArena
from dlcb.compiler.runtime.template import Surroundings
from dlcb.compiler.runtime.weights import aligned
from dlcb.compiler.thunks import eager, library
from dlcb.compiler.thunks.thunk import Forecast
from dlcb.kernel_cache.store import Store

Tensors = Mapping[str, torch.Tensor]


class ProgramThunk:
    """Runs one host program. `capacity` bounds its shape cache in plans; `admit` raises ContractError for
    shapes that the model's contract excludes."""

    def __init__(
        self,
        program: Program,
        parameters: Tensors,
        store: Store,
        device: Device,
        memory: SharedArena | None = None,
        capacity: int = 512,
        admit: Callable[[Shapes], None] = lambda shapes: None,
    ) -> None:
        functions = device.load(program.units, store) if program.units else _no_kernels
        memory = memory or SharedArena(device.torch_device)
        with torch.inference_mode(False), torch.no_grad():  # the arena is written from both modes
            ready = _ready_parameters(program, parameters, functions, device, memory)
            bind = _binder(device, program)
            around = Surroundings(device, memory, functions, ready, bind, program.definitions)
            self.executor = Executor(program, around, capacity, admit)
        self.tier = "dynamic" if self.executor.interpreter.sizes else "static"

    @property
    def program(self) -> Program:
        return self.executor.program

    @property
    def programs(self) -> tuple[ProgramThunk, ...]:
        return (self,)

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        if not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            return self.executor.run(inputs)  # setting both costs 3 us
        with torch.inference_mode(False), torch.no_grad():  # the arena is written from both modes
            return self.executor.run(inputs)

    def forecast(self, shapes: Shapes) -> Forecast:
        cached = self.executor.is_cached(shapes)
        concrete = self.executor.concrete(shapes)
        whole = not concrete.segment.binds
        views = [concrete.view(output.tensor) if whole else None for output in self.program.outputs]
        outputs = tuple(view.shape if view is not None else None for view in views)
        return Forecast(self.tier, outputs, concrete.peak_bytes, cached)


def _ready_parameters(
    program: Program,
    parameters: Tensors,
    functions: Callable[[str], Any],
    device: Device,
    memory: SharedArena,
) -> dict[str, torch.Tensor]:
    """The parameters that the program reads, on the device; what its prologue makes of others is made here,
    once."""
    wanted = {buffer.name for buffer in program.parameters}
    ready = {name: aligned(parameters[name], device.torch_device) for name in wanted if name in parameters}
    if program.prologue is not None:
        prologue = program.prologue
        around = Surroundings(device, memory, functions, {}, _binder(device, prologue), prologue.definitions)
        given = [_given(parameters, entry.name, program).to(device.torch_device) for entry in prologue.inputs]
        made = Executor(prologue, around, capacity=1).run([aligned(t, device.torch_device) for t in given])
        for output, tensor in zip(prologue.outputs, made.outputs, strict=True):
            ready[output.name] = tensor
    for name in wanted - set(ready):
        _given(parameters, name, program)
    return ready


def _given(parameters: Tensors, name: str, program: Program) -> torch.Tensor:
    try:
        return parameters[name]
    except KeyError:
        raise ArtifactError(
            f"program {program.name} reads parameter '{name}', which is not there", stage="load"
        ) from None


def _binder(device: Device, program: Program) -> Callable[[ConcreteCall, Effort | None], Binder]:
    parameters = {buffer.name for buffer in program.parameters}
    constant = {
        tensor.name: tensor.buffer in parameters for segment in program.segments for tensor in segment.tensors
    }
    constants = {
        step.inputs: [constant[name] for name in step.inputs]
        for segment in program.segments
        for step in segment.steps
        if isinstance(step, LibraryCall)
    }

    def of(concrete: ConcreteCall, effort: Effort | None) -> Binder:
        call, attributes = concrete.call, concrete.attributes
        if isinstance(call, EagerCall):
            return eager.binder(call.target, attributes, device.torch_device)
        return library.binder(call.operator, attributes, constants[call.inputs], effort)

    return of


def _no_kernels(name: str) -> Any:
    raise ArtifactError(f"the program launches '{name}' but names no binary", stage="load")
