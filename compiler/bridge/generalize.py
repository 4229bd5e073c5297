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

from dlcb.compiler.bridge.autocast import without_autocast
from dlcb.compiler.bridge.branches import Branch
from dlcb.compiler.bridge.call_by_call import Scripted, uncompiled
from dlcb.compiler.bridge.capture import load_module, load_program
from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.exported import (
    as_exported,
)
from dlcb.compiler.bridge.files import from_file, from_files
from dlcb.compiler.bridge.one_device import settle
from dlcb.compiler.bridge.scope import Scope
from dlcb.compiler.bridge.search import Search
from dlcb.compiler.bridge.stand_ins import Home, at_home
from dlcb.compiler.bridge.symbolic import opposite
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.errors import CaptureError, CompilerError
from dlcb.compiler.options import CompileOptions
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
        module = load_program(source.program) if source.program else settle(load_module(source), "cpu")
    if isinstance(module, ExportedProgram):
        source = as_exported(source, module)
        others = [load_program(path) for path in source.beside]
        device = Home.of(options.target.kind).device
        captured = (
            from_files(source, [module, *others], left, device)
            if others
            else from_file(source, module, left, device)
        )
    else:
        with unchanged(module), uncompiled(), without_autocast():
            captured = at_home(
                options.target.kind, lambda home: _from_module(source, module, options, left, home)
            )
        if any(isinstance(part, Scripted) for part in module.modules()):
            _refuse_one_size(captured)
    return replace(captured, left=left, seconds=time.monotonic() - started)


# ---- a program that can be traced again ------------------------------------------------------------


def _refuse_one_size(captured: Captured) -> None:
    """TorchScript's own code asks for sizes as numbers, so that a graph would serve one alone."""
    asked = [
        f"axis {v.axis} of '{v.input}'" for v in captured.verdicts if v.symbol and isinstance(v.size, int)
    ]
    if asked:
        raise CaptureError(
            f"TorchScript asks for the size of {', '.join(asked)}, which would pin it", stage="capture"
        )


def _from_module(
    source: ModelSource,
    module: nn.Module,
    options: CompileOptions,
    left: Mapping[str, str],
    home: Home,
) -> Captured:
    """The first graph, and while sizes are known that no graph serves and the program takes, one for them:
    for usual sizes, then large ones first, since there are more of those. A program whose traces take long is
    left to PyTorch there."""
    started = time.process_time()
    searches = [Search(Scope(source, module, options, left=left, home=home))]
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
