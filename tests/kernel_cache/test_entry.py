"""Every way an entry can be less than whole, on disk and as a blob."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dlcb.kernel_cache import entry as entries
from dlcb.kernel_cache.entry import Damaged, Entry, Manifest

PAYLOAD = bytes(range(40)) + b"\n{}"


@pytest.fixture
def entry(key: Callable[[object], str]) -> Entry:
    return Entry.of(key("a"), PAYLOAD, "kernel", 'größe "x"\nline')


@pytest.fixture
def place(entry: Entry, tmp_path: Path) -> Path:
    entries.write(entry, tmp_path / "entry")
    return tmp_path / "entry"


def test_what_is_written_is_read(entry: Entry, place: Path) -> None:
    assert entries.read(place, entry.manifest.key) == entry
    assert entries.verify(place, entry.manifest.key) == entry.manifest
    assert entries.describe(place, entry.manifest.key) == entry.manifest
    assert entries.unpack(entries.pack(entry), entry.manifest.key) == entry


def test_the_payload_is_a_file_of_exactly_the_payload(place: Path) -> None:
    assert (place / "payload").read_bytes() == PAYLOAD


def test_files_are_for_their_owner_only(place: Path) -> None:
    assert place.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in place.iterdir())


@pytest.mark.parametrize("name", ["payload", "manifest.json"])
def test_a_flipped_bit_in_any_byte_of_a_file_is_seen(entry: Entry, place: Path, name: str) -> None:
    whole = (place / name).read_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        (place / name).write_bytes(flipped)
        for look in (entries.read, entries.verify):
            with pytest.raises(Damaged):
                look(place, entry.manifest.key)


@pytest.mark.parametrize("name", ["payload", "manifest.json"])
def test_any_missing_tail_is_seen(entry: Entry, place: Path, name: str) -> None:
    whole = (place / name).read_bytes()
    for length in range(len(whole)):
        (place / name).write_bytes(whole[:length])
        for look in (entries.read, entries.verify):
            with pytest.raises(Damaged):
                look(place, entry.manifest.key)


@pytest.mark.parametrize("name", ["payload", "manifest.json"])
def test_anything_added_is_seen(entry: Entry, place: Path, name: str) -> None:
    for addition in (b" ", b"\n", b"\0", PAYLOAD):
        whole = (place / name).read_bytes()
        (place / name).write_bytes(whole + addition)
        with pytest.raises(Damaged):
            entries.read(place, entry.manifest.key)
        (place / name).write_bytes(whole)
    assert entries.read(place, entry.manifest.key) == entry


def test_any_flipped_bit_or_missing_tail_of_a_blob_is_seen(entry: Entry) -> None:
    blob = entries.pack(entry)
    for bit in range(len(blob) * 8):
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            entries.unpack(bytes(flipped), entry.manifest.key)
    for length in range(len(blob)):
        with pytest.raises(Damaged):
            entries.unpack(blob[:length], entry.manifest.key)


FOREIGN = {
    "empty": b"",
    "not text": b"\xff\xfe\x00",
    "not json": b"hello",
    "deep": b"[" * 60_000,
    "huge": b"1" * 10_000_000,
    "a list": b"[1, 2]",
    "other fields": b'{"format": 1}',
    "null": b"null",
    "not a number": b"NaN",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_manifest_is_seen(entry: Entry, place: Path, text: bytes) -> None:
    (place / "manifest.json").write_bytes(text)
    with pytest.raises(Damaged):
        entries.read(place, entry.manifest.key)


def test_an_entry_of_another_key_is_foreign(entry: Entry, place: Path, key: Callable[[object], str]) -> None:
    with pytest.raises(Damaged, match=entry.manifest.key):
        entries.read(place, key("b"))


def test_an_entry_of_another_format_is_foreign(
    entry: Entry, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "FORMAT", 2)
    with pytest.raises(Damaged, match="format 1, this version reads 2"):
        entries.read(place, entry.manifest.key)


@pytest.mark.parametrize("name", ["payload", "manifest.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_a_file_that_is_no_plain_file_is_seen_and_hangs_nobody(
    entry: Entry, place: Path, name: str, make: Callable[[Path], None]
) -> None:
    (place / name).unlink()
    make(place / name)
    with pytest.raises(Damaged, match="not a plain file"):
        entries.read(place, entry.manifest.key)


def test_a_missing_file_is_damage_and_a_missing_folder_is_not(entry: Entry, place: Path) -> None:
    (place / "payload").unlink()
    with pytest.raises(Damaged, match="no payload"):
        entries.read(place, entry.manifest.key)
    with pytest.raises(FileNotFoundError):
        entries.read(place.with_name("other"), entry.manifest.key)


def test_a_file_where_the_folder_should_be_is_seen(entry: Entry, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(Damaged, match="not a folder"):
            entries.read(tmp_path / name, entry.manifest.key)


def test_a_label_beyond_all_reading_is_refused(key: Callable[[object], str]) -> None:
    with pytest.raises(ValueError, match="65536 bytes"):
        Manifest.of(key("a"), b"", label="x" * 65536)


def test_one_manifest_has_one_spelling(entry: Entry) -> None:
    again = Entry.of(entry.manifest.key, PAYLOAD, "kernel", 'größe "x"\nline')
    assert again.manifest.text() == entry.manifest.text()
    assert entry.manifest.text().count(b"\n") == 1
