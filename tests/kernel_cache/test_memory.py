from collections.abc import Callable

from dlcb.kernel_cache.entry import Entry
from dlcb.kernel_cache.memory import Memory


def test_the_longest_unused_leaves_first(key: Callable[[object], str]) -> None:
    memory = Memory(limit_bytes=40)
    entries = [Entry.of(key(number), bytes(10)) for number in range(5)]
    for entry in entries[:4]:
        memory.write(entry)
    assert memory.read(key(0)) is entries[0]
    memory.write(entries[4])
    assert memory.read(key(1)) is None
    assert [number for number in range(5) if memory.read(key(number))] == [0, 2, 3, 4]


def test_writing_again_counts_once(key: Callable[[object], str]) -> None:
    memory = Memory(limit_bytes=40)
    for _ in range(10):
        memory.write(Entry.of(key(0), bytes(10)))
        memory.write(Entry.of(key(1), bytes(10)))
    assert memory.read(key(0))
    assert memory.read(key(1))


def test_a_large_entry_passes_by_and_takes_its_former_self_along(key: Callable[[object], str]) -> None:
    memory = Memory(limit_bytes=40)
    memory.write(Entry.of(key(0), b"small"))
    memory.write(Entry.of(key(1), b"other"))
    memory.write(Entry.of(key(0), bytes(11)))
    assert memory.read(key(0)) is None
    assert memory.read(key(1))


def test_without_a_bound_there_is_no_front(key: Callable[[object], str]) -> None:
    memory = Memory(limit_bytes=0)
    memory.write(Entry.of(key(0), b"x"))
    assert memory.read(key(0)) is None
