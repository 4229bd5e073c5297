"""The block of memory that all plans of a model share. It grows when a plan needs more; plans hold addresses
in it, so each growth is a new generation, and a plan of an older one is prepared again before it runs.
"""

from __future__ import annotations

import torch

_GROWTH = 1.25  # a little more than asked for, so that slowly rising sizes do not prepare every plan anew
_WHOLE = 64  # bytes; a multiple of every element's size


def row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of row-major memory, as PyTorch counts them."""
    strides, step = [1] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


class SharedArena:
    """One block on one device. Plans that share it run one after another."""

    def __init__(self, device: torch.device) -> None:
        self.generation = 0
        self.block = torch.empty(0, dtype=torch.uint8, device=device)
        self.bytes = 0
        self._typed: dict[torch.dtype, torch.Tensor] = {}  # the block as elements of each type

    def require(self, nbytes: int) -> None:
        """Make the block at least this large. The old one lives on in plans that still point into it."""
        if nbytes > self.bytes:
            self.bytes = -(-int(nbytes * _GROWTH) // _WHOLE) * _WHOLE
            self.block = torch.empty(self.bytes, dtype=torch.uint8, device=self.block.device)
            self._typed = {}
            self.generation += 1

    def tensor(
        self, offset: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> torch.Tensor:
        """A tensor over the block. `offset` is in bytes, a multiple of the element's size."""
        typed = self._typed.get(dtype)
        if typed is None:
            typed = self._typed[dtype] = self.block.view(dtype)
        return typed.as_strided(shape, strides, offset // dtype.itemsize)
