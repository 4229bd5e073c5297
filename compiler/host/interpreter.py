"""Runs the size part of a host program: input shapes go in; checked guards, buffer offsets, chosen kernels
and their launch numbers come out as a Concrete plan, in plain Python and without touching a device. What
depends on the program alone is worked out once, so that a new shape costs arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from dlcb.compiler.dtype import dtype
from dlcb.compiler.errors import CompilerError, ContractError, GuardError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.host.arena import Arena
from dlcb.compiler.host.evaluator import compile_expressions
from dlcb.compiler.host.guards import broken, places_of, roots_of
from dlcb.compiler.host.magic import magic
from dlcb.compiler.host.program import (
    Buffer,
    EagerCall,
    Launch,
    LibraryCall,
    Program,
    Segment,
    Variant,
)

VECTOR_ALIGNMENT = 16  # bytes; the widest access that a variant may assume of the caller's memory
_LARGEST_INTEGER = (1 << 63) - 1


class View(NamedTuple):
    """Shape, strides and offset of a tensor, in elements of its buffer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class ConcreteLaunch(NamedTuple):
    """A launch with all its numbers. `parameters` are as the kernel takes them, a magic one as two
    entries."""

    variant: Variant
    parameters: tuple[int, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


class ConcreteCall(NamedTuple):
    """A library or eager call. `attributes` hold numbers where the program holds expressions."""

    call: LibraryCall | EagerCall
    attributes: Any  # of a library call; an eager call's arguments
    ranges: tuple[tuple[int, int], ...]  # legal index values of each of the call's checks


@dataclass(frozen=True)
class Concrete:
    """A segment at one tuple of sizes. `offsets` are arena offsets in bytes by buffer name; `bytes` the size
    of each buffer; `steps` are those of the segment, None for a launch that has nothing to do."""

    segment: Segment
    sizes: dict[str, int]
    offsets: dict[str, int]
    bytes: dict[str, int]
    views: dict[str, View]
    steps: tuple[ConcreteLaunch | ConcreteCall | None, ...]
    arena_bytes: int
    result_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Bytes that a call needs at most beside parameters, inputs and the libraries' own workspaces."""
        return self.arena_bytes + self.result_bytes


class Interpreter:
    """Gives a program numbers. Thread-safe: nothing changes after it is made."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sizes = bound_sizes(program)
        dims = [(given.name, axis, dim) for given in program.inputs for axis, dim in enumerate(given.dims)]
        self._dims = tuple(dims)
        self._firsts = tuple(
            next(k for k, (_, _, dim) in enumerate(dims) if dim.op == "size" and dim.value == name)
            for name in self.sizes
        )
        self._expected = compile_expressions(
            [dim for _, _, dim in dims], self.sizes, _known_definitions(program, self.sizes)
        )
        self._segments: list[_SegmentPlanner] = []
        known = self.sizes
        for segment in program.segments:
            self._segments.append(_SegmentPlanner(program, segment, known))
            known += tuple(binding.size for binding in segment.binds)

    def bind(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The size variables of these input shapes, in the program's order. ContractError where an input has
        another rank; GuardError where a dim that is fixed has another size, or one size variable two
        values."""
        found: list[int] = []
        for given, shape in zip(self.program.inputs, shapes, strict=True):
            if len(shape) != len(given.dims):
                raise ContractError(
                    f"input '{given.name}' has rank {len(shape)}, shape {list(shape)}; expected rank "
                    f"{len(given.dims)}, shape {list(given.dims)}",
                    stage="host",
                )
            found += shape
        numbers = [found[k] for k in self._firsts]
        expected = self._expected(*numbers)
        if expected != tuple(found):
            k = next(k for k, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b)
            name, axis, dim = self._dims[k]
            raise GuardError(
                f"axis {axis} of input '{name}' is {found[k]}, expected {self._explain(dim, expected[k])}; "
                f"nearest legal size {expected[k]}",
                stage="host",
            )
        return dict(zip(self.sizes, numbers, strict=True))

    def input_shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        """The inverse of `bind`."""
        dims = iter(self._expected(*(sizes[name] for name in self.sizes)))
        return [tuple(next(dims) for _ in given.dims) for given in self.program.inputs]

    def plan(self, sizes: dict[str, int], segment: int = 0, aligned: bool = True) -> Concrete:
        """The plan of a segment. `aligned`: the caller's memory is aligned to VECTOR_ALIGNMENT bytes.

        ContractError or GuardError for a guard that does not hold; CompilerError where no variant of a kernel
        covers these sizes.
        """
        return self._segments[segment].plan(sizes, aligned)

    def _explain(self, dim: Expr, expected: int) -> str:
        if dim.is_const:
            return f"{expected}, which is fixed"
        places = places_of(self.program)
        origins = ", ".join(
            f"{s.value} is {places.get(s.value, 'derived')}" for s in sorted(dim.free, key=repr)
        )
        return f"{dim!r} = {expected} ({origins})"


def bound_sizes(program: Program) -> tuple[str, ...]:
    """The size variables that input dims bind, in the order in which they are met."""
    defined = {definition.name for definition in program.definitions}
    names = {
        dim.value: None
        for given in program.inputs
        for dim in given.dims
        if dim.op == "size" and dim.value not in defined
    }
    return tuple(names)


class _Expressions:
    """Collects expressions and hands out getters that pick their values from the tuple that the compiled
    function yields."""

    def __init__(self) -> None:
        self.roots: dict[Expr, int] = {}

    def number(self, e: Expr) -> int:
        return self.roots.setdefault(e, len(self.roots))

    def getter(self, expressions: Sequence[Expr]) -> Callable[[tuple], tuple]:
        slots = [self.number(e) for e in expressions]
        if len(slots) < 2:  # itemgetter of one index gives no tuple
            return (lambda values: (values[slots[0]],)) if slots else (lambda values: ())
        return itemgetter(*slots)


class _VariantPlanner:
    def __init__(self, variant: Variant, buffers: dict[str, Buffer], add: _Expressions) -> None:
        self.variant = variant
        self.guards = add.getter(variant.guards)
        self.domain = add.number(variant.domain)
        self.parameters = add.getter([p.value for p in variant.parameters])
        self.magic = any(p.kind.startswith("magic") for p in variant.parameters)
        self.kinds = tuple(p.kind for p in variant.parameters)
        self.grid, self.block = add.getter(variant.grid), add.getter(variant.block)
        self.shared = add.number(variant.shared_bytes)
        # ours are aligned to 64 bytes, parameters too (the loader sees to it); only the caller's may be
        # anything
        self.needs_aligned_inputs = variant.alignment > 1 and any(
            buffers[name].place == "input" for name in variant.buffers
        )

    def usable(self, values: tuple, aligned: bool) -> bool:
        return all(self.guards(values)) and (aligned or not self.needs_aligned_inputs)

    def launch(self, values: tuple) -> ConcreteLaunch | None:
        if not values[self.domain]:
            return None
        grid = self.grid(values)
        if not (grid[0] and grid[1] and grid[2]):
            return None
        numbers = self.parameters(values)
        if self.magic:
            numbers = tuple(self._expand(numbers))
        return ConcreteLaunch(self.variant, numbers, grid, self.block(values), values[self.shared])

    def _expand(self, numbers: tuple[int, ...]) -> list[int]:
        expanded: list[int] = []
        for kind, number in zip(self.kinds, numbers, strict=True):
            # a divisor of 0 belongs to an empty dim, over which nothing is divided
            if kind == "magic":
                expanded += magic(number or 1)
            elif kind == "magic64":
                multiplier, shift = magic(number or 1, 64)
                expanded += (multiplier - (1 << 64) if multiplier >> 63 else multiplier, shift)
            else:
                expanded.append(number)
        return expanded


class _SegmentPlanner:
    def __init__(self, program: Program, segment: Segment, known: tuple[str, ...]) -> None:
        self.program, self.segment, self.known = program, segment, known
        buffers = {b.name: b for b in (*program.parameters, *_inputs(program))} | {
            b.name: b for s in program.segments for b in s.buffers
        }
        add = _Expressions()
        self.guards = add.getter([guard.condition for guard in segment.guards])
        self.buffers = [(b.name, add.number(b.elements), dtype(b.dtype).itemsize) for b in segment.buffers]
        self.in_arena = [k for k, b in enumerate(segment.buffers) if b.place == "arena"]
        self.arena = Arena([(segment.buffers[k].first, segment.buffers[k].last) for k in self.in_arena])
        self.results = [k for k, b in enumerate(segment.buffers) if b.place in ("result", "call")]
        # equal layers have equal views, each worked out once
        layouts = {t.name: (tuple(t.shape), tuple(t.strides), t.offset) for t in segment.tensors}
        distinct = {layout: number for number, layout in enumerate(dict.fromkeys(layouts.values()))}
        self.layouts = [(add.getter(a), add.getter(b), add.number(c)) for a, b, c in distinct]
        self.tensors = [(name, distinct[layout]) for name, layout in layouts.items()]
        self.steps = [self._step(step, buffers, add) for step in segment.steps]
        # the size of an eager call's result may have no value yet: it shows as -1
        roots = [e if _is_known(e, known, program) else as_expr(-1) for e in add.roots]
        self.evaluate = compile_expressions(roots, known, _known_definitions(program, known))

    def plan(self, sizes: dict[str, int], aligned: bool) -> Concrete:
        values = self.evaluate(*(sizes[name] for name in self.known))
        held = self.guards(values)
        if not all(held):
            raise broken(self.segment.guards[held.index(False)], self.program, sizes)
        nbytes = [values[slot] * itemsize for _, slot, itemsize in self.buffers]
        offsets, arena_bytes = self.arena.place([nbytes[k] for k in self.in_arena])
        if arena_bytes > _LARGEST_INTEGER:
            raise ContractError(f"a call of this shape needs {arena_bytes} bytes", stage="host")
        names = self.segment.buffers
        views = [View(shape(values), strides(values), values[at]) for shape, strides, at in self.layouts]
        return Concrete(
            segment=self.segment,
            sizes=sizes,
            offsets={names[k].name: offset for k, offset in zip(self.in_arena, offsets, strict=True)},
            bytes={name: n for (name, _, _), n in zip(self.buffers, nbytes, strict=True)},
            views={name: views[number] for name, number in self.tensors},
            steps=tuple(step(values, aligned) for step in self.steps),
            arena_bytes=arena_bytes,
            result_bytes=sum(nbytes[k] for k in self.results if nbytes[k] > 0),
        )

    def _step(self, step: Any, buffers: dict[str, Buffer], add: _Expressions) -> Callable[[tuple, bool], Any]:
        if isinstance(step, Launch):
            variants = [_VariantPlanner(variant, buffers, add) for variant in step.variants]

            def launch(values: tuple, aligned: bool) -> ConcreteLaunch | None:
                for variant in variants:
                    if variant.usable(values, aligned):
                        return variant.launch(values)
                raise CompilerError(
                    f"no variant of {step.variants[-1].kernel} covers these sizes", stage="host"
                )

            return launch
        attributes = step.attributes if isinstance(step, LibraryCall) else step.arguments
        fill = _filler(attributes, add)
        low = add.getter([c.check.low for c in step.checks])
        high = add.getter([c.check.high for c in step.checks])

        def call(values: tuple, aligned: bool) -> ConcreteCall:
            ranges = tuple(zip(low(values), high(values), strict=True)) if step.checks else ()
            return ConcreteCall(step, fill(values), ranges)

        return call


def _inputs(program: Program) -> list[Buffer]:
    return [Buffer(given.name, given.dtype, as_expr(0), "input", 0, 0) for given in program.inputs]


def _known_definitions(program: Program, known: Sequence[str]) -> list[tuple[str, Expr]]:
    return [(d.name, d.value) for d in program.definitions if _is_known(d.value, known, program)]


def _is_known(e: Expr, known: Sequence[str], program: Program) -> bool:
    definitions = {d.name: d.value for d in program.definitions}
    return all(name in known for name in roots_of(e, definitions))


def _filler(data: Any, add: _Expressions) -> Callable[[tuple], Any]:
    """A function that gives `data` with numbers for its expressions."""
    if isinstance(data, Expr):
        slot = add.number(data)
        return lambda values: values[slot]
    if not _holds_expressions(data):
        return lambda values: data
    if isinstance(data, Mapping):
        entries = {key: _filler(item, add) for key, item in data.items()}
        return lambda values: {key: part(values) for key, part in entries.items()}
    kind, parts = type(data), [_filler(item, add) for item in data]
    return lambda values: kind(part(values) for part in parts)


def _holds_expressions(data: Any) -> bool:
    if isinstance(data, Mapping):
        return any(map(_holds_expressions, data.values()))
    if isinstance(data, tuple | list):
        return any(map(_holds_expressions, data))
    return isinstance(data, Expr)
