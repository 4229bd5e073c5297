"""The casts that autocast makes on the device that a model is captured for. A trace is recorded before
PyTorch makes them, so PyTorch is asked for them: its own rule for the call is run, and what that calls is
recorded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from dlcb.compiler.bridge.symbolic_calls import Sampled

_KEYS = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# one call of a library's on a GPU, whose rule lies in that library
RECURRENCES = frozenset(
    getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
)
_REFUSALS = (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError)
_Call = Callable[[], Any]


@contextmanager
def without_autocast() -> Iterator[None]:
    """While it is entered, it is as if who called had entered no autocast. Casts of weights are not kept:
    those of fake ones would be met by the next forward."""
    before = {kind: torch.is_autocast_enabled(kind) for kind in _KEYS}
    keeps = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    for kind in before:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(keeps)
        for kind, was in before.items():
            torch.set_autocast_enabled(kind, was)


class Casts:
    """What autocast makes of calls on tensors of one type of device."""

    def __init__(self, kind: str) -> None:
        self.made = False  # whether any call was cast
        self._kind, self._key = kind, _KEYS[kind]
        self._set = torch._C.DispatchKeySet(self._key)
        self._changed: dict[Hashable, bool] = {}

    def are_made(self) -> bool:
        """Whether the user's code is within autocast for this device, and PyTorch not within a call."""
        return torch.is_autocast_enabled(self._kind)

    def off(self) -> AbstractContextManager[None]:
        """While it is entered, none are made."""
        return torch._C._ExcludeDispatchKeyGuard(self._set)

    def of(self, func: Any, args: tuple, kwargs: dict[str, Any], value: Callable[[Any], Any]) -> _Call | None:
        """The calls that autocast makes of one; None where it leaves the call as it is. `value` gives a
        number at the sample's sizes."""
        if not isinstance(func, torch._ops.OpOverload):
            return None
        self.made = True
        if _has_rule(func, self._key):
            return lambda: func.redispatch(self._set, *args, **kwargs)
        if func in RECURRENCES and self._kind == "cuda":
            return lambda: self._narrow(func, args, kwargs)
        if _is_composite(func) and self._changes(func, args, kwargs, value):
            return lambda: func.decompose(*args, **kwargs)
        return None

    def _narrow(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A call on halves throughout: which cuDNN's recurrences get whatever autocast's type is."""
        with self.off():
            return func(*pytree.tree_map_only(torch.Tensor, _halved, args), **kwargs)

    def _changes(self, func: Any, args: tuple, kwargs: dict[str, Any], value: Callable[[Any], Any]) -> bool:
        """Whether PyTorch puts a call together of others that are cast: its results then have other types."""
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        key = (func, tuple((x.dtype, x.dim()) for x in given))
        if not any(x.is_floating_point() for x in given):
            return False
        if key not in self._changed:
            self._changed[key] = self._types(func, args, kwargs, value, True) != self._types(
                func, args, kwargs, value, False
            )
        return self._changed[key]

    def _types(
        self, func: Any, args: tuple, kwargs: dict[str, Any], value: Callable[[Any], Any], cast: bool
    ) -> list[torch.dtype]:
        """The types of a call's results, by fake tensors of the sample's sizes."""
        sampled, mode = Sampled(value), FakeTensorMode()
        with _disable_current_modes(), no_python_dispatcher():

            def of(argument: Any) -> Any:
                if isinstance(argument, torch.Tensor):
                    return FakeTensor(mode, sampled.of(argument), argument.device)
                return sampled.of(argument)

            try:
                given, named = pytree.tree_map(of, (args, kwargs))
                with torch.autocast(self._kind, torch.get_autocast_dtype(self._kind), enabled=cast), mode:
                    results = func(*given, **named)
            except _REFUSALS:
                return []
        return [x.dtype for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]


def _halved(x: torch.Tensor) -> torch.Tensor:
    return x.half() if x.is_floating_point() and x.dtype is not torch.float64 else x


@cache
def _has_rule(func: torch._ops.OpOverload, key: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


@cache
def _is_composite(func: torch._ops.OpOverload) -> bool:
    return not func._schema.is_mutable and _has_rule(func, _COMPOSITE)
