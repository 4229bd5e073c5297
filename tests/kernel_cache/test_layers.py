import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from dlcb.kernel_cache import Store, bundle, open_store, stat

Keys = Callable[[object], str]


def test_both_stores_keep_the_protocol(folder: Path, tmp_path: Path) -> None:
    layered: Store = open_store(folder)
    bundle.write(open_store(folder), [], tmp_path / "empty")
    read_only: Store = bundle.open(tmp_path / "empty")
    assert layered.get("0" * 64) is None
    assert read_only.get("0" * 64) is None


def test_memory_answers_without_the_disk(folder: Path, key: Keys) -> None:
    store = open_store(folder)
    store.put(key(1), b"payload")
    store.disk.prune(0)
    assert store.get(key(1)) == b"payload"
    assert open_store(folder).get(key(1)) is None


def test_a_path_is_made_again_from_memory(folder: Path, key: Keys) -> None:
    store = open_store(folder)
    store.put(key(1), b"payload")
    store.disk.prune(0)
    path = store.path(key(1))
    assert path is not None
    assert path.read_bytes() == b"payload"


def test_a_payload_is_kept_under_its_own_digest(folder: Path) -> None:
    key = open_store(folder).keep(b"payload", kind="constants", label="m")
    assert key == hashlib.sha256(b"payload").hexdigest()
    store = open_store(folder)
    assert store.get(key) == b"payload"
    manifest = store.disk.manifest(key)
    assert manifest is not None
    assert (manifest.kind, manifest.label) == ("constants", "m")


def test_what_is_there_is_seen_without_reading_it(folder: Path, key: Keys) -> None:
    store = open_store(folder)
    assert not store.has(key(1))
    store.put(key(1), b"payload")
    payload = store.path(key(1))
    assert payload is not None
    payload.write_bytes(b"pay1oad")  # of the same size
    assert open_store(folder).has(key(1))
    assert open_store(folder).get(key(1)) is None  # only reading tells, and then it is gone
    assert not open_store(folder).has(key(1))


def test_a_part_of_a_payload_is_nothing(folder: Path, key: Keys) -> None:
    store = open_store(folder, memory_bytes=0)
    store.put(key(1), b"payload")
    payload = store.path(key(1))
    assert payload is not None
    payload.write_bytes(b"pay")
    assert not store.has(key(1))


def test_what_only_memory_has_is_put_on_disk_again(folder: Path, key: Keys) -> None:
    store = open_store(folder)
    store.put(key(1), b"payload")
    store.disk.prune(0)
    assert store.has(key(1))
    assert open_store(folder).has(key(1))


def test_a_hit_in_memory_is_a_use_on_disk(folder: Path, key: Keys) -> None:
    store = open_store(folder)
    for number in range(3):
        store.put(key(number), b"payload")
    for _ in range(4):
        store.get(key(0))
    (record,) = (record for record in store.disk.records() if record.key == key(0))
    assert record.uses == 4
    assert [victim.key for victim in store.disk.prune(700)] == [key(1)]


def test_a_read_fills_memory(folder: Path, key: Keys) -> None:
    open_store(folder).put(key(1), b"payload")
    store = open_store(folder)
    store.get(key(1))
    store.disk.prune(0)
    assert store.get(key(1)) == b"payload"


def test_every_look_is_counted_once_for_all_processes(folder: Path, key: Keys) -> None:
    store, other = open_store(folder), open_store(folder)
    store.get(key(1))
    store.path(key(1))
    store.put(key(1), b"payload")
    store.get(key(1))
    other.get(key(1))
    other.path(key(1))
    for each in (store, other):
        assert (stat(each).hits, stat(each).misses) == (3, 2)


def test_what_is_returned_is_not_what_lies_on_disk(folder: Path, key: Keys) -> None:
    store = open_store(folder, memory_bytes=0)
    payload = os.urandom(1000)
    store.put(key(1), payload)
    got = store.get(key(1))
    path = store.path(key(1))
    assert path is not None
    path.write_bytes(bytes(1000))
    assert got == payload
