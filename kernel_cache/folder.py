"""A folder whose content will be run: made private, refused when anybody else could write it, proven
writable. Also the two things done to files nobody should see any more: discarding them, and clearing away
what the dead left behind.
"""

import os
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from dlcb.kernel_cache.errors import UnsafeFolder, UnwritableFolder

_WRITABLE_BY_OTHERS = 0o022  # group and everybody


def private_folder(folder: Path) -> Path:
    """The folder, absolute, made with mode 0700 if need be. Raises UnsafeFolder or UnwritableFolder."""
    try:
        folder = folder.expanduser().absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: `~` of a user who has no home
        raise UnwritableFolder.because(folder, "make or open anything", error) from error
    if found.st_uid != os.geteuid():
        message = (
            f"cache folder {folder} belongs to user {found.st_uid}, but what is in it would be run as user "
            f"{os.geteuid()}: choose a folder of your own"
        )
        raise UnsafeFolder(folder, message)
    if found.st_mode & _WRITABLE_BY_OTHERS:
        message = (
            f"cache folder {folder} has mode {found.st_mode & 0o777:04o}, so others may write what would be "
            f"run here: make sure of its content and chmod 700 it, or choose another folder"
        )
        raise UnsafeFolder(folder, message)
    return folder


def subfolder(folder: Path, name: str) -> Path:
    """A private folder inside. Raises UnwritableFolder."""
    inside = folder / name
    try:
        inside.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnwritableFolder.because(folder, f"make {name}", error) from error
    return inside


def prove_writable(folder: Path, aside: Path) -> None:
    """Write a byte, as permissions say nothing of a read-only or full disk. Raises UnwritableFolder."""
    probe = unique(aside)
    try:
        probe.write_bytes(b".")
    except OSError as error:
        raise UnwritableFolder.because(folder, "write", error) from error
    finally:
        discard(probe)


def unique(folder: Path) -> Path:
    """A path in the folder that nobody else will ever choose."""
    return folder / f"{os.getpid()}-{uuid.uuid4().hex}"


def discard(path: Path) -> None:
    """Delete a file or a tree as far as possible; what cannot be deleted stays for a later cleaning."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def clear_older(folder: Path, seconds: float) -> int:
    """Discard what lies in the folder since more than so many seconds; gives how many that were."""
    aged = older(folder, seconds)
    for path in aged:
        discard(path)
    return len(aged)


def older(folder: Path, seconds: float) -> list[Path]:
    """What in the folder was last changed more than so many seconds ago."""
    latest = time.time() - seconds
    found = []
    for path in contents(folder):
        with suppress(FileNotFoundError):  # another process cleans as well
            if path.lstat().st_mtime < latest:
                found.append(path)
    return found


def contents(folder: Path) -> list[Path]:
    """What is in a folder; nothing when it is gone or no folder."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
