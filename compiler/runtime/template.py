"""What all plans of one segment share: which buffers stand in which arguments of a kernel, what a call brings
along, where operands of library calls lie. It is found once, by names, so that a plan for new sizes only
fills in numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, ZERO, product
from dlcb.compiler.host.interpreter import ConcreteCall, Outline, View
from dlcb.compiler.host.program import (
    Buffer,
    Definition,
    EagerCall,
    IndexCheck,
    Launch,
    LibraryCall,
    Tensor,
    Variant,
)
from dlcb.compiler.runtime.calls import Binder, as_view, cloned, copied, in_rows, viewed
from dlcb.compiler.runtime.device import STATUS_CELLS, Cells, Device
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.runtime.memory import SharedArena
from dlcb.compiler.runtime.quick import allocator
from dlcb.compiler.runtime.types import TORCH


@dataclass(frozen=True)
class Surroundings:
    """What plans of one program need beside the sizes. `parameters` by buffer name, aligned to 64 bytes;
    `functions` gives a kernel's entry point; `bind` prepares a library or eager call, told what
    that may cost if the plan is hot."""

    device: Device
    memory: SharedArena
    functions: Callable[[str], Any]
    parameters: Mapping[str, torch.Tensor]
    bind: Callable[[ConcreteCall, Effort | None], Binder]
    definitions: tuple[Definition, ...] = ()


class KernelTemplate(NamedTuple):
    """One variant of a launch. `buffers` are numbers in a plan's list of addresses; `brought` has
    (argument, slot) of each buffer that a call brings along."""

    name: str
    buffers: tuple[int, ...]
    brought: tuple[tuple[int, int], ...]
    checks: tuple[IndexCheck, ...]


class LaunchTemplate(NamedTuple):
    """A launch, with its row of flags; -1: no variant looks at indices."""

    variants: tuple[KernelTemplate, ...]
    row: int


class Place(NamedTuple):
    """Where a tensor lies: in a slot of the frame, in a room of the arena, or, where both are -1, in a
    parameter. `whole`: what lies in the slot is the tensor itself."""

    name: str
    layout: int
    dtype: torch.dtype
    slot: int
    room: int
    parameter: torch.Tensor | None
    whole: bool


class CallTemplate(NamedTuple):
    """A library or eager call. Operands that are the same at all sizes stand there themselves. `late`: an
    operand is known only during a run; `returned`: the results' memory comes from the call; `kept`: as it
    comes, one for each result."""

    operands: tuple[Place | torch.Tensor, ...]
    results: tuple[Place, ...]
    checks: tuple[tuple[Place, IndexCheck, int | None], ...]
    eager: bool
    late: bool
    returned: bool
    kept: tuple[bool, ...]


class ResultTemplate(NamedTuple):
    """A buffer that each run allocates, result `number` of the outline: in the layout `whole`
    (its number), which is all of it, or flat where that is -1."""

    slot: int
    number: int
    dtype: torch.dtype
    whole: int


class OutputTemplate(NamedTuple):
    """A tensor that plans show: what lies in the slot, or what `show` makes of the frame, the slot and the
    view."""

    slot: int
    layout: int
    show: Callable[[list, int, View], torch.Tensor] | None


class Template:
    """What plans of one segment share.

    `externals` names the buffers that each call brings along, in order: inputs, and what earlier segments
    left; the first `inputs` of them belong to the caller. `outputs` names the tensors that plans show.
    """

    def __init__(
        self,
        outline: Outline,
        around: Surroundings,
        externals: Sequence[str],
        inputs: int,
        outputs: Sequence[str] = (),
    ) -> None:
        self.around, self.externals = around, len(externals)
        self.allocate = allocator(around.device.torch_device)
        self._outline, self._inputs = outline, inputs
        segment = outline.segment
        names = (*externals, *(buffer.name for buffer in outline.results))
        self.slots = {name: slot for slot, name in enumerate(names)}
        self._tensors = {tensor.name: tensor for tensor in segment.tensors}
        self.addresses: list[int] = []  # of a plan: of the rooms in its arena, then these
        self._numbers = dict(outline.rooms)
        self._returned = {buffer.name for buffer in outline.results if buffer.place == "call"}
        self.results = [
            self._result(number, buffer)
            for number, buffer in enumerate(outline.results)
            if buffer.place == "result"
        ]
        self._whole = self._whole_layouts(externals)
        self._kept = self._only_shown(outputs)
        rows = 0
        self.launches: dict[int, LaunchTemplate] = {}  # by step
        self.calls: dict[int, CallTemplate] = {}
        for number, step in enumerate(segment.steps):
            if not isinstance(step, Launch):
                self.calls[number] = self._call(step)
                continue
            checked = any(variant.checks for variant in step.variants)
            self.launches[number] = LaunchTemplate(
                tuple(map(self._kernel, step.variants)), rows if checked else -1
            )
            rows += checked
        # Plans run one after another, each looks at its flags, and flags that were seen are down again: one
        # set of them is enough.
        self.status = around.device.status(rows) if rows else None
        self._spare = Cells([0] * STATUS_CELLS)
        self.unused_flags = self._spare.address  # of launches that look at no index
        self.outputs = [self._output(name) for name in outputs]
        # step -> slots of returned memory that nothing reads after it
        self.released: dict[int, tuple[int, ...]] = {}
        for buffer in outline.results:
            if buffer.place == "call" and buffer.last < len(segment.steps):
                self.released[buffer.last] = (*self.released.get(buffer.last, ()), self.slots[buffer.name])
        # a run only enqueues work: it looks at no index and reads no size on the way
        waits = any(
            step.checks or (isinstance(step, EagerCall) and step.reads_numbers)
            for step in segment.steps
            if not isinstance(step, Launch)
        )
        self.recordable = not segment.binds and not waits

    def _kernel(self, variant: Variant) -> KernelTemplate:
        brought = [(k, self.slots[name]) for k, name in enumerate(variant.buffers) if name in self.slots]
        numbers = tuple(map(self._number, variant.buffers))
        return KernelTemplate(variant.kernel, numbers, tuple(brought), variant.checks)

    def _number(self, buffer: str) -> int:
        number = self._numbers.get(buffer)
        if number is None:
            rooms = len(set(self._outline.rooms.values()))
            number = self._numbers[buffer] = rooms + len(self.addresses)
            # what a call brings along has an address only then
            known = 0 if buffer in self.slots else self.around.parameters[buffer].data_ptr()
            self.addresses.append(known)
        return number

    def _call(self, call: LibraryCall | EagerCall) -> CallTemplate:
        eager = isinstance(call, EagerCall)
        operands = tuple(map(self._operand, call.inputs))
        results = tuple(map(self._place, _results(call)))
        returned = eager or self._tensors[results[0].name].buffer in self._returned
        needed = operands if returned else (*operands, *results)
        late = any(isinstance(place, Place) and place.slot >= 0 for place in needed)
        checks = tuple((self._place(each.tensor), each.check, each.ignored) for each in call.checks)
        kept = tuple(place.slot in self._kept for place in results)
        return CallTemplate(operands, results, checks, eager, late, returned, kept)

    def _operand(self, name: str) -> Place | torch.Tensor:
        place, tensor = self._place(name), self._tensors[name]
        view = _constant_view(tensor)
        return place if place.parameter is None or view is None else as_view(place.parameter, view)

    def _place(self, name: str) -> Place:
        tensor = self._tensors[name]
        slot, room = self.slots.get(tensor.buffer, -1), self._outline.rooms.get(tensor.buffer, -1)
        parameter = self.around.parameters[tensor.buffer] if slot < 0 and room < 0 else None
        layout = self._outline.layouts[name]
        whole = slot >= 0 and self._whole.get(slot) == layout
        return Place(name, layout, TORCH[tensor.dtype], slot, room, parameter, whole)

    def _result(self, number: int, buffer: Buffer) -> ResultTemplate:
        layout = -1
        for tensor in self._tensors.values():
            if tensor.buffer == buffer.name and _is_whole(tensor, buffer.elements):
                layout = self._outline.layouts[tensor.name]
                break
        return ResultTemplate(self.slots[buffer.name], number, TORCH[buffer.dtype], layout)

    def _whole_layouts(self, externals: Sequence[str]) -> dict[int, int]:
        """By slot the layout of the tensor that lies there: an input as it was given, a result as it is
        allocated, what a call has returned as `accept` left it."""
        layouts = {result.slot: result.whole for result in self.results if result.whole >= 0}
        dims = {given.name: given.dims for given in self._outline.program.inputs}
        for tensor in self._tensors.values():
            given = dims.get(tensor.buffer)
            if given is not None and given == tensor.shape and _is_whole(tensor, product(given)):
                layouts[externals.index(tensor.buffer)] = self._outline.layouts[tensor.name]
        for step in self._outline.segment.steps:
            for name in () if isinstance(step, Launch) else _results(step):
                if self._tensors[name].buffer in self._returned:
                    layouts[self.slots[self._tensors[name].buffer]] = self._outline.layouts[name]
        return layouts

    def _only_shown(self, outputs: Sequence[str]) -> set[int]:
        """Slots of what calls return for this segment to show as it is, and none of its steps reads."""
        steps, layouts = self._outline.segment.steps, self._outline.layouts
        read: set[str] = set()
        for step in steps:
            if isinstance(step, Launch):
                read.update(*(variant.buffers for variant in step.variants))
            else:
                read.update(self._tensors[name].buffer for name in step.inputs)
                read.update(self._tensors[each.tensor].buffer for each in step.checks)
        shown: dict[str, set[int]] = {}  # layouts of outputs by buffer
        for name in outputs:
            shown.setdefault(self._tensors[name].buffer, set()).add(layouts[name])
        results = [name for step in steps if not isinstance(step, Launch) for name in _results(step)]
        return {
            self.slots[tensor.buffer]
            for name, tensor in ((name, self._tensors[name]) for name in results)
            if tensor.buffer in self._returned - read
            and shown.get(tensor.buffer) == {layouts[name]}
            and not TORCH[tensor.dtype].is_complex
        }

    def _output(self, name: str) -> OutputTemplate:
        place = self._place(name)
        if place.parameter is not None:
            return OutputTemplate(place.slot, place.layout, partial(cloned, place.parameter))
        if place.dtype.is_complex:
            return OutputTemplate(place.slot, place.layout, in_rows)
        if place.slot < self._inputs:
            return OutputTemplate(place.slot, place.layout, copied)
        as_it_lies = place.whole or place.slot in self._kept
        return OutputTemplate(place.slot, place.layout, None if as_it_lies else viewed)


def _results(call: LibraryCall | EagerCall) -> tuple[str, ...]:
    return call.results if isinstance(call, EagerCall) else (call.result,)


def _is_whole(tensor: Tensor, elements: Expr) -> bool:
    """Whether a tensor is all of a buffer of so many elements, row-major, whatever the sizes."""
    step: Expr = ONE
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if stride is not step and size is not ONE:
            return False
        step = step * size
    return tensor.offset is ZERO and product(tensor.shape) is elements


def _constant_view(tensor: Tensor) -> View | None:
    """The tensor's view where no size is in it."""
    if not all(e.is_const for e in (*tensor.shape, *tensor.strides, tensor.offset)):
        return None
    shape, strides = tuple(e.value for e in tensor.shape), tuple(e.value for e in tensor.strides)
    return View(shape, strides, tensor.offset.value)
