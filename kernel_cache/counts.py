"""The folder's counters, shared by every process that uses it: the one that exports metrics is seldom the
one that compiles. Events in, totals out; a total survives restarts, and a file that cannot be read or
written costs only the numbers.
"""

import fcntl
import os
import struct
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

_MAGIC = b"dlcbcnt1"
_LAYOUT = struct.Struct("<8s6Q")


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes on disk (an estimate between two prunings), and events since the folder was made."""

    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    corrupt: int = 0
    remote_failures: int = 0


class Counts:
    """Totals in one small file, changed under its lock. Never raises: a counter is not worth a compile."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **amounts: int) -> Totals:
        """Add to the named totals, which stop at zero; gives the new ones."""
        return self._change(
            lambda totals: replace(
                totals, **{name: max(0, asdict(totals)[name] + amount) for name, amount in amounts.items()}
            )
        )

    def set_bytes(self, size: int) -> Totals:
        """Replace the estimate of bytes by what was just measured."""
        return self._change(lambda totals: replace(totals, bytes=size))

    def read(self) -> Totals:
        """The totals now."""
        return self._change(lambda totals: totals)

    def _change(self, change: Callable[[Totals], Totals]) -> Totals:
        try:
            # Opened each time: a descriptor shared by threads or a fork would share its lock as well.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return change(Totals())
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = _decode(os.pread(descriptor, _LAYOUT.size + 1, 0))
            after = change(before)
            if after != before:
                os.ftruncate(descriptor, _LAYOUT.size)  # a foreign file may be longer
                os.pwrite(descriptor, _LAYOUT.pack(_MAGIC, *astuple(after)), 0)
            return after
        except OSError:
            return change(Totals())
        finally:
            os.close(descriptor)


def _decode(content: bytes) -> Totals:
    if len(content) != _LAYOUT.size or not content.startswith(_MAGIC):
        return Totals()
    return Totals(*_LAYOUT.unpack(content)[1:])
