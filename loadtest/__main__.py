"""The load test's command line: `python -m dlcb.loadtest run` and `python -m dlcb.loadtest race`.

`run` drives scenarios against one server and checks every answer's values; `race` sets the server beside a
bare ASGI application and other servers. Both print a table, write what they measured with machine and commit,
and exit with 1 if an answer was wrong.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from dlcb.loadtest import batching as sharing
from dlcb.loadtest import endurance, launch, report
from dlcb.loadtest import race as racing
from dlcb.loadtest.contestants import CONTESTANTS
from dlcb.loadtest.drive import Request, Tally, alone, closed_loop, open_loop
from dlcb.loadtest.own import ATTEMPTS, OwnModel, elements, kinds, own_model, served
from dlcb.loadtest.reference import Reference, eager_references, registered
from dlcb.loadtest.scenarios import SCENARIOS, Scenario
from dlcb.loadtest.wire import WireError
from dlcb.server.errors import ConfigError

RESULTS = Path("build/loadtest")  # which git ignores; loadtest/results holds those that are published
REFUSALS = (WireError, RuntimeError, ValueError, IndexError, ZeroDivisionError)  # of shapes, by either side
FEWEST = 8  # distinct requests a scenario, however long the answers to compare with take
MENDABLE = (launch.LaunchError, ConfigError, WireError, OSError)
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
Named = TypeVar("Named")
console = Console(width=None if sys.stdout.isatty() else 120)


@app.command()
def run(
    scenario: Annotated[list[str] | None, typer.Option(help="Scenario by name; may be repeated.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the server's, at shapes that it calls legal; may be repeated."),
    ] = None,
    url: Annotated[str, typer.Option(help="A running server.")] = "http://127.0.0.1:8000",
    start: Annotated[Path | None, typer.Option(help="Start a server from this config instead.")] = None,
    eager: Annotated[Path | None, typer.Option(help="Check against eager models of this config.")] = None,
    connections: Annotated[int, typer.Option(min=1, max=1024)] = 8,
    rate: Annotated[float, typer.Option(min=0, help="Open loop: arrivals a second. 0: closed loop.")] = 0.0,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Of load in all.")] = 40.0,
    requests: Annotated[int, typer.Option(min=1, help="Most distinct requests a scenario.")] = 100,
    seed: Annotated[int | None, typer.Option(help="Repeat an earlier run's draws.")] = None,
    tolerance: Annotated[float, typer.Option(help="Of an output's largest magnitude.")] = 1e-4,
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Drive a server with variable shapes and check every answer's values: by the scenarios written for the
    quickstart models, and any other model by what the server says of its sizes."""
    named = _named("scenario", SCENARIOS, scenario or ())
    seed = secrets.randbits(32) if seed is None else seed
    loop = f"open loop, {rate:g} arrivals/s" if rate else "closed loop"
    console.print(f"seed {seed}; {loop}; {connections} connections")
    _announce(seconds, "shared by the models", start is not None)
    config = eager or start
    if named and not model:  # what cannot be compared with is told before a server starts
        eager_references(config, {one.model for one in named})
    with ExitStack() as stack:
        if start:
            url = f"http://{launch.HOST}:{stack.enter_context(launch.server(start))}"
        own = [own_model(url, name) for name in model or ()]
        chosen: list[Scenario | OwnModel] = [*named, *own] or _served(url, config)
        references = eager_references(config, {one.model for one in chosen})
        measured = [
            _measure(
                one,
                url,
                references.get(one.model),
                np.random.default_rng([seed, at]),
                requests=requests,
                rate=rate,
                connections=connections,
                seconds=seconds / len(chosen),
                tolerance=tolerance,
            )
            for at, one in enumerate(chosen)
        ]
    settings = {
        "seed": seed,
        "connections": connections,
        "rate": rate,
        "requests": requests,
        "seconds": seconds,
    }
    written = report.write(
        results, "run", {"place": report.place(), "settings": settings, "scenarios": measured}
    )
    console.print(_table(measured))
    console.print(f"written to {written}")
    for one in measured:
        for complaint in one["complaints"]:
            console.print(f"[red]{one['scenario']}[/red]: {complaint}", highlight=False)
    if any(one["failures"] for one in measured):
        raise typer.Exit(1)


