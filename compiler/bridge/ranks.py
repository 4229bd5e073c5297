"""Programs whose inputs have no rank: what can be known of them before a rank is met. A module is traced at
the ranks that are usual; element types of the outputs come out, and which ranks the program takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from dlcb.compiler.bridge.autocast import without_autocast
from dlcb.compiler.bridge.datatypes import misdeclared
from dlcb.compiler.bridge.declared import NO_WISH, declare
from dlcb.compiler.bridge.emit import from_torch
from dlcb.compiler.bridge.probes import Prober
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.stand_ins import Home, at_home
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.shapes.system import System
from dlcb.compiler.source import InputDeclaration, ModelSource

USUAL = range(6)
# what no shape of the inputs can be blamed for
_OF_THE_CODE = (AttributeError, NameError, ImportError, NotImplementedError)


@dataclass(frozen=True)
class Ranks:
    """`dtypes` of the outputs, empty where no usual rank could be traced; `taken`: the usual ranks that the
    program takes; `refused`: what it said to the others."""

    dtypes: tuple[str, ...]
    taken: tuple[int, ...]
    refused: tuple[str, ...]


def is_any_rank(inputs: Sequence[InputDeclaration]) -> bool:
    return any(declared.shape is None for declared in inputs)


def specialise(source: ModelSource, ranks: Sequence[int]) -> ModelSource:
    """The source with its any-rank inputs at these ranks, each of their dims under a name of its own, and
    free where the program does not pin it."""
    inputs = tuple(
        replace(declared, shape=tuple(f"{declared.name}_{axis}{NO_WISH}" for axis in range(rank)))
        if declared.shape is None
        else declared
        for declared, rank in zip(source.inputs, ranks, strict=True)
    )
    return replace(source, inputs=inputs)


def survey(source: ModelSource, module: nn.Module | ExportedProgram, target: str = "cpp") -> Ranks:
    """Traces `module` for a kind of target with all its any-rank inputs at each usual rank. CaptureError
    where its code is at fault at all of them, and where outputs change their number or type with the rank,
    which no signature could say. DeclarationError where it takes inputs of other types at ranks at which it
    takes none of the declared ones."""
    if isinstance(module, ExportedProgram):
        return Ranks(_dtypes(Trace.of(module)), (), ())
    with without_autocast():
        return at_home(target, lambda home: _survey(source, module, home))


def _survey(source: ModelSource, module: nn.Module, home: Home) -> Ranks:
    found: dict[int, tuple[str, ...]] = {}
    refused: dict[int, CaptureError] = {}
    traced: list[tuple[Prober, Mapping[str, int]]] = []
    tried: list[Mapping[str, torch.Tensor]] = []
    for rank in USUAL:
        ranked = specialise(source, [rank] * len(source.inputs))
        dims, free = declare(ranked, ranked.inputs, System())
        prober = Prober(module, ranked.inputs, dims, free, home=home)
        try:
            sizes = prober.first()
            found[rank] = _dtypes(prober.trace(sizes))
            traced.append((prober, sizes))
        except CaptureError as error:
            refused[rank] = error
            with suppress(CaptureError):  # too large
                tried.append(next(prober.samples()))
    given = (prober.tensors(sizes) for prober, sizes in traced) if traced else tried
    if wrong := misdeclared(module, source.inputs, given):
        raise wrong
    if not found and all(isinstance(error.__cause__, _OF_THE_CODE) for error in refused.values()):
        raise refused[1]
    if len(set(found.values())) > 1:
        each = "; ".join(f"{', '.join(dtypes)} at rank {rank}" for rank, dtypes in found.items())
        raise CaptureError(f"the outputs of '{source.name}' change with the rank: {each}", stage="capture")
    said = tuple(f"rank {rank}: {error.message}" for rank, error in refused.items())
    return Ranks(next(iter(found.values()), ()), tuple(found), said)


def _dtypes(trace: Trace) -> tuple[str, ...]:
    return tuple(from_torch(item.meta["val"].dtype).name for item in trace.outputs if isinstance(item, Node))
