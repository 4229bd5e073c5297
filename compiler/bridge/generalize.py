"""Graphs with free sizes from static traces, without annotations: every input dim starts free, traces
at several sizes show what follows it, branches of the user's code bound it, and each dim ends with a
verdict that says why. Never wrong: what is not understood is pinned to the traced size or limited to the
range that was, and the verdict says so."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType

from torch import nn
from torch.export import ExportedProgram

from dlcb.compiler.bridge.branches import Branch
from dlcb.compiler.bridge.capture import load_module, load_program, result_names
from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.declared import declare
from dlcb.compiler.bridge.exported import (
    as_exported,
    exported_ranges,
    inputs_of,
    sizes_of,
    state,
    traced_size,
)
from dlcb.compiler.bridge.lower import lower
from dlcb.compiler.bridge.one_trace import OneTrace
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.scope import Scope
from dlcb.compiler.bridge.search import Search
from dlcb.compiler.bridge.symbolic import opposite
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.bridge.verdicts import AS_FAR_AS_SHOWN, judge
from dlcb.compiler.errors import CompilerError, ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.shapes.system import System
from dlcb.compiler.source import ModelSource

_MOST_GRAPHS = 4  # of one module
_SEARCHING = 6  # times what one symbolic forward may take, after which no further graph is looked for


def generalize(
    source: ModelSource,
    module: nn.Module | ExportedProgram | None = None,
    options: CompileOptions | None = None,
    left: Mapping[str, str] = MappingProxyType({}),
) -> Captured:
    """Captures `source` (its factory or program is run unless `module` is given) and generalises it. `left`
    are lines of the user's whose calls PyTorch is to run, with the reason.

    Raises CaptureError where the program cannot be traced, and ShapeError where a dim that the user
    declared free is pinned by the program."""
    started = time.monotonic()
    options = options or CompileOptions()
    if module is None:
        module = load_program(source.program) if source.program else load_module(source)
    if isinstance(module, ExportedProgram):
        source = as_exported(source, module)
        captured = _from_program(source, Trace.of(module), exported_ranges(source, module), left)
    else:
        with unchanged(module):
            captured = _from_module(source, module, options, left)
    return replace(captured, left=left, seconds=time.monotonic() - started)


# ---- a program that can be traced again ------------------------------------------------------------


def _from_module(
    source: ModelSource, module: nn.Module, options: CompileOptions, left: Mapping[str, str]
) -> Captured:
    """The first graph, and while sizes are known that no graph serves and the program takes, one for them:
    for usual sizes, then large ones first, since there are more of those. A program whose traces take long is
    left to PyTorch there."""
    started = time.process_time()
    searches = [Search(Scope(source, module, options, left=left))]
    found = [searches[0].run()]
    elsewhere: list[str] = []
    ahead = [(searches[0], *turn) for turn in searches[0].turns]
    usual = searches[0].usual
    while (ahead or usual) and len(found) < _MOST_GRAPHS:
        ahead.sort(key=lambda each: prod(each[2].values()))
        if usual is not None:
            ahead.append((searches[0], *usual))
            usual = None
        origin, turn, sizes = ahead.pop()
        if any(search.covers(sizes) for search in searches):
            continue
        if time.process_time() - started > _SEARCHING * options.guard_seconds:
            elsewhere.append("the time to look for further graphs is over: PyTorch runs the model elsewhere")
            break
        search = origin.beyond(turn, sizes, len(found) + 1)
        try:
            found.append(search.run())
        except CompilerError as error:
            elsewhere.append(f"where {opposite(turn.condition)!r}, PyTorch runs the model: {error.message}")
            continue
        searches.append(search)
        ahead += [(search, *further) for further in search.turns]
    if len(found) == _MOST_GRAPHS:
        elsewhere += [
            _unserved(turn, sizes)
            for _, turn, sizes in ahead
            if not any(search.covers(sizes) for search in searches)
        ]
    return replace(found[0], others=tuple(found[1:]), elsewhere=tuple(dict.fromkeys(elsewhere)))


def _unserved(turn: Branch, sizes: Mapping[str, int]) -> str:
    example = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return (
        f"where {opposite(turn.condition)!r} and no graph serves, as at {example}, PyTorch runs the model: "
        f"more than {_MOST_GRAPHS} graphs are not made"
    )


# ---- a program that cannot be traced again ---------------------------------------------------------


def _from_program(
    source: ModelSource,
    program: Trace,
    exported: Mapping[str, tuple[int, int | None]],
    left: Mapping[str, str],
) -> Captured:
    """A lone exported program: reshapes are read by contiguous groups, other literals by the sizes they
    equal. What its author declared is the contract, and what only the graph does not allow is PyTorch's; a
    size that the program itself checks for its traced value has no such fallback: PyTorch refuses others."""
    inputs = source.inputs
    system = OneTrace()
    dims, free = declare(source, inputs, system, exported)
    state(program, inputs, dims, system)
    sizes: dict[str, int] = {}
    for declared, traced in zip(inputs, sizes_of(program, inputs), strict=True):
        for dim, size in zip(dims[declared.name], traced, strict=True):
            if isinstance(dim, Expr):
                _agreed(sizes, dim, traced_size(size), declared.name)
            elif dim != size:
                raise ShapeError(
                    f"input '{declared.name}' is declared {list(declared.shape or ())}, "
                    f"the program has {list(traced)}"
                )
    fixed = exported_sizes(source, program)
    names = result_names(program, source.outputs)
    contract = {guard.condition for guard in system.solve().guards}
    lowered = lower(source.name, [program], [sizes], dims, system, fixed=frozenset(fixed), left=left)
    derived = [g.condition for g in system.solve().guards if g.condition not in contract]
    limited = {symbol.value for condition in derived for symbol in condition.free} - set(fixed)
    return Captured(
        graph=lowered.graph,
        parameters=lowered.parameters,
        verdicts=judge(system, dims, free, AS_FAR_AS_SHOWN, limited.__contains__),
        inputs=tuple(inputs),
        outputs=tuple(names),
        examples=(sizes,),
        notes=(*lowered.notes, *_exported_at(fixed)),
        seconds=0.0,
    )


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


def _exported_at(fixed: Mapping[str, int]) -> tuple[str, ...]:
    """A note for the report where the program itself takes one size only."""
    if not fixed:
        return ()
    at = ", ".join(f"{name} = {size}" for name, size in fixed.items())
    return (f"exported for {at} only: compared with PyTorch there, other sizes follow from the graph",)


def _agreed(sizes: dict[str, int], dim: Expr, size: int, name: str) -> None:
    if sizes.setdefault(dim.value, size) != size:
        raise ShapeError(
            f"'{dim!r}' is {sizes[dim.value]} elsewhere and {size} in input '{name}' of the program",
            stage="generalize",
        )
