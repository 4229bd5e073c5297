"""Print benchmark results as tables, keep them as JSON with machine, versions and commit, and merge parts of
a suite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dlcb.compiler.bench.measure import geometric_mean
from dlcb.compiler.bench.run import CaseResult, Row
from dlcb.compiler.bench.shapes import ShapesResult

BANDWIDTH = "copy bandwidth GB/s"  # of describe_machine's values, where it was measured
_LEAST_GAIN = 1e-9
_QUIET = 0.15  # highest less lowest round over the median; a machine that does nothing else stays below


def print_results(results: Sequence[CaseResult], machine: dict[str, Any]) -> None:
    """Times, ratios with geometric means, compile seconds, break-even calls, first calls."""
    console = Console(width=180)
    rows = [row for result in results for row in result.rows]
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    console.print(_times(rows, names))
    console.print(spread_of(rows), highlight=False)
    if BANDWIDTH in machine:
        console.print(_floors(rows, names, 1e9 * machine[BANDWIDTH]))
    console.print(_compiles(results))
    console.print(f"[dim]{json.dumps(machine)}[/dim]")


def _times(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table(
        title="milliseconds a call (median of interleaved rounds), and how many times faster ours is",
        title_justify="left",
    )
    table.add_column("case")
    table.add_column("sizes")
    others = [name for name in names if name != "ours"]
    for name in names:
        table.add_column(name, justify="right")
    for name in others:
        table.add_column(f"{name} / ours", justify="right")
    table.add_column("error / eager's", justify="right")
    table.add_column("first call ours / eager ms", justify="right")
    for row in rows:
        times = [f"{1e3 * row.seconds[n]:.3f}" if n in row.seconds else "" for n in names]
        ratios = [_ratio(row.ratio(n)) for n in others]
        error = f"{row.error:.1e} / {row.eager_error:.1e}" + ("" if row.agrees else " WRONG")
        first = (
            f"{1e3 * row.first_call['ours']:.1f} / {1e3 * row.first_call['eager']:.1f}"
            if row.first_call
            else ""
        )
        table.add_row(row.case, _sizes(row), *times, *ratios, error, first)
    means = [_ratio(geometric_mean([r for row in rows if (r := row.ratio(n)) is not None])) for n in others]
    table.add_section()
    table.add_row("geometric mean", "", *("" for _ in names), *means, "", "")
    return table


def spread_of(rows: Sequence[Row]) -> str:
    """How far the rounds of one contestant lay apart, and what that says of ratios."""
    spreads = [(spread, row, name) for row in rows for name, spread in row.spread.items()]
    if not spreads:
        return "spread of rounds: not measured"
    worst, row, name = max(spreads, key=lambda one: one[0])
    said = f"spread of rounds: up to {1 + worst:.2f} times ({name}, {row.case} at {_sizes(row)})"
    if worst <= _QUIET:
        return said
    return f"{said}: this machine is busy, ratios closer to 1 than that say nothing"


def _floors(rows: Sequence[Row], names: Sequence[str], bandwidth: float) -> Table:
    title = f"times the floor: bytes that must move, at the {bandwidth / 1e9:.0f} GB/s of a copy"
    table = Table(title=title, title_justify="left")
    for column in ("case", "sizes", "MB", "floor ms"):
        table.add_column(column)
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        floor = row.least_bytes / bandwidth
        over = [f"{row.seconds[name] / floor:.2f}" if name in row.seconds else "" for name in names]
        table.add_row(row.case, _sizes(row), f"{row.least_bytes / 1e6:.1f}", f"{1e3 * floor:.3f}", *over)
    return table


def print_shapes(results: Sequence[ShapesResult], machine: dict[str, Any]) -> None:
    """A line a contestant: all calls, how many times ours takes that, compiles apart, both together."""
    console = Console(width=180)
    table = Table(title="distinct pairs of sizes, each met once: seconds of all calls", title_justify="left")
    for column in (
        "case",
        "pairs",
        "contestant",
        "calls s",
        "over ours",
        "compiles",
        "compile s",
        "together s",
    ):
        table.add_column(column, justify="left" if column in ("case", "contestant") else "right")
    for result in results:
        for name, seconds in result.seconds.items():
            compiling = result.compile_seconds.get(name, 0.0)
            count = result.compiles.get(name, 0)
            over = f"{seconds / result.seconds['ours']:.2f}"
            numbers = (f"{seconds:.3f}", over, str(count), f"{compiling:.2f}", f"{seconds + compiling:.2f}")
            table.add_row(result.case, str(result.pairs), name, *numbers)
    console.print(table)
    console.print(f"[dim]{json.dumps(machine)}[/dim]")


def _compiles(results: Sequence[CaseResult]) -> Table:
    table = Table(
        title="compile seconds; calls after which they are paid back against eager", title_justify="left"
    )
    for column in ("case", "kernels", "library", "eager nodes", "compile seconds", "stages", "break-even"):
        table.add_column(column)
    for result in results:
        seconds = ", ".join(f"{name} {s:.2f}" for name, s in result.compile_seconds.items())
        stages = ", ".join(f"{name} {s:.2f}" for name, s in result.stages.items())
        counts = (str(count) for count in (result.kernels, result.library_calls, result.eager_nodes))
        paid = ", ".join(break_even(result, row) for row in result.rows)
        table.add_row(result.case, *counts, seconds, stages, paid)
    return table


def break_even(result: CaseResult, row: Row) -> str:
    """compile seconds / seconds saved a call, as a whole number; "none" where ours is not faster than
    eager."""
    saved = row.seconds.get("eager", 0.0) - row.seconds["ours"]
    return "none" if saved < _LEAST_GAIN else str(int(result.compile_seconds["ours cold"] / saved) + 1)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _sizes(row: Row) -> str:
    return "x".join(str(size) for size in row.sizes.values())


def keep(results: Sequence[CaseResult | ShapesResult], machine: dict[str, Any], path: Path) -> None:
    """Write `path`, merged with what it holds of the same commit and machine: a case run again replaces
    itself."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    cases = kept.get("cases", {}) if kept.get("machine") == machine else {}
    cases.update({result.case: asdict(result) for result in results})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "cases": cases}, indent=1) + "\n")
