"""Result shapes of calls that PyTorch works out slowly for symbolic sizes: it takes them apart, and asks its
solver at each step. Here the shape is written down, and the call itself is run at the sample's sizes, without
data, to see that PyTorch takes the operands and gives that shape, in row-major order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten
_REFUSALS = (RuntimeError, TypeError, IndexError, ValueError)
Size = int | torch.SymInt


def result_like(func: Any, args: tuple, kwargs: dict[str, Any], value: Callable[[Any], Any]) -> Any:
    """The result of `func` on fake tensors, a new one; None where that is left to PyTorch. `value` gives a
    symbolic number's value at the sample's sizes."""
    rule = _SHAPES.get(func)
    if rule is None or kwargs:
        return None
    shape = rule(*args)
    if shape is None:
        return None
    sampled = _Sampled(value)
    with _disable_current_modes():
        try:
            found = func(*(sampled.of(argument) for argument in args))
        except _REFUSALS:  # PyTorch is to word it; so with sizes that only run time knows
            return None
    if not found.is_contiguous() or list(found.shape) != [sampled.of(size) for size in shape]:
        return None
    if func not in _KEEP_ONES and 1 in found.shape:
        return None  # which it takes for a number there, and the user's code meets that
    return torch.empty(shape, dtype=found.dtype, device=args[0].device)


class _Sampled:
    """Arguments at the sample's sizes: tensors without data, and numbers."""

    def __init__(self, value: Callable[[Any], Any]) -> None:
        self._value = value

    def of(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            shape, stride = self.of(list(argument.shape)), self.of(list(argument.stride()))
            return torch.empty_strided(shape, stride, dtype=argument.dtype, device="meta")
        if isinstance(argument, (list, tuple)):
            return [self.of(item) for item in argument]
        return self._value(argument) if isinstance(argument, (torch.SymInt, torch.SymFloat)) else argument


def _viewed(x: torch.Tensor, sizes: Sequence[Size]) -> list[Size] | None:
    """One size may be -1: what the others leave."""
    left = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if not left:
        return list(sizes)
    others = prod(size for axis, size in enumerate(sizes) if axis not in left)
    if isinstance(others, int) and others == 0:
        return None
    shape = list(sizes)
    shape[left[0]] = x.numel() // others
    return shape


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> list[Size] | None:
    return [*x.shape[:-1], weight.shape[0]] if x.dim() > 1 and weight.dim() == 2 else None


def _matmul(a: torch.Tensor, b: torch.Tensor) -> list[Size] | None:
    """Of matrices in equal batches."""
    batched = a.dim() == b.dim() > 2 and all(map(_same, a.shape[:-2], b.shape[:-2]))
    return [*a.shape[:-1], b.shape[-1]] if batched else None


def _same(a: Size, b: Size) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return type(a) is type(b) and a == b


def _like(x: torch.Tensor, *_: Any) -> list[Size]:
    return list(x.shape)


_SHAPES: dict[Any, Callable[..., list[Size] | None]] = {
    _aten.view.default: _viewed,
    _aten.reshape.default: _viewed,
    _aten.linear.default: _linear,
    _aten.matmul.default: _matmul,
    _aten.layer_norm.default: _like,
    _aten.roll.default: _like,
}
_KEEP_ONES = frozenset((_aten.view.default, _aten.reshape.default, _aten.linear.default))
