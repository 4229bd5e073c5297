import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dlcb.kernel_cache import LayeredStore, LockTimeout, UnwritableFolder, open_store, single_flight

HOLD = """
import sys, pathlib
from dlcb.kernel_cache import single_flight
with single_flight(pathlib.Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(store: LayeredStore, key: Callable[[object], str]) -> subprocess.Popen[str]:
    """A process that holds the flight of key 1 until its input is closed."""
    command = [sys.executable, "-c", HOLD, store.folder, key(1)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_flight_held_elsewhere_times_out_with_both_sides_named(
    store: LayeredStore, key: Callable[[object], str], holder: subprocess.Popen[str]
) -> None:
    message = rf"{key(1)}\.lock for the 0.01 s that the work on {key(1)}"
    with pytest.raises(LockTimeout, match=message), single_flight(store.folder, key(1), timeout=0.01):
        raise AssertionError("not reached")
    with single_flight(store.folder, key(2), timeout=0.01):
        pass
    holder.communicate("")
    with single_flight(store.folder, key(1), timeout=0.01):
        pass


def test_a_killed_holder_lets_go(
    store: LayeredStore, key: Callable[[object], str], holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with single_flight(store.folder, key(1), timeout=0.01):
        pass


def test_of_many_threads_one_compiles_and_all_have_the_result(
    folder: Path, key: Callable[[object], str]
) -> None:
    compiled, got = [], []
    barrier = threading.Barrier(8)

    def work() -> None:
        store = open_store(folder, memory_bytes=0)
        barrier.wait()
        with single_flight(folder, key(1), timeout=60):
            payload = store.get(key(1))
            if payload is None:
                payload = os.urandom(10)
                compiled.append(payload)
                store.put(key(1), payload)
        got.append(payload)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1
    assert got == compiled * 8


def test_an_error_in_flight_lets_go(store: LayeredStore, key: Callable[[object], str]) -> None:
    with pytest.raises(ZeroDivisionError), single_flight(store.folder, key(1)):
        raise ZeroDivisionError
    with single_flight(store.folder, key(1), timeout=0.01):
        pass


def test_a_place_that_cannot_hold_locks_is_unwritable(tmp_path: Path, key: Callable[[object], str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableFolder), single_flight(tmp_path / "file", key(1)):
        raise AssertionError("not reached")
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "folder" / "locks").touch()
    with pytest.raises(UnwritableFolder), single_flight(tmp_path / "folder", key(1)):
        raise AssertionError("not reached")
