from collections.abc import Callable
from pathlib import Path

import pytest

from dlcb.kernel_cache.pins import Pins

OWNERS = ["model", "resnet/1", "..", ".", "größe", "a b%2Fc", "-", "\n"]


@pytest.mark.parametrize("owner", OWNERS)
def test_any_name_can_own(tmp_path: Path, key: Callable[[object], str], owner: str) -> None:
    pins = Pins(tmp_path)
    pins.add(key(1), owner)
    pins.add(key(1), owner)
    assert pins.owners() == {key(1): (owner,)}
    assert pins.place(owner).parent == tmp_path
    assert pins.holds(key(1))
    assert not pins.holds(key(2))


def test_owners_are_kept_apart(tmp_path: Path, key: Callable[[object], str]) -> None:
    pins = Pins(tmp_path)
    for owner in OWNERS:
        pins.add(key("shared"), owner)
        pins.add(key(owner), owner)
    assert pins.owners() == {
        key("shared"): tuple(sorted(OWNERS)),
        **{key(owner): (owner,) for owner in OWNERS},
    }


def test_foreign_files_pin_nothing(tmp_path: Path) -> None:
    (tmp_path / "file.owner").write_bytes(b"")
    (tmp_path / "x.owner").mkdir()
    (tmp_path / "x.owner" / "not a key").write_bytes(b"")
    assert Pins(tmp_path).owners() == {}


@pytest.mark.parametrize("owner", ["", "x" * 300, "ß" * 100])
def test_a_name_that_cannot_be_a_folder_is_refused(
    tmp_path: Path, key: Callable[[object], str], owner: str
) -> None:
    with pytest.raises(ValueError, match="owner"):
        Pins(tmp_path).add(key(1), owner)
