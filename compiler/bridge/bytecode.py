"""What the text of the user's functions tells that a forward does not: which calls stand where their refusal
is caught, and what is asked for its identity."""

from __future__ import annotations

import dis
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

from dlcb.compiler.bridge.places import short

# exceptions that do not depend on sizes: a handler of these alone hides none of a forward's refusals
_ELSEWHERE = (
    *("TypeError", "AttributeError", "ImportError", "ModuleNotFoundError", "KeyError", "NameError"),
    *("StopIteration", "GeneratorExit"),
)
_IDLE = frozenset(("CACHE", "EXTENDED_ARG", "RESUME"))
_NUMBERS = frozenset((int, float, torch.SymInt, torch.SymFloat))
_LOADS = ("CONST", "FAST", "FAST_CHECK", "GLOBAL", "NAME", "DEREF", "CLASSDEREF")
_NAMES = frozenset(f"LOAD_{each}" for each in _LOADS)
_SAME = frozenset(("is_", "is_not", "__eq__", "__ne__"))  # the last two as `object` has them
_UNKNOWN = object()


@dataclass(frozen=True)
class Operands:
    """What `is` compares: the instructions that load each of both, as far as they are plain loads."""

    loads: tuple[tuple[dis.Instruction, ...], ...]


def line_at(code: CodeType, place: int) -> str:
    """ "file:line" of an instruction."""
    lines = [line for offset, line in dis.findlinestarts(code) if offset <= place and line is not None]
    return f"{short(code.co_filename)}:{lines[-1] if lines else code.co_firstlineno}"


# ---- exceptions ------------------------------------------------------------------------------------


def catches(code: CodeType, place: int, swallows: bool) -> bool:
    """Whether an exception out of the call at this place of a function may be caught in it. `swallows`: a
    context is entered there that may end one."""
    if not code.co_exceptiontable:
        return False
    steps = list(dis.get_instructions(code))
    found = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    around = [entry.target for entry in found if entry.start <= place < entry.end]
    return any(_ends(steps, target, swallows) for target in around)


def goes_on(generator: CodeType, swallows: bool) -> bool:
    """Whether a generator that is a context (`contextlib.contextmanager`) may end an exception: it goes on
    after a `yield`."""
    steps = dis.get_instructions(generator)
    return any(catches(generator, step.offset, swallows) for step in steps if step.opname == "YIELD_VALUE")


def may_swallow(kind: type) -> bool:
    """Whether a context of this class may end an exception: what `__exit__` gives is not None or False."""
    code = getattr(getattr(kind, "__exit__", None), "__code__", None)
    return code is None or not _gives_nothing(code)


def _gives_nothing(code: CodeType) -> bool:
    """Whether all that a function gives back is None, or False."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _IDLE]
    given = [
        step if step.opname == "RETURN_CONST" else steps[place - 1]
        for place, step in enumerate(steps)
        if step.opname in ("RETURN_VALUE", "RETURN_CONST")
    ]
    return all(step.opname in ("LOAD_CONST", "RETURN_CONST") and not step.argval for step in given)


def _ends(steps: Sequence[dis.Instruction], target: int, swallowing: bool) -> bool:
    """Whether the handler at this offset may end the exception. `finally` passes it on, and so does `with`,
    unless its context is `swallowing`."""
    ahead = [step for step in steps if step.offset >= target]
    for place, step in enumerate(ahead):
        if step.opname == "WITH_EXCEPT_START":
            return swallowing
        if step.opname == "CHECK_EXC_MATCH":
            named = [each.argval for each in ahead[:place] if each.opname.startswith(("LOAD_", "CHECK_"))]
            return not named or not all(name in _ELSEWHERE for name in named)
        if step.opname in ("POP_EXCEPT", "RETURN_VALUE", "RETURN_CONST"):
            return True
        if step.opname == "RERAISE":
            return False
    return False


# ---- identity --------------------------------------------------------------------------------------


def names_identity(code: CodeType, scope: Mapping[str, Any]) -> bool:
    """Whether a function names what asks for identity, to be called here or elsewhere (`map(is_, ...)`)."""
    given = [scope.get(name) for name in code.co_names]
    named = any(each is operator.is_ or each is operator.is_not for each in given)
    return named or not _SAME.isdisjoint(code.co_names)


@lru_cache(maxsize=4096)  # each forward of a model asks again
def identities(code: CodeType) -> dict[int, Operands]:
    """Where a function asks whether two objects are one, and what these are."""
    if dis.opmap["IS_OP"] not in code.co_code[::2]:  # most do not, and taking one apart takes long
        return {}
    steps = [step for step in dis.get_instructions(code) if step.opname not in _IDLE]
    found = {}
    for place, step in enumerate(steps):
        if step.opname == "IS_OP":
            second = _loads(steps, place)
            first = _loads(steps, place - len(second)) if second else ()
            found[step.offset] = Operands((first, second))
    return found


def _loads(steps: Sequence[dis.Instruction], end: int) -> tuple[dis.Instruction, ...]:
    """The instructions before `end` that load one object: a name, and attributes of it; none where it comes
    from elsewhere."""
    start = end - 1
    while start > 0 and steps[start].opname == "LOAD_ATTR":
        start -= 1
    plain = start >= 0 and steps[start].opname in _NAMES
    return tuple(steps[start:end]) if plain else ()


def may_be_size(frame: FrameType, operands: Operands) -> bool:
    """Whether both objects that are compared may be numbers, and one a size."""
    values = [_loaded(frame, each) if each else _UNKNOWN for each in operands.loads]
    return all(value is _UNKNOWN or type(value) in _NUMBERS for value in values)


def _loaded(frame: FrameType, loads: Sequence[dis.Instruction]) -> Any:
    first, *attributes = loads
    name = first.argval
    value = name if first.opname == "LOAD_CONST" else _UNKNOWN
    if first.opname != "LOAD_CONST":
        for scope in (frame.f_locals, frame.f_globals, frame.f_builtins):
            if name in scope:
                value = scope[name]
                break
    for step in attributes:
        value = _held(value, step.argval)
    return value


def _held(thing: Any, name: str) -> Any:
    """An attribute that is found without running code."""
    own = getattr(thing, "__dict__", {})
    return own.get(name, _UNKNOWN)
