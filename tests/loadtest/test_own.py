"""A model of the user's own under load: drawn from what its server says, compared with its factory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dlcb.loadtest.__main__ import app
from dlcb.loadtest.own import Size, kinds

FACTORY = """\
import torch


class Windows(torch.nn.Module):
    def forward(self, x, scale):
        if x.shape[1] / x.shape[0] > 3:
            x = x + 1
        return {"sums": x.view(x.shape[0], -1, 4).sum(-1) * scale, "lengths": scale > 0}


def windows():
    return Windows()
"""
CONFIG = """\
server: {spares: 0, device: cpu, grace_seconds: 0}
models:
  - name: windows
    factory: models_of_their_own:windows
    inputs:   # not in the order of forward's parameters
      - {name: scale, datatype: FP32, shape: [rows, 1], values: [-2, 2]}
      - {name: x, datatype: FP32, shape: [rows, columns]}
    outputs: [sums, lengths]
    dims: {rows: [2, 9]}
"""


def test_a_model_of_ones_own_is_driven_at_legal_shapes_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models_of_their_own.py").write_text(FACTORY)
    (tmp_path / "own.yaml").write_text(CONFIG)
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path / "cache"))
    words = ("run", "--start", tmp_path / "own.yaml", "--seconds", "1", "--results", tmp_path / "results")
    ran = CliRunner().invoke(app, list(map(str, words)))
    assert ran.exit_code == 0, (ran.output, ran.exception)
    (written,) = (tmp_path / "results").iterdir()
    (one,) = json.loads(written.read_text())["scenarios"]
    assert (one["scenario"], one["reference"], one["failures"]) == ("windows", "eager", 0)
    assert one["good"] and sum(found["good"] for found in one["by_shape"].values()) == one["good"]
    assert one["shape_cache"]["hits"] + one["shape_cache"]["misses"]


@pytest.mark.parametrize("size", [Size(0, None), Size(3, 11), Size(5, 5), Size(3, None, 8), Size(9, 40, 7)])
def test_sizes_are_drawn_from_what_is_legal(size: Size) -> None:
    random = np.random.default_rng(0)
    for drawn in (size.draw(random) for _ in range(200)):
        assert drawn >= max(size.low, 1) and drawn % size.multiple == 0
        assert size.high is None or drawn <= size.high


def test_requests_are_told_apart_by_their_size() -> None:
    sizes = [7, 1, 2, 100, 50, 3, 7]
    found = kinds([{"x": np.zeros(size)} for size in sizes])
    three = ["1 to 3 elements", "7 to 7 elements", "50 to 100 elements"]
    assert [three.index(said) for said in found] == [1, 0, 0, 2, 2, 0, 1]
    assert kinds([{"x": np.zeros(4)}]) == ["4 to 4 elements"]
