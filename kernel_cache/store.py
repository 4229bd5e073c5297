"""The two verbs every cache here keeps, get and put of bytes under a content key, and the narrower one its
layers speak among themselves. Whatever a layer holds that is not exactly what was put is a miss, never an
exception.
"""

from pathlib import Path
from typing import Protocol

from dlcb.kernel_cache.entry import Entry


class Store(Protocol):
    """What the compiler and the server use. A key is a lower-case hex sha256, or ValueError is raised."""

    @property
    def folder(self) -> Path:
        """Where the entries are; `single_flight` wants it."""

    def get(self, key: str) -> bytes | None:
        """The payload put under the key; None when it is missing, torn, foreign or damaged."""

    def put(self, key: str, payload: bytes, *, kind: str = "", label: str = "") -> None:
        """Keep the payload, whole or not at all; the same again is no change. Kind and label are for people.

        Raises UnwritableFolder when it could not be kept.
        """

    def keep(self, payload: bytes, *, kind: str = "", label: str = "") -> str:
        """As `put` under the payload's own sha256, which is given back: it is computed once."""

    def has(self, key: str) -> bool:
        """Whether `get` would find an entry, unless its payload is damaged, which only reading it tells."""

    def pin(self, key: str, owner: str) -> None:
        """Never evict the key while the owner (a model's name and version) holds it, across restarts.

        The key need not be there yet: pin, then put, and there is no moment at which it could be evicted.
        """

    def unpin(self, owner: str) -> None:
        """Let go of everything the owner pinned; nothing happens when that is nothing."""

    def path(self, key: str) -> Path | None:
        """A file of exactly the payload, verified just now, for dlopen; None on a miss or without files."""


class Layer(Protocol):
    """What one layer of a store can do."""

    def read(self, key: str) -> Entry | None:
        """The verified entry, or None."""

    def write(self, entry: Entry) -> None:
        """Keep the entry; the layer above says what a failure means."""
