"""The layer that other machines share: one blob an entry at an fsspec URL (`s3://bucket/kernels`,
`file:///mnt/kernels`). Whatever goes wrong there is a miss and counted; blobs are verified like any entry.
After failures in a row it is left alone for a while, so that a dead remote does not slow every miss.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from dlcb.kernel_cache.counts import Counts
from dlcb.kernel_cache.entry import Damaged, Entry, pack, unpack
from dlcb.kernel_cache.errors import RemoteError
from dlcb.kernel_cache.key import checked

FAILURES = 3  # in a row before the remote is left alone
REST = 30.0  # seconds it is then left alone

_log = logging.getLogger("dlcb.kernel_cache")
_Answer = TypeVar("_Answer")


class Remote:
    """Entries at a URL. Raises RemoteError for a URL no installed driver knows; its credentials are the
    driver's affair.
    """

    def __init__(self, url: str, counts: Counts) -> None:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - 0.15 s of every process that has no remote

        try:
            self._files, root = url_to_fs(url)
        except (ValueError, ImportError, OSError) as error:
            raise RemoteError(f"cannot use {url} as the cache's remote: {error}") from error
        self._url = url
        self._root = root.rstrip("/")
        self._counts = counts
        self._failures = 0
        self._rests_until = 0.0

    def read(self, key: str) -> Entry | None:
        """The verified entry, or None."""
        place = self._place(key)
        blob = self._ask(lambda: self._cat(place), None)
        if blob is None:
            return None
        try:
            return unpack(blob, key)
        except Damaged as damage:
            _log.warning("remote cache entry %s is damaged, taken as a miss: %s", place, damage)
            self._counts.add(corrupt=1)
            return None

    def write(self, entry: Entry) -> None:
        """Upload the entry over whatever is there: it follows a miss, so that may be damaged."""
        place = self._place(entry.manifest.key)
        self._ask(lambda: self._pipe(place, pack(entry)), None)

    def _cat(self, place: str) -> bytes | None:
        try:
            return self._files.cat_file(place)
        except FileNotFoundError:
            return None

    def _pipe(self, place: str, blob: bytes) -> None:
        try:
            self._files.pipe_file(place, blob)
        except FileNotFoundError:  # a file system that wants its folders made
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(place, blob)

    def _ask(self, call: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        if time.monotonic() < self._rests_until:
            return otherwise
        try:
            answer = call()
        except Exception as error:  # a driver may raise anything; none of it may reach a compile
            self._counts.add(remote_failures=1)
            self._failures += 1
            rests = self._failures >= FAILURES
            if rests:
                self._failures, self._rests_until = 0, time.monotonic() + REST
            _log.warning(
                "remote cache %s failed, taken as a miss%s: %s: %s",
                self._url,
                f" and left alone for {REST:g} s" if rests else "",
                type(error).__name__,
                error,
            )
            return otherwise
        self._failures = 0
        return answer

    def _place(self, key: str) -> str:
        return f"{self._root}/{checked(key)}"
