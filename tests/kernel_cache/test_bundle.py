import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dlcb.kernel_cache import BundleError, LayeredStore, bundle, open_store, stat

Keys = Callable[[object], str]


@pytest.fixture
def keys(store: LayeredStore, key: Keys) -> list[str]:
    """Three entries in the store, one of them empty."""
    for number, payload in enumerate([b"", b"one", os.urandom(40)]):
        store.put(key(number), payload, kind="kernel", label=f"number {number}")
    return [key(number) for number in range(3)]


@pytest.fixture
def file(store: LayeredStore, keys: list[str], tmp_path: Path) -> Path:
    bundle.write(store, keys, tmp_path / "model.bundle")
    return tmp_path / "model.bundle"


def test_a_bundle_holds_what_the_store_held(
    store: LayeredStore, keys: list[str], file: Path, key: Keys
) -> None:
    opened = bundle.open(file)
    assert opened.keys() == sorted(keys)
    assert [opened.read(name) for name in keys] == [store.read(name) for name in keys]
    assert [opened.get(name) for name in keys] == [store.get(name) for name in keys]
    assert opened.get(key("other")) is None
    assert opened.damaged() == []


def test_a_bundle_can_be_moved(file: Path, keys: list[str], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    moved = file.rename(tmp_path / "elsewhere" / "other name")
    assert bundle.open(moved).get(keys[1]) == b"one"


def test_the_same_entries_give_the_same_bytes(file: Path, keys: list[str], tmp_path: Path) -> None:
    other = open_store(tmp_path / "other")
    for name in reversed(keys):
        other.write(bundle.open(file).read(name))
    bundle.write(other, [*reversed(keys), *keys], tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_a_server_started_from_a_bundle_misses_nothing(file: Path, keys: list[str], tmp_path: Path) -> None:
    store = open_store(tmp_path / "fresh", bundle=file)
    assert [store.get(name) is not None for name in keys] == [True] * 3
    path = store.path(keys[1])
    assert path is not None
    assert path.read_bytes() == b"one"
    assert stat(store).misses == 0
    store.put("0" * 64, b"new")
    assert bundle.open(file).get("0" * 64) is None


def test_a_bundle_is_read_only(file: Path, keys: list[str], key: Keys) -> None:
    opened = bundle.open(file)
    opened.put(keys[1], b"one")
    with pytest.raises(BundleError, match="read-only"):
        opened.put(keys[1], b"two")
    with pytest.raises(BundleError, match="read-only"):
        opened.put(key("other"), b"two")
    opened.pin(keys[1], "model")
    opened.unpin("model")
    assert opened.path(keys[1]) is None


def test_a_flipped_bit_in_any_byte_is_refused_or_a_miss(file: Path, keys: list[str]) -> None:
    whole = file.read_bytes()
    expected = {name: bundle.open(file).get(name) for name in keys}
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        file.write_bytes(flipped)
        try:
            opened = bundle.open(file)
        except BundleError as error:
            assert error.path == file
            continue
        (damaged,) = opened.damaged()
        assert opened.corrupt == 1
        assert {name: opened.get(name) for name in keys} == {**expected, damaged: None}


def test_any_missing_tail_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for length in [*range(0, len(whole), 9), *range(len(whole) - 9, len(whole))]:
        file.write_bytes(whole[:length])
        with pytest.raises(BundleError, match="not a whole bundle"):
            bundle.open(file)


def test_a_missing_or_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"#!/bin/sh\n" * 100)
    with pytest.raises(BundleError, match=r"foreign is not a whole bundle: it does not begin"):
        bundle.open(tmp_path / "foreign")
    with pytest.raises(BundleError, match=r"missing: No such file"):
        bundle.open(tmp_path / "missing")
    with pytest.raises(BundleError, match=r"Is a directory"):
        bundle.open(tmp_path)


def test_a_key_the_store_lacks_writes_nothing(
    store: LayeredStore, keys: list[str], key: Keys, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match=f"no entry {key('other')}"):
        bundle.write(store, [*keys, key("other")], tmp_path / "partial")
    assert not (tmp_path / "partial").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_place_that_cannot_be_written_is_told(store: LayeredStore, keys: list[str], tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"cannot write bundle .*gone/model: No such file"):
        bundle.write(store, keys, tmp_path / "gone" / "model")


def test_a_bundle_replaced_under_its_reader_stays_as_it_was(
    store: LayeredStore, file: Path, keys: list[str]
) -> None:
    opened = bundle.open(file)
    bundle.write(store, keys[:1], file)
    assert opened.get(keys[1]) == b"one"
    assert bundle.open(file).keys() == keys[:1]


def test_a_bundle_closes_its_file(file: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        bundle.open(file)
    assert len(os.listdir("/proc/self/fd")) == before
