"""A segment at one tuple of sizes, ready to run: launches with their arguments in place, calls with their
operands prepared, as a flat list of functions. What changes from call to call, the caller's tensors and fresh
results, is patched into cells before the list runs; nothing else happens on a hit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from dlcb.compiler.host.index_error import index_error
from dlcb.compiler.host.interpreter import Concrete, ConcreteCall, ConcreteLaunch, View
from dlcb.compiler.host.program import Definition, EagerCall, IndexCheck
from dlcb.compiler.runtime.calls import (
    Binder,
    Operand,
    Tensors,
    accept,
    as_view,
    check_indices,
    copied,
    deliver,
    forget,
    is_whole,
    run_eager,
    run_late,
    viewed,
)
from dlcb.compiler.runtime.device import STATUS_CELLS, Cells, Device
from dlcb.compiler.runtime.memory import SharedArena
from dlcb.compiler.runtime.types import TORCH

_NO_GENERATION = -1  # of an arena: none is of it


@dataclass(frozen=True)
class Surroundings:
    """What plans of one program need beside the sizes. `parameters` by buffer name, aligned to 64 bytes;
    `functions` gives a kernel's entry point; `bind` prepares a library or eager call, told whether plans are
    `hot`: worth whatever it takes to prepare them."""

    device: Device
    memory: SharedArena
    functions: Callable[[str], Any]
    parameters: Mapping[str, torch.Tensor]
    bind: Callable[[ConcreteCall, bool], Binder]
    definitions: tuple[Definition, ...] = ()
    hot: bool = False

    @cached_property
    def addresses(self) -> dict[str, int]:
        """Where each parameter lies."""
        return {name: tensor.data_ptr() for name, tensor in self.parameters.items()}


class Recorded(Protocol):
    """A plan recorded as one unit of work."""

    def run(self, inputs: Tensors) -> tuple[torch.Tensor, ...]: ...


class Plan:
    """A prepared segment. `run` may be called again and again, by one thread at a time.

    `externals` names the buffers that each call brings along, in order: inputs, and what earlier segments
    left; the first `inputs` of them belong to the caller. `outputs` names the tensors that `show` gives.
    """

    def __init__(
        self,
        concrete: Concrete,
        around: Surroundings,
        externals: Sequence[str],
        inputs: int,
        outputs: Sequence[str] = (),
    ) -> None:
        around.memory.require(concrete.arena_bytes)
        self.concrete = concrete
        self.generation = around.memory.generation
        self.stream = around.device.stream()
        builder = _Builder(concrete, around, externals, inputs)
        self._frame = builder.frame
        self._pointers = builder.pointers.view
        self._externals = tuple(enumerate(tuple(builder.cells[name]) for name in externals))
        self._results = tuple(builder.results)
        self._steps = tuple(builder.steps)
        self._checks = builder.checks
        self._status = builder.status
        self._definitions = around.definitions
        self._held = builder.held  # launches know it by address only
        self.slots = builder.slots
        self.runs = 0  # since it was prepared, counted by who runs it
        self.recorded: Recorded | None = None  # the same as one graph, where the device has such
        calls = [step.call for step in concrete.steps if isinstance(step, ConcreteCall)]
        # what a run costs the host, in launches of kernels: PyTorch's dispatch makes a call dearer
        self.launches = sum(step is not None for step in concrete.steps) + len(calls)
        # a run only enqueues work: it looks at no index and reads no size on the way
        waits = any(c.checks or (isinstance(c, EagerCall) and c.reads_numbers) for c in calls)
        self.recordable = not concrete.segment.binds and not waits
        self._outputs = tuple(builder.output(name) for name in outputs)

    def fits(self, around: Surroundings) -> bool:
        """Whether the plan's addresses and stream are still those to use."""
        return self.generation == around.memory.generation and self.stream == around.device.stream()

    def give_way(self, recorded: Recorded) -> None:
        """From now on `recorded` stands for this plan, which lets go of its launches and of the arena they
        point into; when the recording goes, the plan no longer fits and is prepared again."""
        self.recorded, self.generation = recorded, _NO_GENERATION
        self._steps, self._results, self._held, self._outputs = (), (), [], ()

    def run(self, externals: Tensors) -> list[Any]:
        """Run the steps over these tensors; gives the frame: base tensors by `slots`, valid until the next
        run.

        IndexRangeError when a kernel met a bad index: the results are then to be thrown away.
        """
        self.start(externals)
        if self._status is not None:
            self.check()
        return self._frame

    def start(self, externals: Tensors) -> None:
        """Run the steps and do not wait for a device to tell whether a kernel met a bad index."""
        frame, pointers = self._frame, self._pointers
        for (slot, cells), tensor in zip(self._externals, externals, strict=True):
            frame[slot] = tensor
            address = tensor.data_ptr()
            for cell in cells:
                pointers[cell] = address
        for slot, cells, allocate in self._results:
            frame[slot] = tensor = allocate()
            address = tensor.data_ptr()
            for cell in cells:
                pointers[cell] = address
        for step in self._steps:
            step()

    def check(self) -> None:
        """IndexRangeError when a kernel of the last run met a bad index."""
        flag = self._status.raised() if self._status is not None else None
        if flag is None:
            return
        row, number, position, value = flag
        self.release()
        raise index_error(self._checks[row][number], position, value, self.concrete.sizes, self._definitions)

    def show(self) -> tuple[torch.Tensor, ...]:
        """The outputs of the last run, as tensors that the plan no longer touches."""
        frame = self._frame
        shown = tuple([frame[slot] if view is None else view() for slot, view in self._outputs])
        self.release()
        return shown

    def release(self) -> None:
        """Let go of the tensors of the last run."""
        self._frame[:] = [None] * len(self._frame)


