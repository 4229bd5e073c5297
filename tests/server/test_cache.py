"""The configured cache as children see it."""

from __future__ import annotations

from pathlib import Path

from dlcb.server.cache import describe, environment_of
from dlcb.server.settings import Cache


def test_children_write_to_the_configured_folder(tmp_path: Path) -> None:
    assert environment_of(describe(Cache(folder=tmp_path))) == {"DLCB_CACHE": str(tmp_path)}
    assert environment_of(describe(Cache(folder=Path("~/kernels")))) == {
        "DLCB_CACHE": str(Path.home() / "kernels")
    }


def test_without_a_configured_folder_children_inherit_the_variable() -> None:
    assert environment_of(describe(Cache())) == {}
