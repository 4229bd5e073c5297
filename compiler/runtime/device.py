"""What the runtime asks of a device: load a binary, prepare a launch whose arguments lie in fixed cells of
memory, keep the flags that kernels raise for bad indices. CPU and CUDA each give one implementation.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from dlcb.compiler.host.interpreter import ConcreteLaunch
from dlcb.kernel_cache.store import Store

STATUS_CELLS = 4  # int64 each: 0 or number of the check + 1, position, value, unused


class Cells:
    """A row of int64 cells at a fixed address, cheap to write one by one from Python."""

    def __init__(self, values: Iterable[int]) -> None:
        memory = array("q", values)
        self.address, self.count = memory.buffer_info()
        self.view = memoryview(memory)  # which also keeps it from moving

    def address_of(self, cell: int) -> int:
        return self.address + 8 * cell


# A launch whose arguments lie in consecutive cells: addresses of buffers, the parameters, the address of its
# flags. It is its entry point, its numbers, the first cell, the number of buffers, and that address.
Prepared = tuple[Any, ConcreteLaunch, int, int, int]


class Status(Protocol):
    """Flags of the launches of one plan, STATUS_CELLS cells a launch."""

    def address_of(self, row: int) -> int: ...

    def raised(self) -> tuple[int, int, int, int] | None:
        """(row, check number, position, value) of the first flag that is up, after waiting for the device;
        the flags are down again afterwards."""
        ...


def first_raised(flags: memoryview) -> tuple[int, int, int, int] | None:
    """What `Status.raised` gives, from all its cells; they are zero afterwards."""
    raised = flags[::STATUS_CELLS].tolist()
    if not any(raised):
        return None
    row = next(number for number, flag in enumerate(raised) if flag)
    flag, position, value, _ = flags[STATUS_CELLS * row : STATUS_CELLS * (row + 1)].tolist()
    for cell in range(len(flags)):
        flags[cell] = 0
    return row, flag - 1, position, value


class Device(Protocol):
    """A place to run on. One instance for each worker; not thread-safe."""

    name: str
    torch_device: torch.device

    def load(self, keys: Sequence[str], store: Store) -> Callable[[str], Any]:
        """A function from a kernel's name to its entry point, in whichever of the binaries under `keys` has
        it. ArtifactError when the store no longer has one of them."""
        ...

    def launchers(
        self, launches: Sequence[Prepared], arguments: Cells
    ) -> tuple[list[Callable[[], None]], Any]:
        """Launches ready to run, and what must be kept as long as they are, as must `arguments`: what stands
        in their cells when a launch runs is what the kernel gets."""
        ...

    def status(self, rows: int) -> Status: ...

    def stream(self) -> int:
        """What prepared launches are tied to: a plan of another stream is prepared again. 0 on the CPU."""
        ...
