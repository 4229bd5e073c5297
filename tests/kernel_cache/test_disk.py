"""One process and the folder: what is put is got, what is not whole is a miss, and what must stay stays."""

import ctypes
import mmap
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dlcb.kernel_cache import LayeredStore, LockTimeout, UnwritableFolder, ls, open_store, prune, stat
from dlcb.kernel_cache import disk as disks
from dlcb.kernel_cache import entry as entries
from dlcb.kernel_cache.disk import LOCK_AGE, TEMPORARY_AGE
from dlcb.kernel_cache.lock import held

Keys = Callable[[object], str]


def place(store: LayeredStore, key: str) -> Path:
    return store.folder / "entries" / key[:2] / key


def test_what_is_put_is_got_also_by_another_store(store: LayeredStore, folder: Path, key: Keys) -> None:
    for payload in (b"", b"x", os.urandom(100_000)):
        store.put(key(payload), payload, kind="kernel", label="a kernel")
        assert store.get(key(payload)) == payload
        assert open_store(folder).get(key(payload)) == payload
    assert store.get(key("other")) is None


def test_the_same_again_is_no_change(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), b"payload", label="first")
    before = (place(store, key(1)) / "payload").stat()
    store.put(key(1), b"payload", label="second")
    assert (place(store, key(1)) / "payload").stat().st_ino == before.st_ino
    assert [(entry.label, entry.uses) for entry in ls(store)] == [("first", 1)]


def test_another_payload_replaces_the_first(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), b"first")
    with (place(store, key(1)) / "payload").open("rb") as held:
        store.put(key(1), b"second")
        assert store.get(key(1)) == b"second"
        assert held.read() == b"first"
    assert list((store.folder / "aside").iterdir()) == []


@pytest.mark.parametrize("bad", ["", "x", "A" * 64, "../" * 21 + "a"])
def test_what_is_no_digest_is_no_key(store: LayeredStore, bad: str) -> None:
    calls = [
        lambda: store.get(bad),
        lambda: store.put(bad, b""),
        lambda: store.path(bad),
        lambda: store.pin(bad, "owner"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="sha256"):
            call()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", ["payload", "manifest.json"])
@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink, replace_by_folder])
def test_a_damaged_entry_is_a_miss_counted_once_and_healed_by_the_next_put(
    store: LayeredStore, key: Keys, name: str, damage: Callable[[Path], None]
) -> None:
    for number in (1, 2):
        store.put(key(number), b"some payload")
        damage(place(store, key(number)) / name)
    assert store.get(key(1)) is None
    assert store.get(key(1)) is None
    assert store.path(key(2)) is None
    assert stat(store).corrupt == 2
    assert stat(store).entries == 0
    store.put(key(1), b"some payload")
    assert store.get(key(1)) == b"some payload"


def test_a_put_heals_a_damaged_entry_nobody_has_read(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), b"some payload")
    flip(place(store, key(1)) / "payload")
    store.put(key(1), b"some payload")
    assert store.get(key(1)) == b"some payload"


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/"), os.mkfifo])
def test_a_foreign_thing_in_an_entrys_place_is_a_miss_and_gives_way(
    store: LayeredStore, key: Keys, make: Callable[[Path], None]
) -> None:
    for look in (store.get, lambda name: store.put(name, b"payload")):
        place(store, key(1)).parent.mkdir(exist_ok=True)
        make(place(store, key(1)))
        look(key(1))
        store.put(key(1), b"payload")
        assert store.get(key(1)) == b"payload"
        shutil.rmtree(place(store, key(1)))


def test_an_entry_moved_to_another_key_is_a_miss(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), b"payload")
    place(store, key(2)).parent.mkdir(exist_ok=True)
    os.rename(place(store, key(1)), place(store, key(2)))
    assert store.get(key(2)) is None
    assert stat(store).corrupt == 1


def test_deleting_the_folder_under_a_running_store_empties_it(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), b"payload")
    shutil.rmtree(store.folder)
    assert store.get(key(1)) is None
    store.unpin("nobody")
    assert stat(store).entries == 0
    shutil.rmtree(store.folder)
    store.put(key(1), b"payload")
    assert store.get(key(1)) == b"payload"


def test_no_descriptors_left_is_a_miss_and_no_damage(store: LayeredStore, key: Keys) -> None:
    store.put(key(1), b"payload")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(3):
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
        try:
            held = []
            while True:
                try:
                    held.append(os.dup(0))
                except OSError:
                    break
            for descriptor in held[:spare]:
                os.close(descriptor)
            assert store.get(key(1)) in (None, b"payload")
            for descriptor in held[spare:]:
                os.close(descriptor)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert store.get(key(1)) == b"payload"
    assert stat(store).corrupt == 0


