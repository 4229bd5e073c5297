"""The race on real processes: every answer is checked, a wrong one is counted, and goals become verdicts."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlcb.loadtest import race
from dlcb.loadtest.contestants import CONTESTANTS

BARE = CONTESTANTS[0]


def test_two_of_a_kind_race_evenly(require_tool: Callable[[str], Path]) -> None:
    cases = [one for one in race.CASES if one.name in ("identity", "perceptron-binary")]
    twins = [BARE, replace(BARE, name="twin")]
    raced = race.race(cases, twins, Path(sys.executable), require_tool("wrk"), rounds=1, seconds=1)
    for case in cases:
        first, second = race.summary(case, raced[case.name])
        assert first["wrong"] == second["wrong"] == 0, (first, second)
        assert first["rps"] > 100 and first["p50_ms"] > 0 and first["cpu_us"] > 0
        assert first["of_raw"] == 1.0


def test_wrong_values_are_counted(
    require_tool: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = race.CASES[0]
    monkeypatch.setattr(race, "expected", lambda model, x, weights: x[0] + np.float32(1e-3))
    raced = race.race([case], [BARE], Path(sys.executable), require_tool("wrk"), rounds=1, seconds=1)
    (row,) = race.summary(case, raced[case.name])
    assert row["wrong"] > 100 and "values are off by 1.00e-03" in row["complaint"]


def test_a_contestant_answers_in_its_own_words() -> None:
    mosec = next(one for one in CONTESTANTS if one.name == "mosec")
    x = np.float32([[1.5, -2.0]])
    path, _headers, body = mosec.request("identity", x, "binary")
    assert (path, body) == ("/identity/bytes", x.tobytes())
    assert (mosec.output({}, body, "binary") == x[0]).all()
    path, _headers, body = mosec.request("identity", x, "json")
    assert path == "/v2/models/identity/infer" and b'"data":[1.5,-2.0]' in body
    assert not next(one for one in CONTESTANTS if one.name == "litserve").takes("binary")


def test_goals_become_verdicts() -> None:
    case = race.Case("c", "identity", 8, rps=100, of_raw=0.5, above_triton=True, overhead_ms=0.15)
    row = {"rps": 90.0, "of_raw": 0.6, "p50_ms": 0.3, "own_ms": 0.1}
    rows = [{"contestant": "dlcb", **row}, {"contestant": "triton", "rps": 80.0}]
    assert race.verdicts(case, rows) == [
        "missed: c: 90 rps, goal 100",
        "met: c: 0.60 of raw ASGI, goal 0.50",
        "met: c: 90 rps, Triton 80",
        "missed: c: 0.200 ms over the model, goal 0.15",
    ]
    assert race.verdicts(case, rows[1:]) == []  # goals are of what we do, and we did not run
