"""Many random programs at once: draws, compiles in batches, judges, and counts what was covered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dlcb.compiler.errors import RefusedCode, ShapeError
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import LayeredStore

from . import casts, draw, interleaved, looked_up
from .bridged import captured, is_wrongly_declared
from .compiled import CPP, Ready, load, ready
from .judge import Verdict, judge
from .program import Program, graph, operators, show
from .shrink import builds, shrink

Parameters = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Way:
    """How programs are run: at how many shapes, on which target, whether PyTorch stands before it, whether
    they are all casts, which leave nothing to rounding, or look up long rows, and what a region may compute
    for an element before it is divided."""

    shapes: int
    store: LayeredStore
    bridge: bool = False
    target: Target = CPP
    casts: bool = False
    looked_up: bool = False
    values: int = CompileOptions.region_values
    interleaved: bool = False
    optimisation: str = "-O1"  # the C++ compiler's level

    def program(self, seed: int) -> Program:
        if self.looked_up:
            return looked_up.program(seed)
        if self.interleaved:
            return interleaved.program(seed)
        return casts.program(seed) if self.casts else draw.program(seed, for_bridge=self.bridge)

    def judge(self, program: Program, each: Ready, model: CompiledModel) -> Verdict:
        return (casts.judge if self.casts else judge)(program, each, model, self.shapes)


@dataclass(frozen=True)
class Failure:
    """One program that is wrong. `kind` is the same for the same defect, as far as words can tell."""

    program: Program
    kind: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.program.seed}: {self.kind}", *self.lines[:3], show(self.program)])


@dataclass
class Tally:
    """What a campaign did. `covered` counts the programs with each operator, those inside composites
    included."""

    programs: int = 0
    kernels: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    covered: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def campaign(seeds: Sequence[int], way: Way, tally: Tally) -> None:
    """Runs the programs of `seeds` as one batch and adds to `tally`."""
    batch: list[tuple[Program, Ready, Parameters]] = []
    for seed in seeds:
        program = way.program(seed)
        tally.programs += 1
        try:
            batch.append((program, *_prepared(program, way)))
        except ShapeError as error:
            if way.bridge and is_wrongly_declared(program):
                tally.verdict.refused += 1
            else:
                tally.failures.append(_failure(program, "compile", error))
        except Exception as error:  # whatever a stage raises is what we are looking for
            tally.failures.append(_failure(program, "compile", error))
    for program, each, _ in batch:
        tally.kernels += len(each.kernels)
        tally.covered.update(operators(graph(program)))
    try:
        models = load(
            [each for _, each, _ in batch], [given for *_, given in batch], way.store, way.optimisation
        )
    except Exception:  # some program's: each alone tells which
        for program, *_ in batch:
            _alone(program, way, tally)
        return
    for (program, each, _), model in zip(batch, models, strict=True):
        try:
            verdict = way.judge(program, each, model)
        except Exception as error:
            tally.failures.append(_failure(program, "run", error))
            continue
        _add(program, verdict, tally)


def _prepared(program: Program, way: Way) -> tuple[Ready, Parameters]:
    if not way.bridge:
        return ready(graph(program), way.target, way.values), draw.parameters(program)
    found = captured(program)
    return ready(found.graph, way.target, way.values), found.parameters


def _alone(program: Program, way: Way, tally: Tally) -> None:
    try:
        each, parameters = _prepared(program, way)
        (model,) = load([each], [parameters], way.store, way.optimisation)
        verdict = way.judge(program, each, model)
    except Exception as error:
        tally.failures.append(_failure(program, "run", error))
        return
    _add(program, verdict, tally)


def _add(program: Program, verdict: Verdict, tally: Tally) -> None:
    total = tally.verdict
    total.shapes += verdict.shapes
    total.refused += verdict.refused
    total.narrow += verdict.narrow
    total.noisy += verdict.noisy
    total.unread += verdict.unread
    if verdict.failures:
        words = re.sub(r"\{.*?\}|output v\d+|[-\d.e+]+", "", verdict.failures[0]).strip(": ")
        tally.failures.append(Failure(program, f"disagrees: {words[:80]}", tuple(verdict.failures)))


def _failure(program: Program, stage: str, error: Exception) -> Failure:
    text = str(error)
    words = (
        re.sub(r"<stdin>:\d+:\d+:|\d+|%\w+", "", text)
        if isinstance(error, RefusedCode)
        else re.sub(r"[\d']+", "", text)
    )
    return Failure(program, f"{stage}: {type(error).__name__}: {words[:90]}", (text[:400],))


def smaller(failure: Failure, way: Way) -> Failure:
    """The same failure of a smaller program."""
    found = failure

    def fails(program: Program) -> bool:
        nonlocal found
        if not builds(program):
            return False
        tally = Tally()
        _alone(program, way, tally)
        if tally.failures and (
            failure.kind.startswith("disagrees") == tally.failures[0].kind.startswith("disagrees")
        ):
            found = tally.failures[0]
            return True
        return False

    shrink(failure.program, fails)
    return found
