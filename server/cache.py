"""The kernel cache as this server's processes open it: the same folder and bounds in each, from plain values
that travel to children as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlcb.kernel_cache import LayeredStore, open_store
from dlcb.server.settings import Cache


def describe(cache: Cache) -> dict[str, Any]:
    """The settings as JSON values."""
    return cache.model_dump(mode="json")


def environment_of(described: dict[str, Any]) -> dict[str, str]:
    """What leads a child process to the same folder where it writes something beside the store."""
    folder = described["folder"]
    return {"DLCB_CACHE": str(Path(folder).expanduser())} if folder else {}


def open_described(described: dict[str, Any]) -> LayeredStore:
    """The store; CacheError when its folder cannot be used, or when its remote or bundle cannot be
    understood."""
    folder, bundle = described["folder"], described["bundle"]
    return open_store(
        Path(folder).expanduser() if folder else None,
        limit_bytes=described["limit_bytes"],
        remote=described["remote"],
        bundle=Path(bundle).expanduser() if bundle else None,
    )
