"""Convolutions on the CPU with packed weights, by operators that PyTorch keeps for its own compiler: oneDNN
then lays weights out once for a size of image and not in every call, and adds a residual as it writes. No
public interface: they are tried once against the public call, and where they are missing or disagree the
public call stays.

Weights packed for one size of image make another up to forty times slower, so a packing belongs to one size;
sizes that want the same one share it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from weakref import WeakValueDictionary

import torch

# multiplications below which what these operators cost by themselves shows; a window of one pixel is a
# product, which PyTorch hands to another library where it is small
_LEAST_PRODUCTS, _LEAST_PRODUCTS_OF_POINTS = 1 << 20, 1 << 24
_DTYPES = frozenset({torch.float32})

_packings: WeakValueDictionary[tuple[int, int], torch.Tensor] = WeakValueDictionary()

logger = logging.getLogger("dlcb.compiler.onednn")


class Packed:
    """A convolution for images of one shape, channels-first with channels-last strides."""

    def __init__(
        self,
        packed: torch.Tensor,
        plain: torch.Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self._weight, self._plain = packed, plain  # `plain` keeps its address from being used again
        self._geometry = (padding, stride, dilation, groups)
        self._convolve = torch.ops.mkldnn._convolution_pointwise.default
        self._convolve_and_add = torch.ops.mkldnn._convolution_pointwise.binary

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """convolution(x) + bias + residual, what is absent left out."""
        if residual is None:
            return self._convolve(x, self._weight, bias, *self._geometry, "none", (), "")
        return self._convolve_and_add(
            x, residual, self._weight, bias, *self._geometry, "add", None, None, (), None
        )


def pack(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Packed | None:
    """The convolution with these weights, for images of the shape of `x`; None where it would be slower than
    the public call, or is not to be had. The weights must not change as long as it is used."""
    if x.dtype not in _DTYPES or weight.dtype != x.dtype or not _worthwhile(x, weight, stride):
        return None
    if not torch.backends.mkldnn.enabled or not works():
        return None
    try:
        packed = _shared(weight, _reordered(x, weight, stride, padding, dilation, groups))
    except RuntimeError as error:  # a geometry that oneDNN has no kernel for
        logger.info("weights %s stay unpacked for %s: %s", list(weight.shape), list(x.shape), error)
        return None
    return Packed(packed, weight, stride, padding, dilation, groups)


def _worthwhile(x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int]) -> bool:
    outputs = x.shape[0] * (x.shape[2] // stride[0]) * (x.shape[3] // stride[1])
    least = _LEAST_PRODUCTS if weight.shape[2] * weight.shape[3] > 1 else _LEAST_PRODUCTS_OF_POINTS
    return outputs * weight.numel() >= least


def _reordered(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    reorder = torch.ops.mkldnn._reorder_convolution_weight.default
    return reorder(weight, padding, stride, dilation, groups, list(x.shape))


def _shared(weight: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """A packing of the same weights that holds the same bytes, where a plan has one; else `packed`. A packing
    knows its own order, so that results are right whichever is taken."""
    number = 0
    while (other := _packings.get((weight.data_ptr(), number))) is not None:
        if torch.equal(_bytes(other), _bytes(packed)):
            return other
        number += 1
    _packings[weight.data_ptr(), number] = packed
    return packed


def _bytes(packed: torch.Tensor) -> torch.Tensor:
    size = torch.ops.mkldnn._nbytes(packed)
    memory = (ctypes.c_uint8 * size).from_address(torch.ops.mkldnn.data_ptr(packed))
    return torch.frombuffer(memory, dtype=torch.uint8)


@functools.cache
def works() -> bool:
    """Whether this PyTorch has the operators, and they give what its public convolution gives."""
    if not torch.backends.mkldnn.is_available():
        return False
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 8, 7, 9, generator=draw).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(16, 8, 3, 3, generator=draw).contiguous(memory_format=torch.channels_last)
    bias = torch.randn(16, generator=draw)
    geometry = ((1, 1), (1, 1), (1, 1), 1)
    y = torch.nn.functional.conv2d(x, weight, bias, *geometry)
    try:
        packed = Packed(_shared(weight, _reordered(x, weight, *geometry)), weight, *geometry)
        found = packed(x, bias, None), packed(x, bias, y)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.warning("convolutions stay unpacked: %s", error)
        return False
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, (y, y + y), strict=True))
