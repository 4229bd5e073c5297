"""A file of TorchScript as a model that needs no code: `factory: dlcb.compiler.torchscript:load` with the
file in `weights`, so that one that has changed is noticed as weights are."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from dlcb.compiler.errors import CaptureError

_PART = "/constants.pkl"  # that no other archive of PyTorch's has


def load(weights: Sequence[str]) -> nn.Module:
    """The module of the one file in `weights`, on the CPU. Raises CaptureError where there is not one, or it
    is no TorchScript."""
    if len(weights) != 1:
        raise CaptureError(
            f"a model of TorchScript is one file, found {len(weights)} in `weights`", stage="factory"
        )
    if not is_torchscript(weights[0]):
        raise CaptureError(f"'{weights[0]}' is no file that torch.jit.save wrote", stage="factory")
    return torch.jit.load(weights[0], map_location="cpu")


def is_torchscript(path: str | Path) -> bool:
    """Whether a file is one of TorchScript; one that is broken is not. OSError where it cannot be read."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith(_PART) for name in file.namelist())
    except (zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError):  # its list of names is no such list
        return False
