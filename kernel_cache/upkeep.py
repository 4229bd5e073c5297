"""What an operator asks of a store: how full, what is in it, make room, is it whole. Facts come out as plain
dataclasses; printing them is somebody else's work.
"""

from dataclasses import dataclass

from dlcb.kernel_cache.disk import Finding
from dlcb.kernel_cache.entry import Manifest
from dlcb.kernel_cache.evict import Record
from dlcb.kernel_cache.layers import LayeredStore


@dataclass(frozen=True, slots=True)
class Statistics:
    """The folder as it is, and what all processes did with it since it was made."""

    bytes: int  # of payloads and manifests on disk
    entries: int
    hits: int
    misses: int
    evictions: int
    corrupt: int
    remote_failures: int
    limit_bytes: int
    pinned_bytes: int
    pinned_entries: int


@dataclass(frozen=True, slots=True)
class Listing:
    """One entry, for people. `used` is the time of its last use in seconds since 1970."""

    key: str
    kind: str
    label: str
    size: int
    uses: int
    used: float
    pinned_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How many entries are whole, and what is not."""

    whole: int
    findings: tuple[Finding, ...]


def stat(store: LayeredStore) -> Statistics:
    """Measure the folder."""
    records = store.disk.records()
    pinned = [record.size for record in records if record.pinned_by]
    totals = store.disk.counts.set_bytes(sum(record.size for record in records))
    return Statistics(
        bytes=totals.bytes,
        entries=len(records),
        hits=totals.hits,
        misses=totals.misses,
        evictions=totals.evictions,
        corrupt=totals.corrupt,
        remote_failures=totals.remote_failures,
        limit_bytes=store.disk.limit_bytes,
        pinned_bytes=sum(pinned),
        pinned_entries=len(pinned),
    )


def ls(store: LayeredStore) -> list[Listing]:
    """Every entry whose manifest is whole, the last used first."""
    records = sorted(store.disk.records(), key=lambda record: record.used_ns, reverse=True)
    manifests = [(record, store.disk.manifest(record.key)) for record in records]
    return [_listing(record, manifest) for record, manifest in manifests if manifest]


def prune(
    store: LayeredStore, limit_bytes: int | None = None, *, unused_for: float | None = None
) -> list[Record]:
    """Evict what was not used for so many seconds, and by policy down to the bound (None: the store's own).

    Gives what left. Pinned entries stay. Raises LockTimeout if another process prunes for a minute.
    """
    return store.disk.prune(
        store.disk.limit_bytes if limit_bytes is None else limit_bytes, unused_for=unused_for
    )


def check(store: LayeredStore, *, remove: bool = False) -> CheckReport:
    """Verify every entry on disk; with `remove`, take away what is damaged or foreign."""
    whole, findings = store.disk.verify()
    if remove:
        for finding in findings:
            store.disk.put_away(finding.path)
    return CheckReport(whole, tuple(findings))


def _listing(record: Record, manifest: Manifest) -> Listing:
    return Listing(
        key=record.key,
        kind=manifest.kind,
        label=manifest.label,
        size=record.size,
        uses=record.uses,
        used=record.used_ns / 1e9,
        pinned_by=record.pinned_by,
    )
