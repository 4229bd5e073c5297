"""Convolutions over images as steps of a plan: operands come in with every call, and the result
is what PyTorch's own convolution gives. A new shape is served without a plan of cuDNN's; where it comes
again, cuDNN's fused calls, or oneDNN's with packed weights, take over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from dlcb.compiler.thunks import onednn, unplanned

CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # orders of permutation

Geometry = tuple[Sequence[int], Sequence[int], Sequence[int], int]  # stride, padding, dilation, groups

UNPACKED_CALLS = 8  # at one shape, after which packing has cost what it would have saved by then
_MOST_MET = 1 << 14  # shapes remembered, over all convolutions
_met: dict[tuple[int, torch.Size], int] = {}


class ImageConvolution:
    """One step of a plan: called with operands, it gives the call on them. With `constant_weights` all calls
    have the same weights and bias, and images of one shape: the weights may be packed for it. `hot`: so many
    calls follow that the first may plan them."""

    def __init__(
        self, attributes: Mapping[str, Any], constant_weights: bool = False, hot: bool = False
    ) -> None:
        self._geometry = _geometry(attributes)
        self._relu, self._ceiling = bool(attributes.get("relu")), attributes.get("ceiling")
        self._residual = bool(attributes.get("residual"))
        self._constant = constant_weights
        self._weights: tuple[torch.Tensor, torch.Tensor | None] | None = None  # and bias
        self._packs = constant_weights
        self._hot = hot
        self._packed: onednn.Packed | None = None

    def __call__(
        self, operands: Sequence[torch.Tensor], out: torch.Tensor | None = None
    ) -> Callable[[], torch.Tensor]:
        # Seen channels-first, channels-last memory is what PyTorch calls the channels_last format: nothing is
        # moved.
        x = operands[0].permute(CHANNELS_FIRST)
        residual = operands[-1].permute(CHANNELS_FIRST) if self._residual else None
        weights = self._weights
        if weights is None or not self._constant:
            bias = operands[2] if len(operands) - self._residual > 2 else None
            weights = self._weights = operands[1].permute(CHANNELS_FIRST), bias
        return partial(self._on_cuda if x.is_cuda else self._on_cpu, x, *weights, residual)

    def _plain(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> torch.Tensor:
        stride, padding, dilation, groups = self._geometry
        ordered = self._is_misread(x, weight)
        if ordered:  # of one channel, channels-first is the same memory
            x, weight = (t.flatten(1).view(t.shape) for t in (x, weight))
        y = torch.convolution(x, weight, bias, stride, padding, dilation, False, (0, 0), groups)
        if ordered:
            y = y.contiguous(memory_format=torch.channels_last)
        return self._clipped(y if residual is None else y.add_(residual))

    def _is_misread(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether oneDNN computes something else channels-last: images of one channel, results of one
        column."""
        if x.is_cuda or x.shape[1] > 1:
            return False
        (_, stride), (_, padding), (_, dilation), _ = self._geometry
        return bool(x.shape[3] + 2 * padding - dilation * (weight.shape[3] - 1) - 1 < stride)

    def _clipped(self, y: torch.Tensor) -> torch.Tensor:
        # oneDNN could clip as it writes, but makes 0 of NaN
        if self._ceiling is not None:
            y.clamp_(0, self._ceiling)
        elif self._relu:
            y.relu_()
        return y.permute(CHANNELS_LAST)

    def _on_cuda(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> torch.Tensor:
        hot = self._hot or was_met((weight.data_ptr(), x.shape), unplanned.UNPLANNED_CALLS)
        y = None if hot else self._unplanned(x, weight, bias, residual)
        if y is not None:
            return y
        if not (hot and self._relu):  # a fused call takes twice as long to plan as a plain one
            return self._plain(x, weight, bias, residual)
        if residual is None:
            y = torch.cudnn_convolution_relu(x, weight, bias, *self._geometry)
        else:
            y = torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *self._geometry)
        return y.permute(CHANNELS_LAST)

    def _unplanned(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> torch.Tensor | None:
        *geometry, groups = self._geometry
        if groups > 1:
            return None
        images, filters = x.permute(CHANNELS_LAST), weight.permute(CHANNELS_LAST)
        added = None if residual is None else residual.permute(CHANNELS_LAST)
        relu = self._relu and self._ceiling is None
        y = unplanned.convolution(images, filters, bias, *geometry, residual=added, relu=relu)
        return y if y is None or self._ceiling is None else y.clamp_(0, self._ceiling)

    def _on_cpu(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> torch.Tensor:
        if self._packed is not None:
            return self._clipped(self._packed(x, bias, residual))
        if (
            self._packs
            and not self._is_misread(x, weight)
            and was_met((weight.data_ptr(), x.shape), UNPACKED_CALLS)
        ):
            self._packed = onednn.pack(x, weight, *self._geometry)
            self._packs = False  # tried
        return self._plain(x, weight, bias, residual)


class ClippedConvolution:
    """relu(convolution + residual) over channels-first images, as one step of a plan. `hot`: so many calls
    follow that the first may plan them."""

    def __init__(self, attributes: Mapping[str, Any], hot: bool = False) -> None:
        self._geometry = _geometry(attributes)
        self._hot = hot

    def __call__(
        self, operands: Sequence[torch.Tensor], out: torch.Tensor | None = None
    ) -> Callable[[], torch.Tensor]:
        x, weight, bias, *residual = operands
        return partial(self._run, x, weight, bias, residual[0] if residual else None)

    def _run(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        hot = self._hot or was_met((weight.data_ptr(), x.shape), unplanned.UNPLANNED_CALLS)
        if not (hot and x.is_cuda):  # a fused call takes twice as long to plan as a plain one
            stride, padding, dilation, groups = self._geometry
            y = torch.convolution(x, weight, bias, stride, padding, dilation, False, (0, 0), groups)
            return (y if residual is None else y.add_(residual)).relu_()
        if residual is None:
            return torch.cudnn_convolution_relu(x, weight, bias, *self._geometry)
        return torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *self._geometry)


def _geometry(attributes: Mapping[str, Any]) -> Geometry:
    return attributes["stride"], attributes["padding"], attributes["dilation"], attributes.get("groups", 1)


def was_met(place: tuple[int, torch.Size], calls: int) -> bool:
    """Whether a convolution, by its weights, has met a shape so many times; counts this time if not."""
    met = _met.get(place, 0)
    if met >= calls:
        return True
    if len(_met) >= _MOST_MET:
        _met.clear()
    _met[place] = met + 1
    return False
