"""The layer on disk: one folder an entry, written aside and renamed into place, shared by any number of
processes. Reads give whole verified entries or nothing; a kill at any moment leaves at worst a temporary,
which is cleaned by age.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from dlcb.kernel_cache import entry as entries
from dlcb.kernel_cache.counts import Counts
from dlcb.kernel_cache.entry import Damaged, Entry, Manifest
from dlcb.kernel_cache.errors import LockTimeout, UnwritableFolder
from dlcb.kernel_cache.evict import Record, policy_named, unused_since, victims
from dlcb.kernel_cache.folder import (
    clear_older,
    contents,
    discard,
    older,
    private_folder,
    prove_writable,
    subfolder,
    unique,
)
from dlcb.kernel_cache.key import checked, is_digest
from dlcb.kernel_cache.lock import LOCKS, PATIENCE, held
from dlcb.kernel_cache.pins import Pins

TEMPORARY_AGE = 3600.0  # seconds after which what lies aside has no living writer
LOCK_AGE = 7 * 86400.0  # seconds after which nobody waits for a lock file any more
HEADROOM = 0.9  # of the bound is kept by an eviction, so that not every put must evict
ATTEMPTS = 8  # at a race with other processes over one entry before giving way to them

_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # why a folder cannot be renamed onto a place

_log = logging.getLogger("dlcb.kernel_cache")
_Found = TypeVar("_Found")


class Finding(NamedTuple):
    """Something under `entries/` that is not a whole entry, and why not."""

    path: Path
    reason: str


class Disk:
    """The entries under one private folder.

    `entries/<two digits>/<key>/` holds an entry's files, `aside/` what is being written or removed, `pins/`
    a folder for each owner, `locks/` those of single flights, `counts` the totals. Raises UnsafeFolder or
    UnwritableFolder for a folder that must not or cannot be used, ValueError for an unknown policy or a
    bound of no bytes. Where nothing is `to_write`, a full disk is no reason to refuse the folder.
    """

    def __init__(self, folder: Path, limit_bytes: int, policy: str, *, to_write: bool = True) -> None:
        self._policy = policy_named(policy)
        if limit_bytes <= 0:
            raise ValueError(f"limit_bytes must be above zero, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.folder = private_folder(folder)
        self.counts = Counts(self.folder / "counts")
        self._entries, self._aside, self._locks = (self.folder / name for name in ("entries", "aside", LOCKS))
        self._pins = Pins(self.folder / "pins")
        self._make_folders()
        if to_write:
            prove_writable(self.folder, self._aside)
        clear_older(self._aside, TEMPORARY_AGE)

    def _make_folders(self) -> None:
        """Before each change, as deleting the folder of a running server is a fair way to empty a cache."""
        private_folder(self.folder)
        for inside in ("entries", "aside", "pins", LOCKS):
            subfolder(self.folder, inside)

    # Reading

    def read(self, key: str) -> Entry | None:
        """The verified entry, or None. One that is damaged is counted and removed, so it is met once."""
        return self._load(key, entries.read)

    def path(self, key: str) -> Path | None:
        """The payload's file, verified just now; None on a miss.

        Unless the key is pinned, the file may be evicted before it is opened. Once opened or mapped it
        stays as it was for as long as it is held, as no file is ever changed in place.
        """
        found = self._load(key, entries.verify)
        return self._place(key) / entries.PAYLOAD if found else None

    def used(self, key: str) -> None:
        """Note one more use, for the policies; no matter if that cannot be written."""
        with suppress(OSError):
            descriptor = os.open(self._place(key) / entries.USES, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, b".")
                entries.stamp(descriptor)
            finally:
                os.close(descriptor)

    def _load(self, key: str, load: Callable[[Path, str], _Found]) -> _Found | None:
        place = self._place(key)
        for _ in range(ATTEMPTS):
            before = _identity(place)
            try:
                return load(place, key)
            except FileNotFoundError:
                return None
            except Damaged as damage:
                if _identity(place) != before:
                    continue  # replaced or evicted by another process under our eyes, not damaged
                _log.warning("cache entry %s is damaged, taken as a miss: %s", place, damage)
                self.counts.add(corrupt=1)
                with suppress(UnwritableFolder):
                    self.put_away(place)
                return None
            except OSError as error:
                _log.warning("cache entry %s cannot be read, taken as a miss: %s", place, error)
                return None
        return None

    # Writing

    def write(self, entry: Entry) -> None:
        """Publish the entry. The same payload again is no change; another one replaces the first.

        Raises UnwritableFolder. An entry larger than the whole bound is kept only if it is pinned.
        """
        manifest = entry.manifest
        if self._policy and manifest.size > self.limit_bytes and not self._pins.holds(manifest.key):
            message = "cache entry %s (%s) has %d bytes, more than the bound of %d: not kept"
            _log.warning(message, manifest.key, manifest.label, manifest.size, self.limit_bytes)
            return
        if self._holds(manifest):
            self.used(manifest.key)
            return
        self._make_folders()
        aside = unique(self._aside)
        try:
            entries.write(entry, aside)
            appeared = self._publish(aside, manifest)
        except OSError as error:
            raise UnwritableFolder.because(self.folder, f"write entry {manifest.key}", error) from error
        finally:
            discard(aside)
        if appeared:
            self._keep_bound(manifest.key)

    def _publish(self, aside: Path, manifest: Manifest) -> bool:
        """Rename into place. False when ours need not, or in the end cannot, stand there."""
        place = self._place(manifest.key)
        for _ in range(ATTEMPTS):
            place.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                os.rename(aside, place)
            except OSError as error:
                if error.errno not in _OCCUPIED:
                    raise
            else:
                return True
            if self._holds(manifest):
                return False  # another writer was first with the same
            self.put_away(place)
        return False  # others keep publishing other payloads: as if ours had stood there for a moment

    def _holds(self, manifest: Manifest) -> bool:
        try:
            return entries.verify(self._place(manifest.key), manifest.key).sha256 == manifest.sha256
        except (Damaged, OSError):
            return False

    def put_away(self, path: Path) -> bool:
        """Take away what lies under `entries/`, at once for all; its files are deleted afterwards.

        False when nothing was there. Raises UnwritableFolder.
        """
        aside = unique(self._aside)
        size = _record(path).size
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UnwritableFolder.because(self.folder, f"remove {path.name}", error) from error
        discard(aside)
        self.counts.add(bytes=-size)
        return True

    # Bounds and pins

    def _keep_bound(self, newest: str) -> None:
        """Account for a new entry, and make room once the folder is above its bound."""
        totals = self.counts.add(bytes=_record(self._place(newest)).size)
        if self._policy is None or totals.bytes <= self.limit_bytes:
            return
        try:
            self.prune(int(self.limit_bytes * HEADROOM), keep=newest, patience=0.0)
        except LockTimeout:
            return  # somebody else is evicting already
        except UnwritableFolder as error:
            _log.warning("the cache stays above its bound of %d bytes: %s", self.limit_bytes, error)

    def prune(
        self, limit_bytes: int, *, unused_for: float | None = None, keep: str = "", patience: float = PATIENCE
    ) -> list[Record]:
        """Evict what was unused for so many seconds, then by policy down to the bound; never what is pinned.

        Gives what left, and measures the folder's bytes anew. `keep` is a key that must outlive this
        pruning. Raises LockTimeout when another process has been pruning or pinning for longer than
        `patience` seconds, and UnwritableFolder.
        """
        self._make_folders()
        with held(self.folder / "lock", patience, "a pruning"):
            clear_older(self._aside, TEMPORARY_AGE)
            self._clear_locks()
            records = self.records()
            bytes_before = sum(record.size for record in records)
            free = [record for record in records if record.key != keep]
            bytes_kept = bytes_before - sum(record.size for record in free)
            aged = [] if unused_for is None else unused_since(free, time.time_ns() - int(unused_for * 1e9))
            young = set(free).difference(aged)
            leaving = aged + victims(young, limit_bytes - bytes_kept, self._policy)
            left = [record for record in leaving if self.put_away(self._place(record.key))]
            self.counts.set_bytes(bytes_before - sum(record.size for record in left))
            self.counts.add(evictions=len(left))
            return left

    def pin(self, key: str, owner: str) -> None:
        """Never evict the key while the owner holds it. Raises UnwritableFolder, LockTimeout, ValueError."""
        checked(key)
        self._make_folders()
        with held(self.folder / "lock", PATIENCE, "a pin"):
            try:
                self._pins.add(key, owner)
            except OSError as error:
                raise UnwritableFolder.because(self.folder, f"pin {key}", error) from error

    def unpin(self, owner: str) -> None:
        """Let go of all the owner pinned. Raises as `pin` does."""
        self._make_folders()
        aside = unique(self._aside)
        with held(self.folder / "lock", PATIENCE, "an unpin"):
            try:
                os.rename(self._pins.place(owner), aside)
            except FileNotFoundError:
                return
            except OSError as error:
                raise UnwritableFolder.because(self.folder, f"unpin {owner}", error) from error
        discard(aside)

    def _clear_locks(self) -> None:
        for path in older(self._locks, LOCK_AGE):
            with suppress(LockTimeout, FileNotFoundError), held(path, 0.0, "a cleaning"):
                path.unlink()

    # Looking

    def records(self) -> list[Record]:
        """Every entry as the policies see it. Nothing is verified."""
        owners = self._pins.owners()
        places = [place for place in self._places() if is_digest(place.name)]
        records = [_record(place, owners.get(place.name, ())) for place in places]
        return [record for record in records if record.used_ns]  # zero: it went while we looked

    def manifest(self, key: str) -> Manifest | None:
        """What an entry says of itself; its payload is not verified. None on a miss."""
        try:
            return entries.describe(self._place(key), key)
        except (Damaged, OSError):
            return None

    def verify(self) -> tuple[int, list[Finding]]:
        """Read and hash everything: how many entries are whole, and what is not."""
        whole, findings = 0, []
        for place in self._places():
            if not is_digest(place.name) or place.parent.name != place.name[:2]:
                findings.append(Finding(place, "foreign: not the place of an entry"))
                continue
            try:
                entries.verify(place, place.name)
                whole += 1
            except FileNotFoundError:
                continue
            except (Damaged, OSError) as error:
                findings.append(Finding(place, f"damaged: {error}"))
        return whole, findings

    def _places(self) -> Iterator[Path]:
        for shard in contents(self._entries):
            if shard.is_dir() and not shard.is_symlink():
                yield from contents(shard)
            else:
                yield shard

    def _place(self, key: str) -> Path:
        return self._entries / checked(key)[:2] / key


def _record(place: Path, pinned_by: tuple[str, ...] = ()) -> Record:
    size, uses, used_ns = 0, 0, 0
    for name in (entries.PAYLOAD, entries.MANIFEST, entries.USES):
        with suppress(OSError):
            found = (place / name).lstat()
            used_ns = max(used_ns, found.st_mtime_ns)
            if name == entries.USES:
                uses = found.st_size
            else:
                size += found.st_size
    return Record(place.name, size, uses, used_ns, pinned_by)


def _identity(place: Path) -> int | None:
    with suppress(OSError):
        return place.lstat().st_ino
    return None
