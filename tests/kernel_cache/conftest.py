"""A store in a fresh folder for each test, and keys by number."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dlcb.kernel_cache import LayeredStore, open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(folder: Path) -> LayeredStore:
    """Without a memory front, so that every get is one of the disk."""
    return open_store(folder, memory_bytes=0)


@pytest.fixture(scope="session")
def key() -> Callable[[object], str]:
    """A key for anything that prints."""
    return lambda name: hashlib.sha256(str(name).encode()).hexdigest()
