"""What the runtime asks of a device: load a binary, prepare a launch whose arguments lie in fixed cells of
memory, keep the flags that kernels raise for bad indices. CPU and CUDA each give one implementation.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from dlcb.compiler.errors import IndexRangeError
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


class Checked(Protocol):
    def check(self) -> None:
        """IndexRangeError when a kernel of the last run met a bad index."""
        ...


class Checks:
    """When plans learn whether their kernels met bad indices, for which a device must have finished: at the
    end of each run, or, while `later` is set, when somebody settles what is owed."""

    def __init__(self, stream: Callable[[], int], wait: Callable[[int], None]) -> None:
        self.later = False
        self._stream, self._wait = stream, wait
        self._owed: dict[Status, tuple[Checked, int]] = {}  # who raised these flags last, on which stream

    def before(self, flags: Status, plan: Checked) -> None:
        """A run of `plan` is about to start. Another one may not use the same flags before they were seen:
        a position means something at its sizes only."""
        owed = self._owed.get(flags)
        if owed is not None and owed[0] is not plan:
            self.settle()

    def after(self, flags: Status, plan: Checked) -> None:
        if self.later:
            self._owed[flags] = plan, self._stream()
        else:
            plan.check()

    def settle(self) -> None:
        """Wait for the runs that are owed a check. IndexRangeError for one of those that met a bad index."""
        owed, self._owed = self._owed, {}
        found: IndexRangeError | None = None
        for plan, stream in owed.values():
            self._wait(stream)
            try:
                plan.check()
            except IndexRangeError as error:  # all flags are to be down afterwards
                found = error
        if found is not None:
            raise found


class Device(Protocol):
    """A place to run on. One instance for each worker; not thread-safe."""

    name: str
    torch_device: torch.device
    checks: Checks

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
