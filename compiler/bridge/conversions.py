"""What makes another number of a symbolic size: `float`, `int`, `len` and the functions of `math` ask Python
for a plain number, and what became of the size would be lost. Here they give symbolic numbers to the user's
code."""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy import functions

from dlcb.compiler.bridge.kinds import users_modules

Takes = Callable[[FrameType, Any], None]  # whose code, and what has to hold
_NUMBERS = (torch.SymInt, torch.SymFloat)
_ASK_FOR_TYPES = ("isinstance", "issubclass")  # the types below answer them as Python's own


@contextmanager
def symbolic(takes: Takes, converting: Collection[str] = ()) -> Iterator[None]:
    """While it is entered, the user's code has symbolic numbers from `len` and `math`, and in the modules
    called `converting` from `int` and `float`, where these are only called there. `takes` is told what a
    function requires of its operand."""
    of_symbols = {name: _of_symbols(name, least, takes) for name, least in _LEAST.items()}
    by_original = {getattr(math, name): function for name, function in of_symbols.items()}
    changes: list[tuple[dict[str, Any], str, Any]] = []  # what they were; None: not there

    def put(scope: dict[str, Any], name: str, value: Any) -> None:
        changes.append((scope, name, scope.get(name)))
        scope[name] = value

    for name, function in of_symbols.items():
        put(vars(math), name, function)
    for module in users_modules():
        scope = vars(module)
        for name in _of_math(module):
            value = scope.get(name)
            if type(value) is _BUILTIN and value in by_original:
                put(scope, name, by_original[value])
        if "len" not in scope:
            put(scope, "len", _length)
    for module in [sys.modules[name] for name in converting if name in sys.modules]:
        for name, kind in _KINDS.items():
            if name not in vars(module) and _is_only_called(module, name):
                put(vars(module), name, kind)
    try:
        yield
    finally:
        for scope, name, before in reversed(changes):
            if before is None:
                scope.pop(name, None)
            else:
                scope[name] = before


def _of_math(module: ModuleType) -> list[str]:
    """The names of functions of `math` in a module. They are looked for again where it has other names."""
    scope = vars(module)
    known = _named.get(module)
    if known is None or known[0] != len(scope):
        found = [name for name, value in scope.items() if type(value) is _BUILTIN and value in _FUNCTIONS]
        known = _named[module] = len(scope), found
    return known[1]


_named: WeakKeyDictionary[ModuleType, tuple[int, list[str]]] = WeakKeyDictionary()


def _length(thing: Any) -> Any:
    return thing.shape[0] if type(thing) is FakeTensor and thing.dim() else len(thing)


# ---- functions of math -----------------------------------------------------------------------------


def _of_symbols(name: str, least: Any, takes: Takes) -> Callable[..., Any]:
    """A function of `math` that gives symbolic numbers for symbolic ones, of which it takes no others than
    `least` allows."""
    original, meaning = getattr(math, name), getattr(functions, f"OpaqueUnaryFn_{name}")

    def answered(*operands: Any) -> Any:
        if len(operands) == 2 and name == "log":
            return answered(operands[0]) / answered(operands[1])  # as Python has it
        if len(operands) != 1 or not isinstance(operands[0], _NUMBERS):
            return original(*operands)
        given = operands[0].node
        value = given.expr.xreplace(given.shape_env.hints)
        if not value.is_number:  # known at run time only
            return original(*operands)
        result = original(float(value))
        takes(sys._getframe(1), least(given.expr))
        node = torch.sym_float(operands[0]).node
        return torch.SymFloat(SymNode(meaning(node.expr), node.shape_env, float, result))

    return answered


_LEAST = {
    "sqrt": lambda x: sympy.Ge(x, 0),
    "log": lambda x: sympy.Gt(x, 0),
    "log2": lambda x: sympy.Gt(x, 0),
}
_BUILTIN = type(math.sqrt)
_FUNCTIONS = frozenset(getattr(math, name) for name in _LEAST)


# ---- types that are called -------------------------------------------------------------------------


class _Called(type):
    """A type of Python's that gives symbolic numbers for symbolic ones; else it is that type."""

    kind: type
    convert: Callable[[Any], Any]

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == 1 and not keywords and isinstance(arguments[0], _NUMBERS):
            return cls.convert(arguments[0])
        return cls.kind(*arguments, **keywords)

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, cls.kind)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.kind)


def _whole(number: Any) -> Any:
    return number if isinstance(number, torch.SymInt) else math.trunc(number)


_KINDS: dict[str, type] = {
    name: _Called(name, (), {"kind": getattr(builtins, name), "convert": staticmethod(convert)})
    for name, convert in (("int", _whole), ("float", torch.sym_float))
}


def may_be_in(code: CodeType) -> bool:
    """Whether this code names a type that converts numbers."""
    return not _KINDS.keys().isdisjoint(code.co_names)


def _is_only_called(module: ModuleType, name: str) -> bool:
    """Whether the functions of a module do nothing with a builtin but call it, or ask for instances of it."""
    try:
        code = compile(inspect.getsource(module), module.__name__, "exec", dont_inherit=True)
    except (OSError, TypeError, SyntaxError):
        return False
    return all(_calls_only(each, name) for each in _within(code))


def _within(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name != "__annotate__":
            yield constant
            yield from _within(constant)


def _calls_only(code: CodeType, name: str) -> bool:
    calls: list[str] = []  # whose arguments are being made
    for instruction in dis.get_instructions(code):
        called = instruction.opname in ("PUSH_NULL", "LOAD_METHOD") or "NULL" in instruction.argrepr
        if called:
            calls.append(str(instruction.argval))
        elif instruction.opname.startswith("CALL"):
            calls = calls[:-1]
        elif (instruction.opname, instruction.argval) == ("LOAD_GLOBAL", name):
            given_to = calls[-1] if calls else ""
            if given_to not in _ASK_FOR_TYPES:
                return False
    return True
