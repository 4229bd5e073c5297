"""Calls that are recorded as the calls which PyTorch makes of them, because it takes the sizes on the way for
plain numbers: of those of their results it would not be seen that they follow an input's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten


def apart(func: Any, args: tuple, kwargs: dict[str, Any]) -> Callable[[], torch.Tensor] | None:
    """The same result by other calls; None where there is no need, or where PyTorch may refuse the call."""
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


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


_RULES: dict[Any, Callable[..., Callable[[], torch.Tensor] | None]] = {
    _aten.stft.default: _stft,
}
