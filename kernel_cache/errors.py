"""Every error this package raises on purpose, as one tree. A missing or damaged entry is none: it is a miss.

CacheError
├── FolderError            .folder: the cache folder cannot be used
│   ├── UnsafeFolder       someone else owns it, or others may write it
│   └── UnwritableFolder   it cannot be made or written: permissions, a read-only or a full disk
├── LockTimeout            another process held a lock for longer than the caller would wait
├── RemoteError            the remote's URL names no installed driver; failures after that are misses
└── BundleError            .path: a bundle cannot be written, is not whole, or was asked to change
"""

from pathlib import Path


class CacheError(Exception):
    """The root of the tree."""


class FolderError(CacheError):
    """The cache folder cannot be used; `folder` is the one meant."""

    def __init__(self, folder: Path, message: str) -> None:
        super().__init__(message)
        self.folder = folder


class UnsafeFolder(FolderError):
    """Somebody else could put code there that we would run."""


class UnwritableFolder(FolderError):
    """The folder, or an entry in it, cannot be made or written."""

    @classmethod
    def because(cls, folder: Path, action: str, error: Exception) -> "UnwritableFolder":
        """The same message for every failed write: what was wanted, where, and what the system answered."""
        answer = error.strerror if isinstance(error, OSError) else error
        return cls(folder, f"cannot {action} in cache folder {folder}: {answer}")


class LockTimeout(CacheError):
    """Another process held the lock for longer than the caller would wait."""


class RemoteError(CacheError):
    """The remote's URL cannot be understood or its driver is not installed."""


class BundleError(CacheError):
    """A bundle cannot be written, is not whole, or was asked to change; `path` is the one meant."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
