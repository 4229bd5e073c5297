"""Print what a compilation decided: every input dim with its verdict and reason, every kernel with its tier, every call that
PyTorch runs, the guards, and the seconds by stage."""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dlcb.compiler.report import Report


def explain(report: Report, title: str) -> Group:
    """The report as tables for a terminal."""
    tier = f"{report.tier} tier" + (f", quarantined: {report.quarantined}" if report.quarantined else "")
    parts: list[Table | Text] = [Text(f"{title}: {tier}", style="bold")]
    if report.dims:
        parts.append(_dims(report))
    if report.kernels:
        parts.append(_kernels(report))
    if report.calls:
        parts.append(_calls(report))
    parts += [Text(f"guard  {guard}") for guard in report.guards]
    parts += [Text(f"note   {note}") for note in report.notes]
    if report.seconds:
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.seconds.items())
        cached = " (now from the kernel cache)" if report.from_cache else ""
        parts.append(Text(f"seconds {sum(report.seconds.values()):.2f}: {stages}{cached}"))
    return Group(*parts)


def _dims(report: Report) -> Table:
    table = Table(title="input dims", title_justify="left")
    for column in ("input", "axis", "size", "range", "certainty", "reason", "from"):
        table.add_column(column)
    for line in report.dims:
        span = "" if line.size.isdigit() else f"{line.low} to {'any' if line.high is None else line.high}"
        if line.multiple > 1:
            span += f", multiple of {line.multiple}"
        table.add_row(line.input, str(line.axis), line.size, span, line.certainty, line.reason, line.source_line)
    return table


def _kernels(report: Report) -> Table:
    table = Table(title=f"{len(report.kernels)} generated kernels", title_justify="left")
    for column in ("kernel", "tier", "variants", "writes", "fuses"):
        table.add_column(column)
    for line in report.kernels:
        table.add_row(line.name, line.tier, str(line.variants), ", ".join(line.outputs), " ".join(line.operators))
    return table


def _calls(report: Report) -> Table:
    table = Table(title="calls that PyTorch runs", title_justify="left")
    for column in ("operator", "tier", "calls", "reason"):
        table.add_column(column)
    for line in report.calls:
        table.add_row(line.operator, line.tier, str(line.count), line.reason)
    return table


def print_report(report: Report, title: str) -> None:
    Console().print(explain(report, title))
