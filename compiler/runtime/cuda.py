"""A CUDA device: binaries are cubins, a launch is one driver call with an argument block that was filled when
its plan was prepared, on PyTorch's own current stream. Memory comes from PyTorch alone; CuPy only loads
modules and launches.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from dlcb.compiler.errors import ArtifactError, ToolchainError
from dlcb.compiler.runtime.device import STATUS_CELLS, Cells, Checks, Prepared, first_raised
from dlcb.kernel_cache.store import Store

_SHARED_WITHOUT_ASKING = 48 * 1024  # bytes of shared memory that every kernel may have


def architecture(device: str = "cuda") -> str:
    """The compiler's name for a GPU, such as "sm_90". ToolchainError without one."""
    if not torch.cuda.is_available():
        raise ToolchainError(f"device '{device}' was asked for, but PyTorch finds no GPU", stage="load")
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


class MappedStatus:
    """Flags in page-locked host memory that kernels write to directly: nothing is copied, asking waits for
    the stream. A kernel touches its flags only when it meets a bad index."""

    def __init__(self, rows: int, wait: Callable[[], None]) -> None:
        self._wait = wait
        self._flags = torch.zeros(rows * STATUS_CELLS, dtype=torch.int64, pin_memory=True)
        self._view = memoryview(self._flags.numpy())  # type: ignore[arg-type]

    def address_of(self, row: int) -> int:
        return self._flags.data_ptr() + 8 * STATUS_CELLS * row

    def raised(self) -> tuple[int, int, int, int] | None:
        self._wait()
        return first_raised(self._view)


class CudaDevice:
    """Runs cubins on one GPU. ToolchainError where CuPy or a GPU is missing."""

    name = "cuda"

    def __init__(self, index: int = 0) -> None:
        if not torch.cuda.is_available():
            raise ToolchainError("device 'cuda' was asked for, but PyTorch finds no GPU", stage="load")
        try:
            self._cuda = importlib.import_module("cupy.cuda")  # an extra: a CPU installation has none
        except ImportError as error:
            raise ToolchainError(f"device 'cuda' needs CuPy: {error}", stage="load") from error
        self.index = index
        self._granted: dict[int, int] = {}  # function -> bytes of shared memory it was granted
        self.torch_device = torch.device("cuda", index)
        self.checks = Checks(self.stream, self._cuda.runtime.streamSynchronize)
        torch.empty(1, device=self.torch_device)  # makes PyTorch's context, in which everything below happens

    def load(self, keys: Sequence[str], store: Store) -> Callable[[str], Any]:
        modules = [self._module(key, store) for key in keys]

        @functools.cache
        def find(name: str) -> Any:
            for module in modules:
                with suppress(self._cuda.driver.CUDADriverError):  # it lies in another one
                    return module.get_function(name)
            raise ArtifactError(f"no cubin has kernel '{name}': {', '.join(keys)}", stage="load")

        return find

    def _module(self, key: str, store: Store) -> Any:
        payload = store.get(key)
        if payload is None:
            raise ArtifactError(
                f"the store has no kernels under {key}: compile the model again", stage="load"
            )
        module = self._cuda.function.Module()
        try:
            with self._cuda.Device(self.index):
                module.load(payload)
        except self._cuda.driver.CUDADriverError as error:
            raise ArtifactError(f"the kernels under {key} do not load here: {error}", stage="load") from error
        return module

    def launchers(
        self, launches: Sequence[Prepared], arguments: Cells
    ) -> tuple[list[Callable[[], None]], Any]:
        # The driver reads a list of addresses, one for each argument. All arguments lie in a row, and so do
        # their addresses: a launch's list is a part of one list of all.
        start, stream, launch_kernel = arguments.address, self.stream(), self._cuda.driver.launchKernel
        addresses = Cells(range(start, start + 8 * arguments.count, 8))
        runs: list[Callable[[], None]] = []
        for function, launch, first, _, _ in launches:
            entry, shared = function.ptr, launch.shared_bytes
            if shared > _SHARED_WITHOUT_ASKING:
                self._grant(entry, shared)
            block = addresses.address_of(first)
            runs.append(partial(launch_kernel, entry, *launch.grid, *launch.block, shared, stream, block, 0))
        return runs, addresses

    def _grant(self, entry: int, shared_bytes: int) -> None:
        if shared_bytes > self._granted.get(entry, 0):
            attribute = self._cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._cuda.driver.funcSetAttribute(entry, attribute, shared_bytes)
            self._granted[entry] = shared_bytes

    def status(self, rows: int) -> MappedStatus:
        return MappedStatus(rows, lambda: self._cuda.runtime.streamSynchronize(self.stream()))

    def stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self.index)
