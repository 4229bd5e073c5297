"""Triton's load generator against a live server. The program comes with an old wheel of its client,
which cannot be installed beside the new one: it is fetched, unpacked, and run from there."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from .conftest import LiveServer

WHEELS = (
    ("tritonclient==2.41.1", "manylinux1_x86_64"),
    ("nvidia-cuda-runtime-cu12", "manylinux2014_x86_64"),  # linked with the program, which uses none of it
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and the folder of the library it needs."""
    if ctypes.util.find_library("b64") is None:
        pytest.skip("needs libb64 (Debian's libb64-0d)")
    folder = tmp_path_factory.mktemp("perf_analyzer")
    for name, platform in WHEELS:
        fetched = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
             "--platform", platform, "--dest", folder, name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if fetched.returncode:
            pytest.skip(f"{name} cannot be fetched: {fetched.stderr[-300:]}")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    (found,) = folder.glob("tritonclient-*.data/data/bin/perf_analyzer")
    found.chmod(found.stat().st_mode | stat.S_IXUSR)
    (library,) = folder.glob("nvidia/cuda_runtime/lib")
    return found, library


SHAPES = (3, 4, 9, 4)  # without the batch, which the program adds


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mlp", []),
        ("mlp", ["--input-tensor-format", "json", "--output-tensor-format", "json"]),
        ("mlp", ["-b", "4"]),
        ("identity", ["--input-data", "shapes.json"]),
        ("row_sums", ["--input-data", "shapes.json", "-a"]),
    ],
)
def test_it_measures_and_finds_no_error(
    server: LiveServer, tmp_path: Path, program: tuple[Path, Path], model: str, options: list[str]
) -> None:
    entries = [{"x": {"content": [0.5] * count, "shape": [count]}} for count in SHAPES]
    (tmp_path / "shapes.json").write_text(json.dumps({"data": entries}))
    path, library = program

    done = subprocess.run(
        [path, "-m", model, "-u", str(httpx.URL(server.url).netloc, "ascii"), "-i", "http",
         "--measurement-mode", "count_windows", "--measurement-request-count", "200", "-s", "999", "-r", "10",
         "--concurrency-range", "4", *options],
        cwd=tmp_path, env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    count = re.search(r"Successful request count: (\d+)", done.stdout)
    assert count is not None and int(count[1]) >= 100, done.stdout
    assert "error" not in done.stderr.lower(), done.stderr
