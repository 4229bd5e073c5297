"""Who holds which key: one folder an owner, one empty file a key, so that pinning twice is no change and no
kill can leave a torn list. The caller holds the folder's lock, so that no key is evicted while it is being
pinned.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from dlcb.kernel_cache.folder import contents
from dlcb.kernel_cache.key import is_digest

_SUFFIX = ".owner"  # keeps an owner called ".." inside the folder
_NAME_LIMIT = 255  # bytes in a file's name


def model_owner(name: str, version: str) -> str:
    """The owner of what a registered model needs."""
    return f"{name}:{version}"


class Pins:
    """The pins of one cache folder. Raises OSError where the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, key: str, owner: str) -> None:
        """Note that the owner holds the key. Raises ValueError for an owner that cannot be a file's name."""
        place = self.place(owner)
        place.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(place / key, os.O_WRONLY | os.O_CREAT, 0o600))

    def place(self, owner: str) -> Path:
        """The folder that holds the owner's pins, there or not."""
        name = quote(owner, safe="") + _SUFFIX
        if not owner or len(name) > _NAME_LIMIT:
            raise ValueError(f"a pin's owner is a name of 1 to about 240 characters, got {owner!r}")
        return self._folder / name

    def owners(self) -> dict[str, tuple[str, ...]]:
        """The owners of each pinned key, sorted."""
        found: dict[str, list[str]] = {}
        for owner, key in sorted(self._pairs()):
            found.setdefault(key, []).append(owner)
        return {key: tuple(owners) for key, owners in found.items()}

    def holds(self, key: str) -> bool:
        """Whether anybody pins the key."""
        return any(key == pinned for _, pinned in self._pairs())

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for place in contents(self._folder):
            owner = unquote(place.name.removesuffix(_SUFFIX))
            yield from ((owner, pin.name) for pin in contents(place) if is_digest(pin.name))
