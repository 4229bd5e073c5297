"""What `dlcb serve` shows on its way to ready: at once what is being started, on a terminal a bar for each
model with the stage it is in, one line a model when it is ready, and the URL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if (
    TYPE_CHECKING
):  # NumPy and the web stack, which take a second to load: the first lines are to be there before
    from dlcb.server.model import ServedModel

WORKERS = "workers"
LEAST_WIDTH = 12  # of the column of names
_MOST_REASONS = 3  # of one kind below a row; a program with many branches has dozens


class Terminal:
    """Standard output for lines that matter, standard error for the bars and for failures. `models` are the
    names of those that are being started, or whatever is being done with them."""

    def __init__(self, models: Sequence[str] = (), doing: str = "starting") -> None:
        self._out = Console(highlight=False, soft_wrap=True)
        self._error = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bars = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[stage]:<18}"),
            TimeElapsedColumn(),
            console=self._error,
            transient=True,
            refresh_per_second=4,  # what is being started needs the processors
            redirect_stdout=self._out.is_terminal,  # what goes to a file is not for the bars' terminal
            disable=not self._error.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._width = max(map(len, models), default=0)
        self._several = {name for name in models if models.count(name) > 1}  # versions
        self._out.print(f"{doing} {', '.join(models) or 'without a model'}", markup=False)
        self._tasks[WORKERS] = self._bars.add_task(WORKERS, total=None, stage="loading PyTorch")
        for name in dict.fromkeys(models):
            self._tasks[name] = self._bars.add_task(name, total=None, stage="waiting")
        self._bars.start()

    def progress(self, model: str, stage: str, fraction: float) -> None:
        self._bars.update(self._tasks[model], total=1.0, completed=fraction, stage=stage)

    def workers_started(self) -> None:
        self._bars.update(self._tasks[WORKERS], visible=False)

    def loaded(self, model: ServedModel) -> None:
        self._bars.update(self._tasks[model.name], visible=False)
        for line in ready_lines(model, self._width, versioned=model.name in self._several):
            self._out.print(line, markup=False)

    def left_out(self, model: str, line: str) -> None:
        self._bars.update(self._tasks[model], visible=False)
        self._out.print(f"{model:<12} left out: {' '.join(line.split())}", markup=False)

    def ready(self, url: str) -> None:
        self._bars.stop()
        self._out.print(f"ready at {url}", markup=False)

    def passed(self, line: str) -> None:
        self._bars.stop()
        self._out.print(line, markup=False)

    def stopping(self, seconds: float) -> None:
        self._out.print(f"stopping: serves {seconds:g} s more; once again ends it at once", markup=False)

    def failed(self, line: str) -> None:
        self._bars.stop()
        self._error.print(f"dlcb: {' '.join(line.split())}", markup=False)


def ready_lines(model: ServedModel, width: int = 0, versioned: bool = False) -> list[str]:
    """`minilm  free batch, sequence | dynamic | 31 kernels | stacks batch | 7.9 s | cache miss`,
    and below it why PyTorch runs it, where it does, at which sizes no graph of it serves, and why requests do
    not share batches as far as they were meant to. `width` is that of the longest name; `versioned`: others
    have the same name."""
    width = max(width, LEAST_WIDTH)
    ranks = sorted({len(shape) for shape in model.probes})
    seconds = model.compile_seconds + model.load_seconds
    line = report_line(model.report, seconds, batching_words(model), ranks)
    said = [f"not padded: {model.unpadded}"] if model.unpadded else []
    if model.report.get("tier") != "eager":
        said = [*_first(model.report.get("elsewhere", ()), model.name), *said]
    if model.source.program:  # its file does not tell what was read from a size
        said = [*_first(model.report.get("notes", ()), model.name), *said]
    if why := model.report.get("quarantined"):
        said.insert(0, f"PyTorch runs it: {why}")
    if model.stacks and model.signature.batch is None:
        said = [*model.report.get("batching", ()), *said]
    line = f"version {model.version} | {line}" if versioned else line
    return [f"{model.name:<{width}} {line}", *(f"{'':<{width}}   {' '.join(text.split())}" for text in said)]


def _first(reasons: Sequence[str], name: str) -> list[str]:
    """The first of them, and how many there are more."""
    more = len(reasons) - _MOST_REASONS
    if more < 2:  # one more takes no more room than a line about it
        return list(reasons)
    return [
        *reasons[:_MOST_REASONS],
        f"{more} further reasons of this kind are told by `dlcb explain {name}`",
    ]


def batching_words(model: ServedModel) -> str:
    """What requests that wait together share, in a few words."""
    if not model.stacks or model.signature.batch is None:
        return "each request alone"
    padded = () if model.padding is None else model.padding.symbols
    return f"stacks {model.signature.batch.symbol}" + (f", pads {', '.join(padded)}" if padded else "")


def report_line(
    report: Mapping[str, Any], seconds: float, batching: str = "", ranks: Sequence[int] = ()
) -> str:
    """A compilation on one line; `report` is the JSON of a `dlcb.compiler.report.Report`, `ranks` are those
    that a model of any rank is already compiled for."""
    free = [dim["size"] for dim in report.get("dims", ()) if not str(dim["size"]).isdigit()]
    calls: dict[str, int] = {}
    for call in report.get("calls", ()):
        calls[call["tier"]] = calls.get(call["tier"], 0) + call["count"]
    tier = str(report.get("tier", "?"))
    kernels = len(report.get("kernels", ()))
    counted = (
        (kernels, "kernel"),
        (calls.get("library", 0), "library call"),
        (calls.get("eager", 0), "eager node"),
    )
    made = [
        f"{count} {word}{'' if count == 1 else 's'}" for count, word in counted if count or word == "kernel"
    ]
    sizes = f"free {', '.join(dict.fromkeys(free)) or 'none'}"
    parts = [
        {"jit": "free rank", "eager": "any size"}.get(tier, sizes),
        tier,
        {"jit": _ranks(ranks), "eager": "PyTorch runs every call"}.get(tier, ", ".join(made)),
        *_graphs(report),
        *([batching] if batching else []),
        f"{seconds:.1f} s",
        f"cache {'hit' if report.get('from_cache') else 'miss'}",
    ]
    return " | ".join(parts)


def _graphs(report: Mapping[str, Any]) -> list[str]:
    """How many there are, of a model that has several or leaves sizes to PyTorch."""
    count, elsewhere = len(report.get("graphs", ())) or 1, report.get("elsewhere", ())
    if report.get("tier") == "eager" or (count == 1 and not elsewhere):
        return []
    return [f"{count} graph{'s' if count > 1 else ''}{', else PyTorch' if elsewhere else ''}"]


def _ranks(compiled: Sequence[int]) -> str:
    if not compiled:
        return "each rank compiled when first met"
    numbers = ", ".join(map(str, compiled))
    return f"rank{'s' if len(compiled) > 1 else ''} {numbers} compiled, others when first met"
