"""A remote in memory or in a folder stands for one far away, a driver that raises for one that is down."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dlcb.kernel_cache import RemoteError, open_store, stat
from dlcb.kernel_cache import remote as remotes

Keys = Callable[[object], str]


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """A driver that answers every call with an error of its own kind."""

    protocol = "failing"
    calls = 0

    def cat_file(self, path: str, **_: Any) -> bytes:
        Failing.calls += 1
        raise KeyError(path)

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        Failing.calls += 1
        raise ConnectionError(path)


@pytest.fixture
def failing() -> str:
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.calls = 0
    return "failing://kernels"


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path}/kernels"
    return f"file://{tmp_path}/far/away"


def blob(url: str, key: str) -> Path:
    return Path(url.removeprefix("file://")) / key


def test_another_machine_finds_what_one_put(url: str, tmp_path: Path, key: Keys) -> None:
    one = open_store(tmp_path / "one", remote=url)
    other = open_store(tmp_path / "other", remote=url)
    assert other.get(key(1)) is None
    one.put(key(1), b"payload", kind="kernel", label="a kernel")
    entry = other.read(key(1))
    assert entry is not None
    assert (entry.payload, entry.manifest.kind, entry.manifest.label) == (b"payload", "kernel", "a kernel")
    assert stat(other).hits == 1
    assert open_store(tmp_path / "other").get(key(1)) == b"payload"


def test_a_path_is_fetched_as_well(url: str, tmp_path: Path, key: Keys) -> None:
    open_store(tmp_path / "one", remote=url).put(key(1), b"payload")
    path = open_store(tmp_path / "other", remote=url).path(key(1))
    assert path is not None
    assert path.read_bytes() == b"payload"


@pytest.mark.parametrize("length", [0, 10, 350])
def test_a_torn_blob_is_a_miss_counted_and_healed_by_the_next_put(
    tmp_path: Path, key: Keys, length: int
) -> None:
    url = f"file://{tmp_path}/far"
    open_store(tmp_path / "one", remote=url).put(key(1), bytes(100))
    os.truncate(blob(url, key(1)), length)
    other = open_store(tmp_path / "other", remote=url)
    assert other.get(key(1)) is None
    assert stat(other).corrupt == 1
    other.put(key(1), bytes(100))
    assert open_store(tmp_path / "third", remote=url).get(key(1)) == bytes(100)


def test_a_blob_under_another_key_is_a_miss(tmp_path: Path, key: Keys) -> None:
    url = f"file://{tmp_path}/far"
    open_store(tmp_path / "one", remote=url).put(key(1), b"payload")
    os.rename(blob(url, key(1)), blob(url, key(2)))
    assert open_store(tmp_path / "other", remote=url).get(key(2)) is None


def test_failures_are_misses_counted_and_never_raised(failing: str, folder: Path, key: Keys) -> None:
    store = open_store(folder, remote=failing)
    assert store.get(key(1)) is None
    store.put(key(1), b"payload")
    assert store.get(key(1)) == b"payload"
    assert stat(store).remote_failures == 2


def test_a_dead_remote_is_left_alone_for_a_while_and_tried_again(
    failing: str, folder: Path, key: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(folder, remote=failing)
    for number in range(10):
        assert store.get(key(number)) is None
    assert Failing.calls == remotes.FAILURES
    later = time.monotonic() + remotes.REST
    monkeypatch.setattr(remotes.time, "monotonic", lambda: later + 1)
    store.get(key(0))
    assert Failing.calls == remotes.FAILURES + 1


def test_a_folder_that_cannot_be_written_is_a_failure_too(tmp_path: Path, key: Keys) -> None:
    (tmp_path / "file").touch()
    store = open_store(tmp_path / "one", remote=f"file://{tmp_path}/file/below")
    store.put(key(1), b"payload")
    assert store.get(key(1)) == b"payload"
    assert stat(store).remote_failures == 1


def test_a_url_of_no_driver_is_refused_when_opened(folder: Path) -> None:
    with pytest.raises(RemoteError, match="no-such-thing://kernels"):
        open_store(folder, remote="no-such-thing://kernels")


def test_a_full_disk_here_does_not_hide_what_was_fetched(
    tmp_path: Path, key: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/far"
    open_store(tmp_path / "one", remote=url).put(key(1), b"payload")
    other = open_store(tmp_path / "other", remote=url)
    (tmp_path / "other" / "entries").rmdir()
    (tmp_path / "other" / "entries").touch()
    assert other.get(key(1)) == b"payload"
