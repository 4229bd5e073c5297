"""Offsets in one block of memory for buffers that live at different times: two buffers share bytes only if no
step needs both. Which pairs conflict does not depend on sizes and is found once; placing them is done for
each shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

ALIGNMENT = 64  # bytes; a cache line, and more than any vector access needs

Lives = Sequence[tuple[int, int]]  # first step and last step of each buffer, both included


class Arena:
    """Places rooms. `conflicts` has for each the others that may not share bytes with it."""

    def __init__(self, conflicts: Sequence[Sequence[int]]) -> None:
        self._conflicts = conflicts

    def place(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """An offset for each room of these sizes in bytes, and the bytes of the whole.

        Largest first; each goes into the tightest gap between those it conflicts with, or above them.
        """
        rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        offsets = [-1] * len(rounded)
        total = 0
        for room in sorted(range(len(rounded)), key=lambda r: -rounded[r]):
            size = rounded[room]
            taken = sorted(
                (offsets[other], offsets[other] + rounded[other])
                for other in self._conflicts[room]
                if offsets[other] >= 0 and rounded[other]
            )
            best, best_gap, end = -1, 0, 0
            for begin, stop in taken:
                gap = begin - end
                if gap >= size and (best < 0 or gap < best_gap):
                    best, best_gap = end, gap
                end = max(end, stop)
            offset = best if best >= 0 else end
            offsets[room] = offset
            total = max(total, offset + size)
        return offsets, total


def arena(lives: Lives, kinds: Sequence[Hashable], draws: Iterable[Sequence[int]]) -> tuple[Arena, list[int]]:
    """An arena for buffers, and the room of each. Buffers of one kind, which are of equal size at all times,
    share a room when they live one after another, so that equal layers cost nothing to place. Where that
    takes more memory at some of `draws`, sizes of all buffers as they may be, each has its own room."""
    apart = list(range(len(lives)))
    rooms = _shared_rooms(lives, kinds)
    plain, merged = Arena(_conflicts(lives, apart)), Arena(_conflicts(lives, rooms))
    for sizes in draws:
        if merged.place(of_rooms(rooms, sizes))[1] > plain.place(sizes)[1]:
            return plain, apart
    return merged, rooms


def of_rooms(rooms: Sequence[int], buffers: Iterable[Any]) -> list[Any]:
    """What stands for each room among what stands for each buffer."""
    found = dict(zip(rooms, buffers, strict=True))
    return [found[room] for room in range(len(found))]


def _shared_rooms(lives: Lives, kinds: Sequence[Hashable]) -> list[int]:
    """The first room of its kind that is free again, for each buffer in the order in which they begin."""
    rooms = [-1] * len(lives)
    until: dict[Hashable, dict[int, int]] = {}  # kind -> room -> last step of who is in it
    count = 0
    for buffer in sorted(range(len(lives)), key=lambda b: lives[b]):
        first, last = lives[buffer]
        of_kind = until.setdefault(kinds[buffer], {})
        room = next((room for room, end in of_kind.items() if end < first), count)
        count = max(count, room + 1)
        rooms[buffer], of_kind[room] = room, last
    return rooms


def _conflicts(lives: Lives, rooms: Sequence[int]) -> list[list[int]]:
    found: list[set[int]] = [set() for _ in range(max(rooms, default=-1) + 1)]
    for room, (first, last) in zip(rooms, lives, strict=True):
        for other, (begin, end) in zip(rooms, lives, strict=True):
            if begin <= last and first <= end and other != room:
                found[room].add(other)
    return [sorted(others) for others in found]
