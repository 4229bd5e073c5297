"""Element types by name as PyTorch and NumPy know them; NumPy has no bfloat16 and carries its bits as
uint16."""

from __future__ import annotations

import numpy
import torch

from dlcb.compiler.dtype import DTYPES

TORCH: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
NUMPY: dict[str, numpy.dtype] = {
    name: numpy.dtype("uint16" if name == "bfloat16" else name) for name in DTYPES
}
NAMES: dict[torch.dtype, str] = {kind: name for name, kind in TORCH.items()}
