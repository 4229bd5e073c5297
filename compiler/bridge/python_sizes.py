"""Python's own questions to a symbolic size: its hash, its digits, quotient and remainder at once. PyTorch
answers some with the name of a symbol, after which the user's code goes another way than with an int, and
refuses others, which that code may catch. Here the digits are the sample's, and each question is told, since
it leaves no condition behind; what is compared, or divided by, becomes a condition."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from dlcb.compiler.bridge.kinds import Tell
from dlcb.compiler.bridge.messages import is_message

Value = Callable[[Any], Any]  # a symbolic number -> what it is at the sample's sizes
Divides = Callable[[FrameType, Any], None]  # who divides by which symbolic number
_DIVISIONS = ("floordiv", "truediv", "mod")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@contextmanager
def answered(
    value: Value, tell: Tell, divides: Divides, is_users: Callable[[FrameType], bool]
) -> Iterator[None]:
    """While it is entered, the user's code learns nothing of a size that `tell` or `divides` is not told
    of, and what it compares comes out as True or False."""
    size = torch.SymInt
    rows: list[tuple[type, str, Callable[..., Any]]] = [
        (size, "__hash__", _told(size.__hash__, tell)),  # answered, it would stay in a cache
        (size, "__invert__", lambda a: -a - 1),
        (size, "__deepcopy__", lambda a, memo: a),
        (size, "__copy__", lambda a: a),
        (size, "__reduce_ex__", _stored(value, tell)),
        (size, "__getattr__", _rest(value, tell)),
    ]
    over = {name: _dividing(getattr(size, f"__{name}__"), divides, 1) for name in _DIVISIONS}
    under = {name: _dividing(getattr(size, f"__r{name}__"), divides, 0) for name in _DIVISIONS}
    rows += [(size, f"__{name}__", function) for name, function in over.items()]
    rows += [(size, f"__r{name}__", function) for name, function in under.items()]
    rows += [
        (size, "__divmod__", lambda a, b: (over["floordiv"](a, b), over["mod"](a, b))),
        (size, "__rdivmod__", lambda a, b: (under["floordiv"](a, b), under["mod"](a, b))),
    ]
    rows += [
        (kind, f"__{name}__", _compared(getattr(kind, f"__{name}__"), is_users))
        for kind in (size, torch.SymFloat)
        for name in _COMPARISONS
    ]
    for symbolic in (size, torch.SymFloat):
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
        asker = sys._getframe(1)
        if is_message(asker) or tell(asker, "a size becomes text"):
            return answer(value(self), *specification)
        return original(self, *specification)

    return asked


def _compared(original: Callable[..., Any], is_users: Callable[[FrameType], bool]) -> Callable[..., Any]:
    """A comparison; PyTorch's gives a symbol, which is neither True nor False."""

    def compared(self: Any, other: Any) -> Any:
        answer = original(self, other)
        if isinstance(answer, torch.SymBool) and is_users(sys._getframe(1)):
            return bool(answer)
        return answer

    return compared


def _stored(value: Value, tell: Tell) -> Callable[..., Any]:
    def asked(self: Any, protocol: Any) -> Any:
        tell(sys._getframe(1), "a size is stored")
        return int, (value(self),)

    return asked


def _rest(value: Value, tell: Tell) -> Callable[..., Any]:
    """What an int has and a symbolic size has not."""

    def asked(self: Any, name: str) -> Any:
        if name.startswith("_") or not hasattr(int, name):
            raise AttributeError(f"'int' object has no attribute '{name}'")
        tell(sys._getframe(1), f"'{name}' of a size is asked")
        return getattr(value(self), name)

    return asked


def _dividing(original: Callable[..., Any], divides: Divides, divisor: int) -> Callable[..., Any]:
    """A division one of whose two operands, the one at `divisor`, is what is divided by."""

    def divided(*operands: Any) -> Any:
        by = operands[divisor]
        if isinstance(by, torch.SymInt):
            divides(sys._getframe(1), by)
        return original(*operands)

    return divided
