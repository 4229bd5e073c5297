"""Contractions as calls of PyTorch's own operators: one row an operator. A row takes operands and, where
PyTorch can write into memory of ours, that memory, and gives the call with everything worked out that does
not change between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch

from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.runtime.calls import Binder
from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.runtime.types import TORCH
from dlcb.compiler.thunks import measured
from dlcb.compiler.thunks.convolution import ClippedConvolution, ImageConvolution
from dlcb.compiler.thunks.products import Multiply
from dlcb.compiler.thunks.rounding import cast_evenly
from dlcb.compiler.thunks.unplanned import UnplannedAttention, UnplannedProduct

# Bytes: PyTorch's attention in blocks picks kernels that read as many by strides and sizes, and does not look
# at addresses (pytorch/pytorch#183484): off them, it breaks the device's context.
_READ_AT_ONCE = 16

Operands = Sequence[torch.Tensor]
Row = Callable[[Operands, Mapping[str, Any], torch.Tensor | None], Callable[[], torch.Tensor]]


def bind(
    operator: str, attributes: Mapping[str, Any], operands: Operands, out: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    """The call of a library operator on these operands. Their contents may change between calls, their memory
    may not.

    With `out`, row-major, the result is written there.
    """
    try:
        row = ROWS[operator]
    except KeyError:
        raise UnsupportedOperator(f"no library call for '{operator}'", stage="run") from None
    return row(operands, attributes, out)


def binder(
    operator: str, attributes: Mapping[str, Any], constant: Sequence[bool], effort: Effort | None = None
) -> Binder:
    """How one step of a plan binds its calls. `constant` says which operands are the same in all of them;
    `effort` what preparing may cost, where so many calls follow that a library may plan them."""
    hot = effort is not None
    if operator == "convolution_nhwc":
        weights = constant[1 : len(constant) - bool(attributes.get("residual"))]
        return ImageConvolution(attributes, constant_weights=all(weights), hot=hot)
    if operator == "convolution_relu":
        return ClippedConvolution(attributes, hot)
    if operator in PRODUCTS:
        row = PRODUCTS[operator]
        multiply = (
            UnplannedProduct(_product) if effort is None else partial(measured.multiply, effort, _product)
        )
        return lambda operands, out: row(operands, attributes, out, multiply)
    bound = partial(bind, operator, attributes)
    return UnplannedAttention(bound) if operator == "attention" and not hot else bound


def _product(
    rows: torch.Tensor, columns: torch.Tensor, bias: Sequence[torch.Tensor], out: torch.Tensor, relu: bool
) -> Callable[[], torch.Tensor]:
    if relu and bias:  # cuBLASLt does both in the product's own kernel
        return partial(torch._addmm_activation, bias[0], rows, columns, out=out)
    product = (
        partial(torch.addmm, *bias, rows, columns, out=out)
        if bias
        else partial(torch.mm, rows, columns, out=out)
    )
    return (lambda: product().relu_()) if relu else product


def _linear(
    operands: Operands,
    attributes: Mapping[str, Any],
    out: torch.Tensor | None,
    multiply: Multiply = _product,
) -> Callable[[], torch.Tensor]:
    # addmm into the arena costs what F.linear costs without its allocation. oneDNN's and MKL's packed weights
    # were within 10 % of it from 128 rows on, and oneDNN's results several times less exact for long sums.
    x, weight, *bias = operands
    relu = bool(attributes.get("relu"))
    if out is None:
        linear = partial(torch.nn.functional.linear, x, weight, *bias)
        return (lambda: linear().relu_()) if relu else linear
    shape = (_count(x.shape[:-1]), x.shape[-1])
    flat_out = out.view(shape[0], weight.shape[0])
    rows = viewed(x, shape)
    transposed = weight.t()
    if rows is None:

        def gathered() -> torch.Tensor:  # what x holds is known only at each call
            return multiply(x.reshape(shape), transposed, bias, flat_out, relu)()

        return gathered
    return multiply(rows, transposed, bias, flat_out, relu)


def _product_of_rows(
    operands: Operands,
    attributes: Mapping[str, Any],
    out: torch.Tensor | None,
    multiply: Multiply = _product,
) -> Callable[[], torch.Tensor]:
    """A linear layer over matrices: rows [m, k], columns [k, n], perhaps a bias [n], into memory of ours."""
    rows, columns, *bias = operands
    return multiply(rows, columns, bias, cast(torch.Tensor, out), bool(attributes.get("relu")))


def _matmul(
    operands: Operands,
    attributes: Mapping[str, Any],
    out: torch.Tensor | None,
    multiply: Multiply = _product,
) -> Callable[[], torch.Tensor]:
    a, b = operands
    if out is None:
        return partial(torch.matmul, a, b)
    if a.dtype == b.dtype and b.dim() == 2 and a.dim() >= 2:
        rows = viewed(a, (_count(a.shape[:-1]), a.shape[-1]))
        if rows is not None:
            return multiply(rows, b, (), out.view(rows.shape[0], b.shape[1]), False)
    if a.dtype == b.dtype and a.dim() == b.dim() > 2 and a.shape[:-2] == b.shape[:-2]:
        if a.dim() == 3:
            return partial(torch.bmm, a, b, out=out)
        batch = _count(a.shape[:-2])
        left, right = viewed(a, (batch, *a.shape[-2:])), viewed(b, (batch, *b.shape[-2:]))
        if left is not None and right is not None:
            return partial(torch.bmm, left, right, out=out.view(batch, a.shape[-2], b.shape[-1]))
    return lambda: out.copy_(torch.matmul(a, b))


def _convolution(
    operands: Operands, attributes: Mapping[str, Any], out: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    x, weight, *bias = operands
    stride = attributes["stride"]
    return partial(
        torch.convolution,
        x,
        weight,
        bias[0] if bias else None,
        stride,
        attributes["padding"],
        attributes["dilation"],
        False,
        [0] * len(stride),
        attributes.get("groups", 1),
    )


def _convolution_nhwc(
    operands: Operands, attributes: Mapping[str, Any], out: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    return ImageConvolution(attributes)(operands)


def _convolution_relu(
    operands: Operands, attributes: Mapping[str, Any], out: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    return ClippedConvolution(attributes)(operands)


def _attention(
    operands: Operands, attributes: Mapping[str, Any], out: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    q, k, v, *mask = operands
    shape = (*q.shape[:-1], v.shape[-1])
    if 0 in shape:  # PyTorch 2.11 divides by the number of heads
        return lambda: q.new_empty(shape)
    if not k.shape[-2]:  # sums of nothing, for which no library need be asked
        return lambda: q.new_zeros(shape)
    causal = bool(attributes.get("causal", False))
    scale = attributes.get("scale")
    attend = torch.nn.functional.scaled_dot_product_attention
    if any(x.is_cuda and x.data_ptr() % _READ_AT_ONCE for x in operands):

        def moved() -> torch.Tensor:  # what operands hold is known only at each call
            return _attention(
                [x.clone(memory_format=torch.contiguous_format) for x in operands], attributes, out
            )()

        return moved
    if not (causal and mask):
        return partial(attend, q, k, v, mask[0] if mask else None, 0.0, causal, scale=scale)
    triangle = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return lambda: attend(q, k, v, _both(mask[0], triangle), scale=scale)


def _both(mask: torch.Tensor, triangle: torch.Tensor) -> torch.Tensor:
    """A mask that lets through what both do; a float mask is added to scores, so what is hidden gets
    -infinity."""
    return mask & triangle if mask.dtype == torch.bool else mask.masked_fill(~triangle, float("-inf"))


def _cumsum(
    operands: Operands, attributes: Mapping[str, Any], out: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    return partial(torch.cumsum, operands[0], attributes["axis"])


def _cast_evenly(
    operands: Operands, attributes: Mapping[str, Any], out: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    return partial(cast_evenly, operands[0], TORCH[str(attributes["dtype"])])


ROWS: dict[str, Row] = {
    "linear": _linear,
    "product": _product_of_rows,
    "matmul": _matmul,
    "convolution": _convolution,
    "convolution_nhwc": _convolution_nhwc,
    "convolution_relu": _convolution_relu,
    "attention": _attention,
    "cumsum": _cumsum,
    "cast_evenly": _cast_evenly,
}
# rows that are told how to multiply
PRODUCTS = {"linear": _linear, "matmul": _matmul, "product": _product_of_rows}


def viewed(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The tensor in another shape over the same memory; None where its strides do not allow that."""
    try:
        return tensor.view(shape)
    except RuntimeError:
        return None


def _count(sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count
