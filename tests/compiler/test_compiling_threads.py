"""Threads of one process that compile: one at a time, since tracing changes what belongs to the process."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, driver


def test_threads_compile_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[str] = []
    together: list[tuple[str, ...]] = []
    second = Event()

    def compiled(source: ModelSource, *others: Any) -> tuple[str, None]:
        inside.append(source.name)
        together.append(tuple(inside))
        if len(inside) == 2:
            second.set()
        second.wait(0.1)  # for what a lock keeps out
        inside.remove(source.name)
        return source.name, None

    monkeypatch.setattr(driver, "_compile", compiled)
    monkeypatch.setattr(driver.artifacts, "enter", lambda *given: None)

    def compile_one(name: str) -> None:
        source = ModelSource(name, "1", factory="m:f", inputs=(InputDeclaration("x", "float32", ("n",)),))
        driver.compile_source(source, None, CompileOptions())  # type: ignore[arg-type]

    threads = [Thread(target=compile_one, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(together) == [("one",), ("other",)]
