"""How long the sizes of a long program take to solve: programs of a given number of operators and size
variables come in, processor seconds, steps and why the engine stopped go out. The promise is 2,000 operators
and 300 variables in under a second on one core, and time linear in the graph, also where a program is made to
be hard (`hostile`)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from dlcb.compiler.bench.hostile import FAMILIES
from dlcb.compiler.expr.node import ONE
from dlcb.compiler.shapes.system import Provenance, System
from dlcb.compiler.solver.engine import STEPS

PROGRAMS = ((500, 75), (1_000, 150), (2_000, 300), (4_000, 600))  # operators, size variables
HOSTILE = (150, 300)  # size variables
_ROUNDS = 3
_SPENT = 2_000  # steps; a budget that the longer programs exhaust


@dataclass(frozen=True)
class Solved:
    """One program: `seconds` of processor time, the least of several rounds; `residual`: guards left to check
    at run time."""

    operators: int
    variables: int
    budget: int
    seconds: float
    steps: int
    stopped: str
    residual: int


def program(operators: int, variables: int, budget: int = STEPS) -> System:
    """A long program with what graphs state: broadcasts, reshapes, equal sums, convolution sizes, unions,
    ranges."""
    system = System(budget)
    sizes = [system.fresh(f"s{k}") for k in range(variables)]
    for k in range(operators):
        infer = system.inference(Provenance("operator", f"model.py:{k}", "%x, %y"))
        a, b = sizes[k % variables], sizes[(k * 7 + 1) % variables]
        match k % 8:
            case 0:
                infer.broadcast(a, sizes[(k + 8) % variables])
            case 1:
                infer.equal(a * 64, infer.exact_quotient(a * b * 64, b))
            case 2:
                infer.equal(a + b, b + a)
            case 3:
                infer.equal(sizes[k // 8 % variables], sizes[k // 8 * 3 % variables])
            case 4:
                infer.require(a + 2 >= 3)
            case 5:
                infer.equal((a - 1) // 2 + 1, (a + 1) // 2)
            case 6:
                infer.equal(infer.broadcast(a, ONE), a)
            case 7:
                system.simplify(a * b * 4 // 4 + (a * 12 + 5) // 3)
    return system


def solve_programs(programs: Iterable[tuple[int, int]] = PROGRAMS) -> list[Solved]:
    """Each program with the engine's own budget and with one that is soon spent."""
    return [_solved(*each, budget) for each in programs for budget in (STEPS, _SPENT)]


def _solved(operators: int, variables: int, budget: int) -> Solved:
    seconds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        solution = program(operators, variables, budget).solve()
        seconds.append(time.process_time() - start)
    report = solution.report
    return Solved(
        operators, variables, budget, min(seconds), report.steps, report.stopped, len(solution.guards)
    )


@dataclass(frozen=True)
class Hard:
    """A system that is made to be hard to solve, at two numbers of size variables."""

    name: str
    seconds: tuple[float, ...]
    steps: tuple[int, ...]
    stopped: str


def solve_hostile(counts: Iterable[int] = HOSTILE) -> list[Hard]:
    """Each family of systems at so many size variables."""
    counts = tuple(counts)
    results = []
    for name, family in FAMILIES.items():
        seconds, reports = [], []
        for count in counts:
            start = time.process_time()
            system = System()
            family(system, count)
            reports.append(system.solve().report)
            seconds.append(time.process_time() - start)
        steps = tuple(report.steps for report in reports)
        results.append(Hard(name, tuple(seconds), steps, reports[-1].stopped))
    return results


def print_hostile(results: Iterable[Hard]) -> None:
    """A line a family."""
    table = Table(
        title=f"systems that are hard to solve, at {' and '.join(map(str, HOSTILE))} size variables",
        title_justify="left",
    )
    for column in ("family", "seconds", "steps", "stopped"):
        table.add_column(column, justify="left" if column in ("family", "stopped") else "right")
    for each in results:
        seconds = ", ".join(f"{second:.2f}" for second in each.seconds)
        steps = ", ".join(f"{count:,}" for count in each.steps)
        table.add_row(each.name, seconds, steps, each.stopped)
    Console(width=180).print(table)


def print_solved(results: Iterable[Solved]) -> None:
    """A line a program and budget."""
    table = Table(title="solving the sizes of a program: processor seconds, one core", title_justify="left")
    for column in ("operators", "variables", "budget", "seconds", "steps", "stopped", "guards"):
        table.add_column(column, justify="left" if column == "stopped" else "right")
    for each in results:
        counts = (f"{count:,}" for count in (each.operators, each.variables, each.budget))
        table.add_row(*counts, f"{each.seconds:.2f}", f"{each.steps:,}", each.stopped, f"{each.residual:,}")
    Console(width=180).print(table)