@app.command()
def race(
    wrk: Annotated[Path, typer.Option(help="The wrk program.")] = Path("wrk"),
    peers: Annotated[Path | None, typer.Option(help="Python of an environment with the peers in it.")] = None,
    contestant: Annotated[list[str] | None, typer.Option(help="By name; may be repeated.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="By name; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=50)] = 5,
    seconds: Annotated[int, typer.Option(min=1, max=60, help="Of each contestant in each round.")] = 3,
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Race the server against a bare ASGI application, and with --peers against other servers."""
    known = {one.name: one for one in CONTESTANTS}
    usual = [one.name for one in CONTESTANTS if peers or not one.peer]
    taking_part = _named("contestant", known, contestant or usual)
    all_cases = {one.name: one for one in racing.CASES}
    cases = _named("case", all_cases, case or list(all_cases))
    turns = len(taking_part) * len(cases)
    _announce(
        turns * (rounds * seconds + 1), f"at most {turns} times {rounds} rounds of {seconds} s and 1 s before"
    )
    raced = racing.race(
        cases, taking_part, peers or Path(sys.executable), wrk, rounds=rounds, seconds=seconds
    )
    rows = [row for one in cases for row in racing.summary(one, raced[one.name])]
    said = [
        line
        for one in cases
        for line in racing.verdicts(one, [row for row in rows if row["case"] == one.name])
    ]
    settings = {"rounds": rounds, "seconds": seconds}
    written = report.write(
        results, "race", {"place": report.place(), "settings": settings, "rows": rows, "verdicts": said}
    )
    console.print(_race_table(rows))
    for line in said:
        console.print(line, highlight=False)
    console.print(f"written to {written}")
    for row in rows:
        if row["wrong"]:
            console.print(
                f"[red]{row['contestant']}, {row['case']}[/red]: {row['wrong']} wrong: {row['complaint']}"
            )
    if any(row["wrong"] for row in rows):
        raise typer.Exit(1)


@app.command()
def overload(
    seconds: Annotated[float, typer.Option(min=1, max=600, help="Of overload.")] = 60.0,
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Three times the load that the server can bear: does it still do what it can, and refuse the rest?"""
    before = endurance.WARM_UP + endurance.measuring(seconds)
    _announce(before + seconds, f"{before:g} s to find what it can bear, {seconds:g} s of overload")
    _conclude("overload", endurance.overload(seconds), results)


@app.command()
def soak(
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="For all shapes.")] = 600.0,
    shapes: Annotated[int, typer.Option(min=16, max=16_000)] = 10_000,
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Thousands of different shapes: does resident memory stay where it was?"""
    _announce(seconds, f"{shapes} shapes")
    _conclude("soak", endurance.soak(seconds, shapes), results)


@app.command()
def beside(
    seconds: Annotated[float, typer.Option(min=1, max=600, help="Of load before each model loads.")] = 20.0,
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """A model compiles and loads: does the latency of another one move?"""
    _announce(
        endurance.ROUNDS * seconds,
        f"{endurance.ROUNDS} rounds of {seconds:g} s, and as long as a model takes to load in each",
    )
    _conclude("beside", endurance.beside(seconds), results)


@app.command()
def batching(
    seconds: Annotated[float, typer.Option(min=1, max=600, help="Of each way in each round.")] = 10.0,
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Sentences of all lengths: what is it worth to run them together, and not to pad them?"""
    turns = (sharing.ROUNDS + 1) * sharing.WAYS
    _announce(turns * seconds, f"{sharing.ROUNDS} rounds and one to warm up, {sharing.WAYS} ways in each")
    _conclude("batching", sharing.batching(seconds), results)


def _announce(seconds: float, parts: str, starts: bool = True) -> None:
    """Say how long the whole will take, as far as that is known before."""
    rest = "starting the server, and the answers to compare with" if starts else "the answers to compare with"
    console.print(f"{seconds:g} s of load in all ({parts}), beside {rest}", highlight=False)


def _conclude(name: str, outcome: endurance.Outcome, results: Path) -> None:
    written = report.write(
        results, name, {"place": report.place(), "verdict": outcome.verdict, "numbers": outcome.numbers}
    )
    console.print(outcome.verdict, highlight=False)
    console.print(f"written to {written}")
    if not outcome.met:
        raise typer.Exit(1)


def _named(what: str, known: Mapping[str, Named], names: Sequence[str]) -> list[Named]:
    """Those of `known` that were asked for, each once. BadParameter for a name that is none of them."""
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"no {what} {name!r}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def _served(url: str, config: Path | None) -> list[Scenario | OwnModel]:
    """What drives each model that the server has, of `config` where one is given."""
    chosen: list[Scenario | OwnModel] = []
    for name in served(url):
        if config is not None and name not in registered(config):
            continue
        try:
            own = own_model(url, name)
        except WireError as error:
            console.print(f"left out: {error}", highlight=False)
            continue
        takes = {given.name for given in own.inputs}
        written = [
            one
            for one in SCENARIOS.values()
            if one.model == name and {given.name for given in one.inputs} == takes
        ]
        chosen += written or [own]
    if not chosen:
        raise WireError(f"{url} serves no model that can be driven")
    return chosen


