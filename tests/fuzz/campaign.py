"""Many random programs at once: draws, compiles in batches, judges, and counts what was covered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlcb.compiler.errors import ToolchainError
from dlcb.kernel_cache import LayeredStore

from . import draw
from .compiled import Ready, load, ready
from .judge import Verdict, judge
from .program import Program, graph, operators, show
from .shrink import builds, shrink


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
    """What a campaign did. `covered` counts programs for each operator, those inside composites included."""

    programs: int = 0
    kernels: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    covered: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def campaign(seeds: Sequence[int], shapes: int, store: LayeredStore, tally: Tally) -> None:
    """Runs the programs of `seeds` as one batch and adds to `tally`."""
    batch: list[tuple[Program, Ready]] = []
    for seed in seeds:
        program = draw.program(seed)
        built = graph(program)
        tally.programs += 1
        tally.covered.update(operators(built))
        try:
            batch.append((program, ready(built)))
        except Exception as error:  # whatever a stage raises is what we are looking for
            tally.failures.append(_failure(program, "compile", error))
    for program, each in batch:
        tally.kernels += len(each.kernels)
    try:
        models = load([each for _, each in batch], [draw.parameters(p) for p, _ in batch], store)
    except Exception:  # some program's: each alone tells which
        for program, _ in batch:
            _alone(program, shapes, store, tally)
        return
    for (program, each), model in zip(batch, models, strict=True):
        try:
            verdict = judge(program, each, model, shapes)
        except Exception as error:
            tally.failures.append(_failure(program, "run", error))
            continue
        _add(program, verdict, tally)


def _alone(program: Program, shapes: int, store: LayeredStore, tally: Tally) -> None:
    try:
        each = ready(graph(program))
        (model,) = load([each], [draw.parameters(program)], store)
        verdict = judge(program, each, model, shapes)
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
    if verdict.failures:
        words = re.sub(r"\{.*?\}|output v\d+|[-\d.e+]+", "", verdict.failures[0]).strip(": ")
        tally.failures.append(Failure(program, f"disagrees: {words[:80]}", tuple(verdict.failures)))


def _failure(program: Program, stage: str, error: Exception) -> Failure:
    text = str(error)
    words = re.sub(r"<stdin>:\d+:\d+:|\d+|%\w+", "", text) if isinstance(error, ToolchainError) else re.sub(r"[\d']+", "", text)
    return Failure(program, f"{stage}: {type(error).__name__}: {words[:90]}", (text[:400],))


def smaller(failure: Failure, shapes: int, store: LayeredStore) -> Failure:
    """The same failure of a smaller program."""
    found = failure

    def fails(program: Program) -> bool:
        nonlocal found
        if not builds(program):
            return False
        tally = Tally()
        _alone(program, shapes, store, tally)
        if tally.failures and tally.failures[0].kind.split(":")[0] in (failure.kind.split(":")[0], "run"):
            found = tally.failures[0]
            return True
        return False

    shrink(failure.program, fails)
    return found
