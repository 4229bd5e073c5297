"""NumPy arrays to tensors and back, without a copy where memory allows: contiguous arrays on the CPU are
shared."""

from __future__ import annotations

import ctypes

import numpy
import torch

from dlcb.compiler.runtime.types import NUMPY, TORCH


def to_tensor(array: numpy.ndarray, dtype: str, device: torch.device) -> torch.Tensor:
    """The array as a contiguous tensor of the element type `dtype`; bfloat16 arrives as its bits in uint16.

    On the CPU it shares the array's memory, and must not outlive it.
    """
    if not array.flags.c_contiguous:
        array = numpy.ascontiguousarray(array)
    if not array.flags.writeable:
        # PyTorch has no read-only tensors and warns; nothing here writes to an input
        array = _writeable(array)
    tensor = torch.from_numpy(array)
    if dtype == "bfloat16":
        tensor = tensor.view(TORCH[dtype])
    return tensor if device.type == "cpu" else tensor.to(device)


def to_array(tensor: torch.Tensor) -> numpy.ndarray:
    """The tensor's values as a contiguous array; bfloat16 leaves as its bits in uint16."""
    tensor = tensor.cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def has_dtype(array: numpy.ndarray, dtype: str) -> bool:
    return array.dtype == NUMPY[dtype]


def _writeable(array: numpy.ndarray) -> numpy.ndarray:
    """The same memory as an array that PyTorch takes without a warning."""
    if array.size == 0:
        return array.copy()
    block = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    return numpy.frombuffer(memoryview(block).cast("B"), array.dtype).reshape(array.shape)
