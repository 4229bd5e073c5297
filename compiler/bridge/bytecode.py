"""What the text of the user's functions tells that a forward does not: which calls stand where their refusal
is caught, and where objects are asked for identity or class in ways that only a real forward answers for
sizes."""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

# exceptions that do not depend on sizes: a handler of these alone hides none of a forward's refusals
_ELSEWHERE = ("TypeError", "AttributeError", "ImportError", "ModuleNotFoundError", "KeyError", "NameError")
Harmless = Callable[[str, Mapping[str, Any]], bool]
_LIKE_IS = frozenset(("is_", "is_not", "getsizeof"))
_IDLE = frozenset(("CACHE", "EXTENDED_ARG", "RESUME"))
# what stands around a function, and where that is in it
_AROUND = (MethodType, partial, property, staticmethod, classmethod, type(lru_cache(len)))
_WITHIN = ("__func__", "__wrapped__", "fget", "func")
_WITH_A_CALL = ("__init__", "__new__", "__post_init__", "__call__")
_UNIQUE = (None, True, False, Ellipsis, NotImplemented)


@dataclass(frozen=True)
class Ran:
    """Code, the globals that it sees, and what else it holds that may be called."""

    code: CodeType
    scope: Mapping[str, Any]
    holds: tuple[Any, ...] = ()


def catches(frame: FrameType) -> bool:
    """Whether an exception out of the call that this frame waits for may be caught in it."""
    code, place = frame.f_code, frame.f_lasti
    if not code.co_exceptiontable:
        return False
    steps = list(dis.get_instructions(code))
    found = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return any(e.start <= place < e.end and _swallows(code, steps, e.target) for e in found)


def _swallows(code: CodeType, steps: list[dis.Instruction], target: int) -> bool:
    """Whether the handler at this offset may end the exception. `finally` and `with` pass it on, but for
    `contextlib.suppress`."""
    ahead = [step for step in steps if step.offset >= target]
    for place, step in enumerate(ahead):
        if step.opname == "WITH_EXCEPT_START":
            return "suppress" in code.co_names
        if step.opname == "CHECK_EXC_MATCH":
            named = [each.argval for each in ahead[:place] if each.opname.startswith(("LOAD_", "CHECK_"))]
            return not named or not all(name in _ELSEWHERE for name in named)
        if step.opname == "POP_EXCEPT":
            return True
        if step.opname == "RERAISE":
            return False
    return False


def tells_apart(
    ran: Iterable[Ran], methods: Mapping[str, Iterable[Any]], harmless: Harmless
) -> CodeType | None:
    """Code among these and what they call that may tell a size from a number: by identity, by `__class__`, by
    `case int()`, by `functools.singledispatch`. `methods` are those that attributes may name. What is
    `harmless`, by its file and its globals, may ask."""
    left = list(ran)
    seen = {each.code for each in left}
    while left:
        each = left.pop()
        if harmless(each.code.co_filename, each.scope):
            continue
        if _asks(each.code, each.scope):
            return each.code
        called = [*each.holds, *_named(each, methods)]
        if any(isinstance(thing, FunctionType) and hasattr(thing, "registry") for thing in called):
            return each.code
        names = {*each.code.co_names, *_WITH_A_CALL}
        further = [more for thing in called for more in _functions(thing, names)]
        further += [Ran(inner, each.scope) for inner in each.code.co_consts if isinstance(inner, CodeType)]
        for more in further:
            if more.code not in seen:
                seen.add(more.code)
                left.append(more)
    return None


def _named(ran: Ran, methods: Mapping[str, Iterable[Any]]) -> Iterator[Any]:
    """What the names in the code may stand for."""
    names = ran.code.co_names
    for name in names:
        yield from methods.get(name, ())
        value = ran.scope.get(name)
        if isinstance(value, ModuleType):
            yield from (vars(value)[each] for each in names if each in vars(value))
        elif value is not None:
            yield value


def _functions(thing: Any, names: Collection[str]) -> Iterator[Ran]:
    """The functions that a call of `thing` may run, as far as that is plain; of a class the methods of these
    names."""
    if isinstance(thing, type):
        for name in names:
            own = vars(thing).get(name)
            if isinstance(own, (FunctionType, *_AROUND)):
                yield from _functions(own, names)
        return
    while isinstance(thing, _AROUND):
        thing = next(getattr(thing, name) for name in _WITHIN if hasattr(thing, name))
    if not isinstance(thing, FunctionType):
        thing = vars(type(thing)).get("__call__")  # an object that is called
    if isinstance(thing, FunctionType):
        yield Ran(thing.__code__, thing.__globals__, tuple(_contents(thing)))


def _contents(function: FunctionType) -> Iterator[Any]:
    """What it holds in its closure, and the function that it was made around."""
    yield from (vars(function)[name] for name in ("__wrapped__",) if name in vars(function))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _asks(code: CodeType, scope: Mapping[str, Any]) -> bool:
    if not _LIKE_IS.isdisjoint(code.co_names):
        return True
    steps = [step for step in dis.get_instructions(code) if step.opname not in _IDLE]
    for place, step in enumerate(steps):
        if step.opname == "MATCH_CLASS":
            return True
        if step.opname == "IS_OP" and not _is_no_number(steps[:place], scope):
            return True
        if step.argval == "__class__" and step.opname == "LOAD_ATTR" and steps[place - 1].argval != "self":
            return True
    return False


def _is_no_number(before: list[dis.Instruction], scope: Mapping[str, Any]) -> bool:
    """Whether what was loaded last is None or its like, or something of the module that is no number."""
    path: list[str] = []
    for step in reversed(before):
        if step.opname == "LOAD_CONST":
            return not path and any(step.argval is each for each in _UNIQUE)
        if step.opname == "LOAD_ATTR":
            path.append(step.argval)
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = scope.get(step.argval, getattr(scope.get("__builtins__"), step.argval, None))
            if value is None and isinstance(scope.get("__builtins__"), dict):
                value = scope["__builtins__"].get(step.argval)
            for name in reversed(path):
                value = getattr(value, name, None)
            return value is not None and not isinstance(value, (int, float))
        else:
            return False
    return False
