"""`dlcb check` says of a configuration what a start would say, of every model, and leaves a server that runs
beside it what it holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlcb.kernel_cache import ls, open_store
from tests.server.conftest import HERE, Start

CONFIG = """\
server: {port: 0, spares: 0, device: cpu, grace_seconds: 0}
models:
  - name: scaled
    factory: command_models:scaled
    inputs: [{name: x, datatype: FP32, shape: [rows, columns]}]
    outputs: [y]
    load: false
  - name: double
    factory: command_models:double
    inputs: [{name: x, datatype: FP32, shape: null}]
    outputs: [y]
    bench: [[8]]
"""
BROKEN = """\
  - name: elsewhere
    factory: command_models:there_is_none
    inputs: [{name: x, datatype: FP32, shape: [rows]}]
    outputs: [y]
  - name: misnamed
    factory: command_models:scaled
    inputs: [{name: x, datatype: FP32, shape: [rows, columns]}]
    outputs: [y, z]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one test has compiled the next one finds."""
    return tmp_path_factory.mktemp("cache")


def dlcb(cache: Path, *words: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HERE))))
    return subprocess.run(
        [sys.executable, "-m", "dlcb.server", *map(str, words)],
        env={**os.environ, "PYTHONPATH": paths, "DLCB_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def rows(lines: list[str]) -> set[str]:
    """Lines of models, without their seconds."""
    return {re.sub(r"\d+\.\d s", "s", line) for line in lines if " | " in line}


def test_it_says_what_a_start_says_and_leaves_a_server_its_pins(
    config: Path, cache: Path, launch: Start
) -> None:
    found = dlcb(cache, "check", "--config", config)
    assert found.returncode == 0, found.stderr
    first, *_, last = found.stdout.splitlines()
    assert first == "checking scaled, double" and last == "2 models would start"
    assert not any(entry.pinned_by for entry in ls(open_store(cache)))

    server = launch(config, cache=cache)  # which leaves `scaled` out
    again = dlcb(cache, "check", "double", "--config", config)
    assert again.stdout.splitlines()[-1] == "1 model would start"
    assert rows(again.stdout.splitlines()) == rows(server.lines)
    assert {owner for entry in ls(open_store(cache)) for owner in entry.pinned_by} == {"double:1"}
    assert server.stop() == 0


def test_every_model_that_fails_is_named_in_the_words_of_a_start(config: Path, cache: Path) -> None:
    config.write_text(CONFIG + BROKEN)
    found = dlcb(cache, "check", "--config", config)
    assert "would start" not in found.stdout and len(rows(found.stdout.splitlines())) == 2
    lines = found.stderr.splitlines()
    assert found.returncode == 2 and len(lines) == 2, lines
    for name, line in zip(("elsewhere", "misnamed"), lines, strict=True):
        assert f"model '{name}' version '1' did not load: " in line
    (served,) = dlcb(cache, "serve", "--config", config).stderr.splitlines()
    assert served in lines


def test_what_the_file_itself_gets_wrong_is_2(config: Path, tmp_path: Path) -> None:
    found = dlcb(tmp_path, "check", "nobody", "--config", config)
    assert (found.returncode, found.stderr) == (
        2,
        "dlcb: model 'nobody' is not registered; registered are double, scaled\n",
    )
    config.write_text(CONFIG.replace("datatype: FP32", "datatype: FP33"))
    found = dlcb(tmp_path, "check", "--config", config)
    assert found.returncode == 2 and "models.yaml:5: models.0.inputs.0.datatype: 'FP33'" in found.stderr