# Other processes at the worst moment


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Let something happen once, just before a function of `entry.py` goes on with its work."""

    def arrange(name: str, happen: Callable[[], object]) -> None:
        work = getattr(entries, name)

        def interrupted(*arguments: object) -> object:
            monkeypatch.setattr(entries, name, work)
            happen()
            return work(*arguments)

        monkeypatch.setattr(entries, name, interrupted)

    return arrange


@pytest.mark.parametrize("look", ["get", "path"])
def test_an_entry_evicted_while_it_is_read_is_a_miss_and_no_damage(
    store: LayeredStore, key: Keys, meanwhile: Callable[..., None], look: str
) -> None:
    store.put(key(1), b"payload")
    meanwhile("_manifest", lambda: store.disk.prune(0))
    assert getattr(store, look)(key(1)) is None
    assert stat(store).corrupt == 0


def test_an_entry_replaced_while_it_is_read_is_read_again(
    store: LayeredStore, key: Keys, meanwhile: Callable[..., None]
) -> None:
    store.put(key(1), b"first")
    meanwhile("_manifest", lambda: store.put(key(1), b"second"))
    assert store.get(key(1)) == b"second"
    assert stat(store).corrupt == 0


@pytest.mark.parametrize("other", [b"payload", b"other"])
def test_an_entry_published_while_we_write_the_same_stays_and_another_gives_way(
    store: LayeredStore, key: Keys, meanwhile: Callable[..., None], other: bytes
) -> None:
    inodes = []

    def publish() -> None:
        store.put(key(1), other)
        inodes.append(place(store, key(1)).stat().st_ino)

    meanwhile("write", publish)
    store.put(key(1), b"payload")
    assert (place(store, key(1)).stat().st_ino in inodes) == (other == b"payload")
    assert store.get(key(1)) == b"payload"
    assert list((store.folder / "aside").iterdir()) == []


def test_a_pin_waits_for_a_pruning_and_a_put_does_not(
    folder: Path, key: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(folder, limit_bytes=2_000, memory_bytes=0)
    monkeypatch.setattr(disks, "PATIENCE", 0.01)
    with held(folder / "lock", 0.0, "a pruning"):
        for number in range(3):
            store.put(key(number), bytes(1000))
        for change in (lambda: store.pin(key(1), "model"), lambda: store.unpin("model")):
            with pytest.raises(LockTimeout, match=r"lock for the 0\.01 s"):
                change()
    assert stat(store).entries == 3
    store.put(key(3), bytes(1000))
    assert stat(store).entries == 1


# A full disk

FULL = """
import resource, sys, pathlib
from dlcb.kernel_cache import UnwritableFolder, open_store
store = open_store(pathlib.Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
try:
    store.put("0" * 64, bytes(60_000))
except UnwritableFolder as error:
    print(error)
print(store.get("0" * 64), len(store.get("1" * 64)), list((store.folder / "aside").iterdir()))
"""


def test_a_write_that_fails_half_way_leaves_nothing_and_says_so(store: LayeredStore) -> None:
    store.put("1" * 64, bytes(10))
    child = subprocess.run(
        [sys.executable, "-c", FULL, store.folder], capture_output=True, text=True, check=True
    )
    assert child.stdout.splitlines() == [
        f"cannot write entry {'0' * 64} in cache folder {store.folder}: File too large",
        "None 10 []",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="hardware: needs /dev/full")
def test_a_full_disk_is_found_when_the_store_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlcb.kernel_cache.folder.unique", lambda aside: Path("/dev/full"))
    monkeypatch.setattr("dlcb.kernel_cache.folder.discard", lambda path: None)
    with pytest.raises(UnwritableFolder, match=f"{folder}: No space left on device"):
        open_store(folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="hardware: needs /dev/full")
def test_a_full_disk_can_be_tidied(
    store: LayeredStore, folder: Path, key: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(key(1), bytes(1000))
    with monkeypatch.context() as full:
        full.setattr("dlcb.kernel_cache.folder.unique", lambda aside: Path("/dev/full"))
        tidied = open_store(folder, to_write=False)
    assert [record.key for record in prune(tidied, 0)] == [key(1)]
    assert stat(tidied).entries == 0


# The payload as a file


def test_a_payload_can_be_loaded_and_outlives_its_eviction(
    store: LayeredStore, key: Keys, tmp_path: Path
) -> None:
    source, library = tmp_path / "nine.c", tmp_path / "nine.so"
    source.write_text("int nine(void) { return 9; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    store.put(key(1), library.read_bytes(), kind="kernel")
    path = store.path(key(1))
    assert path is not None
    loaded = ctypes.CDLL(str(path))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert [record.key for record in store.disk.prune(0)] == [key(1)]
        assert not path.exists()
        assert mapped[:] == library.read_bytes()
    assert loaded.nine() == 9
    assert store.path(key(1)) is None


# The bound


def test_the_bound_is_kept_by_policy(folder: Path, key: Keys) -> None:
    store = open_store(folder, limit_bytes=12_000, memory_bytes=0)
    for number in range(8):
        store.put(key(number), bytes(1000))
    store.get(key(0))
    for number in range(8, 11):
        store.put(key(number), bytes(1000))
        assert stat(store).bytes <= 12_000
    assert store.get(key(0)) is not None
    assert store.get(key(1)) is None
    assert store.get(key(10)) is not None


def test_uses_decide_under_lfu_but_never_against_the_newest(folder: Path, key: Keys) -> None:
    store = open_store(folder, limit_bytes=5_000, policy="lfu", memory_bytes=0)
    for number in range(3):
        store.put(key(number), bytes(1000))
        for _ in range(3 - number):
            store.get(key(number))
    store.put(key("new"), bytes(1000))
    store.put(key("newer"), bytes(1000))
    assert store.get(key("newer")) is not None
    assert store.get(key(0)) is not None
    assert store.get(key("new")) is None


def test_none_never_evicts(folder: Path, key: Keys) -> None:
    store = open_store(folder, limit_bytes=10, policy="none", memory_bytes=0)
    for number in range(5):
        store.put(key(number), bytes(1000))
    assert store.disk.prune(0) == []
    assert stat(store).entries == 5


def test_an_entry_above_the_bound_is_not_kept_and_pushes_nobody_out(folder: Path, key: Keys) -> None:
    store = open_store(folder, limit_bytes=5_000, memory_bytes=0)
    store.put(key(1), bytes(1000))
    store.put(key(2), bytes(6000))
    assert store.get(key(2)) is None
    assert store.get(key(1)) is not None
    store.pin(key(2), "model")
    store.put(key(2), bytes(6000))
    assert store.get(key(2)) == bytes(6000)


def test_an_unusable_bound_or_policy_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="limit_bytes must be above zero, got 0"):
        open_store(folder, limit_bytes=0)
    with pytest.raises(ValueError, match="there are none, lru, lfu"):
        open_store(folder, policy="fifo")


def test_a_generator_that_changed_leaves_the_old_entries_to_age_out(folder: Path, key: Keys) -> None:
    store = open_store(folder, limit_bytes=20_000, memory_bytes=0)
    for number in range(10):
        store.put(key(f"old generator {number}"), bytes(1000))
    for number in range(25):
        assert store.get(key(f"new generator {number}")) is None
        store.put(key(f"new generator {number}"), bytes(1000))
    assert not any(store.get(key(f"old generator {number}")) for number in range(10))


# Pins


def test_a_pin_outlives_the_process_and_ends_with_its_owner(folder: Path, key: Keys) -> None:
    code = (
        "import sys, pathlib; from dlcb.kernel_cache import open_store; "
        "store = open_store(pathlib.Path(sys.argv[1])); "
        "store.pin(sys.argv[2], 'resnet/1'); store.put(sys.argv[2], b'p')"
    )
    subprocess.run([sys.executable, "-c", code, folder, key(1)], check=True)
    store = open_store(folder, memory_bytes=0)
    store.pin(key(1), "resnet/2")
    store.put(key(2), b"p")
    store.disk.prune(0)
    assert store.get(key(1)) == b"p"
    assert store.get(key(2)) is None
    store.unpin("resnet/1")
    store.disk.prune(0)
    assert store.get(key(1)) == b"p"
    store.unpin("resnet/2")
    store.disk.prune(0)
    assert store.get(key(1)) is None


# What the dead leave behind


def test_leftovers_are_cleaned_by_age(store: LayeredStore, key: Keys, folder: Path) -> None:
    now = time.time()
    leftovers = {"young": 60.0, "old": TEMPORARY_AGE + 60}
    for name, age in leftovers.items():
        (folder / "aside" / name).mkdir()
        (folder / "aside" / name / "payload").write_bytes(b"half")
        os.utime(folder / "aside" / name, (now - age, now - age))
    open_store(folder)
    assert [path.name for path in (folder / "aside").iterdir()] == ["young"]


def test_lock_files_are_cleaned_by_age_unless_held(store: LayeredStore, key: Keys, folder: Path) -> None:
    lock = folder / "locks" / f"{key(1)}.lock"
    ages = {lock: LOCK_AGE + 60, folder / "locks" / f"{key(2)}.lock": 60.0}
    for path, age in ages.items():
        path.touch()
        os.utime(path, (time.time() - age, time.time() - age))
    store.disk.prune(10**9)
    assert [path.name for path in (folder / "locks").iterdir()] == [f"{key(2)}.lock"]
