"""Tensors between processes: slots of shared memory in memfd files, which the owner fills and the peer maps.
The files travel over the control socket once each and are used again and again, so that a request costs
neither a system call for memory nor a page fault. (A container's /dev/shm is too small for this, a memfd is
not.)
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass

SMALLEST = 1 << 16
ALIGNMENT = 64


@dataclass(slots=True)
class Slot:
    """One file of shared memory. `number` names it between the two processes."""

    number: int
    file: int
    memory: mmap.mmap
    size: int
    view: memoryview


class SlotPool:
    """The owner's side: takes and gives back slots, whose sizes are powers of two.

    `idle_bytes` bounds what is kept for later use; `made` counts the slots, and is the number of the last
    one; `bytes` is what exists now. Not thread-safe.
    """

    def __init__(self, idle_bytes: int = 256 << 20) -> None:
        self._idle: dict[int, list[Slot]] = {}
        self._idle_bytes = 0
        self._limit = idle_bytes
        self.made = 0
        self.bytes = 0

    def take(self, size: int) -> Slot:
        """A slot of at least `size` bytes; its contents are whatever was there before."""
        capacity = max(SMALLEST, 1 << (size - 1).bit_length())
        idle = self._idle.get(capacity)
        if idle:
            self._idle_bytes -= capacity
            return idle.pop()
        file = os.memfd_create("dlcb-slot", os.MFD_CLOEXEC)
        os.ftruncate(file, capacity)
        memory = mmap.mmap(file, capacity)
        self.made += 1
        self.bytes += capacity
        return Slot(self.made, file, memory, capacity, memoryview(memory))

    def give_back(self, slot: Slot) -> bool:
        """True when the slot is kept for later; False when it was closed, and the peer should drop its
        mapping."""
        if self._idle_bytes + slot.size <= self._limit:
            self._idle.setdefault(slot.size, []).append(slot)
            self._idle_bytes += slot.size
            return True
        self.bytes -= slot.size
        close(slot)
        return False


class SlotMap:
    """The peer's side: maps a slot when its file arrives and finds it by number afterwards."""

    def __init__(self) -> None:
        self._views: dict[int, memoryview] = {}

    def add(self, number: int, file: int) -> None:
        """Map the file and close it: the mapping keeps the memory."""
        try:
            self._views[number] = memoryview(mmap.mmap(file, os.fstat(file).st_size))
        finally:
            os.close(file)

    def view(self, number: int) -> memoryview:
        return self._views[number]

    def drop(self, number: int) -> None:
        """Forget a slot. Its memory goes when the last array over it does."""
        self._views.pop(number, None)


class Begun:
    """One number in shared memory: the job that a worker last began. It writes, the front reads, and it is
    there when the worker has died."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._cell = memoryview(mmap.mmap(file, 8)).cast("q")

    @classmethod
    def make(cls) -> Begun:
        """One in memory of its own, 0 at first."""
        file = os.memfd_create("dlcb-begun", os.MFD_CLOEXEC)
        os.ftruncate(file, 8)
        return cls(file)

    @property
    def number(self) -> int:
        return self._cell[0]

    @number.setter
    def number(self, value: int) -> None:
        self._cell[0] = value

    def close(self) -> None:
        """Give the file back; the memory stays as long as this does."""
        os.close(self.file)


def close(slot: Slot) -> None:
    """Give the memory back to the system, once nothing views it."""
    os.close(slot.file)
    slot.view.release()
    with contextlib.suppress(BufferError):  # an array still looks at it: the mapping goes when the array does
        slot.memory.close()


def aligned(offset: int) -> int:
    """The next offset at which any vector load is aligned."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
