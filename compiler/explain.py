"""Print what a compilation decided: every input dim with its verdict and reason, every kernel with its tier,
every call that PyTorch runs, the guards, and the seconds by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from dlcb.compiler.report import CallLine, DimLine, GuardLine, KernelLine, Report

TIERS = {
    "static": "all sizes are known",
    "dynamic": "compiled once, sizes are launch arguments",
    "jit": "compiled for a rank when it is first met",
    "eager": "PyTorch runs it",
}
REFUSED = "; PyTorch refuses "


def explain(report: Report, title: str) -> Group:
    """The report as tables for a terminal."""
    meaning = TIERS.get(report.tier, "") + (f": {report.quarantined}" if report.quarantined else "")
    tier = f"{report.tier} tier" + (f": {meaning}" if meaning else "")
    parts: list[Table | Text] = [Text(f"{title}: {tier}", style="bold")]
    if report.dims:
        parts += [_dims(report), *_reasons(report)]
    if report.unproven:
        parts.append(Text(f"shapes are confirmed one by one, against PyTorch: {report.unproven}"))
    if report.graphs:
        parts.append(_graphs(report))
    if report.kernels:
        parts.append(_kernels(report))
    if report.calls:
        parts.append(_calls(report))
    parts += [Text(f"guard  {_condition(line, report)}  [{_because(line)}]") for line in report.guards]
    parts += [Text(f"rest   {line}") for line in report.elsewhere]
    parts += [Text(f"batch  {line}") for line in report.batching]
    parts += [Text(f"note   {note}") for note in report.notes]
    if report.seconds:
        slowest_first = sorted(report.seconds.items(), key=lambda stage: -stage[1])
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in slowest_first)
        cached = " (now from the kernel cache)" if report.from_cache else ""
        parts.append(Text(f"seconds {sum(report.seconds.values()):.2f}: {stages}{cached}"))
    return Group(*parts)


def _because(line: GuardLine | DimLine) -> str:
    reason, refused, words = line.reason.partition(REFUSED)  # of which no line of the model is known
    return ", ".join(filter(None, (reason, line.source_line))) + refused + words


def _dims(report: Report) -> Table:
    rows = []
    for line in report.dims:
        high = "any" if line.high is None else line.high
        span = "pinned" if line.size.isdigit() else f"{line.low} to {high}"
        if line.multiple > 1:
            span += f", multiple of {line.multiple}"
        rows.append((line.input, str(line.axis), line.size, span, line.certainty, line.beyond))
    columns = ("input", "axis", "size", "range", "certainty", "other sizes")
    return _table("input dims", columns, rows)


def _reasons(report: Report) -> list[Text]:
    """Why each size is what it is: once, wherever it stands."""
    sizes = {
        (line.size if not line.size.isdigit() else f"{line.input}[{line.axis}] = {line.size}"): line
        for line in report.dims
    }
    return [Text(f"size   {size}: {_because(line)}") for size, line in sizes.items()]


def _graphs(report: Report) -> Table:
    rows = [
        (str(number), line.serves, str(line.kernels), str(line.calls), ", ".join(line.source_lines))
        for number, line in enumerate(report.graphs, 1)
    ]
    title = "graphs, tried in this order"
    return _table(title, ("graph", "serves", "kernels", "calls", "from"), rows)


def _kernels(report: Report) -> Table:
    rows = [
        (_of(line, report), line.tier, str(line.variants), ", ".join(line.outputs), " ".join(line.operators))
        for line in report.kernels
    ]
    title = f"{len(rows)} generated kernel{'s' if len(rows) != 1 else ''}"
    return _table(title, ("kernel", "tier", "variants", "writes", "fuses"), rows)


def _of(line: KernelLine | CallLine, report: Report) -> str:
    """What runs, and in which graph where there are several."""
    name = line.name if isinstance(line, KernelLine) else line.operator
    return f"{name} of graph {line.graph}" if report.graphs else name


def _condition(line: GuardLine, report: Report) -> str:
    """A guard, and whose it is where there are several graphs."""
    return f"{line.condition}  in graph {line.graph}" if report.graphs else line.condition


def _calls(report: Report) -> Table:
    rows = [(_of(line, report), line.tier, str(line.count), line.reason) for line in report.calls]
    return _table("calls that PyTorch runs", ("operator", "tier", "calls", "reason"), rows)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Cells are plain text: the brackets of a type are no markup."""
    first, *others = columns
    shown = (Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others))
    table = Table(*shown, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
