"""A segment at one tuple of sizes, ready to run: launches with their arguments in place, calls with their
operands prepared, as a flat list of functions. What changes from call to call, the caller's tensors and fresh
results, is patched into cells before the list runs; nothing else happens on a hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, cast

import torch

from dlcb.compiler.host.index_error import index_error
from dlcb.compiler.host.interpreter import Concrete, ConcreteCall, ConcreteLaunch
from dlcb.compiler.host.program import IndexCheck
from dlcb.compiler.runtime.calls import (
    Operand,
    Tensors,
    accept,
    as_view,
    check_indices,
    deliver,
    forget,
    keep,
    run_eager,
    run_late,
    viewed,
)
from dlcb.compiler.runtime.device import Cells, Prepared
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.runtime.memory import SharedArena, row_strides
from dlcb.compiler.runtime.template import CallTemplate, Place, Template

_NO_GENERATION = -1  # of an arena: none is of it


class Recorded(Protocol):
    """A plan recorded as one unit of work."""

    def run(self, inputs: Tensors) -> tuple[torch.Tensor, ...]: ...


class Plan:
    """A prepared segment over the arena `memory`; `effort` is what its calls may cost to prepare, if it is
    hot. `run` may be called again and again, by one thread at a time."""

    def __init__(
        self,
        template: Template,
        concrete: Concrete,
        memory: SharedArena,
        effort: Effort | None = None,
    ) -> None:
        memory.require(concrete.arena_bytes)
        device = template.around.device
        self.concrete, self._template, self.slots = concrete, template, template.slots
        self.generation, self.stream = memory.generation, device.stream()
        self._frame: list[Any] = [None] * len(template.slots)
        self._empty = tuple(self._frame)
        # of each slot the cells that its tensor's address is written to
        cells: list[list[int]] = [[] for _ in self._frame]
        arguments, launches, self._checks = _arguments(template, concrete, memory, cells)
        steps, held = device.launchers(launches, arguments)
        if template.calls:
            calls = _Calls(template, concrete, memory, effort, self._frame, cells, arguments)
            steps = calls.among(steps)
        self._pointers, self._steps = arguments.view, steps
        self._held: Any = (arguments, held)  # launches know these by address only
        self._status = template.status if self._checks else None
        # what a call brings along stands first in the frame: (place, cell) of each address
        self._brought = [(k, cell) for k in range(template.externals) for cell in cells[k]]
        views = concrete.views
        self._results: list[tuple[int, list[int], Callable[[], torch.Tensor]]] = []
        for slot, number, dtype, whole in template.results:
            flat = (concrete.results[number] // dtype.itemsize,)
            shape = flat if whole < 0 else tuple(views[whole].shape)
            allocate = partial(template.allocate, shape, row_strides(shape), dtype)
            self._results.append((slot, cells[slot], allocate))
        self._outputs = [
            (slot, None if show is None else partial(show, self._frame, slot, views[layout]))
            for slot, layout, show in template.outputs
        ]
        self.whole = not concrete.segment.binds  # no other segment follows
        self.runs = 0  # since it was prepared, counted by who runs it
        self.recorded: Recorded | None = None  # the same as one graph, where the device has such
        self.recordable = template.recordable
        # what a run costs the host, in launches of kernels: PyTorch's dispatch makes a call dearer
        self.launches = len(launches) + 2 * len(template.calls)

    def fits(self, memory: SharedArena) -> bool:
        """Whether the plan's addresses and stream are still those to use."""
        device = self._template.around.device
        return self.generation == memory.generation and self.stream == device.stream()

    def give_way(self, recorded: Recorded) -> None:
        """From now on `recorded` stands for this plan, which lets go of its launches and of the arena they
        point into; when the recording goes, the plan no longer fits and is prepared again."""
        self.recorded, self.generation = recorded, _NO_GENERATION
        self._steps, self._results, self._held, self._outputs = [], [], None, []

    def run(self, externals: Tensors) -> list[Any]:
        """Run the steps over these tensors; gives the frame: base tensors by `slots`, valid until the next
        run.

        IndexRangeError when a kernel met a bad index: the results are then to be thrown away. Where the
        device's checks are made later, so is this one.
        """
        if self._status is None:  # nothing looks at indices
            self.start(externals)
            return self._frame
        self.expect()
        try:
            self.start(externals)
        except Exception:
            self.check()  # a bad index says more than what came of it
            raise
        self.verify()
        return self._frame

    def expect(self) -> None:
        """To be called before the steps run, by whatever runs them."""
        if self._status is not None:
            self._template.around.device.checks.before(self._status, self)

    def verify(self) -> None:
        """To be called when the steps were run: `check`, at the time that the device's checks are made."""
        if self._status is not None:
            self._template.around.device.checks.after(self._status, self)

    def start(self, externals: Tensors) -> None:
        """Run the steps and do not wait for a device to tell whether a kernel met a bad index."""
        frame, pointers = self._frame, self._pointers
        frame[: len(externals)] = externals
        for place, cell in self._brought:
            pointers[cell] = externals[place].data_ptr()
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
        definitions = self._template.around.definitions
        raise index_error(self._checks[row][number], position, value, self.concrete.sizes, definitions)

    def disregard(self) -> None:
        """Let the bad indices be that the last run met."""
        if self._status is not None:
            self._status.raised()

    def show(self) -> tuple[torch.Tensor, ...]:
        """The outputs of the last run, as tensors that the plan no longer touches."""
        frame = self._frame
        shown = tuple([frame[slot] if view is None else view() for slot, view in self._outputs])
        self.release()
        return shown

    def release(self) -> None:
        """Let go of the tensors of the last run."""
        self._frame[:] = self._empty


