"""What Python does with a tensor without a call that a trace shows, as calls. Indexing has every slice as one
of its own: PyTorch leaves out slices that keep a whole axis at the size at hand, so that a trace of
`x[:, :100]` over 50 columns would not show that it cuts 200. `x.data` is a view of the same memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dlcb.compiler.bridge.taken_apart import spelt

_WHOLE = slice(None)
_DATA, _SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Rebound(Exception):
    """A tensor that is given the memory of another: every name for it shows that from then on."""


class ExplicitSlices(TorchFunctionMode):
    """While it is entered, `x[key]` and `x[key] = value` cut axis by axis first, `x.data` is a view, and
    replacing it raises Rebound; what makes data of sizes is `spelt` by calls that follow them. `refused` is
    told of each call that raises, and from where it came."""

    def __init__(
        self, refused: Callable[[Any, FrameType], None] = lambda func, frame: None, spelling: bool = True
    ) -> None:
        super().__init__()
        self._refused, self._spelling = refused, spelling

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ or func is torch.Tensor.__setitem__:
            x, key, *value = args
            rest = list(key) if isinstance(key, tuple) else [key]
            places = _slices(x, rest)
            for place, axis in places:
                cut = rest[place]
                x = torch.ops.aten.slice.Tensor(x, axis, cut.start, cut.stop, cut.step or 1)
                rest[place] = _WHOLE
            cut = bool(places)
            if _selects(rest):
                x, rest = _selected(x, rest)
                cut = True
            whole = all(each is Ellipsis or each is _WHOLE for each in rest)
            if value and _is_filled(x, rest, value[0]):
                return (x if whole else x[tuple(rest)]).fill_(value[0])
            if cut:
                if not whole:
                    return func(x, tuple(rest), *value)
                return func(x, (Ellipsis,), *value) if value else x
        if self._spelling and (others := spelt(func, args, kwargs or {})) is not None:
            return others()
        if func == _DATA:
            return args[0].detach()
        if func == _SET_DATA:
            raise Rebound("the `.data` of a tensor is replaced, which no call of PyTorch's shows")
        if func is torch.Tensor.fill_diagonal_ and _is_matrix(args) and not kwargs:
            args[0].diagonal().fill_(args[1])
            return args[0]
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self._refused(func, sys._getframe(1))
            raise


def _is_matrix(args: Sequence[Any]) -> bool:
    """Whether `x.fill_diagonal_(value)` writes to one diagonal."""
    return len(args) == 2 and args[0].dim() == 2


def _is_filled(x: torch.Tensor, key: Sequence[Any], value: Any) -> bool:
    """Whether `x[key] = value` writes a number into a view: PyTorch would make a tensor of the number first,
    in which a trace cannot see which size it follows."""
    if not all(each is Ellipsis or each is _WHOLE or (_is_size(each) and each is not None) for each in key):
        return False
    if isinstance(value, (float, torch.SymFloat)):
        return x.is_floating_point()
    return isinstance(value, (int, torch.SymInt)) and (x.is_floating_point() or x.dtype in _WHOLE_NUMBERS)


_WHOLE_NUMBERS = (torch.int32, torch.int64)  # any size is one


def _slices(x: torch.Tensor, key: Sequence[Any]) -> list[tuple[int, int]]:
    """(place in `key`, axis of `x`) of each slice that may cut; none where `key` holds what is not
    understood."""
    taken = [_axes(item) for item in key]
    if None in taken:
        return []
    counts = [count for count in taken if count is not None]
    rest = x.dim() - sum(counts)
    return [(place, axis) for place, axis in _places(key, counts, rest) if _cuts(key[place])]


def _places(key: Sequence[Any], counts: Sequence[int], rest: int) -> Iterator[tuple[int, int]]:
    axis = 0
    for place, (item, count) in enumerate(zip(key, counts, strict=True)):
        yield place, axis
        axis += rest if item is Ellipsis else count


def _selects(key: Sequence[Any]) -> bool:
    """Whether a key has a size among places alone: PyTorch would make a plain number of it."""
    plain = all(each is Ellipsis or _is_whole(each) or (_is_size(each) and each is not None) for each in key)
    return plain and any(isinstance(each, torch.SymInt) for each in key)


def _selected(x: torch.Tensor, key: Sequence[Any]) -> tuple[torch.Tensor, list[Any]]:
    """`x` at the places in `key`, one after another as PyTorch goes, and what is left of the key."""
    numbers = sum(each is not Ellipsis for each in key)
    axis, rest = 0, []
    rank = x.dim()
    for each in key:
        if each is Ellipsis:
            axis += rank - numbers
        elif _is_whole(each):
            axis += 1
        else:
            x = torch.ops.aten.select.int(x, axis, each)
            continue
        rest.append(each if each is Ellipsis else _WHOLE)
    return x, rest


def _is_whole(item: Any) -> bool:
    return isinstance(item, slice) and item == _WHOLE


def _axes(item: Any) -> int | None:
    """How many axes one item of a key uses up; None where that is left to PyTorch."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, torch.Tensor):
        return item.dim() if item.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(item, (int, torch.SymInt)) and not isinstance(item, bool):
        return 1
    return 1 if isinstance(item, slice) and all(map(_is_size, (item.start, item.stop, item.step))) else None


def _is_size(bound: Any) -> bool:
    return bound is None or isinstance(bound, (int, torch.SymInt))


def _cuts(item: Any) -> bool:
    return isinstance(item, slice) and item != _WHOLE
