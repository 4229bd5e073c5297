"""Runs a host program on a device: tensors in, tensors out. A known shape is one look-up and one prepared
plan; a new one goes through the interpreter first, never through a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import torch

from dlcb.compiler.dtype import dtype
from dlcb.compiler.host.interpreter import VECTOR_ALIGNMENT, Concrete, Interpreter
from dlcb.compiler.host.program import Program
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.runtime.memory import SharedArena
from dlcb.compiler.runtime.plan import Plan
from dlcb.compiler.runtime.shape_cache import ShapeCache
from dlcb.compiler.runtime.template import Surroundings, Template

Shapes = Sequence[Sequence[int]]  # of the inputs, in the program's order


class Ran(NamedTuple):
    """Outputs in the program's order, and whether the plan of this shape was there."""

    outputs: tuple[torch.Tensor, ...]
    hit: bool


class Executor:
    """One program on one device. Used by one thread at a time; plans share memory.

    `admit` is asked about input shapes that are not in the cache, and raises ContractError to refuse them.
    """

    def __init__(
        self,
        program: Program,
        around: Surroundings,
        capacity: int = 512,
        admit: Callable[[Shapes], None] = lambda shapes: None,
    ) -> None:
        self.program, self.around, self._admit = program, around, admit
        self.interpreter = Interpreter(program)
        self.cache: ShapeCache[Plan | Concrete] = ShapeCache(capacity)
        self._input_names = [given.name for given in program.inputs]
        self._externals = self._needed_from_before()
        self._outputs = [output.tensor for output in program.outputs]
        shown = [()] * (len(program.segments) - 1) + [self._outputs]  # by the last segment
        self._templates = [
            Template(outline, around, externals, len(self._input_names), outputs)
            for outline, externals, outputs in zip(
                self.interpreter.outlines, self._externals, shown, strict=True
            )
        ]

    def run(self, inputs: Sequence[torch.Tensor]) -> Ran:
        """`inputs` in the program's order, contiguous, of its dtypes, on its device; outputs are memory of
        their own.

        ContractError, GuardError or IndexRangeError as the program's guards and checks say.
        """
        addresses = 0
        for tensor in inputs:
            addresses |= tensor.data_ptr()
        aligned = not addresses % VECTOR_ALIGNMENT
        shapes = tuple([tensor.shape for tensor in inputs])
        plan, hit = self._plan((shapes, aligned), None, aligned)
        plan.runs += 1
        if plan.recorded is not None:
            return Ran(plan.recorded.run(inputs), hit)
        if plan.whole:
            plan.run(inputs)
            return Ran(plan.show(), hit)
        return self._run_segments(plan, inputs, shapes, aligned, hit)

    def concrete(self, shapes: Shapes) -> Concrete:
        """The first segment's numbers at these input shapes, from the plan if there is one; prepares
        nothing."""
        key = tuple(tuple(shape) for shape in shapes)
        found = self.cache.peek((key, True)) or self.cache.peek((key, False))
        return _numbers(found) if found else self.interpreter.plan(self._bind(shapes))

    def hottest(self, least_runs: int, least_launches: int) -> Plan | None:
        """The plan that ran most often among those that could be recorded, are not, and have so many runs and
        launches."""
        hot = [
            plan
            for plan in self.cache
            if isinstance(plan, Plan)
            and plan.recordable
            and plan.recorded is None
            and plan.runs >= least_runs
            and plan.launches >= least_launches
        ]
        return max(hot, key=lambda plan: plan.runs, default=None)

    def input_shapes(self, concrete: Concrete) -> list[tuple[int, ...]]:
        """The shapes of the inputs that a plan of the only segment is for."""
        return self.interpreter.input_shapes(concrete.sizes)

    def output_bytes(self, concrete: Concrete) -> int:
        """Bytes of the outputs of a plan of the only segment."""
        kinds = {tensor.name: dtype(tensor.dtype) for tensor in concrete.segment.tensors}
        return sum(prod(concrete.view(name).shape) * kinds[name].itemsize for name in self._outputs)

    def twin(self, plan: Plan, memory: SharedArena, effort: Effort) -> Plan:
        """The same plan prepared again, as a hot one, for the stream that is current now and an arena of its
        own; it is not kept in the cache."""
        return Plan(self._templates[-1], plan.concrete, memory, effort)

    def is_cached(self, shapes: Shapes) -> bool:
        key = tuple(tuple(shape) for shape in shapes)
        return (key, True) in self.cache or (key, False) in self.cache

    def _plan(
        self, key: tuple, sizes: dict[str, int] | None, aligned: bool, number: int = 0
    ) -> tuple[Plan, bool]:
        found = self.cache.get(key)
        if found is None:
            bound = self._bind(key[0]) if sizes is None else sizes
            return self._prepare(key, self.interpreter.plan(bound, number, aligned), number), False
        if isinstance(found, Plan) and (found.recorded is not None or found.fits(self.around.memory)):
            return found, True
        return self._prepare(key, _numbers(found), number), True

    def _bind(self, shapes: Shapes) -> dict[str, int]:
        self._admit(shapes)
        return self.interpreter.bind(shapes)

    def _prepare(self, key: tuple, concrete: Concrete, number: int) -> Plan:
        memory = self.around.memory
        generation = memory.generation
        plan = Plan(self._templates[number], concrete, memory)
        if memory.generation != generation:
            self.cache.replace_all(_unless_recorded)  # the others would keep the old block alive
        self.cache.put(key, plan)
        return plan

    # ---- programs with sizes that are known only at run time

    def _needed_from_before(self) -> list[list[str]]:
        """For each segment the buffers that come from outside: inputs, and what earlier segments hand on."""
        handed_on = list(self._input_names)
        needed: list[list[str]] = []
        for segment in self.program.segments:
            needed.append(list(handed_on))
            handed_on += [
                b.name for b in segment.buffers if b.place != "arena" and b.last >= len(segment.steps)
            ]
        return needed

    def _run_segments(
        self, plan: Plan, inputs: Sequence[torch.Tensor], shapes: tuple, aligned: bool, hit: bool
    ) -> Ran:
        sizes = dict(plan.concrete.sizes)
        held = dict(zip(self._input_names, inputs, strict=True))
        for number in range(len(self.program.segments)):
            if number:
                key = (shapes, aligned, number, tuple(sizes.values()))
                plan, known = self._plan(key, dict(sizes), aligned, number)
                hit = hit and known
            frame = plan.run([held[name] for name in self._externals[number]])
            held |= {name: frame[slot] for name, slot in plan.slots.items() if frame[slot] is not None}
            for binding in plan.concrete.segment.binds:
                sizes[binding.size] = held[binding.result].shape[binding.axis]
        return Ran(plan.show(), hit)


def _unless_recorded(found: Plan | Concrete) -> Plan | Concrete:
    return found if isinstance(found, Plan) and found.recorded is not None else _numbers(found)


def _numbers(found: Plan | Concrete) -> Concrete:
    return found.concrete if isinstance(found, Plan) else found
