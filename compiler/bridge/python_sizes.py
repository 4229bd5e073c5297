"""Python's own questions to a symbolic size: its hash, its digits, quotient and remainder at once. PyTorch
answers some with the name of a symbol, after which the user's code goes another way than with an int, and
refuses others, which that code may catch. Here the digits are the sample's, and each question is told, since
it leaves no condition behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

Value = Callable[[Any], Any]  # a symbolic number -> what it is at the sample's sizes
Tell = Callable[[FrameType, str], bool]  # who asks, and for what -> whether that is the user's code


@contextmanager
def answered(value: Value, tell: Tell) -> Iterator[None]:
    """While it is entered, the user's code learns nothing of a size that `tell` is not told of."""
    rows: list[tuple[type, str, Callable[..., Any]]] = [
        (torch.SymInt, "__hash__", _told(torch.SymInt.__hash__, tell)),  # answered, it would stay in a cache
        (torch.SymInt, "__divmod__", lambda a, b: (a // b, a % b)),
        (torch.SymInt, "__rdivmod__", lambda a, b: (b // a, b % a)),
    ]
    for symbolic in (torch.SymInt, torch.SymFloat):
        rows.append((symbolic, "__repr__", _as_text(symbolic.__repr__, repr, value, tell)))
        rows.append((symbolic, "__format__", _as_text(symbolic.__format__, format, value, tell)))
    before = [(kind, name, vars(kind).get(name)) for kind, name, _ in rows]
    for kind, name, function in rows:
        setattr(kind, name, function)
    try:
        yield
    finally:
        for kind, name, own in before:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def _told(original: Callable[..., Any], tell: Tell) -> Callable[..., Any]:
    def asked(self: Any) -> Any:
        tell(sys._getframe(1), "a size is looked up")
        return original(self)

    return asked


def _as_text(
    original: Callable[..., str], answer: Callable[..., str], value: Value, tell: Tell
) -> Callable[..., str]:
    def asked(self: Any, *specification: str) -> str:
        if tell(sys._getframe(1), "a size becomes text"):
            return answer(value(self), *specification)
        return original(self, *specification)

    return asked
