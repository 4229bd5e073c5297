"""The store that is used: memory in front, the disk, and behind it what is read-only or shared (a bundle, a
remote). What is found behind is copied forward; a put goes to the disk and to the remote. Hits and misses
are counted here, once each.
"""

import logging
import os
from pathlib import Path

from dlcb.kernel_cache import bundle as bundles
from dlcb.kernel_cache.disk import Disk
from dlcb.kernel_cache.entry import Entry
from dlcb.kernel_cache.errors import UnwritableFolder
from dlcb.kernel_cache.key import checked
from dlcb.kernel_cache.memory import Memory
from dlcb.kernel_cache.remote import Remote
from dlcb.kernel_cache.store import Layer

FOLDER_VARIABLE = "DLCB_CACHE"
LIMIT_BYTES = 4 * 2**30
MEMORY_BYTES = 64 * 2**20

_log = logging.getLogger("dlcb.kernel_cache")


def default_folder() -> Path:
    """`$DLCB_CACHE`, else `~/.cache/dlcb`."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named or "~/.cache/dlcb")


def open_store(
    folder: Path | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    policy: str = "lru",
    remote: str | None = None,
    bundle: Path | None = None,
    memory_bytes: int = MEMORY_BYTES,
    to_write: bool = True,
) -> "LayeredStore":
    """The store in a folder (None: the default one), which is made private (0700) if it is not there.

    `limit_bytes` bounds the folder, `policy` is a name of `evict.POLICIES`, `remote` an fsspec URL that
    machines share, `bundle` a file to start from, `memory_bytes` bounds what this process keeps of it (0:
    nothing). `to_write` False is for looking and tidying, which a full disk does not hinder. Raises
    UnsafeFolder, UnwritableFolder, RemoteError, BundleError, or ValueError for a bad bound or policy.
    """
    disk = Disk(default_folder() if folder is None else folder, limit_bytes, policy, to_write=to_write)
    behind: list[Layer] = [bundles.open(bundle)] if bundle else []
    shared = [Remote(remote, disk.counts)] if remote else []
    return LayeredStore(Memory(memory_bytes), disk, [*behind, *shared], shared)


class LayeredStore:
    """A `Store` of layers. Safe for threads and for any number of processes over one folder."""

    def __init__(self, memory: Memory, disk: Disk, behind: list[Layer], shared: list[Remote]) -> None:
        self._memory = memory
        self._behind = behind
        self._shared = shared
        self.disk = disk

    @property
    def folder(self) -> Path:
        """Where the entries are; `single_flight` wants it."""
        return self.disk.folder

    def get(self, key: str) -> bytes | None:
        """The payload under the key, or None."""
        entry = self.read(key)
        return entry.payload if entry else None

    def read(self, key: str) -> Entry | None:
        """As `get`, with the manifest."""
        entry = self._memory.read(checked(key)) or self.disk.read(key) or self._fetch(key)
        if entry is not None:
            self._memory.write(entry)
            self.disk.used(key)
        self._count(hit=entry is not None)
        return entry

    def put(self, key: str, payload: bytes, *, kind: str = "", label: str = "") -> None:
        """Keep the payload. Raises UnwritableFolder when the disk could not; then no layer did."""
        self.write(Entry.of(checked(key), payload, kind, label))

    def keep(self, payload: bytes, *, kind: str = "", label: str = "") -> str:
        """As `put` under the payload's own sha256, which is given back: it is computed once."""
        entry = Entry.of(None, payload, kind, label)
        self.write(entry)
        return entry.manifest.key

    def has(self, key: str) -> bool:
        """Whether `get` would find an entry, unless its payload is damaged, which only reading it tells."""
        if self.disk.manifest(checked(key)) is not None:
            return True
        return self.path(key) is not None or self.get(key) is not None  # of memory, or from behind

    def write(self, entry: Entry) -> None:
        """As `put`, of a sealed entry."""
        self.disk.write(entry)
        self._memory.write(entry)
        for layer in self._shared:
            layer.write(entry)

    def path(self, key: str) -> Path | None:
        """The payload's file, verified just now; None on a miss. See `Disk.path` for how long it stays."""
        path = self.disk.path(checked(key))
        if path is None and (held := self._memory.read(key)):
            self._keep(held)  # evicted from disk, but this process still has it
            path = self.disk.path(key)
        if path is None and self._fetch(key):
            path = self.disk.path(key)
        if path is not None:
            self.disk.used(key)
        self._count(hit=path is not None)
        return path

    def pin(self, key: str, owner: str) -> None:
        """Never evict the key from disk while the owner holds it."""
        self.disk.pin(key, owner)

    def unpin(self, owner: str) -> None:
        """Let go of all the owner pinned."""
        self.disk.unpin(owner)

    def _fetch(self, key: str) -> Entry | None:
        """The entry from behind the disk, which then is on disk as well if that can be written."""
        for layer in self._behind:
            entry = layer.read(key)
            if entry is not None:
                self._keep(entry)
                return entry
        return None

    def _keep(self, entry: Entry) -> None:
        try:
            self.disk.write(entry)
        except UnwritableFolder as error:  # the caller asked to read, and can
            _log.warning("fetched but not kept: %s", error)

    def _count(self, *, hit: bool) -> None:
        self.disk.counts.add(**{"hits" if hit else "misses": 1})
