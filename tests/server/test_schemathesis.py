"""The OpenAPI document held against the live server: schemathesis makes legal and illegal requests from it,
and every answer must be one that the document announces."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import LiveServer

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "negative_data_rejection,unsupported_method"
)
NAMES = '[parameters]\nname = "identity"\nversion = "1"\n'


@pytest.mark.parametrize(
    ("phases", "names"),
    [
        ("coverage", NAMES),
        pytest.param("coverage,fuzzing", NAMES, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
        pytest.param("coverage,fuzzing", "", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_every_answer_is_one_the_document_announces(
    server: LiveServer, tmp_path: Path, require_tool: Callable[[str], Path], phases: str, names: str
) -> None:
    tool = require_tool("schemathesis")
    (tmp_path / "schemathesis.toml").write_text(names)
    done = subprocess.run(
        [
            tool, "--config-file", tmp_path / "schemathesis.toml", "run", f"{server.url}/openapi.json",
            "--max-examples", "200", "--phases", phases, "--checks", CHECKS, "--no-color",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Tested: 26" in done.stdout or "26 passed" in done.stdout, done.stdout[-3000:]
