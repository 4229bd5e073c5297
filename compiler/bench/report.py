"""Print benchmark results as tables, keep them as JSON with machine, versions and commit, and merge parts of a suite."""

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

_LEAST_GAIN = 1e-9


def print_results(results: Sequence[CaseResult], machine: dict[str, Any]) -> None:
    """Times, ratios with geometric means, compile seconds, break-even calls, first calls."""
    console = Console(width=180)
    rows = [row for result in results for row in result.rows]
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    console.print(_times(rows, names))
    console.print(_compiles(results))
    console.print(f"[dim]{json.dumps(machine)}[/dim]")


def _times(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table(title="milliseconds a call (median of interleaved rounds), and how many times faster ours is", title_justify="left")
    table.add_column("case")
    table.add_column("sizes")
    others = [name for name in names if name != "ours"]
    for name in names:
        table.add_column(name, justify="right")
    for name in others:
        table.add_column(f"ours / {name}", justify="right")
    table.add_column("error / eager's", justify="right")
    table.add_column("first call ours / eager ms", justify="right")
    for row in rows:
        times = [f"{1e3 * row.seconds[n]:.3f}" if n in row.seconds else "" for n in names]
        ratios = [_ratio(row.ratio(n)) for n in others]
        error = f"{row.error:.1e} / {row.eager_error:.1e}" + ("" if row.agrees else " WRONG")
        first = f"{1e3 * row.first_call['ours']:.1f} / {1e3 * row.first_call['eager']:.1f}" if row.first_call else ""
        table.add_row(row.case, _sizes(row), *times, *ratios, error, first)
    means = [_ratio(geometric_mean([r for row in rows if (r := row.ratio(n)) is not None])) for n in others]
    table.add_section()
    table.add_row("geometric mean", "", *("" for _ in names), *means, "", "")
    return table


def _compiles(results: Sequence[CaseResult]) -> Table:
    table = Table(title="compile seconds; calls after which they are paid back against eager", title_justify="left")
    for column in ("case", "kernels", "library", "eager nodes", "compile seconds", "stages", "break-even"):
        table.add_column(column)
    for result in results:
        seconds = ", ".join(f"{name} {s:.2f}" for name, s in result.compile_seconds.items())
        stages = ", ".join(f"{name} {s:.2f}" for name, s in result.stages.items())
        table.add_row(result.case, str(result.kernels), str(result.library_calls), str(result.eager_nodes), seconds, stages,
                      ", ".join(break_even(result, row) for row in result.rows))  # fmt: skip
    return table


def break_even(result: CaseResult, row: Row) -> str:
    """compile seconds / seconds saved a call, as a whole number; "none" where ours is not faster than eager."""
    saved = row.seconds.get("eager", 0.0) - row.seconds["ours"]
    return "none" if saved < _LEAST_GAIN else str(int(result.compile_seconds["ours cold"] / saved) + 1)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _sizes(row: Row) -> str:
    return "x".join(str(size) for size in row.sizes.values())


def keep(results: Sequence[CaseResult], machine: dict[str, Any], path: Path) -> None:
    """Write `path`, merged with what it holds of the same commit and machine: a case run again replaces itself."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    cases = kept.get("cases", {}) if kept.get("machine") == machine else {}
    cases.update({result.case: asdict(result) for result in results})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "cases": cases}, indent=1) + "\n")
