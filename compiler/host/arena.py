"""Offsets in one block of memory for buffers that live at different times: two buffers share bytes only if no
step needs both. Which pairs conflict does not depend on sizes and is found once; placing them is done for
each shape.
"""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT = 64  # bytes; a cache line, and more than any vector access needs


class Arena:
    """Places the buffers of one segment. `lives` are (first step, last step) of each, both included."""

    def __init__(self, lives: Sequence[tuple[int, int]]) -> None:
        self._conflicts = tuple(
            tuple(other for other, (begin, end) in enumerate(lives) if begin <= last and first <= end)
            for first, last in lives
        )

    def place(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """An offset for each buffer of these sizes in bytes, and the bytes of the whole.

        Largest first; each goes into the tightest gap between those it conflicts with, or above them.
        """
        rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        offsets = [-1] * len(rounded)
        total = 0
        for buffer in sorted(range(len(rounded)), key=lambda b: -rounded[b]):
            size = rounded[buffer]
            taken = sorted(
                (offsets[other], offsets[other] + rounded[other])
                for other in self._conflicts[buffer]
                if offsets[other] >= 0 and rounded[other]
            )
            best, best_gap, end = -1, 0, 0
            for begin, stop in taken:
                gap = begin - end
                if gap >= size and (best < 0 or gap < best_gap):
                    best, best_gap = end, gap
                end = max(end, stop)
            offset = best if best >= 0 else end
            offsets[buffer] = offset
            total = max(total, offset + size)
        return offsets, total
