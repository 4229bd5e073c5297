"""Calls that are recorded as others which give the same, because PyTorch takes the sizes on the way for plain
numbers: of those of their results it would not be seen that they follow an input's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten


def apart(func: Any, args: tuple, kwargs: dict[str, Any]) -> Callable[[], torch.Tensor] | None:
    """The same result by other calls; None where there is no need, or where PyTorch may refuse the call."""
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def spelt(func: Any, args: tuple, kwargs: dict[str, Any]) -> Callable[[], torch.Tensor] | None:
    """The same for a function as the user's code calls it, which makes plain numbers of sizes before it calls
    any operator."""
    rule = _SPELT.get(func)
    try:
        return None if rule is None else rule(*args, **kwargs)
    except TypeError:  # arguments that PyTorch refuses, or that no rule is written for
        return None


def _linspace(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, device: Any = None
) -> Callable[[], torch.Tensor] | None:
    kind = dtype or torch.get_default_dtype()
    if kind not in (torch.float32, torch.float64) or not all(map(_is_number, (start, end))):
        return None
    if not isinstance(steps, (int, torch.SymInt)) or isinstance(steps, bool):
        return None

    def call() -> torch.Tensor:
        # counted from the nearer end, as PyTorch does
        last: Any = steps - 1
        step = (end - start) / torch.sym_max(last, 1)
        places = torch.arange(last + 1, device=device)
        first = (places < steps // 2) | (places == 0)
        left, right = places.to(kind), (last - places).to(kind)
        return torch.where(first, left * step + start, -(right * step) + end)

    return call


def _tensor(
    data: Any, dtype: torch.dtype | None = None, device: Any = None
) -> Callable[[], torch.Tensor] | None:
    entries = list(_entries(data))
    if not 0 < len(entries) <= _FEW or not all(map(_is_number, entries)):
        return None
    whole = all(isinstance(each, (int, torch.SymInt)) for each in entries)
    kind = dtype or (torch.int64 if whole else torch.get_default_dtype())
    if kind.is_complex or kind is torch.bool or not (whole or kind.is_floating_point):
        return None

    def call(part: Any = data) -> torch.Tensor:
        if isinstance(part, (list, tuple)):
            return torch.stack([call(each) for each in part])
        made = torch.full((), part, dtype=kind, device=device)
        if isinstance(made, FakeTensor) and isinstance(part, (int, float)):
            _hold(made, part)
        return made

    return call


def _hold(made: FakeTensor, value: float) -> None:
    """`made` is known to hold this value: code may ask for it."""
    with _disable_current_modes():
        made.constant = torch.full((), value, dtype=made.dtype)
    made.fake_mode.fake_tensor_converter.add_constant_storage_mapping(made)


def _new_tensor(
    like: torch.Tensor, data: Any, *, dtype: torch.dtype | None = None, device: Any = None
) -> Callable[[], torch.Tensor] | None:
    return _tensor(data, dtype or like.dtype, device or like.device)


def _entries(data: Any) -> Iterator[Any]:
    if isinstance(data, (list, tuple)):
        for each in data:
            yield from _entries(each)
    else:
        yield data


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(value, bool)


def _stft(
    x: torch.Tensor,
    size: int,
    step: int | None = None,
    length: int | None = None,
    window: torch.Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Callable[[], torch.Tensor] | None:
    step = size // 4 if step is None else step
    length = size if length is None else length
    fits = step > 0 and 0 < length <= size and _is_window(window, length) and not align_to_window
    if not fits or x.dim() not in (1, 2) or not x.is_floating_point() or not return_complex:
        return None

    def call() -> torch.Tensor:
        frames = x.unfold(-1, size, step)
        if (weights := _centred(window, length, size, x)) is not None:
            frames = frames * weights
        transform = torch.fft.fft if onesided is False else torch.fft.rfft
        return transform(frames, norm="ortho" if normalized else None).transpose(-1, -2)

    return call


def _is_window(window: torch.Tensor | None, length: int) -> bool:
    return window is None or (tuple(window.shape) == (length,) and window.is_floating_point())


def _centred(window: torch.Tensor | None, length: int, size: int, like: torch.Tensor) -> torch.Tensor | None:
    """A window in the middle of `size` elements."""
    if length == size:
        return window
    left = (size - length) // 2
    window = like.new_ones(length) if window is None else window
    return torch.nn.functional.pad(window, [left, size - length - left])


_FEW = 8  # numbers of which a tensor is put together one by one
_SPELT: dict[Any, Callable[..., Callable[[], torch.Tensor] | None]] = {
    torch.linspace: _linspace,
    torch.tensor: _tensor,
    torch.as_tensor: _tensor,
    torch.Tensor.new_tensor: _new_tensor,
}
_RULES: dict[Any, Callable[..., Callable[[], torch.Tensor] | None]] = {
    _aten.stft.default: _stft,
}
