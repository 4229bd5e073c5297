import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dlcb.kernel_cache import LayeredStore, Statistics, check, ls, prune, stat

Keys = Callable[[object], str]


def test_statistics_tell_the_folder_and_what_was_done_with_it(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), bytes(1000))
    store.put(key(2), bytes(500))
    store.pin(key(2), "model")
    store.get(key(1))
    store.get(key(3))
    (store.folder / "entries" / key(1)[:2] / key(1) / "payload").write_bytes(b"")
    store.get(key(1))
    store.put(key(4), bytes(10))
    prune(store, 0)
    found = stat(store)
    assert found == Statistics(
        bytes=found.bytes,
        entries=1,
        hits=1,
        misses=2,
        evictions=1,
        corrupt=1,
        remote_failures=0,
        limit_bytes=4 * 2**30,
        pinned_bytes=found.bytes,
        pinned_entries=1,
    )
    files = [path for path in (store.folder / "entries").rglob("*") if path.is_file() and path.name != "uses"]
    assert found.bytes == sum(path.stat().st_size for path in files)


def test_the_running_estimate_of_bytes_is_exact_without_kills(store: LayeredStore, key: Keys) -> None:
    for number in range(5):
        store.put(key(number), bytes(100 * number))
        store.put(key(number), bytes(100 * number))
    store.put(key(0), b"other")
    prune(store, 1000)
    store.put(key(9), b"x")
    estimate = store.disk.counts.read().bytes
    assert estimate == stat(store).bytes


def test_ls_tells_what_people_want_to_know_the_last_used_first(store: LayeredStore, key: Keys) -> None:
    before = time.time()
    store.put(key(1), bytes(1000), kind="kernel", label="one")
    store.put(key(2), bytes(500), kind="artifact", label="two")
    store.pin(key(1), "resnet/1")
    store.get(key(1))
    first, second = ls(store)
    assert (first.key, first.kind, first.label, first.uses) == (key(1), "kernel", "one", 1)
    assert first.pinned_by == ("resnet/1",)
    assert before <= second.used <= first.used <= time.time()
    assert (second.key, second.kind, second.label, second.uses, second.pinned_by) == (
        key(2),
        "artifact",
        "two",
        0,
        (),
    )
    assert 500 < second.size < 1000


def test_ls_passes_over_what_is_no_entry(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), b"payload")
    (store.folder / "entries" / key(1)[:2] / key(1) / "manifest.json").write_bytes(b"{}")
    (store.folder / "entries" / "foreign").touch()
    assert ls(store) == []


def test_prune_lets_go_of_what_was_long_unused(store: LayeredStore, key: Keys) -> None:
    for number in range(3):
        store.put(key(number), b"payload")
    store.pin(key(0), "model")
    for number in range(2):
        place = store.folder / "entries" / key(number)[:2] / key(number)
        for file in place.iterdir():
            os.utime(file, (time.time() - 3600, time.time() - 3600))
    assert [record.key for record in prune(store, unused_for=1800)] == [key(1)]
    assert {entry.key for entry in ls(store)} == {key(0), key(2)}


def test_check_names_everything_that_is_not_whole_and_changes_nothing(store: LayeredStore, key: Keys) -> None:
    for number in range(3):
        store.put(key(number), b"payload")
    entries = store.folder / "entries"
    damaged = entries / key(1)[:2] / key(1)
    (damaged / "payload").write_bytes(b"Payload")
    (entries / "README").touch()
    (damaged.parent / "note.txt").touch()
    misplaced = entries / "zz" / key(2)
    misplaced.mkdir(parents=True)
    for _ in range(2):
        report = check(store)
        assert report.whole == 2
        found = {finding.path: finding.reason for finding in report.findings}
        assert found.keys() == {damaged, entries / "README", damaged.parent / "note.txt", misplaced}
        assert found[damaged].startswith("damaged: the payload has sha256")
        assert found[misplaced].startswith("foreign")
    assert len(check(store, remove=True).findings) == 4
    assert check(store).findings == ()
    assert check(store).whole == 2


@pytest.mark.parametrize("limit", [0, 10**9])
def test_prune_of_an_empty_store_does_nothing(store: LayeredStore, limit: int) -> None:
    assert prune(store, limit) == []
    assert check(store) == check(store, remove=True)


def test_the_folder_holds_nothing_but_what_is_known(store: LayeredStore, folder: Path, key: Keys) -> None:
    store.put(key(1), b"payload")
    store.pin(key(1), "model")
    prune(store, 0)
    names = {path.name for path in folder.iterdir()}
    assert names == {"aside", "counts", "entries", "lock", "locks", "pins"}
