"""Random histories of a store beside a dictionary: a get is the last payload put, or a miss with a reason."""

import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dlcb.kernel_cache import Key, open_store, prune, stat

KEYS = [Key({"number": str(number)}).digest for number in range(4)]
OWNERS = ["resnet/1", "bert/2"]
LIMIT = 20_000

keys = st.sampled_from(KEYS)
payloads = st.binary(max_size=30) | st.integers(0, 6_000).map(bytes)


class StoreAgainstDictionary(RuleBasedStateMachine):
    """`kept` is what must be there; `maybe` what was evicted, but may be there still in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, bytes] = {}
        self.maybe: dict[str, bytes] = {}
        self.pins: set[tuple[str, str]] = set()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "cache"

    def teardown(self) -> None:
        self.temporary.cleanup()

    @initialize(policy=st.sampled_from(["lru", "lfu"]), memory_bytes=st.sampled_from([0, 10_000]))
    def open(self, policy: str, memory_bytes: int) -> None:
        self.options = {"policy": policy, "memory_bytes": memory_bytes, "limit_bytes": LIMIT}
        self.store = open_store(self.folder, **self.options)
        self.corrupt = 0

    @rule()
    def restart(self) -> None:
        self.store = open_store(self.folder, **self.options)

    @rule(key=keys, payload=payloads)
    def put(self, key: str, payload: bytes) -> None:
        self.store.put(key, payload)
        self.kept[key] = payload
        self.maybe.pop(key, None)

    @rule(key=keys)
    def get(self, key: str) -> None:
        got = self.store.get(key)
        if key in self.kept:
            assert got == self.kept[key]
        else:
            assert got in (None, self.maybe.get(key))

    @rule(key=keys)
    def path(self, key: str) -> None:
        path = self.store.path(key)
        if key in self.kept:
            assert path is not None
        assert path is None or path.read_bytes() == {**self.maybe, **self.kept}[key]

    @rule(key=keys, owner=st.sampled_from(OWNERS))
    def pin(self, key: str, owner: str) -> None:
        self.store.pin(key, owner)
        self.pins.add((owner, key))

    @rule(owner=st.sampled_from(OWNERS))
    def unpin(self, owner: str) -> None:
        self.store.unpin(owner)
        self.pins = {(other, key) for other, key in self.pins if other != owner}

    @rule(limit=st.integers(0, LIMIT))
    def prune(self, limit: int) -> None:
        left = prune(self.store, limit)
        pinned = {key for _, key in self.pins}
        assert not pinned & {record.key for record in left}
        assert stat(self.store).bytes <= limit or stat(self.store).entries == len(
            pinned & {record.key for record in self.store.disk.records()}
        )
        for record in left:
            self.maybe[record.key] = self.kept.pop(record.key, self.maybe.get(record.key, b""))

    @rule(key=keys, data=st.data())
    def damage(self, key: str, data: st.DataObject) -> None:
        path = self.store.disk.path(key)
        if path is None:
            return
        victim = data.draw(st.sampled_from([path, path.with_name("manifest.json")]))
        content = bytearray(victim.read_bytes())
        if content and data.draw(st.booleans()):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        else:
            content += b"x"
        os.chmod(victim, 0o600)
        victim.write_bytes(content)
        self.store = open_store(self.folder, **self.options)  # without what memory held of it
        assert self.store.get(key) is None
        self.kept.pop(key, None)
        self.maybe.pop(key, None)
        self.corrupt += 1

    @invariant()
    def damage_is_counted_once(self) -> None:
        if hasattr(self, "store"):
            assert self.store.disk.counts.read().corrupt == self.corrupt


TestStoreAgainstDictionary = StoreAgainstDictionary.TestCase
TestStoreAgainstDictionary.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
