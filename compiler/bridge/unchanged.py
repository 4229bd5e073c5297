"""What a forward on fake tensors leaves behind in Python: tables by size in a module's attributes, results
that `functools.lru_cache` keeps. They would be fake tensors in a real forward: all is put back as it was."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from typing import Any

from torch import nn


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Afterwards every attribute of `module` and its parts is what it was, and holds what it held; functions
    of their files have forgotten what they gave."""
    before = [(vars(part), dict(vars(part))) for part in module.modules()]
    held = [
        (value, copy.copy(value) if value else ())
        for _, attributes in before
        for value in attributes.values()
        if isinstance(value, (dict, list, set))
    ]
    try:
        yield
    finally:
        for now, attributes in before:
            now.clear()
            now.update(attributes)
        for value, contents in held:
            value.clear()
            value.extend(contents) if isinstance(value, list) else value.update(contents)
        for function in _remembering(module):
            function.cache_clear()


def _remembering(module: nn.Module) -> set[Any]:
    """Functions with a memory, in the classes of a module's parts and in the files of these."""
    kinds = {type(part) for part in module.modules() if not type(part).__module__.startswith("torch.")}
    scopes: list[Mapping[str, Any]] = [vars(kind) for kind in kinds]
    scopes += [vars(sys.modules[name]) for name in {kind.__module__ for kind in kinds} if name in sys.modules]
    return {value for scope in scopes for value in scope.values() if isinstance(value, _lru_cache_wrapper)}
