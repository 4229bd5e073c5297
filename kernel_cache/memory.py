"""The front layer: the entries this process used last, within a bound in bytes, so that one payload is read
and verified once. Safe for threads; never fails.
"""

import threading
from collections import OrderedDict

from dlcb.kernel_cache.entry import Entry


class Memory:
    """Entries in this process, the longest unused leaving first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._largest = limit_bytes // 4  # one set of constants must not push out every kernel
        self._bytes = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, key: str) -> Entry | None:
        """The entry, which is now the last to leave; or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def write(self, entry: Entry) -> None:
        """Keep the entry, unless it alone would fill a quarter of the bound."""
        with self._lock:
            before = self._entries.pop(entry.manifest.key, None)
            if before is not None:
                self._bytes -= before.manifest.size
            if entry.manifest.size > self._largest:
                return
            self._entries[entry.manifest.key] = entry
            self._bytes += entry.manifest.size
            while self._bytes > self._limit:
                _, leaving = self._entries.popitem(last=False)
                self._bytes -= leaving.manifest.size
