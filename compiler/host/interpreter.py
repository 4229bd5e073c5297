"""Runs the size part of a host program: input shapes go in; checked guards, buffer offsets, chosen kernels
and their launch numbers come out as a Concrete plan, in plain Python and without touching a device. What
depends on the program alone is worked out once, so that a new shape costs arithmetic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from dlcb.compiler.dtype import dtype
from dlcb.compiler.errors import CompilerError, ContractError, GuardError, RequestError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import all_of, equal, not_equal, size, substitute
from dlcb.compiler.host.arena import arena, of_rooms
from dlcb.compiler.host.evaluator import Choice, Spread, compile_expressions
from dlcb.compiler.host.guards import broken, places_of, roots_of
from dlcb.compiler.host.magic import magic
from dlcb.compiler.host.program import (
    Buffer,
    EagerCall,
    Launch,
    LaunchParameter,
    LibraryCall,
    Program,
    Segment,
    Variant,
)

VECTOR_ALIGNMENT = 16  # bytes; the widest access that a variant may assume of the caller's memory
_LARGEST_INTEGER = (1 << 63) - 1
_DRAWS = 8  # of sizes, at which it is looked at how much memory a way to place buffers takes
_Kind = TypeVar("_Kind")
_ALIGNED = size("<aligned>")  # 1 where the caller's memory is, as if it were a size


class View(NamedTuple):
    """Shape, strides and offset of a tensor, in elements of its buffer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class ConcreteLaunch(NamedTuple):
    """A launch with all its numbers. `variant` counts those of the step; `parameters` are as the kernel takes
    them, a magic one as two entries."""

    variant: int
    parameters: tuple[int, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


class ConcreteCall(NamedTuple):
    """A library or eager call. `attributes` hold numbers where the program holds expressions."""

    call: LibraryCall | EagerCall
    attributes: Any  # of a library call; an eager call's arguments
    ranges: tuple[tuple[int, int], ...]  # legal index values of each of the call's checks


class Concrete(NamedTuple):
    """A segment at one tuple of sizes. `offsets` has where each room of the arena begins, `results` how large
    each of the outline's results is, both in bytes; `views` has a view for each of its layouts. `steps` are
    those of the segment, None for a launch that has nothing to do."""

    outline: Outline
    sizes: dict[str, int]
    offsets: list[int]
    results: list[int]
    views: tuple[View, ...]
    steps: tuple[ConcreteLaunch | ConcreteCall | None, ...]
    arena_bytes: int
    result_bytes: int

    @property
    def segment(self) -> Segment:
        return self.outline.segment

    @property
    def peak_bytes(self) -> int:
        """Bytes that a call needs at most beside parameters, inputs and the libraries' own workspaces."""
        return self.arena_bytes + self.result_bytes

    def view(self, tensor: str) -> View:
        """The view that a tensor of the segment is, by its name."""
        return self.views[self.outline.layouts[tensor]]


class Interpreter:
    """Gives a program numbers. Thread-safe: nothing changes after it is made."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sizes = bound_sizes(program)
        self._dims = [
            (given.name, axis, dim) for given in program.inputs for axis, dim in enumerate(given.dims)
        ]
        self._ranks = [len(given.dims) for given in program.inputs]
        dims, definitions = tuple(dim for _, _, dim in self._dims), _known_definitions(program, self.sizes)
        self._expected = compile_expressions(dims, self.sizes, definitions)
        # over what is found in the place of each dim; a size variable is what is found where it is first met
        found = [size(f"<{k}>") for k in range(len(dims))]
        firsts = [(name, found[dims.index(size(name))]) for name in self.sizes]
        fits = all_of(
            equal(dim, here) for dim, here in zip(dims, found, strict=True) if (dim.value, here) not in firsts
        )
        self._bound = compile_expressions(
            (fits, {name: size(name) for name in self.sizes}),
            [here.value for here in found],
            [*firsts, *definitions],
        )
        self.outlines: list[Outline] = []
        known = self.sizes
        for segment in program.segments:
            self.outlines.append(Outline(program, segment, known))
            known += tuple(binding.size for binding in segment.binds)

    def bind(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The size variables of these input shapes, in the program's order. ContractError where an input has
        another rank; GuardError where a dim that is fixed has another size, or one size variable two
        values."""
        if list(map(len, shapes)) == self._ranks:
            fits, bound = self._bound(*chain.from_iterable(shapes))
            if fits:
                return bound
        raise self._misfit(shapes)

    def _misfit(self, shapes: Sequence[Sequence[int]]) -> ContractError | GuardError:
        """What to say of shapes that are not the program's."""
        for given, shape in zip(self.program.inputs, shapes, strict=True):
            if len(shape) != len(given.dims):
                return ContractError(
                    f"input '{given.name}' has rank {len(shape)}, shape {list(shape)}; expected rank "
                    f"{len(given.dims)}, shape {list(given.dims)}",
                    stage="host",
                )
        found = [number for shape in shapes for number in shape]
        dims = [dim for _, _, dim in self._dims]
        expected = self._expected(*(found[dims.index(size(name))] for name in self.sizes))
        k = next(k for k, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b)
        name, axis, dim = self._dims[k]
        return GuardError(
            f"axis {axis} of input '{name}' is {found[k]}, expected {self._explain(dim, expected[k])}; "
            f"nearest legal size {expected[k]}",
            stage="host",
        )

    def input_shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        """The inverse of `bind`."""
        dims = iter(self._expected(*(sizes[name] for name in self.sizes)))
        return [tuple(next(dims) for _ in given.dims) for given in self.program.inputs]

    def plan(self, sizes: dict[str, int], segment: int = 0, aligned: bool = True) -> Concrete:
        """The plan of a segment. `aligned`: the caller's memory is aligned to VECTOR_ALIGNMENT bytes.

        ContractError or GuardError for a guard that does not hold; CompilerError where no variant of a kernel
        covers these sizes.
        """
        return self.outlines[segment].plan(sizes, aligned)

    def _explain(self, dim: Expr, expected: int) -> str:
        definitions = {size(d.name): d.value for d in self.program.definitions}
        while not dim.free.isdisjoint(definitions):  # by what is read elsewhere, not at this very axis
            dim = substitute(dim, definitions)
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


class Outline:
    """A segment, and what of it does not depend on sizes. `results` lists the buffers of the places "result"
    and "call"; `rooms` has the room of each buffer in the arena, `layouts` the number of each tensor's
    layout."""

    def __init__(self, program: Program, segment: Segment, known: tuple[str, ...]) -> None:
        self.program, self.segment, self._known = program, segment, known
        in_arena = [buffer for buffer in segment.buffers if buffer.place == "arena"]
        self.results = [buffer for buffer in segment.buffers if buffer.place in ("result", "call")]
        kinds = [_bytes(buffer) for buffer in in_arena]
        definitions = _known_definitions(program, known)
        draws = _draws(compile_expressions(kinds, known, definitions, unknown=-1), len(known))
        self._arena, rooms = arena([(buffer.first, buffer.last) for buffer in in_arena], kinds, draws)
        self.rooms = {buffer.name: room for buffer, room in zip(in_arena, rooms, strict=True)}
        layouts = [_over(View, tensor.shape, tensor.strides, tensor.offset) for tensor in segment.tensors]
        numbered = {layout: number for number, layout in enumerate(dict.fromkeys(layouts))}
        self.layouts = {t.name: numbered[layout] for t, layout in zip(segment.tensors, layouts, strict=True)}
        inputs = {given.name for given in program.inputs}
        # Equal launches, as equal layers have them, are computed once. The size of an eager call's result may
        # have no value yet: it shows as -1.
        self._evaluate = compile_expressions(
            (
                of_rooms(rooms, kinds),
                [_bytes(buffer) for buffer in self.results],
                tuple(numbered),
                tuple(
                    _launch(step, inputs) if isinstance(step, Launch) else _call(step)
                    for step in segment.steps
                ),
            ),
            (*known, _ALIGNED.value),
            definitions,
            unknown=-1,
            within=all_of(guard.condition for guard in segment.guards),
        )

    def plan(self, sizes: dict[str, int], aligned: bool) -> Concrete:
        """As `Interpreter.plan`."""
        numbers = map(sizes.__getitem__, self._known)
        found = self._evaluate(*numbers, aligned)
        if found is None:
            raise self._broken(sizes)
        rooms, results, views, steps = found
        offsets: list[int] = []
        arena_bytes = 0
        if rooms:
            offsets, arena_bytes = self._arena.place(rooms)
            if arena_bytes > _LARGEST_INTEGER:
                raise ContractError(f"a call of this shape needs {arena_bytes} bytes", stage="host")
        result_bytes = sum([nbytes for nbytes in results if nbytes > 0])
        return Concrete(self, sizes, offsets, results, views, steps, arena_bytes, result_bytes)

    def _broken(self, sizes: dict[str, int]) -> RequestError:
        conditions = tuple(guard.condition for guard in self.segment.guards)
        definitions = _known_definitions(self.program, self._known)
        held = compile_expressions(conditions, self._known, definitions)(*(sizes[n] for n in self._known))
        return broken(self.segment.guards[held.index(False)], self.program, sizes)


def _draws(evaluate: Callable[..., list[int]], sizes: int) -> Iterator[list[int]]:
    """Bytes of buffers at sizes as calls may have them."""
    draw = random.Random(0)
    for _ in range(_DRAWS):
        drawn = [draw.randint(1, 1 << draw.randrange(11)) for _ in range(sizes)]
        yield [max(nbytes, 0) for nbytes in evaluate(*drawn)]


def _launch(launch: Launch, inputs: set[str]) -> Choice:
    """The first variant that is usable, None where it has nothing to do."""
    name = launch.variants[-1].kernel
    return Choice(
        tuple(
            (_usable(variant, inputs), _numbers(number, variant))
            for number, variant in enumerate(launch.variants)
        ),
        lambda: CompilerError(f"no variant of {name} covers these sizes", stage="host"),
    )


def _usable(variant: Variant, inputs: set[str]) -> Expr:
    # ours are aligned to 64 bytes, parameters too (the loader sees to it); only the caller's may be anything
    needs_aligned = variant.alignment > 1 and not inputs.isdisjoint(variant.buffers)
    return all_of((*variant.guards, *((not_equal(_ALIGNED, 0),) if needs_aligned else ())))


def _numbers(number: int, variant: Variant) -> Choice:
    parameters = tuple(map(_number, variant.parameters))
    launch = _over(ConcreteLaunch, number, parameters, variant.grid, variant.block, variant.shared_bytes)
    return Choice(((all_of(not_equal(n, 0) for n in (variant.domain, *variant.grid)), launch),))


def _number(parameter: LaunchParameter) -> Expr | Spread:
    if parameter.kind.startswith("magic"):
        return Spread(_magic64 if parameter.kind == "magic64" else _magic32, parameter.value)
    return parameter.value


def _magic32(divisor: int) -> tuple[int, int]:
    return magic(divisor or 1)  # a divisor of 0 belongs to an empty dim, over which nothing is divided


def _magic64(divisor: int) -> tuple[int, int]:
    multiplier, shift = magic(divisor or 1, 64)
    return (multiplier - (1 << 64) if multiplier >> 63 else multiplier), shift


def _bytes(buffer: Buffer) -> Expr:
    return buffer.elements * dtype(buffer.dtype).itemsize


def _call(step: LibraryCall | EagerCall) -> ConcreteCall:
    """The call with its expressions; without any it is the same at all sizes."""
    attributes = step.attributes if isinstance(step, LibraryCall) else step.arguments
    return _over(ConcreteCall, step, attributes, tuple((c.check.low, c.check.high) for c in step.checks))


def _over(kind: Callable[..., _Kind], *fields: Any) -> _Kind:
    """A named tuple that holds expressions until it is evaluated, then what its type says."""
    return kind(*fields)


def _known_definitions(program: Program, known: Sequence[str]) -> list[tuple[str, Expr]]:
    definitions = {d.name: d.value for d in program.definitions}
    return [
        (name, value)
        for name, value in definitions.items()
        if all(root in known for root in roots_of(value, definitions))
    ]
