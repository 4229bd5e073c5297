"""Which folders are used and which are refused. What root may do that others may not is tested in a child
that gives up being root.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlcb.kernel_cache import (
    FolderError,
    UnsafeFolder,
    UnwritableFolder,
    default_folder,
    open_store,
    single_flight,
)

NOBODY = 65534
AS_NOBODY = f"""
import os, pathlib, sys
from dlcb.kernel_cache import open_store
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid({NOBODY})
open_store(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder other users can reach, as pytest's own is closed to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def open_as_nobody(folder: Path) -> str:
    """The last line a process that is not root prints about opening a store."""
    command = [sys.executable, "-c", AS_NOBODY, folder]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    return child.stderr.strip().rpartition("\n")[2]


def test_a_new_folder_is_private_and_its_parents_are_made(tmp_path: Path) -> None:
    store = open_store(tmp_path / "some" / "where")
    assert store.folder == tmp_path / "some" / "where"
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert all(inside.stat().st_mode & 0o077 == 0 for inside in store.folder.iterdir())


def test_a_private_folder_that_is_there_is_used(folder: Path) -> None:
    for mode in (0o700, 0o755):
        folder.mkdir(mode=mode, exist_ok=True)
        folder.chmod(mode)
        assert open_store(folder).folder == folder


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_others_may_write_is_refused_in_one_line(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UnsafeFolder, match=f"{folder} has mode {mode & 0o777:04o}.*chmod 700") as refusal:
        open_store(folder)
    assert "\n" not in str(refusal.value)
    assert refusal.value.folder == folder
    assert list(folder.iterdir()) == []


def test_a_running_store_refuses_a_folder_opened_up_meanwhile(folder: Path) -> None:
    store = open_store(folder)
    folder.chmod(0o777)
    with pytest.raises(UnsafeFolder):
        store.put("0" * 64, b"payload")
    with pytest.raises(UnsafeFolder), single_flight(folder, "0" * 64):
        raise AssertionError("not reached")


@pytest.mark.skipif(os.geteuid() != 0, reason="hardware: only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused_in_one_line(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(UnsafeFolder, match=f"{folder} belongs to user {NOBODY}.*as user 0") as refusal:
        open_store(folder)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_permission_is_unwritable(public: Path) -> None:
    public.chmod(0o555)
    line = open_as_nobody(public / "cache")
    assert line == (
        f"dlcb.kernel_cache.errors.UnwritableFolder: cannot make or open anything in cache folder "
        f"{public / 'cache'}: Permission denied"
    )


def test_a_folder_that_may_not_be_written_is_unwritable(public: Path) -> None:
    (public / "cache").mkdir(mode=0o500)
    if os.geteuid() == 0:
        os.chown(public / "cache", NOBODY, NOBODY)
    line = open_as_nobody(public / "cache")
    assert line.startswith("dlcb.kernel_cache.errors.UnwritableFolder: cannot make entries in cache folder")


@pytest.mark.parametrize("below", ["file", "file/below", "/proc/nothing"])
def test_a_place_where_no_folder_can_be_is_unwritable(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnwritableFolder) as refusal:
        open_store(tmp_path / below)
    assert isinstance(refusal.value, FolderError)
    assert str(tmp_path / below) in str(refusal.value)


def test_the_default_folder_is_the_variable_or_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DLCB_CACHE", raising=False)
    assert open_store().folder == tmp_path / ".cache" / "dlcb"
    monkeypatch.setenv("DLCB_CACHE", str(tmp_path / "named"))
    assert default_folder() == tmp_path / "named"
    assert open_store().folder == tmp_path / "named"


def test_a_home_nobody_has_is_told_in_one_line() -> None:
    with pytest.raises(UnwritableFolder, match=r"in cache folder ~nobody-has-this-name/cache: .*home"):
        open_store(Path("~nobody-has-this-name/cache"))
