"""The nice values of sessions: set when the system takes one, and as they are wanted by then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dlcb.server import priority


@pytest.mark.parametrize(
    ("refusals", "wanted", "written"),
    [
        ([], [10], ["10"]),
        ([BlockingIOError(), BlockingIOError()], [10, 10, 0], ["0"]),  # it takes jobs by now
        ([BlockingIOError()], [10, None], []),  # it is gone by now
        ([FileNotFoundError()], [10], []),
        ([PermissionError()], [10], []),
    ],
)
def test_a_value_is_set_when_the_system_takes_it(
    monkeypatch: pytest.MonkeyPatch, refusals: list[OSError], wanted: list[int | None], written: list[str]
) -> None:
    found: list[str] = []

    def write(_path: Path, text: str, encoding: str) -> None:
        if refusals:
            raise refusals.pop(0)
        found.append(text)

    async def go() -> None:
        priority.set_session(1, lambda: wanted.pop(0))
        while wanted:
            await asyncio.sleep(0)

    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(priority, "PAUSE", 0.0)
    asyncio.run(go())
    assert found == written and not wanted and not refusals
