"""Attention at shapes that may never come again. cuDNN's kernels are PyTorch's first choice on newer GPUs,
but cuDNN plans them at each new batch and length, for 60 ms on an H200; PyTorch's other fused kernels need
no plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from dlcb.compiler.runtime.calls import Binder

UNPLANNED_CALLS = 8  # of one plan; one that runs more often is hot


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
        self._left -= 1
        allowed = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            return attend()
        finally:
            torch.backends.cuda.enable_cudnn_sdp(allowed)
