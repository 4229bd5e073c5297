"""What is registered, and what is said to whoever finds it not loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlcb.server import settings
from dlcb.server.repository import Repository

CONFIG = """
server: {{keys: {keys}}}
models:
  - name: m
    factory: eager_model:identity
    load: false
    inputs: [{{name: x, datatype: FP32, shape: [batch, width]}}]
    outputs: [y]
"""


@pytest.mark.parametrize(
    ("keys", "words"),
    [("{admin: [key]}", "POST /v2/repository/models/m/load"), ("{}", "`load: false`")],
    ids=["admin key", "none"],
)
def test_how_to_load_is_told_as_this_server_allows_it(tmp_path: Path, keys: str, words: str) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(CONFIG.format(keys=keys))
    assert words in Repository(settings.read(file)).how_to_load("m")
