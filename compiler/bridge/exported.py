"""What the author of a .pt2 file declared of its sizes when it was exported. A source and its program go in;
the source with these declarations comes out, as if they stood in its configuration, and what else relates the
sizes: one that is a multiple of a number, or follows from another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from dlcb.compiler.bridge.declared import UNNAMED
from dlcb.compiler.bridge.emit import from_torch
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.errors import DeclarationError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import equal
from dlcb.compiler.shapes.system import Provenance, System
from dlcb.compiler.source import InputDeclaration, ModelSource

_ASSUMED = 2  # the least size that torch.export notes where none was declared; it checks none up to this


def as_exported(source: ModelSource, program: ExportedProgram) -> ModelSource:
    """The source with the inputs of the file where it declares none, a name for each size that the file
    leaves free, and the ranges that the file has for those; where the source has one of its own, that
    counts. A file keeps no names."""
    trace = Trace.of(program)
    inputs = source.inputs or inputs_of(trace)
    taken = {size for declared in inputs for size in declared.shape or ()}
    unused = (name for number in itertools.count() if (name := f"d{number}") not in taken)
    names: dict[Any, str] = {}  # what a file calls a size -> a name for it
    ranges: dict[str, tuple[int, int | None]] = {}
    named = []
    for declared, sizes in zip(inputs, sizes_of(trace, inputs), strict=True):
        shape = list(declared.shape or ())
        for axis, size in enumerate(sizes[: len(shape)]):
            if isinstance(size, torch.SymInt):
                said = size.node.expr
                if shape[axis] in UNNAMED:
                    shape[axis] = names[said] if said in names else names.setdefault(said, next(unused))
                if isinstance(shape[axis], str):
                    ranges.setdefault(str(shape[axis]), _range(program.range_constraints.get(said)))
        named.append(declared if declared.shape is None else replace(declared, shape=tuple(shape)))
    limited = {name: found for name, found in ranges.items() if found != (0, None)}
    return replace(source, inputs=tuple(named), dims={**limited, **source.dims})


def exported_ranges(source: ModelSource, program: ExportedProgram) -> Mapping[str, tuple[int, int | None]]:
    """The ranges that the file has for sizes of `source`, whatever its configuration says of them."""
    return as_exported(replace(source, dims={}), program).dims


def _range(found: Any) -> tuple[int, int | None]:
    if found is None:
        return 0, None
    low = int(found.lower) if found.lower.is_Integer else 0
    return (0 if low == _ASSUMED else low), int(found.upper) if found.upper.is_Integer else None


def inputs_of(program: Trace) -> tuple[InputDeclaration, ...]:
    """Declarations for a program that comes without: every dim free and unnamed."""
    placeholders = program.placeholders
    declared = []
    for name in program.user_inputs:
        tensor = placeholders[name].meta["val"]
        declared.append(
            InputDeclaration(name, str(tensor.dtype).removeprefix("torch."), ("?",) * tensor.dim())
        )
    return tuple(declared)


def sizes_of(program: Trace, inputs: Sequence[InputDeclaration]) -> Iterator[Sequence[Any]]:
    """The sizes of every input in the file: integers, or PyTorch's symbols. DeclarationError where other
    inputs are declared than the file has, or other ranks or types."""
    placeholders, taken = program.placeholders, program.user_inputs
    if len(inputs) != len(taken):
        names = ", ".join(f"'{declared.name}'" for declared in inputs)
        raise _other(
            f"{len(inputs)} inputs are declared ({names}), the file takes {len(taken)}: {', '.join(taken)}"
        )
    for declared, name in zip(inputs, taken, strict=True):
        value = placeholders[declared.name if declared.name in placeholders else name].meta["val"]
        kind = from_torch(value.dtype).name
        if declared.dtype != kind:
            raise _other(f"input '{declared.name}' is declared as {declared.dtype}, the file takes {kind}")
        if declared.shape is not None and len(declared.shape) != value.dim():
            raise _other(
                f"input '{declared.name}' is declared with rank {len(declared.shape)}, shape "
                f"[{', '.join(map(str, declared.shape))}]; the file takes rank {value.dim()}, shape "
                f"[{', '.join(map(str, value.shape))}]"
            )
        yield value.shape


def _other(message: str) -> DeclarationError:
    return DeclarationError(message, key="inputs", stage="capture")


def traced_size(size: int | torch.SymInt) -> int:
    """The size that the file was traced at. `int` would have PyTorch hold the size at it from then on."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def state(
    program: Trace,
    inputs: Sequence[InputDeclaration],
    dims: Mapping[str, Sequence[Expr | int]],
    system: System,
) -> None:
    """Tells `system` what the file says of sizes beside their ranges: that two are equal, or that one is so
    many times another and so many more; where no axis has that other's size, the remainder of the one."""
    found: dict[Any, Expr] = {}
    places: dict[Any, str] = {}
    axes = [
        (size.node.expr, dim, f"axis {axis} of '{declared.name}'")
        for declared, sizes in zip(inputs, sizes_of(program, inputs), strict=True)
        for axis, (dim, size) in enumerate(zip(dims[declared.name], sizes, strict=True))
        if isinstance(dim, Expr) and isinstance(size, torch.SymInt)
    ]
    for said, dim, place in sorted(
        axes, key=lambda each: not each[0].is_Symbol
    ):  # what others follow from first
        if said in found:
            both = f"{places[said]} and {place} are one size in the file"
            system.equal(dim, found[said], Provenance("exported", detail=both))
            continue
        found[said], places[said] = dim, place
        why = Provenance("exported", detail=f"{place} in the file")
        if said.is_Symbol or len(said.free_symbols) != 1:
            continue
        (symbol,) = said.free_symbols
        rest, times = said.subs(symbol, 0), said.coeff(symbol)
        if not (rest.is_Integer and times.is_Integer and said == times * symbol + rest):
            continue
        if symbol in found:
            system.equal(dim, found[symbol] * int(times) + int(rest), why)
        elif times > 1:
            system.require(equal((dim - int(rest)) % int(times), 0), why)
