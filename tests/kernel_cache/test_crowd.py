"""Many processes on one folder, and some that die. Each is a real process running a task of `crowd.py`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from dlcb.kernel_cache import check, ls, open_store, prune, stat

CROWD = 8


def start(task: str, folder: Path, members: int = 1) -> "subprocess.Popen[str]":
    command = [sys.executable, Path(__file__).with_name("crowd.py"), task, folder, str(members)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(crowd: "subprocess.Popen[str]") -> str:
    """What a crowd printed, after all its members ended well."""
    printed, errors = crowd.communicate()
    assert crowd.returncode == 0, errors
    return printed


def test_a_crowd_publishes_and_reads_while_another_prunes(folder: Path) -> None:
    pruning = start("prune_all_the_time", folder)
    try:
        finish(start("publish_and_read", folder, CROWD))
    finally:
        finish(pruning)
    store = open_store(folder)
    assert stat(store).corrupt == 0
    assert stat(store).hits > 0
    assert stat(store).evictions > 0
    assert check(store).findings == ()
    assert list((folder / "aside").iterdir()) == []
    prune(store, 100_000)
    assert stat(store).bytes <= 100_000


def test_a_crowd_publishing_the_same_finds_it_at_once_and_once(folder: Path) -> None:
    finish(start("publish_the_same", folder, CROWD))
    store = open_store(folder)
    assert len(ls(store)) == 10
    assert check(store).whole == 10
    assert stat(store).misses == 0
    assert stat(store).corrupt == 0
    assert list((folder / "aside").iterdir()) == []


def test_of_a_crowd_one_does_each_piece_of_work(folder: Path) -> None:
    open_store(folder)
    finish(start("compile_once", folder, 4))
    worked = [path.name.split()[1] for path in folder.parent.glob("worked *")]
    assert sorted(worked) == [str(round_) for round_ in range(5)]


def test_killed_writers_leave_whole_entries_and_leftovers_that_age(folder: Path) -> None:
    store = open_store(folder, memory_bytes=0)
    crowd = start("publish_until_killed", folder, 4)
    assert crowd.stdout is not None
    writers = [int(crowd.stdout.readline()) for _ in range(4)]
    for writer in writers:
        store.put("0" * 64, b"work beside them")
        os.kill(writer, signal.SIGKILL)
    crowd.communicate()
    assert check(store).findings == ()
    assert all(store.get(entry.key) for entry in ls(store))
    assert stat(store).corrupt == 0
    assert store.get("0" * 64) == b"work beside them"
    for leftover in (folder / "aside").iterdir():
        os.utime(leftover, (0, 0))
    prune(store)
    assert list((folder / "aside").iterdir()) == []


def test_a_kill_at_any_step_harms_nobody(folder: Path) -> None:
    steps = int(finish(start("die_at_every_step", folder)))
    assert steps > 100  # at which it was killed
