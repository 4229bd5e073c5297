"""A forward that leaves nothing behind in its module: attributes, and what they hold, are afterwards what
they were. Else an answer would depend on those before it (a table that only grows, a window that a small
image made smaller), and after a forward on fake tensors a real one would meet these."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

_CONTAINERS = (dict, list, set, deque)
_LEAVES = (torch.Tensor, ModuleType, BuiltinFunctionType, MethodType, type)
# objects of these are not the model's
_WHOLE = frozenset((*sys.stdlib_module_names, "torch", "numpy", "dlcb"))
_PLAIN = frozenset((bool, int, float, str, type(None), torch.Tensor, nn.Parameter))  # most of what is met
_EXACTLY = frozenset((dict, OrderedDict, list, set, deque, tuple, frozenset))  # most of what holds others
_CHANGING = (*_CONTAINERS, tuple, frozenset, nn.Module)
_MOST = 100_000  # objects that are looked at


class State:
    """What `module`, its parts and what they hold in containers, functions and plain objects are now; with
    `around`, what their classes and files hold, too. Tensors are not looked into."""

    def __init__(self, module: nn.Module, around: bool = False) -> None:
        self.owners = _owners(module) if around else []
        self._names = [(owner, dict(vars(owner))) for owner in self.owners]
        found = [
            thing if isinstance(thing, _CONTAINERS) else vars(thing)
            for thing in _within([module, *(each for pair in self._names for each in _own(*pair))])
            if not isinstance(thing, (tuple, frozenset))
        ]
        self._empty = [container for container in found if not container]
        self._full = [
            (container, container.copy() if type(container) in _EXACTLY else copy.copy(container))
            for container in found
            if container
        ]
        parts = [part for part in module.modules() if isinstance(part, torch.jit.RecursiveScriptModule)]
        self._scripted = [(part._c, _attributes(part._c)) for part in parts]

    def tensors(self) -> list[torch.Tensor]:
        """Those that all of these held."""
        found = [
            value
            for _, kept in (*self._full, *self._names)
            for value in (kept.values() if isinstance(kept, dict) else kept)
            if isinstance(value, torch.Tensor)
        ]
        found += [v for _, kept in self._scripted for v in kept.values() if isinstance(v, torch.Tensor)]
        return list({id(each): each for each in found}.values())

    def restore(self) -> bool:
        """Put back what has changed since. Whether anything had: that is all it costs where nothing has."""
        changed = [pair for pair in self._full if _differs(*pair)]
        for now, before in changed:
            now.clear()
            now.update(before) if isinstance(now, (dict, set)) else now.extend(before)
        if any(self._empty):
            changed += [(container, None) for container in self._empty if container]
            for container in self._empty:
                container.clear()
        for owner, names in self._names:
            _rename(owner, names)
        scripted = [_put_back(*pair) for pair in self._scripted]
        return bool(changed) or any(scripted)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Afterwards `module`, its parts' classes and files are what they were, and functions of these have
    forgotten what they gave. What they were is looked up once by the outermost of such blocks."""
    outer = _known.get(module)
    state = outer or State(module, around=True)
    _known[module] = state
    try:
        yield
    finally:
        state.restore()
        for function in _remembering(state.owners):
            function.cache_clear()
        if outer is None:
            del _known[module]


_known: WeakKeyDictionary[nn.Module, State] = WeakKeyDictionary()  # of modules within such blocks


def _within(things: Sequence[Any]) -> Iterator[Any]:
    """Those of these things that may change, and the containers, functions and plain objects that they hold,
    each once. What the first of them holds comes first: what surrounds a model may hold more than is looked
    at."""
    left: list[Any] = list(reversed(things))
    seen: dict[int, Any] = {}
    while left and len(seen) < _MOST:
        thing = left.pop()
        kind = type(thing)
        if kind in _PLAIN or id(thing) in seen or not (kind in _EXACTLY or _may_change(thing)):
            continue
        seen[id(thing)] = thing
        yield thing
        if kind in _EXACTLY and not thing:
            continue
        if isinstance(thing, FunctionType):
            left += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        if isinstance(thing, dict):
            left += thing.values()
        elif isinstance(thing, (list, set, deque, tuple, frozenset)):
            left += thing
        else:
            left += vars(thing).values()


def _may_change(thing: Any) -> bool:
    if isinstance(thing, _CHANGING):
        return True
    if isinstance(thing, _LEAVES) or not isinstance(getattr(thing, "__dict__", None), dict):
        return False
    of = thing if isinstance(thing, FunctionType) else type(thing)
    return of is SimpleNamespace or str(of.__module__).partition(".")[0] not in _WHOLE


def _differs(now: Any, before: Any) -> bool:
    """Objects are looked at only where they are others than before."""
    try:
        return bool(now != before)
    except (RuntimeError, TypeError, ValueError):  # tensors and arrays are neither equal nor not
        return True


def _attributes(scripted: Any) -> dict[str, Any]:
    """What a module of TorchScript, in C++, holds beside its parts: Python does not see it."""
    kind: Any = torch._C.ConcreteModuleType.from_jit_type(scripted._type())
    return {name: scripted.getattr(name) for name in kind.get_attributes()}


def _put_back(scripted: Any, before: Mapping[str, Any]) -> bool:
    """Whether an attribute was another; containers are made anew whenever they are asked for."""
    found = {name: scripted.getattr(name) for name in before}
    changed = [name for name, now in found.items() if now is not before[name] and _differs(now, before[name])]
    for name in changed:
        scripted.setattr(name, before[name])
    return bool(changed)


def _owners(module: nn.Module) -> list[Any]:
    """The classes of a module's parts, and the files of these."""
    kinds = {type(part): None for part in module.modules() if not type(part).__module__.startswith("torch.")}
    files = dict.fromkeys(kind.__module__ for kind in kinds)
    return [*kinds, *(sys.modules[name] for name in files if name in sys.modules)]


def _own(owner: Any, names: Mapping[str, Any]) -> list[Any]:
    """What a class or a file holds of its own: not what Python puts into a file, as who loaded it."""
    is_file = isinstance(owner, ModuleType)
    return [each for name, each in names.items() if not (is_file and name.startswith("__"))]


def _rename(owner: Any, names: Mapping[str, Any]) -> None:
    """Put back what the names of a class or of a file stood for, one by one: others may be reading them."""
    now = vars(owner)
    for name in [name for name in now if name not in names]:
        delattr(owner, name)
    for name in [name for name, value in names.items() if now.get(name) is not value]:
        setattr(owner, name, names[name])


def _remembering(owners: Sequence[Any]) -> set[Any]:
    """Functions with a memory, in these classes and files."""
    return {
        value for owner in owners for value in vars(owner).values() if isinstance(value, _lru_cache_wrapper)
    }
