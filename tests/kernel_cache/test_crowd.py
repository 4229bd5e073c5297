"""Many processes on one folder, and some that die. Each is a real process running a task of `crowd.py`."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlcb.kernel_cache import check, ls, open_store, prune, stat
from dlcb.kernel_cache.disk import TEMPORARY_AGE
from dlcb.kernel_cache.folder import older

CROWD = 8


def member(task: str, folder: Path, number: int) -> "subprocess.Popen[str]":
    command = [sys.executable, Path(__file__).with_name("crowd.py"), task, folder, str(number)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(members: list["subprocess.Popen[str]"]) -> list[str]:
    """What each member printed, after all ended well."""
    ended = [(each.communicate(), each.returncode) for each in members]
    failures = [errors for (_, errors), code in ended if code != 0]
    assert not failures, failures[0]
    return [printed for (printed, _), _ in ended]


@contextmanager
def started(task: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A member that works beside the others until the block ends, and must have ended well."""
    child = member(task, folder, 0)
    try:
        yield child
    finally:
        finish([child])


def test_a_crowd_publishes_and_reads_while_another_prunes(folder: Path) -> None:
    with started("prune_all_the_time", folder):
        finish([member("publish_and_read", folder, number) for number in range(CROWD)])
    store = open_store(folder)
    assert stat(store).corrupt == 0
    assert stat(store).hits > 0
    assert stat(store).evictions > 0
    assert check(store).findings == ()
    assert list((folder / "aside").iterdir()) == []
    prune(store, 100_000)
    assert stat(store).bytes <= 100_000


def test_a_crowd_publishing_the_same_finds_it_at_once_and_once(folder: Path) -> None:
    finish([member("publish_the_same", folder, number) for number in range(CROWD)])
    store = open_store(folder)
    assert len(ls(store)) == 20
    assert check(store).whole == 20
    assert stat(store).misses == 0
    assert stat(store).corrupt == 0
    assert list((folder / "aside").iterdir()) == []


def test_of_a_crowd_one_does_each_piece_of_work(folder: Path) -> None:
    open_store(folder)
    finish([member("compile_once", folder, number) for number in range(4)])
    worked = [path.name.split()[1] for path in folder.parent.glob("worked *")]
    assert sorted(worked) == [str(round_) for round_ in range(5)]


def test_killed_writers_leave_whole_entries_and_leftovers_that_age(folder: Path) -> None:
    store = open_store(folder, memory_bytes=0)
    writers = [member("publish_until_killed", folder, number) for number in range(4)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "started\n"
    for writer in writers:
        store.put("0" * 64, b"work beside them")
        writer.kill()
        writer.communicate()
    assert check(store).findings == ()
    assert all(store.get(entry.key) for entry in ls(store))
    assert stat(store).corrupt == 0
    assert store.get("0" * 64) == b"work beside them"
    assert older(folder / "aside", TEMPORARY_AGE) == []


def test_a_kill_at_any_step_harms_nobody(folder: Path) -> None:
    (printed,) = finish([member("die_at_every_step", folder, 0)])
    assert int(printed) > 100  # steps at which it was killed
