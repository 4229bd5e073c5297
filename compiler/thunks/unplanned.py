"""What libraries would plan for every new shape, done without a plan: attention by PyTorch's other fused
kernels (cuDNN's plan takes 60 ms on an H200), convolutions as products over gathered windows (5 ms each),
products by algorithms that are known already (up to 4 ms). So a shape that never comes again costs what it
computes; one that comes often gets what the libraries find best for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from dlcb.compiler.runtime.calls import Binder
from dlcb.compiler.thunks import products
from dlcb.compiler.thunks.products import Multiply

UNPLANNED_CALLS = 8  # at one shape; one that comes more often is hot
_MOST_GATHERED = 512 << 20  # bytes of windows
_MOST_WIDE = 1 << 32  # multiplications in float32


class UnplannedAttention:
    """One step of a plan: binds as `bind` does, and keeps the first calls on a GPU away from cuDNN."""

    def __init__(self, bind: Binder) -> None:
        self._bind = bind
        self._left = UNPLANNED_CALLS

    def __call__(
        self, operands: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> Callable[[], torch.Tensor]:
        attend = self._bind(operands, out)
        return partial(self._without_cudnn, attend) if operands[0].is_cuda and self._left else attend

    def _without_cudnn(self, attend: Callable[[], torch.Tensor]) -> torch.Tensor:
        if not self._left:
            return attend()
        self._left -= 1
        allowed = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            return attend()
        finally:
            torch.backends.cuda.enable_cudnn_sdp(allowed)


class UnplannedProduct:
    """One step of a plan: binds as `multiply` does, and has its first calls on a GPU done by an algorithm
    that is known from other numbers of rows."""

    def __init__(self, multiply: Multiply) -> None:
        self._multiply = multiply
        self._left = UNPLANNED_CALLS

    def __call__(
        self,
        rows: torch.Tensor,
        columns: torch.Tensor,
        bias: Sequence[torch.Tensor],
        out: torch.Tensor,
        relu: bool,
    ) -> Callable[[], torch.Tensor]:
        planned = self._multiply(rows, columns, bias, out, relu)
        if not (self._left and rows.is_cuda) or _is_long(rows.dtype, len(rows) * columns.numel()):
            return planned
        product = products.prepare(rows, columns, out, bias=bias[0] if bias else None, relu=relu)
        return planned if product is None else partial(self._without_a_plan, product, planned, out)

    def _without_a_plan(
        self, product: products.Product, planned: Callable[[], torch.Tensor], out: torch.Tensor
    ) -> torch.Tensor:
        if not self._left:
            return planned()
        self._left -= 1
        return out if product.run() else planned()


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    residual: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor | None:
    """x [n, h, w, c] with weight [o, kh, kw, c] -> [n, oh, ow, o] as one product over all windows, to which a
    residual of the result's shape may be added; None where the windows would take too much memory, or the
    product too long."""
    count, *image, channels = x.shape
    features, *window, _ = weight.shape
    rows, columns = (
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(image, window, stride, padding, dilation, strict=True)
    )
    inner = window[0] * window[1] * channels
    gathered = count * rows * columns * inner
    if _is_long(x.dtype, gathered * features) or gathered * x.itemsize > _MOST_GATHERED:
        return None
    if any(padding):
        x = torch.constant_pad_nd(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    by_count, down, right, along = x.stride()
    windows = x.as_strided(
        (count, rows, columns, *window, channels),
        (by_count, stride[0] * down, stride[1] * right, dilation[0] * down, dilation[1] * right, along),
    ).reshape(count * rows * columns, inner)
    matrix = weight.reshape(features, inner).t()
    y = x.new_empty(count, rows, columns, features)
    flat = y.view(len(windows), features)
    added = None if residual is None else residual.reshape(flat.shape)
    product = products.prepare(windows, matrix, flat, bias=bias, added=added, relu=relu)
    if product is not None and product.run():
        return y
    if bias is None:
        torch.mm(windows, matrix, out=flat)
    else:
        torch.addmm(bias, windows, matrix, out=flat)
    if added is not None:
        flat.add_(added)
    return y.relu_() if relu else y


def _is_long(dtype: torch.dtype, multiplications: int) -> bool:
    """Whether a product takes so long that a search costs less than a slower kernel: in float32 it does,
    which products do not round to TF32 as cuDNN does."""
    return dtype == torch.float32 and multiplications > _MOST_WIDE
