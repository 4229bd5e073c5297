"""What a model's row at the start says of its graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from dlcb.compiler.report import GraphLine, Report
from dlcb.server.model import ServedModel
from dlcb.server.screen import ready_lines, report_line

TWO = (GraphLine("n < 9", 1, 0), GraphLine("8 < n", 1, 0))
REST = ("where n % 7 == 3, PyTorch runs the model: told to",)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report("dynamic"), "| 0 kernels | 1.5 s |"),
        (Report("dynamic", elsewhere=REST), "| 1 graph, else PyTorch | 1.5 s |"),
        (Report("dynamic", graphs=TWO), "| 2 graphs | 1.5 s |"),
        (Report("dynamic", graphs=TWO, elsewhere=REST), "| 2 graphs, else PyTorch | 1.5 s |"),
        (Report("eager", graphs=TWO, elsewhere=REST), "| PyTorch runs every call | 1.5 s |"),
    ],
)
def test_several_graphs_and_what_they_leave_to_pytorch(report: Report, words: str) -> None:
    assert words in report_line(report.to_json(), 1.5)


def ready(report: Report) -> ServedModel:
    source = SimpleNamespace(program="")
    model = SimpleNamespace(
        name="one", version="2", source=source, probes=(), compile_seconds=0.5, load_seconds=1.0, stacks=False
    )
    model.report, model.unpadded = report.to_json(), ""
    return cast(ServedModel, model)


@pytest.mark.parametrize(("count", "lines"), [(1, 1), (4, 4), (5, 4), (80, 4)])
def test_of_many_reasons_a_row_says_the_first_and_how_many_more(count: int, lines: int) -> None:
    reasons = tuple(f"where n == {k}, PyTorch runs the model: told to" for k in range(count))
    _row, *below = ready_lines(ready(Report("dynamic", elsewhere=reasons)))
    assert len(below) == lines and below[0].strip() == reasons[0]
    if count > 4:
        assert below[-1].strip() == f"{count - 3} further reasons of this kind are told by `dlcb explain one`"


def test_versions_of_a_model_are_told_apart() -> None:
    served = ready(Report("dynamic"))
    assert ready_lines(served, 4)[0].startswith("one          free none |")
    assert ready_lines(served, 4, versioned=True)[0].startswith("one          version 2 | free none |")