def _measure(
    scenario: Scenario | OwnModel,
    url: str,
    reference: Reference | None,
    random: np.random.Generator,
    *,
    requests: int,
    rate: float,
    connections: int,
    seconds: float,
    tolerance: float,
) -> dict[str, Any]:
    host, port = _address(url)
    before = report.scrape(url)
    drawn: list[dict[str, np.ndarray]] = []
    expected: list[dict[str, np.ndarray]] = []
    until = time.perf_counter() + seconds  # answers to compare with may take as long as the load
    refused = 0
    while len(drawn) < requests and (len(drawn) < FEWEST or time.perf_counter() < until):
        inputs = scenario.draw(random)
        try:
            if reference:
                expected.append(reference(inputs))
            else:  # sent alone once: under load it must get that answer again
                sent = Request.of(scenario.model, inputs, scenario.encoding, None)
                expected += asyncio.run(alone(host, port, [sent]))
        except REFUSALS as error:
            refused += 1
            if refused > ATTEMPTS * (1 + len(drawn)):
                raise WireError(f"{scenario.model} takes few shapes that it calls legal: {error}") from error
            continue
        drawn.append(inputs)
    source = "eager PyTorch" if reference else "the server, alone"
    console.print(
        f"{scenario.name}: {len(drawn)} answers of {source} to compare with, {seconds:.3g} s of load"
    )
    ready = [
        Request.of(scenario.model, inputs, scenario.encoding, outputs, kind=kind)
        for inputs, outputs, kind in zip(drawn, expected, kinds(drawn), strict=True)
    ]
    tally: Tally
    if rate:
        tally = asyncio.run(
            open_loop(
                host, port, ready, rate=rate, connections=connections, seconds=seconds, tolerance=tolerance
            )
        )
    else:
        tally = asyncio.run(
            closed_loop(host, port, ready, connections=connections, seconds=seconds, tolerance=tolerance)
        )
    by_size = [kind for _, kind in sorted(zip(map(elements, drawn), kinds(drawn), strict=True))]
    return {
        "scenario": scenario.name,
        "reference": "eager" if reference else "itself, alone",
        **report.summary(tally, list(dict.fromkeys(by_size))),
        "failures": tally.failures,
        "shape_cache": report.shape_cache(before, report.scrape(url), scenario.model),
    }


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise typer.BadParameter(f"{url!r} is not an http:// URL")
    return parts.hostname, parts.port or 80


def _table(measured: list[dict[str, Any]]) -> Table:
    table = Table(
        Column("scenario", no_wrap=True),
        *("checked against", "rps", "p50 ms", "p90 ms", "p99 ms"),
        *("good", "failed", "cache hits", "by PyTorch"),
    )
    for one in measured:
        latency, rate = one["latency_ms"], one["shape_cache"]["hit_rate"]
        table.add_row(
            one["scenario"],
            one["reference"],
            f"{one['rps']:g}",
            *(f"{latency[name]:.2f}" if latency else "-" for name in ("p50", "p90", "p99")),
            str(one["good"]),
            str(one["failures"]),
            "-" if rate is None else f"{rate:.1%}",
            str(one["shape_cache"]["by_pytorch"]),
        )
        for kind, found in one["by_shape"].items():
            columns = [f"{found['latency_ms'][name]:.2f}" for name in ("p50", "p90", "p99")]
            table.add_row(f"  {kind}", "", "", *columns, str(found["good"]))
    return table


def _race_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("case", "contestant", "rps", "of raw ASGI", "p50 ms", "CPU us a request", "wrong")
    for row in rows:
        table.add_row(
            row["case"],
            row["contestant"],
            f"{row['rps']:g}",
            "-" if row["of_raw"] is None else f"{row['of_raw']:.2f}",
            f"{row['p50_ms']:.3f}",
            f"{row['cpu_us']:.0f}",
            str(row["wrong"]),
        )
    return table


def main() -> None:
    """Runs the command; what a user can mend is one line on standard error and exit code 1."""
    try:
        app()
    except MENDABLE as error:
        console.print(f"error: {error}", style="red", highlight=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