class _Builder:
    """Turns the steps of a concrete segment into functions."""

    def __init__(
        self, concrete: Concrete, around: Surroundings, externals: Sequence[str], inputs: int
    ) -> None:
        self.concrete, self.around, self.inputs = concrete, around, inputs
        self.buffers = {buffer.name: buffer for buffer in concrete.segment.buffers}
        self.tensors = {tensor.name: tensor for tensor in concrete.segment.tensors}
        self.slots = {name: slot for slot, name in enumerate(externals)}
        for buffer in concrete.segment.buffers:
            if buffer.place in ("result", "call"):
                self.slots[buffer.name] = len(self.slots)
        self.frame: list[Any] = [None] * len(self.slots)
        self.cells: dict[str, list[int]] = {name: [] for name in self.slots}
        self.checks: list[tuple[IndexCheck, ...]] = []
        self.steps: list[Callable[[], Any]] = []

        launches = [step for step in concrete.steps if isinstance(step, ConcreteLaunch)]
        self.pointers = Cells(sum(len(launch.variant.buffers) for launch in launches))
        self.parameters = Cells(sum(len(launch.parameters) for launch in launches))
        flagged = sum(bool(launch.variant.checks) for launch in launches)
        self.status = around.device.status(flagged) if flagged else None
        self._spare_status = Cells(STATUS_CELLS)
        self.held: list[Any] = [self.pointers, self.parameters, self._spare_status]
        self._next_pointer = self._next_parameter = 0
        self._base = around.memory.block.data_ptr()
        self._offsets = concrete.offsets
        self._in_arena: dict[tuple[int, torch.dtype, View], torch.Tensor] = {}

        released = self._last_uses()
        for number, step in enumerate(concrete.steps):
            if isinstance(step, ConcreteLaunch):
                self._launch(step)
            elif step is not None:
                self._call(step)
            if number in released:
                self.steps.append(partial(forget, self.frame, released[number]))
        self.results = [
            (self.slots[buffer.name], tuple(self.cells[buffer.name]), self._allocation(buffer.name))
            for buffer in concrete.segment.buffers
            if buffer.place == "result"
        ]

    def _last_uses(self) -> dict[int, tuple[int, ...]]:
        """Slots of returned memory that nothing reads after a step."""
        released: dict[int, tuple[int, ...]] = {}
        for buffer in self.concrete.segment.buffers:
            if buffer.place == "call" and buffer.last < len(self.concrete.steps):
                released[buffer.last] = (*released.get(buffer.last, ()), self.slots[buffer.name])
        return released

    def output(self, name: str) -> tuple[int, Callable[[], torch.Tensor] | None]:
        """Slot of an output, or a function that gives it where the slot's tensor is not the output itself."""
        tensor, view = self.tensors[name], self.concrete.views[name]
        slot = self.slots.get(tensor.buffer, -1)
        if slot < 0:
            return slot, as_view(self.around.parameters[tensor.buffer], view).clone
        if slot < self.inputs:
            return slot, partial(copied, self.frame, slot, view)
        if tensor.buffer in self.buffers and self.buffers[tensor.buffer].place == "result":
            base = self._shape(tensor.buffer)
            itself = base == view.shape and is_whole(view, math.prod(base))  # a square may be transposed
            return slot, None if itself else partial(viewed, self.frame, slot, view)
        return slot, partial(viewed, self.frame, slot, view)

    # ---- launches

    def _launch(self, launch: ConcreteLaunch) -> None:
        around, variant = self.around, launch.variant
        first_pointer, first_parameter = self._next_pointer, self._next_parameter
        pointers, parameters = self.pointers.view, self.parameters.view
        cell = first_pointer
        for name in variant.buffers:
            if name in self.cells:
                self.cells[name].append(cell)
            else:
                pointers[cell] = self._address(name)
            cell += 1
        self._next_pointer = cell
        cell = first_parameter
        for number in launch.parameters:
            parameters[cell] = number
            cell += 1
        self._next_parameter = cell
        status = self._spare_status.address
        if variant.checks and self.status is not None:
            status = self.status.address_of(len(self.checks))
            self.checks.append(variant.checks)
        run, kept = around.device.launcher(
            around.functions(variant.kernel),
            launch,
            self.pointers.address + 8 * first_pointer,
            self.parameters.address + 8 * first_parameter,
            status,
        )
        self.steps.append(run)
        if kept is not None:
            self.held.append(kept)

    def _address(self, name: str) -> int:
        offset = self._offsets.get(name)
        if offset is not None:
            return self._base + offset
        return self.around.addresses[name]

    # ---- calls

    def _call(self, call: ConcreteCall) -> None:
        for checked, limits in zip(call.call.checks, call.ranges, strict=True):
            self.steps.append(self._index_check(checked.tensor, checked.check, limits))
        bind = self.around.bind(call, self.around.hot)
        operands = [self._operand(name) for name in call.call.inputs]
        known = [operand for operand in operands if isinstance(operand, torch.Tensor)]
        fixed = len(known) == len(operands)
        if isinstance(call.call, EagerCall):
            takes = [self._delivery(name, True) for name in call.call.results]
            self.steps.append(partial(run_eager, bind, operands, takes))
            return
        result = call.call.result
        if self._place(result) == "call":
            run = bind(known, None) if fixed else partial(run_late, bind, operands, None)
            self.steps.append(partial(deliver, run, self._delivery(result, False)))
            return
        out = self._operand(result)
        if fixed and isinstance(out, torch.Tensor):
            self.steps.append(bind(known, out))
        else:
            self.steps.append(partial(run_late, bind, operands, out))

    def _place(self, tensor: str) -> str:
        return self.buffers[self.tensors[tensor].buffer].place

    def _operand(self, name: str) -> Operand:
        """The tensor itself where its memory is known now, else a function that gives it during a run."""
        tensor, view = self.tensors[name], self.concrete.views[name]
        kind = TORCH[tensor.dtype]
        if tensor.buffer in self.slots:
            return partial(viewed, self.frame, self.slots[tensor.buffer], view)
        if tensor.buffer in self.concrete.offsets:
            offset = self.concrete.offsets[tensor.buffer] + view.offset * kind.itemsize
            lies = self._in_arena.get((offset, kind, view))  # equal layers work in the same places
            if lies is None:
                lies = self.around.memory.tensor(offset, kind, view.shape, view.strides)
                self._in_arena[offset, kind, view] = lies
            return lies
        return as_view(self.around.parameters[tensor.buffer], view)

    def _delivery(self, name: str, contiguous: bool) -> Callable[[torch.Tensor], None]:
        tensor, view = self.tensors[name], self.concrete.views[name]
        slot, cells = self.slots[tensor.buffer], self.cells[tensor.buffer]
        return partial(accept, self.frame, self.pointers.view, slot, cells, view, contiguous, name)

    def _index_check(self, name: str, check: IndexCheck, limits: tuple[int, int]) -> Callable[[], None]:
        operand = self._operand(name)
        return partial(check_indices, operand, check, limits, self.concrete.sizes, self.around.definitions)

    def _allocation(self, name: str) -> Callable[[], torch.Tensor]:
        kind = TORCH[self.buffers[name].dtype]
        return partial(torch.empty, self._shape(name), dtype=kind, device=self.around.device.torch_device)

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape to allocate a result in: that of a tensor that is all of it, if there is one."""
        elements = self.concrete.bytes[name] // TORCH[self.buffers[name].dtype].itemsize
        for tensor in self.tensors.values():
            view = self.concrete.views[tensor.name]
            if tensor.buffer == name and is_whole(view, elements):
                return view.shape
        return (elements,)
