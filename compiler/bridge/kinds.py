"""In the user's code symbolic sizes and fake tensors are of the types that they stand for: `isinstance`,
`type`, `hasattr` and their like answer as in a real forward, so that the code goes the way that it goes
there. What cannot be answered so is told."""

from __future__ import annotations

import builtins
import operator
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import transformer

from dlcb.compiler.modules import names_in

Tell = Callable[[FrameType, str], bool]  # who asks, and for what -> whether that is the user's code

_STANDARD = f"{sysconfig.get_paths()['stdlib']}/"
_SITE = (f"{sysconfig.get_paths()['purelib']}/", f"{sysconfig.get_paths()['platlib']}/")
_PACKAGE = f"{Path(__file__).parents[1]}/"
# they ask for types to tell their own objects apart; CuPy, which is ours, loads parts when they are looked at
_OTHERS = ("sympy", "mpmath", "numpy", "networkx", "cupy", "cupyx")
_LIBRARIES = tuple(f"{Path(found).parent}/" for found in (torch.__file__,)) + tuple(
    f"{folder}{name}/" for folder in _SITE for name in _OTHERS
)
_STANDS_FOR: dict[type, Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}


def _silent(frame: FrameType, what: str) -> bool:
    return False


@contextmanager
def as_real(tell: Tell = _silent) -> Iterator[None]:
    """While it is entered, the user's code cannot tell sizes and tensors from real ones by their types, and
    PyTorch's transformers ask for no values."""
    shadows = _shadows(tell)
    every = list(shadows)
    changed: list[tuple[dict[str, Any], list[str]]] = []
    for module in users_modules():
        names = vars(module)
        fresh = every if names.keys().isdisjoint(shadows) else [name for name in every if name not in names]
        names.update(shadows if fresh is every else {name: shadows[name] for name in fresh})
        changed.append((names, fresh))
    try:
        with _masks_unasked():
            yield
    finally:
        for names, fresh in changed:
            for name in fresh:
                names.pop(name, None)


@contextmanager
def _masks_unasked() -> Iterator[None]:
    """nn.Transformer compares a mask with the causal one, to be faster where it is that: each answer is the
    same without, and tensors that are traced have no values to compare."""
    name = "_detect_is_causal_mask"
    scope = vars(transformer)
    before = scope.get(name)
    if before is not None:
        scope[name] = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        if before is not None:
            scope[name] = before


@contextmanager
def compiling(tell: Tell) -> Iterator[None]:
    """While it is entered, in PyTorch's state of compiling, code of the user's that asks for that state is
    told of."""
    state = torch.compiler
    before = state._is_compiling_flag, state._is_exporting_flag
    state._is_compiling_flag = state._is_exporting_flag = _Yes(tell)  # type: ignore[assignment]
    try:
        yield
    finally:
        state._is_compiling_flag, state._is_exporting_flag = before


class _Yes(int):
    """True, and tells of who asks."""

    def __new__(cls, tell: Tell) -> _Yes:
        made = super().__new__(cls, 1)
        made._tell = tell
        return made

    _tell: Tell

    def __bool__(self) -> bool:
        self._tell(sys._getframe(1), "whether a compiler is at work is asked")
        return True

    def __or__(self, other: int) -> int:
        return bool(self) | other

    def __and__(self, other: int) -> int:
        return bool(self) & other

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __hash__(self) -> int:
        return int.__hash__(self)

    __ror__, __rand__ = __or__, __and__


class _Loaded:
    """The modules of this process when it was last looked for the user's among them."""

    def __init__(self) -> None:
        self.every: list[Any] = []
        self.users: list[ModuleType] = []


_loaded = _Loaded()


def users_modules() -> list[ModuleType]:
    """The loaded modules whose code is the user's, or what the user's goes through on its own account. There
    are thousands to ask, so they are asked again only where others are loaded."""
    every = list(sys.modules.values())
    if len(every) != len(_loaded.every) or not all(map(operator.is_, every, _loaded.every)):
        _loaded.every, _loaded.users = every, [module for module in every if _is_users(module)]
    return _loaded.users


def _is_users(module: ModuleType) -> bool:
    if not isinstance(module, ModuleType):
        return False
    names = names_in(module)
    file = names.get("__file__")
    if not isinstance(file, str):
        return bool(names.get("__name__") == "__main__")
    return not is_library(file)


@cache
def is_library(file: str) -> bool:
    """Whether code in this file is neither the user's nor what the user's goes through on its own account."""
    standard = file.startswith(_STANDARD) and not file.startswith(_SITE)
    return standard or file.startswith((*_LIBRARIES, _PACKAGE, "<frozen"))


def _kind(thing: Any) -> type:
    own = type(thing)
    if own is FakeTensor:
        return torch.Tensor
    return type(_STANDS_FOR[own]) if own in _STANDS_FOR else own


def _shadows(tell: Tell) -> dict[str, Any]:
    """What stands in the place of builtins."""

    def is_instance(thing: Any, kinds: Any) -> bool:
        own = type(thing)
        if own in _STANDS_FOR:
            return isinstance(_STANDS_FOR[own], kinds)
        if own is FakeTensor and isinstance(thing, kinds) and not isinstance(_PLAIN, kinds):
            tell(sys._getframe(1), "whether a tensor is real is asked")
        return isinstance(thing, kinds)

    def has(thing: Any, name: str) -> bool:
        own = type(thing)
        return hasattr(_STANDS_FOR[own], name) if own in _STANDS_FOR else hasattr(thing, name)

    def get(thing: Any, name: str, *otherwise: Any) -> Any:
        own = type(thing)
        if own in _STANDS_FOR and not hasattr(_STANDS_FOR[own], name):
            return getattr(_STANDS_FOR[own], name, *otherwise)
        return getattr(thing, name, *otherwise)

    def names(*thing: Any) -> list[str]:
        if not thing:
            return sorted(sys._getframe(1).f_locals)
        return dir(_STANDS_FOR[type(thing[0])] if type(thing[0]) in _STANDS_FOR else thing[0])

    def identity(thing: Any) -> int:
        if type(thing) in _STANDS_FOR:
            tell(sys._getframe(1), "which object a size is is asked")
        return id(thing)

    return {
        "isinstance": is_instance,
        "type": _Kind,
        "hasattr": has,
        "getattr": get,
        "dir": names,
        "id": identity,
    }


_PLAIN = torch.empty(0)


class _Asks(type):
    """`type` for one argument answers; for all else it is `type`."""

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == 1 and not keywords:
            return _kind(arguments[0])
        return type(*arguments, **keywords)

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, type)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, type)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is builtins.type

    def __hash__(cls) -> int:
        return hash(builtins.type)


class _Kind(type, metaclass=_Asks):
    pass
