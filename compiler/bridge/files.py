"""Graphs of .pt2 files, which cannot be traced again: one file, whose numbers and shape rules alone tell what
follows which size, or several of one model that were exported at other sizes, which are compared as traces of
a module are. What they do not show holds the sizes that they have, or is an error."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram

from dlcb.compiler.bridge.aligned import Disagreement
from dlcb.compiler.bridge.capture import result_names
from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.declared import declare
from dlcb.compiler.bridge.exported import (
    exported_ranges,
    inputs_of,
    sizes_of,
    state,
    traced_size,
)
from dlcb.compiler.bridge.literals import Sizes
from dlcb.compiler.bridge.lone import Holds
from dlcb.compiler.bridge.lower import Lowered, lower
from dlcb.compiler.bridge.one_trace import OneTrace
from dlcb.compiler.bridge.probes import Bindings
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.regions import inlined
from dlcb.compiler.bridge.stand_ins import CPU
from dlcb.compiler.bridge.verdicts import AS_FAR_AS_SHOWN, judge
from dlcb.compiler.errors import DeclarationError, ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.shapes.system import Provenance, System
from dlcb.compiler.source import ModelSource

Dims = Mapping[str, Sequence[Expr | int]]


def from_file(
    source: ModelSource, file: ExportedProgram, left: Mapping[str, str], device: torch.device = CPU
) -> Captured:
    """A lone exported program: reshapes are read by contiguous groups, other literals by the sizes they
    equal. What its author declared is the contract, and what only the graph does not allow is PyTorch's; a
    size that the program itself checks for its traced value has no such fallback: PyTorch refuses others."""
    program, exported = inlined(Trace.of(file), device), exported_ranges(source, file)
    fixed = exported_sizes(source, program)
    held: dict[str, Provenance] = {}
    while True:
        system = OneTrace()
        dims, free = declare(source, source.inputs, system, exported)
        state(program, source.inputs, dims, system)
        sizes = sizes_at(program, source, dims)
        try:
            lowered, contract = _lowered(source, program, sizes, dims, system, fixed, held, left)
            break
        except Holds as found:
            held |= dict.fromkeys(found.names, found.why)
    derived = [g.condition for g in system.solve().guards if g.condition not in contract]
    limited = {symbol.value for condition in derived for symbol in condition.free} - set(fixed)
    return Captured(
        graph=lowered.graph,
        parameters=lowered.parameters,
        verdicts=judge(system, dims, free, AS_FAR_AS_SHOWN, limited.__contains__),
        inputs=tuple(source.inputs),
        outputs=tuple(result_names(program, source.outputs)),
        examples=(sizes,),
        notes=(*lowered.notes, *_exported_at(fixed)),
        seconds=0.0,
    )


def _lowered(
    source: ModelSource,
    program: Trace,
    sizes: Bindings,
    dims: Dims,
    system: System,
    fixed: Mapping[str, int],
    held: Mapping[str, Provenance],
    left: Mapping[str, str],
) -> tuple[Lowered, set[Expr]]:
    """The graph in `system`, where the sizes in `held` are numbers, and what was required before. Raises
    Holds where more are to be held."""
    for symbol in (dim for each in dims.values() for dim in each if isinstance(dim, Expr)):
        if symbol.value in held:
            system.equal(symbol, as_expr(fixed[symbol.value]), held[symbol.value])
    contract = {guard.condition for guard in system.solve().guards}
    free = frozenset(fixed) - held.keys()
    numbers = _with_numbers(dims, {name: fixed[name] for name in held})
    return lower(source.name, [program], [sizes], numbers, system, fixed=free, left=left), contract


def _with_numbers(dims: Dims, known: Mapping[str, int]) -> dict[str, list[Expr | int]]:
    """The dims with numbers in place of sizes that are known."""
    return {
        name: [known.get(dim.value, dim) if isinstance(dim, Expr) else dim for dim in each]
        for name, each in dims.items()
    }


# ---- several files of one model --------------------------------------------------------------------


def from_files(
    source: ModelSource,
    files: Sequence[ExportedProgram],
    left: Mapping[str, str],
    device: torch.device = CPU,
) -> Captured:
    """One model, exported at several sizes: the files are aligned as traces of a module are, and what differs
    follows the sizes. A size that all of them have alike is that. Raises DeclarationError where they are not
    of one model, or where a number in them may follow the sizes in several ways."""
    programs = [inlined(Trace.of(file), device) for file in files]
    paths = (source.program or "", *source.beside)
    system = System()
    dims, free = declare(source, source.inputs, system)
    both = zip(programs, paths, strict=True)
    sizes = [_sizes_of_one(source, program, dims, path) for program, path in both]
    alike = {name: size for name, size in sizes[0].items() if all(each[name] == size for each in sizes)}
    for dim in free:
        if dim.name in alike:
            why = f"all {len(files)} files have it as {alike[dim.name]}: name one with another size as well"
            system.equal(dim.symbol, as_expr(alike[dim.name]), Provenance("the files", "", why))
    moving = [dim.symbol for dim in free if dim.name not in alike]
    for one, other in itertools.combinations(moving, 2):
        if all(each[one.value] == each[other.value] for each in sizes):
            system.equal(one, other, Provenance("the files", "", "equal in all of them"))
    if (step := _in_step(moving, Sizes(sizes))) is not None:
        one, form = step
        why = f"{one!r} is {form!r} in all of them, so that what follows one of them may follow the other"
        raise _not_one(paths, f"{why}: name files of other sizes")
    try:
        lowered = lower(
            source.name,
            programs,
            sizes,
            _with_numbers(dims, alike),
            system,
            fixed=frozenset(sizes[0]) - alike.keys(),
            left=left,
        )
    except Disagreement as error:
        raise _not_one(paths, f"{error.message}, at {error.source_line or 'an unknown line'}") from error
    return Captured(
        graph=lowered.graph,
        parameters=lowered.parameters,
        verdicts=judge(system, dims, free, AS_FAR_AS_SHOWN, lambda name: False),
        inputs=tuple(source.inputs),
        outputs=tuple(result_names(programs[0], source.outputs)),
        examples=tuple(sizes),
        notes=(*lowered.notes, *_exported_at(*sizes)),
        seconds=0.0,
    )


def _in_step(moving: Sequence[Expr], sizes: Sizes) -> tuple[Expr, Expr] | None:
    """A size that is a form of another in all files; None where all of them move on their own."""
    for one, other in itertools.permutations(moving, 2):
        values = sizes.observed(one)
        if values is not None and values != sizes.observed(other):
            for form in sizes.explanations(values, [other], remainders=False):
                return one, form
    return None


def _sizes_of_one(source: ModelSource, program: Trace, dims: Dims, path: str) -> dict[str, int]:
    """The sizes that a file was exported at. DeclarationError where it has other inputs than `source`, or
    sizes that are free in it."""
    try:
        given = list(sizes_of(program, source.inputs))
        found = sizes_at(program, source, dims)
    except (DeclarationError, ShapeError) as error:
        raise DeclarationError(f"'{path}': {error.message}", key="program", stage="capture") from error
    if not all(isinstance(size, int) for each in given for size in each):
        raise DeclarationError(
            f"'{path}' was exported with dynamic sizes: it needs no file beside it",
            key="program",
            stage="capture",
        )
    return found


def _not_one(paths: Sequence[str], why: str) -> DeclarationError:
    said = " and ".join(f"'{name}'" for name in paths)
    return DeclarationError(f"{said} do not show one model: {why}", key="program", stage="generalize")


# ---- what files say --------------------------------------------------------------------------------


def sizes_at(program: Trace, source: ModelSource, dims: Dims) -> dict[str, int]:
    """The values that the size variables in `dims` have in a file. Raises ShapeError where it has another
    size than is declared, or two of one variable."""
    sizes: dict[str, int] = {}
    for declared, traced in zip(source.inputs, sizes_of(program, source.inputs), strict=True):
        for dim, size in zip(dims[declared.name], traced, strict=True):
            if isinstance(dim, Expr):
                _agreed(sizes, dim, traced_size(size), declared.name)
            elif dim != size:
                raise ShapeError(
                    f"input '{declared.name}' is declared {list(declared.shape or ())}, "
                    f"the program has {list(traced)}"
                )
    return sizes


def exported_sizes(source: ModelSource, program: Trace) -> dict[str, int]:
    """The sizes, by the names of their variables, for which alone the program was exported: it checks them
    itself, so that PyTorch runs it at no others."""
    inputs = source.inputs or inputs_of(program)
    dims, _ = declare(source, inputs, System())
    fixed: dict[str, int] = {}
    for declared, traced in zip(inputs, sizes_of(program, inputs), strict=True):
        for dim, size in zip(dims[declared.name], traced, strict=True):
            if isinstance(dim, Expr) and isinstance(size, int):
                fixed[dim.value] = size
    return fixed


def _exported_at(*files: Mapping[str, int]) -> tuple[str, ...]:
    """A note for the report where the program itself takes one size only."""
    if not files[0]:
        return ()
    at = ", and for ".join(", ".join(f"{name} = {size}" for name, size in fixed.items()) for fixed in files)
    return (f"exported for {at} only: compared with PyTorch there, other sizes follow from the graph",)


def _agreed(sizes: dict[str, int], dim: Expr, size: int, name: str) -> None:
    if sizes.setdefault(dim.value, size) != size:
        raise ShapeError(
            f"'{dim!r}' is {sizes[dim.value]} elsewhere and {size} in input '{name}' of the program",
            stage="generalize",
        )
