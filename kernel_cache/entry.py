"""An entry is a payload and a manifest that seals it. On disk they are two files in one folder, so that a
payload can be loaded by the dynamic linker; in a remote they are one blob. Reading either gives back
exactly what was sealed or raises `Damaged` with the reason; no flipped bit, missing tail or foreign file
gets through.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

FORMAT = 1  # of the manifest; an entry in another format is foreign, that is, a miss
MANIFEST = "manifest.json"
PAYLOAD = "payload"
USES = "uses"  # one byte a use; its time is the time of the last use. Not sealed: it only steers eviction
MANIFEST_LIMIT = 64 * 1024  # bytes; a foreign file of gigabytes under this name must not be read whole

# NOFOLLOW: an entry is made of plain files. NONBLOCK: opening a foreign pipe must not hang the reader.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class Damaged(Exception):
    """What lies under the key is not a whole entry of that key, and why. Never leaves this package."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a payload without reading it. Its text is canonical: one manifest, one spelling."""

    key: str
    sha256: str
    size: int
    kind: str = ""
    label: str = ""

    @classmethod
    def of(cls, key: str | None, payload: bytes, kind: str = "", label: str = "") -> "Manifest":
        """Seal a payload under a key (None: its own sha256). Raises ValueError for a kind and label too long
        to be read by people."""
        sha256 = hashlib.sha256(payload).hexdigest()
        manifest = cls(key or sha256, sha256, len(payload), kind, label)
        if len(manifest.text()) > MANIFEST_LIMIT:
            raise ValueError(
                f"kind and label of {manifest.key} make a manifest of more than {MANIFEST_LIMIT} bytes"
            )
        return manifest

    def text(self) -> bytes:
        """One line of JSON, ended by a newline, carrying the sha256 of all else in it."""
        fields = {"format": FORMAT, **{name: getattr(self, name) for name in self.__slots__}}
        seal = hashlib.sha256(_canonical(fields)).hexdigest()
        return _canonical({**fields, "seal": seal}) + b"\n"

    @classmethod
    def parse(cls, text: bytes, key: str) -> "Manifest":
        """The manifest whose text this is, to the last byte. Raises Damaged, also for one of another key."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise Damaged("the manifest is not JSON") from None
        if not isinstance(fields, dict) or fields.keys() != {"format", "seal", *cls.__slots__}:
            raise Damaged("the manifest has not the fields of one")
        if fields["format"] != FORMAT:
            raise Damaged(f"the manifest has format {fields['format']!r}, this version reads {FORMAT}")
        manifest = cls(**{name: fields[name] for name in cls.__slots__})
        if manifest.text() != text:
            raise Damaged("the manifest does not match its own seal")
        if manifest.key != key:
            raise Damaged(f"the manifest is that of {manifest.key}")
        return manifest


@dataclass(frozen=True, slots=True)
class Entry:
    """A manifest and the payload it seals."""

    manifest: Manifest
    payload: bytes

    @classmethod
    def of(cls, key: str | None, payload: bytes, kind: str = "", label: str = "") -> "Entry":
        """As `Manifest.of`."""
        return cls(Manifest.of(key, payload, kind, label), payload)


def verified(manifest: Manifest, payload: bytes) -> Entry:
    """The entry, after its payload was measured and hashed. Raises Damaged."""
    _compare(manifest, len(payload), hashlib.sha256(payload).hexdigest())
    return Entry(manifest, payload)


def pack(entry: Entry) -> bytes:
    """An entry as one blob: the manifest's line, then the payload."""
    return entry.manifest.text() + entry.payload


def unpack(blob: bytes, key: str) -> Entry:
    """The entry in a blob. Raises Damaged."""
    end = blob.find(b"\n", 0, MANIFEST_LIMIT) + 1
    return verified(Manifest.parse(blob[:end], key), blob[end:])


def write(entry: Entry, folder: Path) -> None:
    """Write the entry's files into a fresh folder that nobody else knows of. Raises OSError."""
    folder.mkdir(mode=0o700)
    for name, content in ((PAYLOAD, entry.payload), (MANIFEST, entry.manifest.text()), (USES, b"")):
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    stamp(folder / USES)


def stamp(uses: Path | int) -> None:
    """Set the time of the last use to now. The time a write sets may be several milliseconds coarse."""
    now = time.time_ns()
    os.utime(uses, ns=(now, now))


def read(folder: Path, key: str) -> Entry:
    """The entry in a folder. Raises FileNotFoundError when there is no folder, Damaged, or OSError."""
    with _opened_folder(folder) as directory:
        manifest = _manifest(directory, key)
        with _opened(directory, PAYLOAD) as file:
            _compare(manifest, os.fstat(file.fileno()).st_size, manifest.sha256)
            return verified(manifest, file.read())


def verify(folder: Path, key: str) -> Manifest:
    """As `read`, but the payload is hashed in pieces and not kept."""
    with _opened_folder(folder) as directory:
        manifest = _manifest(directory, key)
        with _opened(directory, PAYLOAD) as file:
            _compare(manifest, os.fstat(file.fileno()).st_size, manifest.sha256)
            _compare(manifest, manifest.size, hashlib.file_digest(file, "sha256").hexdigest())
    return manifest


def describe(folder: Path, key: str) -> Manifest:
    """As `read`, but of the payload only the size is looked at."""
    with _opened_folder(folder) as directory:
        manifest = _manifest(directory, key)
        with _opened(directory, PAYLOAD) as file:
            _compare(manifest, os.fstat(file.fileno()).st_size, manifest.sha256)
    return manifest


def _manifest(directory: int, key: str) -> Manifest:
    with _opened(directory, MANIFEST) as file:
        text = file.read(MANIFEST_LIMIT + 1)
    return Manifest.parse(text, key)


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    """A descriptor of the folder: what is read is of one entry, even if it is renamed meanwhile."""
    try:
        directory = os.open(folder, _OPEN | os.O_DIRECTORY)
    except NotADirectoryError:
        raise Damaged("it is not a folder") from None
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def _opened(directory: int, name: str) -> Iterator[BufferedReader]:
    try:
        descriptor = os.open(name, _OPEN, dir_fd=directory)
    except FileNotFoundError:
        raise Damaged(f"it has no {name}") from None
    except OSError:
        if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise  # a plain file that cannot be opened now, say for want of descriptors, may be whole
        raise Damaged(f"its {name} is not a plain file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged(f"its {name} is not a plain file")
    with open(descriptor, "rb") as file:
        yield file


def _compare(manifest: Manifest, size: int, sha256: str) -> None:
    if size != manifest.size:
        raise Damaged(f"the payload has {size} bytes, its manifest says {manifest.size}")
    if sha256 != manifest.sha256:
        raise Damaged(f"the payload has sha256 {sha256}, its manifest says {manifest.sha256}")


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
