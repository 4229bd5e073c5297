"""Pooling over whole axes, `max_pool1d(x, x.shape[-1])`. PyTorch makes a plain number of a window before it
calls any operator, so that a symbolic forward would not see which size the number follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

# how many axes the window has
_POOLS = {
    getattr(place, f"{kind}_pool{count}d"): count
    for place, kind in ((functional, "max"), (torch, "max"), (functional, "avg"))
    for count in (1, 2, 3)
}


def whole_axes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, tuple[Any, Any]]:
    """The axes of `x`, counted from its end, that the window of `func(x, window, ...)` has whole, each with
    its symbolic size and its stride; {} where another number is symbolic, or where the window hangs over."""
    count = _POOLS.get(func)
    if count is None:
        return {}
    places = ("input", "kernel_size", "stride", "padding", "dilation")
    given: dict[str, Any] = {**dict(zip(places, args, strict=False)), **kwargs}
    x, window = given.get("input"), _each(given.get("kernel_size"), count)
    if not isinstance(x, torch.Tensor) or x.dim() <= count or len(window) != count:
        return {}
    strides = _each(given.get("stride") or window, count)
    whole = {
        k - count: (size, stride)
        for k, (size, stride) in enumerate(zip(window, strides, strict=True))
        if isinstance(size, torch.SymInt) and size.node.expr == _expression(x.shape[k - count])
    }
    paddings = _each(given.get("padding", 0), count)
    gaps = _each(given.get("dilation", 1), count) if "max" in func.__name__ else (1,) * count
    for k, numbers in enumerate(zip(window, strides, paddings, gaps, strict=True)):
        if k - count not in whole and any(isinstance(each, torch.SymInt) for each in numbers):
            return {}
        if k - count in whole and numbers[2:] != (0, 1):
            return {}
    return whole


def with_numbers(value: Callable[[Any], Any], argument: Any) -> Any:
    """An argument with what its symbolic sizes are at the sample in place of them."""
    if isinstance(argument, (list, tuple)):
        return [with_numbers(value, each) for each in argument]
    return value(argument) if isinstance(argument, torch.SymInt) else argument


def _each(numbers: Any, count: int) -> tuple[Any, ...]:
    given = tuple(numbers) if isinstance(numbers, (list, tuple)) else (numbers,)
    return given * count if len(given) == 1 else given


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