def _arguments(
    template: Template, concrete: Concrete, memory: SharedArena, cells: list[list[int]]
) -> tuple[Cells, list[Prepared], dict[int, tuple[IndexCheck, ...]]]:
    """One block with the arguments of all launches, the launches, and what they check by row of flags.
    `cells` is told which arguments a call brings along."""
    base = memory.block.data_ptr()
    addresses = [base + offset for offset in concrete.offsets]
    addresses += template.addresses
    arguments: list[int] = []
    launches: list[Prepared] = []
    checks: dict[int, tuple[IndexCheck, ...]] = {}
    functions, status = template.around.functions, template.status
    for number, planned in template.launches.items():
        launch = concrete.steps[number]
        if not isinstance(launch, ConcreteLaunch):
            continue  # it has nothing to do
        name, buffers, brought, checked = planned.variants[launch.variant]
        first, flags = len(arguments), template.unused_flags
        for argument, slot in brought:
            cells[slot].append(first + argument)
        if checked and status is not None:
            checks[planned.row], flags = checked, status.address_of(planned.row)
        arguments += [addresses[buffer] for buffer in buffers]
        arguments += launch.parameters
        arguments.append(flags)
        launches.append((functions(name), launch, first, len(buffers), flags))
    return Cells(arguments), launches, checks


class _Calls:
    """Prepares the library and eager calls of a plan, whose `frame`, `cells` of slots and `arguments` their
    results are put into. Each is prepared when it first runs: a GPU then works at those before it."""

    def __init__(
        self,
        template: Template,
        concrete: Concrete,
        memory: SharedArena,
        effort: Effort | None,
        frame: list[Any],
        cells: list[list[int]],
        arguments: Cells,
    ) -> None:
        self._template, self._concrete, self._memory, self._effort = template, concrete, memory, effort
        self._frame, self._cells, self._pointers = frame, cells, arguments.view
        self._tensors: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
        self._steps: list[Callable[[], Any]] = []

    def among(self, launches: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
        """All steps in order: calls, and the launches that have something to do."""
        calls, released = self._template.calls, self._template.released
        next_launch = iter(launches).__next__
        for number, step in enumerate(self._concrete.steps):
            if isinstance(step, ConcreteCall):
                self._steps.append(partial(self._first, len(self._steps), step, calls[number]))
            elif step is not None:
                self._steps.append(next_launch())
            if number in released:
                self._steps.append(partial(forget, self._frame, released[number]))
        return self._steps

    def _first(self, place: int, call: ConcreteCall, planned: CallTemplate) -> None:
        """Prepare a call and put it in its place among the steps; run it."""
        steps = list(self._call(call, planned))
        self._steps[place] = steps[0] if len(steps) == 1 else partial(_each, steps)
        self._steps[place]()

    def _call(self, call: ConcreteCall, planned: CallTemplate) -> Iterator[Callable[[], Any]]:
        around = self._template.around
        for (place, check, ignored), limits in zip(planned.checks, call.ranges, strict=True):
            sizes, indices, frame = self._concrete.sizes, self._operand(place), self._frame
            yield partial(check_indices, frame, indices, check, limits, sizes, around.definitions, ignored)
        bind = around.bind(call, self._effort)
        operands = [self._operand(p) if isinstance(p, Place) else p for p in planned.operands]
        if planned.eager:
            takes = [self._delivery(*each, True) for each in zip(planned.results, planned.kept, strict=True)]
            yield partial(run_eager, bind, self._frame, operands, takes)
            return
        (result,), (kept,) = planned.results, planned.kept
        out = None if planned.returned else self._operand(result)
        run: Callable[[], Any]
        if planned.late:
            run = partial(run_late, bind, self._frame, operands, out)
        else:
            run = bind(cast(Tensors, operands), cast(torch.Tensor | None, out))
        yield partial(deliver, run, self._delivery(result, kept, False)) if planned.returned else run

    def _operand(self, place: Place) -> Operand:
        """The tensor itself where its memory is known now, else its slot, or a function that gives it during
        a run."""
        view = self._concrete.views[place.layout]
        if place.whole or (place.slot >= 0 and place.dtype.is_complex):
            return place.slot
        if place.slot >= 0:
            return partial(viewed, self._frame, place.slot, view)
        if place.parameter is not None:
            return as_view(place.parameter, view)
        offset = self._concrete.offsets[place.room] + view.offset * place.dtype.itemsize
        key = offset, place.layout, place.dtype
        tensor = self._tensors.get(key)  # equal layers work in the same places
        if tensor is None:
            tensor = self._memory.tensor(offset, place.dtype, view.shape, view.strides)
            self._tensors[key] = tensor
        return tensor

    def _delivery(self, place: Place, kept: bool, contiguous: bool) -> Callable[[torch.Tensor], None]:
        view, cells = self._concrete.views[place.layout], self._cells[place.slot]
        if kept:
            return partial(keep, self._frame, place.slot, view, place.dtype, place.name)
        return partial(
            accept, self._frame, self._pointers, place.slot, cells, view, place.dtype, contiguous, place.name
        )


def _each(steps: list[Callable[[], Any]]) -> None:
    for step in steps:
        step()
