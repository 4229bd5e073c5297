"""A crowd of processes that work on one folder until they are done or killed.

`python crowd.py <task> <folder> <members>`; tasks are the functions below, each member is a fork with a
number. A member that finds anything wrong ends with a traceback, and the crowd with a status above zero.
"""

import hashlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dlcb.kernel_cache import open_store, prune, single_flight, stat

SHARED_KEYS = 12
ROUNDS = 25


def key_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def payload_of(name: str) -> bytes:
    """The one right payload of a name: up to 60 kB, so that it takes several writes and reads."""
    return random.Random(name).randbytes(1 + random.Random(name).randrange(60_000))


def publish_and_read(folder: Path, number: int) -> None:
    """Put and get keys that all share and keys of our own; each get is the right bytes or a miss."""
    store = open_store(folder, limit_bytes=600_000, memory_bytes=0)
    order = random.Random(number)
    for round_ in range(ROUNDS):
        shared = order.random() < 0.7
        name = f"shared {order.randrange(SHARED_KEYS)}" if shared else f"own {number} {round_ % 8}"
        store.put(key_of(name), payload_of(name), kind="kernel", label=name)
        for looked in (name, f"shared {order.randrange(SHARED_KEYS)}"):
            got = store.get(key_of(looked))
            assert got in (None, payload_of(looked)), f"wrong bytes for {looked}"
            path = store.path(key_of(looked))
            with suppress(FileNotFoundError):  # evicted meanwhile, which `path` says may happen
                assert path is None or path.read_bytes() == payload_of(looked), f"wrong file for {looked}"


def prune_all_the_time(folder: Path, number: int) -> None:
    """Evict, verify and count until the input is closed."""
    store = open_store(folder, memory_bytes=0)
    os.set_blocking(0, False)
    while sys.stdin.buffer.raw.read(1) is None:
        prune(store, random.Random(number).randrange(400_000))
        stat(store)
        number += 1


def publish_the_same(folder: Path, number: int) -> None:
    """Everybody publishes one key with one payload and must find it at once."""
    store = open_store(folder, memory_bytes=0)
    for round_ in range(10):
        name = f"same {round_}"
        store.put(key_of(name), payload_of(name))
        assert store.get(key_of(name)) == payload_of(name)


def compile_once(folder: Path, number: int) -> None:
    """Under single flight, do the work of each key unless another did; each piece of work leaves a mark."""
    store = open_store(folder, memory_bytes=0)
    for round_ in range(5):
        with single_flight(folder, key_of(f"work {round_}"), timeout=60):
            if store.get(key_of(f"work {round_}")) is None:
                (folder.parent / f"worked {round_} {number}").touch()
                time.sleep(0.005)  # a compile takes a while; the others must wait for it
                store.put(key_of(f"work {round_}"), payload_of(f"work {round_}"))


def publish_until_killed(folder: Path, number: int) -> None:
    """Publish for ever, telling who started us which process to kill once the first is there."""
    store = open_store(folder, memory_bytes=0)
    for round_ in range(10**9):
        name = f"own {number} {round_ % 20}"
        store.put(key_of(name), payload_of(name) + bytes(round_))
        if round_ == 0:
            os.write(1, f"{os.getpid()}\n".encode())  # one call, as the members share the pipe


def die_at_every_step(folder: Path, number: int) -> None:
    """Put, replace, pin, evict and unpin in a child that is killed at its first call of the system, then
    at its second, and so on until it lives through; after each death the folder must serve as ever.
    """
    kept, changed = key_of("kept"), key_of("changed")
    store = open_store(folder, memory_bytes=0)
    store.pin(kept, "owner")
    store.put(kept, b"kept")
    for deaths in range(10_000):
        child = os.fork()
        if child == 0:
            _change_and_die(folder, changed, deaths)
            os._exit(0)
        survived = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store = open_store(folder, memory_bytes=0)
        assert store.get(kept) == b"kept"
        assert store.get(changed) in (None, b"first", b"second")
        assert stat(store).corrupt == 0
        store.put(changed, b"after")
        assert store.get(changed) == b"after"
        store.unpin("dying")
        prune(store, 0)
        assert store.get(kept) == b"kept"
        assert store.get(changed) is None
        if survived:
            print(deaths, flush=True)
            return


def _change_and_die(folder: Path, key: str, deaths: int) -> None:
    left = deaths

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal left
        if event.partition(".")[0] in ("open", "os", "fcntl", "shutil") and event != "os.kill":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    store = open_store(folder, memory_bytes=0)
    store.pin(key, "dying")
    store.put(key, b"first")
    store.put(key, b"second")
    store.unpin("dying")
    store.disk.prune(10)


def fork(task: Callable[[Path, int], None], folder: Path, number: int) -> int:
    """The process id of a new member."""
    member = os.fork()
    if member == 0:
        try:
            task(folder, number)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return member


if __name__ == "__main__":
    task_name, folder_name, count = sys.argv[1:]
    crowd = [fork(globals()[task_name], Path(folder_name), number) for number in range(int(count))]
    sys.exit(any([os.waitpid(member, 0)[1] for member in crowd]))
