"""Locks between processes (and between threads of one). The kernel lets go of them when their holder dies,
however it dies, so none is ever left behind held; `single_flight` lets one process work while the others
wait for its result.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dlcb.kernel_cache.errors import LockTimeout, UnwritableFolder
from dlcb.kernel_cache.folder import private_folder, subfolder
from dlcb.kernel_cache.key import checked

LOCKS = "locks"
PATIENCE = 60.0  # seconds to wait for the short work done under the folder's own lock


@contextmanager
def single_flight(store_folder: Path, key: str, timeout: float = 600.0) -> Iterator[None]:
    """Hold the right to make the payload of a key; look it up again inside, as another may have published it.

    Raises LockTimeout after `timeout` seconds (below zero: wait for ever); working on regardless is then
    wasteful but right, as publishing the same payload twice is no change.
    """
    path = subfolder(private_folder(store_folder), LOCKS) / f"{checked(key)}.lock"
    with held(path, timeout, f"the work on {key}"):
        with suppress(FileNotFoundError):
            os.utime(path)  # lock files age by their last use
        yield


@contextmanager
def held(path: Path, timeout: float, purpose: str) -> Iterator[None]:
    """Hold the lock file. Raises LockTimeout, or UnwritableFolder when it cannot be made."""
    lock = FileLock(path, timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        message = f"another process held {path} for the {timeout:g} s that {purpose} would wait"
        raise LockTimeout(message) from None
    except OSError as error:
        raise UnwritableFolder.because(path.parent, f"lock {path.name}", error) from error
    try:
        yield
    finally:
        lock.release()
