"""Places in source files, and the words that stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlcb.compiler.bridge.places import short, words_at


def test_the_words_at_a_place_are_those_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "models" / "mine.py"
    file.parent.mkdir()
    file.write_text("def forward(x):\n    return x.cumsum(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    place = short(str(file))
    assert words_at(f"{place}:2") == "return x.cumsum(0)"
    for elsewhere in (f"{place}:9", f"{place}:0", "models/gone.py:1", place, "", ":1"):
        assert words_at(elsewhere) == ""
