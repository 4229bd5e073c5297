"""A bundle is one file that holds entries: made in a build pipeline, copied anywhere, read in place by a
server that then compiles nothing. Its index is sealed and checked when it is opened, each payload when it
is read; the same entries give the same bytes.
"""

import builtins
import hashlib
import json
import logging
import os
import struct
import weakref
from collections.abc import Iterable
from pathlib import Path

from dlcb.kernel_cache.entry import Damaged, Entry, Manifest, verified
from dlcb.kernel_cache.errors import BundleError
from dlcb.kernel_cache.folder import discard, unique
from dlcb.kernel_cache.key import checked
from dlcb.kernel_cache.store import Layer

_HEAD = b"dlcb bundle 1\n"
# At the very end: length of the index, its sha256, the head once more.
_FOOT = struct.Struct("<Q32s14s")

_log = logging.getLogger("dlcb.kernel_cache")


def write(store: Layer, keys: Iterable[str], path: Path) -> None:
    """Write the entries of these keys into one file, which appears whole or not at all.

    Raises BundleError when a key is not in the store or the file cannot be written.
    """
    aside = unique(path.parent)
    try:
        with builtins.open(aside, "xb") as file:
            file.write(_HEAD)
            index = []
            for key in sorted(set(keys)):
                entry = store.read(key)
                if entry is None:
                    raise BundleError(path, f"cannot write bundle {path}: the store has no entry {key}")
                index.append([key, file.tell(), entry.manifest.text().decode()])
                file.write(entry.payload)
            text = json.dumps(index).encode()
            file.write(text + _FOOT.pack(len(text), hashlib.sha256(text).digest(), _HEAD))
            file.flush()
            os.fsync(file.fileno())  # it leaves this machine, where no recompile would heal it
        os.replace(aside, path)
    except OSError as error:
        raise BundleError(path, f"cannot write bundle {path}: {error.strerror or error}") from error
    finally:
        discard(aside)


def open(path: Path) -> "Bundle":
    """The read-only store in a bundle. Raises BundleError when the file is missing, torn or no bundle."""
    return Bundle(path)


class Bundle:
    """A read-only store over one file. A damaged payload is a miss, counted in `corrupt`."""

    def __init__(self, path: Path) -> None:
        self.file = path
        self.corrupt = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            # Held open, so that a bundle replaced under a running server does not change beneath it.
            weakref.finalize(self, os.close, self._descriptor)
            self._index = self._read_index()
        except OSError as error:
            raise BundleError(path, f"cannot open bundle {path}: {error.strerror or error}") from error
        except Damaged as damage:
            raise BundleError(path, f"{path} is not a whole bundle: {damage}") from None

    def keys(self) -> list[str]:
        """Every key in the bundle, sorted."""
        return sorted(self._index)

    def manifest(self, key: str) -> Manifest | None:
        """What an entry says of itself; None on a miss."""
        _, manifest = self._index.get(checked(key), (0, None))
        return manifest

    def read(self, key: str) -> Entry | None:
        """The verified entry, or None."""
        if checked(key) not in self._index:
            return None
        offset, manifest = self._index[key]
        try:
            return verified(manifest, self._read_at(offset, manifest.size))
        except (Damaged, OSError) as error:
            _log.warning("entry %s of bundle %s is damaged, taken as a miss: %s", key, self.file, error)
            self.corrupt += 1
            return None

    def get(self, key: str) -> bytes | None:
        """The payload under the key, or None."""
        entry = self.read(key)
        return entry.payload if entry else None

    def put(self, key: str, payload: bytes, *, kind: str = "", label: str = "") -> None:
        """Raises BundleError, unless the bundle holds just that already."""
        held = self.manifest(key)
        if held is None or held.sha256 != Manifest.of(key, payload, kind, label).sha256:
            raise BundleError(self.file, f"cannot put {key} into {self.file}: a bundle is read-only")

    def keep(self, payload: bytes, *, kind: str = "", label: str = "") -> str:
        """Raises as `put` does."""
        key = hashlib.sha256(payload).hexdigest()
        self.put(key, payload, kind=kind, label=label)
        return key

    def has(self, key: str) -> bool:
        """Whether the index names the key."""
        return self.manifest(key) is not None

    def write(self, entry: Entry) -> None:
        """Raises as `put` does."""
        self.put(entry.manifest.key, entry.payload, kind=entry.manifest.kind, label=entry.manifest.label)

    def pin(self, key: str, owner: str) -> None:
        """Nothing to do: all of a bundle stays."""

    def unpin(self, owner: str) -> None:
        """Nothing to do."""

    def path(self, key: str) -> Path | None:
        """None: a payload inside a bundle is no file of its own. `open_store(bundle=…)` gives it one."""

    def damaged(self) -> list[str]:
        """The keys whose payload is not what its manifest says, after reading all."""
        return [key for key in self.keys() if self.read(key) is None]

    def _read_index(self) -> dict[str, tuple[int, Manifest]]:
        size = os.fstat(self._descriptor).st_size
        if size < len(_HEAD) + _FOOT.size or self._read_at(0, len(_HEAD)) != _HEAD:
            raise Damaged(f"it does not begin with {_HEAD!r}")
        length, sha256, end = _FOOT.unpack(self._read_at(size - _FOOT.size, _FOOT.size))
        if end != _HEAD:
            raise Damaged("its end is missing")
        start = size - _FOOT.size - length
        text = self._read_at(start, length) if start >= len(_HEAD) else b""
        if hashlib.sha256(text).digest() != sha256:
            raise Damaged("its index does not match its checksum")
        index = {}
        for key, offset, manifest in json.loads(text):
            index[key] = (offset, Manifest.parse(manifest.encode(), key))
        return index

    def _read_at(self, offset: int, size: int) -> bytes:
        """So many bytes from there, fewer at the file's end. One system call gives at most 2 GiB."""
        pieces = []
        while size > 0 and (piece := os.pread(self._descriptor, size, offset)):
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
