"""Runs whole graphs by their generated kernels, on NumPy arrays (C++) or on a GPU (CUDA), with nothing of
the host program in between: sizes are bound by name, expressions are evaluated one by one, and kernels are
launched in order.

Kernels of many graphs share one translation unit, as compiling is what costs time."""

from __future__ import annotations

import ctypes
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from buffer_bounds import CHECKS, OPTIONS, held_to_buffers, with_room

from dlcb.compiler.build import toolchain
from dlcb.compiler.build.toolchain import CppToolchain
from dlcb.compiler.dtype import DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.host.magic import magic
from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.kgen import Kernel, KernelSet, generate, translation_unit
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import KernelStep, Schedule

_STORAGE = {"bfloat16": np.uint16}


def storage(dtype: DType) -> np.dtype:
    """The NumPy type that holds elements of `dtype`: bfloat16 as its bits."""
    return np.dtype(_STORAGE.get(dtype.name, dtype.name))


def to_storage(array: np.ndarray, dtype: DType) -> np.ndarray:
    """`array` rounded to `dtype` and laid out as kernels take it."""
    if dtype.name != "bfloat16":
        return np.array(array, storage(dtype), order="C")
    bits = np.array(array, np.float32, order="C").view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_storage(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The numbers that a kernel's array holds."""
    if dtype.name != "bfloat16":
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


@dataclass(eq=False)
class Case:
    """A graph with the kernels that compute it."""

    graph: Graph
    target: Target
    status: np.ndarray = field(default_factory=lambda: np.zeros(4, np.int64))

    @cached_property
    def schedule(self) -> Schedule:
        return schedule(run_passes(self.graph))

    @cached_property
    def kernels(self) -> list[KernelSet]:
        plan = self.schedule
        return [generate(group, plan.layouts, plan.graph.system, self.target) for group in plan.groups]


@dataclass(frozen=True)
class HeldToolchain(CppToolchain):
    """Its kernels are held to their buffers."""

    @cached_property
    def options(self) -> tuple[str, ...]:
        return (*super().options, *OPTIONS)


@dataclass(eq=False)
class Unit:
    """The compiled kernels of several cases; `held` to their buffers, of C++ alone (buffer_bounds)."""

    cases: Mapping[str, Case]
    target: Target
    held: bool = False

    @cached_property
    def text(self) -> str:
        return translation_unit(
            [kernels for case in self.cases.values() for kernels in case.kernels], self.target
        )

    @cached_property
    def binary(self) -> bytes:
        compiler = toolchain(self.target, CompileOptions(target=self.target, optimisation="-O1"))
        if not self.held:
            return compiler.compile(self.text)
        assert isinstance(compiler, CppToolchain)
        return HeldToolchain(compiler.compiler, "-O1").compile(CHECKS + self.text)

    @cached_property
    def library(self) -> Any:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            Path(file.name).write_bytes(self.binary)
            return ctypes.CDLL(file.name)


@dataclass(eq=False)
class Run(ABC):
    """One run of a case's kernels; called with inputs and parameters by name (numbers; rounded here to their
    types)."""

    unit: Unit
    label: str
    shift: int = field(default=0, kw_only=True)  # elements by which inputs lie off an aligned address
    # a kernel is the variant of this number, or the next one whose guards hold
    choice: int = field(default=0, kw_only=True)
    before: int = field(default=0, kw_only=True)  # the same of kernels that are launched first

    def off_alignment(self, array: np.ndarray) -> Any:
        padded = np.concatenate([np.zeros(self.shift, array.dtype), array.reshape(-1)])
        return self.place(padded)[self.shift :].reshape(array.shape)

    @abstractmethod
    def place(self, array: np.ndarray) -> Any:
        """`array` where the kernels can read it."""

    @abstractmethod
    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        """Memory for a result."""

    @abstractmethod
    def fetch(self, array: Any) -> np.ndarray:
        """A result as a NumPy array."""

    @abstractmethod
    def launch(self, kernel: Kernel, memory: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Run a kernel; `memory` holds the base buffer of each value it names."""

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        case = self.unit.cases[self.label]
        case.status[:] = 0
        plan = case.schedule
        memory: dict[Value, Any] = {}
        sizes: dict[str, int] = {}
        for value in (*plan.graph.inputs, *plan.graph.parameters):
            memory[value] = self.off_alignment(to_storage(arrays[value.name], value.dtype))
            bind(sizes, value, arrays[value.name].shape)
        kernels = iter(case.kernels)
        for step in (*plan.prologue, *plan.steps):
            if isinstance(step, KernelStep):
                for value in step.outputs:
                    memory[value] = self.empty(shape_of(value, sizes), storage(value.dtype))
                by_name = {v.name: memory[plan.layouts[v][0]] for v in (*step.inputs, *step.outputs)}
                made = next(kernels)
                for space in made.workspaces:
                    by_name[space.name] = self.empty((number(space.elements, sizes),), storage(space.dtype))
                for variants, number_of in ((made.before, self.before), (made.variants, self.choice)):
                    kernel = chosen(variants, number_of, sizes, by_name) if variants else None
                    if kernel is not None and number(kernel.domain, sizes) > 0:
                        self.launch(kernel, by_name, sizes)
        return [self.result(value, memory, plan, sizes) for value in plan.graph.outputs]

    def result(
        self, value: Value, memory: dict[Value, Any], plan: Schedule, sizes: dict[str, int]
    ) -> np.ndarray:
        base, layout = plan.layouts[value]
        flat = self.fetch(memory[base]).reshape(-1)
        strides = [number(s, sizes) * flat.itemsize for s in layout.strides]
        view = np.lib.stride_tricks.as_strided(
            flat[number(layout.offset, sizes) :], shape_of(value, sizes), strides
        )
        return from_storage(np.array(view, order="C"), value.dtype)


@dataclass(eq=False)
class CppRun(Run):
    """On the CPU, by `threads` threads."""

    threads: int = 1

    def place(self, array: np.ndarray) -> np.ndarray:
        placed = with_room(array.shape, array.dtype)
        placed[...] = array
        return placed

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        return with_room(shape, dtype)

    def fetch(self, array: np.ndarray) -> np.ndarray:
        return array

    def launch(self, kernel: Kernel, memory: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
        status = self.unit.cases[self.label].status
        buffers = (ctypes.c_void_p * len(kernel.buffers))(
            *(memory[b.value_name].ctypes.data for b in kernel.buffers)
        )
        numbers = [n for _, n in parameters(kernel, sizes)]
        library = self.unit.library
        with held_to_buffers(library, kernel, memory) if self.unit.held else nullcontext():
            getattr(library, kernel.name)(
                buffers,
                (ctypes.c_int64 * len(numbers))(*numbers),
                ctypes.c_void_p(status.ctypes.data),
                ctypes.c_int64(self.threads),
            )


@dataclass(eq=False)
class CudaRun(Run):
    """On a GPU."""

    def place(self, array: np.ndarray) -> Any:
        return self.cupy.asarray(array)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        return self.cupy.empty(shape, dtype)

    def fetch(self, array: Any) -> np.ndarray:
        return array.get()

    @cached_property
    def cupy(self) -> Any:
        import cupy  # noqa: PLC0415 - only where there is a GPU

        return cupy

    def launch(self, kernel: Kernel, memory: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        arguments: list[Any] = [memory[b.value_name] for b in kernel.buffers]
        kinds = {"int32": np.uint32, "int64": np.uint64, "magic": np.uint32, "magic64": np.uint64}
        # as their bits: two's complement, whatever the sign
        arguments += [
            kinds[kind](n % (1 << 8 * kinds[kind]().itemsize)) for kind, n in parameters(kernel, sizes)
        ]
        status = self.cupy.zeros(4, np.int64)
        function = self.module.get_function(kernel.name)
        grid = tuple(number(g, sizes) for g in kernel.grid)
        function(grid, kernel.block, (*arguments, status), shared_mem=number(kernel.shared_bytes, sizes))
        reported = status.get()
        if reported[0]:
            self.unit.cases[self.label].status[:] = reported

    @property
    def module(self) -> Any:
        module = self.unit.cases[self.label].__dict__.get("module") or self.unit.__dict__.get("module")
        if module is None:
            module = self.cupy.cuda.function.Module()
            module.load(self.unit.binary)
            self.unit.__dict__["module"] = module
        return module


def chosen(
    kernels: Sequence[Kernel], choice: int, sizes: Mapping[str, int], memory: Mapping[str, Any]
) -> Kernel:
    """The variant number `choice`, or the next one whose guards hold and whose buffers are aligned."""
    for kernel in kernels[choice:]:
        addresses = [_address(memory[b.value_name]) for b in kernel.buffers]
        aligned = all(address % kernel.alignment == 0 for address in addresses)
        if aligned and all(evaluate(guard, sizes) for guard in kernel.guards):
            return kernel
    return kernels[-1]


def _address(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def parameters(kernel: Kernel, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """The parameters' kinds and numbers, a magic one as multiplier and shift."""
    numbers: list[tuple[str, int]] = []
    for parameter in kernel.parameters:
        value = number(parameter.value, sizes)
        if parameter.kind.startswith("magic"):
            multiplier, shift = magic(value or 1, 64 if parameter.kind == "magic64" else 32)
            signed = multiplier - (1 << 64) if multiplier >= 1 << 63 else multiplier
            numbers += [(parameter.kind, signed), (parameter.kind, shift)]
        else:
            numbers.append((parameter.kind, value))
    return numbers


def number(e: Expr, sizes: Mapping[str, int]) -> int:
    return int(evaluate(e, sizes))


def shape_of(value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(number(size, sizes) for size in value.shape)


def bind(sizes: dict[str, int], value: Value, shape: Sequence[int]) -> None:
    for size, actual in zip(value.shape, shape, strict=True):
        if size.op == "size":
            assert sizes.setdefault(size.value, actual) == actual, (
                f"{value.name}: {size} is {sizes[size.value]}, not {actual}"
            )
