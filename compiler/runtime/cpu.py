"""The CPU as a device: binaries are shared libraries, a launch is one call through ctypes that releases the
interpreter lock, and flags lie in ordinary memory.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from dlcb.compiler.errors import ArtifactError
from dlcb.compiler.runtime.device import STATUS_CELLS, Cells, Checks, Prepared, first_raised
from dlcb.kernel_cache.store import Store


class HostStatus:
    """Flags in the process's own memory."""

    def __init__(self, rows: int) -> None:
        self._cells = Cells([0] * (STATUS_CELLS * rows))

    def address_of(self, row: int) -> int:
        return self._cells.address_of(STATUS_CELLS * row)

    def raised(self) -> tuple[int, int, int, int] | None:
        return first_raised(self._cells.view)


class CpuDevice:
    """Runs C++ kernels on as many threads as PyTorch uses when the device is made."""

    name = "cpu"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.checks = Checks(self.stream, lambda stream: None)
        self._threads = ctypes.c_int64(torch.get_num_threads())

    def load(self, keys: Sequence[str], store: Store) -> Callable[[str], Any]:
        return _entry_points([self._library(key, store) for key in keys])

    def _library(self, key: str, store: Store) -> ctypes.CDLL:
        path = store.path(key)
        if path is not None:
            return _opened(str(path), key)
        payload = store.get(key)
        if payload is None:
            raise ArtifactError(
                f"the store has no kernels under {key}: compile the model again", stage="load"
            )
        # A store without files: the library is opened from anonymous memory. The descriptor stays open,
        # because the loader knows libraries by their path, and a number used again would name this one.
        descriptor = os.memfd_create(key[:16], os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(payload)
        return _opened(f"/proc/self/fd/{descriptor}", key)

    def launchers(
        self, launches: Sequence[Prepared], arguments: Cells
    ) -> tuple[list[Callable[[], None]], Any]:
        address, start = ctypes.c_void_p, arguments.address  # converted once, here, and not in every call
        runs = [
            partial(
                function,
                address(start + 8 * first),
                address(start + 8 * (first + pointers)),
                address(flags),
                self._threads,
            )
            for function, _, first, pointers, flags in launches
        ]
        return list(runs), None

    def status(self, rows: int) -> HostStatus:
        return HostStatus(rows)

    def stream(self) -> int:
        return 0


def _opened(path: str, key: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ArtifactError(
            f"the kernels under {key} do not load here, as a library of this processor would: {error}",
            stage="load",
        ) from error


def _entry_points(libraries: Sequence[ctypes.CDLL]) -> Callable[[str], Any]:
    @functools.cache
    def find(name: str) -> Any:
        for library in libraries:
            if (function := getattr(library, name, None)) is not None:
                function.restype = None
                return function
        known = ", ".join(library._name for library in libraries)
        raise ArtifactError(f"no library has kernel '{name}': {known}", stage="load")

    return find
