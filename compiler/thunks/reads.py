"""Index values in PyTorch's own forwards, kept to their ranges. On CUDA a bad one would end the device's
context, and say so too late: within `Reads` operators read through indices that are cut to their range, and
whether any was cut is known once the forward has ended, from flags that stay on the device until then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dlcb.compiler.errors import IndexRangeError
from dlcb.compiler.host.indexed import IGNORED, INDEXED, Indexed, axes

# what PyTorch makes of operators in INDEXED before it runs them, with the same arguments in the same places
_WITHIN = {
    "_embedding_bag": "embedding_bag",
    "_embedding_bag_forward_only": "embedding_bag",
    "_index_put_impl": "index_put",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss2d",
}


class Reads(TorchDispatchMode):
    """While it is entered, no operator reads through an index that is out of range. `inputs` are the tensors
    of the call by name. `at_once`: the first bad index raises IndexRangeError with its input, position and
    range; without that `any_bad` tells, after the forward, whether there was one: then it has no results."""

    def __init__(self, inputs: Mapping[str, torch.Tensor], at_once: bool = False) -> None:
        super().__init__()
        self._inputs, self._at_once = inputs, at_once
        self._flags: list[torch.Tensor] = []
        self.found: IndexRangeError | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rows = _rows(func)
        if rows:
            args = tuple(args)
            for row in rows:
                args = self._kept(str(func), row, args)
        return func(*args, **(kwargs or {}))

    def any_bad(self) -> bool:
        """Whether an index was out of range. Waits for the device where anything was read through indices."""
        return bool(self._flags) and bool(torch.stack(self._flags).any())

    def _kept(self, operator: str, row: Indexed, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call with indices in their range."""
        if len(args) <= max(row.indices, row.table, row.axis_argument or 0):
            return args
        table, given = args[row.table], args[row.indices]
        axis = row.axis if row.axis_argument is None else args[row.axis_argument]
        if not isinstance(axis, int) or not isinstance(table, torch.Tensor):
            return args
        several = isinstance(given, (list, tuple))
        kept = []
        entries = given if several else (given,)
        for indices, place in zip(entries, axes(axis, map(_spanned, entries)), strict=False):
            if not _are_indices(indices):
                kept.append(indices)
                continue
            extent = table.numel() if row.flat else 1 if table.dim() == 0 else 0
            if row.sizes is not None:
                extent = math.prod(args[row.sizes])
            elif not extent:
                extent = table.shape[place % table.dim()]
            ignored = (args[row.ignored] if len(args) > row.ignored else IGNORED) if row.ignored else None
            low = -extent if row.wraps else 0
            kept.append(self._within(operator, indices, low, extent + row.ends, ignored))
        changed = list(args)
        changed[row.indices] = kept if several else kept[0]
        return tuple(changed)

    def _within(
        self, operator: str, indices: torch.Tensor, low: int, high: int, ignored: int | None
    ) -> torch.Tensor:
        if high <= low or self._at_once:  # of an axis without elements nothing can be read
            self._refuse(operator, indices, low, high, ignored)
            return indices
        within = indices.clamp(low, high - 1)
        if ignored is not None:
            within = torch.where(indices == ignored, indices, within)
        self._flags.append((within != indices).any())
        return within

    def _refuse(self, operator: str, indices: torch.Tensor, low: int, high: int, ignored: int | None) -> None:
        bad = (indices < low) | (indices >= high)
        if ignored is not None:
            bad &= indices != ignored
        if bool(bad.any()):
            place = tuple(bad.nonzero()[0].tolist())
            value = int(indices[place])
            name, position = self._origin(indices, place, value) or (f"indices of {operator}", place)
            self.found = IndexRangeError(name, position, value, low, high, stage="eager")
            raise self.found  # which TorchScript's interpreter makes another error of

    def _origin(
        self, indices: torch.Tensor, place: tuple[int, ...], value: int
    ) -> tuple[str, tuple[int, ...]] | None:
        """The input that these indices are, or are a part of, and the place in it; None where they are
        computed, and no input has this value at this place."""
        steps = zip(place, indices.stride(), strict=True)
        offset = int(indices.storage_offset() + sum(k * step for k, step in steps))
        for name, tensor in self._inputs.items():
            if tensor.untyped_storage().data_ptr() == indices.untyped_storage().data_ptr():
                return name, _unravelled(offset - int(tensor.storage_offset()), tensor.shape)
        for name, tensor in self._inputs.items():
            if tensor.shape == indices.shape and not tensor.dtype.is_complex and tensor[place] == value:
                return name, place
        return None


def _are_indices(indices: object) -> bool:
    """A mask, or shares of classes, are none."""
    if not isinstance(indices, torch.Tensor) or not indices.numel():
        return False
    return indices.dtype in (torch.int32, torch.int64)


def _spanned(indices: object) -> int:
    """How many axes of the table they are for."""
    if isinstance(indices, torch.Tensor) and indices.dtype in (torch.bool, torch.uint8):
        return indices.dim()
    return 1


def _unravelled(offset: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The place of an element of a row-major tensor."""
    place: list[int] = []
    for extent in reversed(shape):
        place.insert(0, offset % extent)
        offset //= extent
    return tuple(place)


class Watched(TorchFunctionMode):
    """While it is entered, Python's calls of PyTorch that may read through indices run within `reads`, which
    costs less than to see each operator there: a small transformer of 6 layers makes 131 such calls (4.4 µs
    each), and 253 of operators (7.7 µs). Of those that TorchScript's interpreter calls it sees nothing."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not _may_read(func) or (func in _BRACKETS and not _by_tensors(args[1])):
            return func(*args, **given)
        with self._reads:
            return func(*args, **given)


def is_seen(module: torch.nn.Module) -> bool:
    """Whether Python calls all operators of a module, and not TorchScript's interpreter."""
    return not any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


_WORDS = (
    "index",
    "gather",
    "scatter",
    "take",
    "put",
    "embedding",
    "one_hot",
    "nll",
    "cross_entropy",
    "margin",
)
_BRACKETS = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


@cache
def _may_read(func: Any) -> bool:
    name = str(func) if isinstance(func, torch._ops.OpOverload) else getattr(func, "__name__", "")
    return func in _BRACKETS or "unpool" in name or any(word in name for word in _WORDS)


def _by_tensors(key: object) -> bool:
    entries = key if isinstance(key, tuple) else (key,)
    return any(isinstance(each, (torch.Tensor, list, tuple)) for each in entries)


@cache
def _rows(func: Any) -> tuple[Indexed, ...]:
    """What an operator, or what writes into its first operand as that does, reads through indices."""
    namespace, _, called = str(func).partition(".")
    name, _, overload = called.partition(".")
    if namespace != "aten":
        return ()
    name = name.removesuffix("_")
    name = _WITHIN.get(name, name)
    found = (
        INDEXED.get(f"aten.{name}.{each}") for each in (overload, overload.removesuffix("_out"), "default")
    )
    return next(filter(None, found), ())
