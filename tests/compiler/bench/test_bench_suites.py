"""The benchmark's suites: every case can be drawn and run by eager PyTorch, a case of each new kind is
measured, and what is kept can be merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dlcb.compiler import UnknownName
from dlcb.compiler.bench.cli import bench_registered, bench_suite
from dlcb.compiler.bench.floors import bytes_at_least
from dlcb.compiler.bench.report import spread_of
from dlcb.compiler.bench.run import Row
from dlcb.compiler.bench.shapes import run_shapes, shape_cases
from dlcb.compiler.bench.suites import Case, case_inputs, cases
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.source import InputDeclaration, ModelSource

SMALL = {"rows": 5, "columns": 7, "batch": 2, "length": 3, "height": 4, "width": 6}


def small(case: Case) -> dict[str, int]:
    return {name: SMALL[name] for name in case.sizes[0]}


@pytest.mark.parametrize("suite", ["survey", "kernels", "operators"])
def test_every_case_runs_at_small_sizes(suite: str) -> None:
    for case in cases(suite, "cpu"):
        module = load_module(case.source)
        with torch.no_grad():
            module(*case_inputs(case, small(case), "cpu", 0).values())


def test_the_least_bytes_are_each_input_and_output_once() -> None:
    assert bytes_at_least([torch.zeros(3, 4)], [torch.zeros(3, dtype=torch.float16)]) == 48 + 6


def test_registered_models_are_kept_by_case_and_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ModelSource(
        "twice",
        "1",
        factory="dlcb.compiler.bench.kernels:kernel_module",
        arguments={"operator": "softmax"},
        inputs=(InputDeclaration("x", "float32", None),),
        outputs=("y",),
    )
    out = tmp_path / "kept.json"
    for shapes in ([(8,), (16,)], [(2, 3)]):
        bench_registered(
            [(source, shape) for shape in shapes], peers="eager", device="cpu", rounds=1, out=out
        )
    kept = json.loads(out.read_text())["cases"]
    assert [len(kept[name]["rows"]) for name in ("twice rank 1", "twice rank 2")] == [2, 1]
    assert all(row["agrees"] for result in kept.values() for row in result["rows"])
    assert "geometric mean" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        ({}, "spread of rounds: not measured"),
        ({"eager": 0.05, "ours": 0.03}, "spread of rounds: up to 1.05 times (eager, m at 4x7)"),
        ({"eager": 0.05, "ours": 0.4}, "up to 1.40 times (ours, m at 4x7): this machine is busy"),
    ],
)
def test_the_spread_of_rounds_is_said(spread: dict[str, float], words: str) -> None:
    assert words in spread_of([Row("m", {"rows": 4, "columns": 7}, {}, spread)])


def test_unknown_cases_are_named() -> None:
    with pytest.raises(UnknownName, match="unknown cases nobody: expected some of chain"):
        bench_suite("survey", ["nobody"], peers="eager", device="cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch.compile's own
def test_a_stream_of_shapes_counts_compiles_apart() -> None:
    result = run_shapes(shape_cases("cpu")[0], "cpu", pairs=5)
    assert set(result.seconds) == {"eager", "compile dynamic", "ours"}
    assert result.compiles["ours"] == 1 and result.compiles["compile dynamic"] >= 1
    assert "eager" not in result.compiles
