"""What memory allows: the bandwidth of a plain copy here, and the bytes that a kernel cannot avoid to
move."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dlcb.compiler.bench.measure import interleaved

_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}  # of each tensor, far beyond the caches


def copy_bandwidth(device: str) -> float:
    """Bytes a second of PyTorch's copy between two large tensors, bytes read and bytes written counted."""
    source = torch.ones(_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    timing = interleaved({"copy": lambda: target.copy_(source)}, device)["copy"]
    return 2 * _BYTES[device] / timing.seconds


def bytes_at_least(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Every input read once and every output written once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
