"""Records of entries in, those that must leave out. Policies are a table of pure functions that give an
entry its place in the queue; pinned entries never stand in it, so they may hold a folder above its bound.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Policy = Callable[["Record"], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Record:
    """What a policy knows of an entry: bytes on disk, uses, time of the last one in ns, and who pins it."""

    key: str
    size: int
    uses: int
    used_ns: int
    pinned_by: tuple[str, ...] = ()


def least_recently_used(record: Record) -> tuple[int, ...]:
    """The longest unused leaves first."""
    return (record.used_ns,)


def least_frequently_used(record: Record) -> tuple[int, ...]:
    """The least used leaves first; among equals, the longest unused."""
    return (record.uses, record.used_ns)


POLICIES: dict[str, Policy | None] = {
    "none": None,  # nothing ever leaves
    "lru": least_recently_used,
    "lfu": least_frequently_used,
}


def policy_named(name: str) -> Policy | None:
    """The policy of that name. Raises ValueError naming those there are."""
    if name not in POLICIES:
        raise ValueError(f"unknown eviction policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]


def victims(records: Iterable[Record], limit_bytes: int, policy: Policy | None) -> list[Record]:
    """Those that must leave, in order, so that what stays is within the bound; fewer where pins forbid it."""
    records = list(records)
    excess = sum(record.size for record in records) - limit_bytes
    leaving: list[Record] = []
    if policy is None:
        return leaving
    for record in sorted((record for record in records if not record.pinned_by), key=policy):
        if excess <= 0:
            break
        leaving.append(record)
        excess -= record.size
    return leaving


def unused_since(records: Iterable[Record], time_ns: int) -> list[Record]:
    """Those not used since then and not pinned."""
    return [record for record in records if record.used_ns < time_ns and not record.pinned_by]
