"""Work during which the garbage collector stays away: its walks over PyTorch's objects cost a quarter of the
time in which PyTorch is imported, and a tenth of a compile's."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def no_collections() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load(module: str) -> ModuleType:
    """A module of ours that imports much."""
    with no_collections():
        return importlib.import_module(module)
