"""The command `bench`: which suite or which registered models, which peers, and where results are kept. `dlcb
bench` adds the models of a configuration file; `python -m dlcb.compiler.bench` needs nothing of the
server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer

from dlcb.compiler.bench.floors import copy_bandwidth
from dlcb.compiler.bench.machine import describe_machine
from dlcb.compiler.bench.report import BANDWIDTH, keep, print_results, print_shapes
from dlcb.compiler.bench.run import CaseResult, run_case
from dlcb.compiler.bench.schedules import print_schedules
from dlcb.compiler.bench.shapes import SURVEY, ShapesResult, run_shapes, shape_cases
from dlcb.compiler.bench.sizes import print_hostile, print_solved, solve_hostile, solve_programs
from dlcb.compiler.bench.suites import SUITES, Case, cases, survey_case
from dlcb.compiler.errors import UnknownName
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.jit import specialise

app = typer.Typer(add_completion=False, help="Measure ours beside eager PyTorch and torch.compile.")

Result = TypeVar("Result", CaseResult, ShapesResult)
About = Callable[[ModelSource], AbstractContextManager[object]]
Sizes = Mapping[str, int] | Sequence[int]  # of the free dims by name, or the shape of every input of any rank


@app.command()
def bench(
    suite: Annotated[
        str, typer.Option(help=f"one of {', '.join((*SUITES, 'shapes', 'schedules', 'sizes'))}")
    ] = "survey",
    only: Annotated[str, typer.Option(help="comma-separated cases; empty: all")] = "",
    peers: Annotated[str, typer.Option(help="comma-separated peers")] = "eager,compile-dynamic",
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda where there is a GPU")] = "",
    rounds: Annotated[int, typer.Option(help="interleaved rounds")] = 7,
    out: Annotated[Path | None, typer.Option(help="a JSON file to keep results in, merged by case")] = None,
) -> None:
    """Print times, ratios, compile seconds, break-even calls and first calls at unseen shapes."""
    bench_suite(suite, _words(only), peers=peers, device=device, rounds=rounds, out=out)


def bench_suite(
    suite: str,
    only: Sequence[str] = (),
    *,
    peers: str,
    device: str = "",
    rounds: int = 7,
    out: Path | None = None,
) -> None:
    """Measure and print a suite, or those of its cases that `only` names. UnknownName lists what exists."""
    if suite == "sizes":
        _chosen((), only)
        print_solved(solve_programs())
        print_hostile(solve_hostile())
        return
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if suite == "shapes":
        chosen = _chosen(shape_cases(device), only or SURVEY)
        machine = describe_machine(device)
        print_shapes(_kept((run_shapes(case, device) for case in chosen), machine, out), machine)
        return
    if suite == "schedules":
        print_schedules(_chosen((*cases("kernels", device), survey_case("normalisation")), only), rounds)
        return
    _measure(_chosen(cases(suite, device), only), peers, device, rounds, out, floors=suite == "kernels")


def bench_registered(
    models: Sequence[tuple[ModelSource, Sizes]],
    *,
    peers: str,
    device: str,
    rounds: int = 7,
    out: Path | None = None,
    about: About = lambda source: nullcontext(),
) -> None:
    """Measure and print registered models, each at the sizes beside it; a shape makes a case of its rank.
    Within `about` a model's source is measured: it may say of whom an error is."""
    grouped: dict[str, Case] = {}
    registered: dict[str, ModelSource] = {}
    for source, sizes in models:
        case = _case(source, sizes)
        registered[case.source.name] = source
        before = grouped.get(case.source.name)
        grouped[case.source.name] = (
            case if before is None else replace(before, sizes=(*before.sizes, *case.sizes))
        )
    _measure(
        tuple(grouped.values()),
        peers,
        device,
        rounds,
        out,
        about=lambda case: about(registered[case.source.name]),
    )


def _case(source: ModelSource, sizes: Sizes) -> Case:
    if isinstance(sizes, Mapping):
        return Case(source, (dict(sizes),))
    ranks = [len(sizes) if declared.shape is None else len(declared.shape) for declared in source.inputs]
    ranked = replace(specialise(source, ranks), name=f"{source.name} rank {len(sizes)}")
    any_rank = [declared.name for declared in source.inputs if declared.shape is None]
    return Case(ranked, ({f"{name}_{axis}": size for name in any_rank for axis, size in enumerate(sizes)},))


def _measure(
    chosen: Sequence[Case],
    peers: str,
    device: str,
    rounds: int,
    out: Path | None,
    *,
    floors: bool = False,
    about: Callable[[Case], AbstractContextManager[object]] = lambda case: nullcontext(),
) -> list[CaseResult]:
    machine = describe_machine(device)
    if floors:
        machine[BANDWIDTH] = round(copy_bandwidth(device) / 1e9, 1)

    def run(number: int, case: Case) -> CaseResult:
        at = f"{len(case.sizes)} size{'s' if len(case.sizes) != 1 else ''}"
        contestants = ", ".join(("ours", *_words(peers)))
        said = f"{number} of {len(chosen)}: {case.source.name} at {at}, {rounds} rounds of {contestants}"
        typer.echo(said, err=True)
        with about(case):
            return run_case(case, device, _words(peers), rounds=rounds)

    results = _kept(map(run, itertools.count(1), chosen), machine, out)
    print_results(results, machine)
    return results


def _kept(results: Iterable[Result], machine: dict[str, Any], out: Path | None) -> list[Result]:
    """All results; each is kept as soon as it is there, so that a run cut short has kept what it measured."""
    done = []
    for result in results:
        done.append(result)
        if out is not None:
            keep([result], machine, out)
    return done


def _chosen(found: Sequence[Case], only: Sequence[str]) -> list[Case]:
    known = [case.source.name for case in found]
    unknown = [name for name in only if name not in known]
    if unknown:
        words = f"expected some of {', '.join(known)}" if known else "the suite is measured whole"
        raise UnknownName(f"unknown cases {', '.join(unknown)}: {words}")
    return [case for case in found if not only or case.source.name in only]


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
