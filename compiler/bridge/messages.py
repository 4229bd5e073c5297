"""Text that only tells people: what an assertion would say, or a log. A size in it decides nothing."""

from __future__ import annotations

import dis
import logging
import warnings
from types import FrameType
from typing import Any

import torch

_TEXT = ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE")
_LEVELS = ("debug", "info", "warning", "warning_once", "error", "critical")
_TAKES = {"BINARY_SUBSCR": 2, "BINARY_OP": 2, "LOAD_ATTR": 1, "LOAD_METHOD": 1, "PRECALL": 0, "PUSH_NULL": 0}


def is_message(frame: FrameType) -> bool:
    """Whether the f-string that this frame makes now is given to an assertion, a log or a warning, and to
    nothing else."""
    here = list(dis.get_instructions(frame.f_code))
    now = next((k for k, each in enumerate(here) if each.offset == frame.f_lasti), None)
    if now is None or here[now].opname not in _TEXT:
        return False
    callees: list[int] = []  # places of what is called, of calls whose arguments are being made
    above = 0  # what lies on the text on Python's stack
    for place, each in enumerate(here):
        if place > now:
            taken = _taken(each)
            if taken is None:
                return False
            if taken > above and each.opname.startswith("CALL"):
                return bool(callees) and _tells(here, callees[-1], frame)
            if taken > above and each.opname != "BUILD_STRING" and each.opname not in _TEXT:
                return False
            above = 0 if taken > above else above + dis.stack_effect(each.opcode, each.arg, jump=False)
        if each.opname == "LOAD_METHOD" or (each.opname.startswith("LOAD") and "NULL" in each.argrepr):
            callees.append(place)
        elif each.opname == "PUSH_NULL":
            callees.append(place + 1)
        elif each.opname.startswith("CALL"):
            callees = callees[:-1]
    return False


def _taken(instruction: dis.Instruction) -> int | None:
    """How many values an instruction takes from the stack; None where that is not known here."""
    name, argument = instruction.opname, instruction.arg or 0
    if name in _TAKES:
        return _TAKES[name]
    if name in _TEXT:
        return 2 if name == "FORMAT_WITH_SPEC" or (name == "FORMAT_VALUE" and argument & 4) else 1
    if name == "BUILD_STRING":
        return argument
    if name == "CALL":
        return argument + 2
    return 0 if name.startswith("LOAD_") or name == "KW_NAMES" else None


def _tells(here: list[dis.Instruction], place: int, frame: FrameType) -> bool:
    """Whether what is called, a global or an attribute of one, tells people something."""
    callee = here[place]
    if callee.opname != "LOAD_GLOBAL":  # a method
        owner, name = here[place - 1], str(callee.argval)
    elif here[place + 1].opname == "LOAD_ATTR":
        owner, name = callee, str(here[place + 1].argval)
    else:
        return _named(callee, frame) in (torch._assert, warnings.warn)
    thing = _named(owner, frame)
    if isinstance(thing, logging.Logger):
        return name in _LEVELS
    return (thing is torch and name == "_assert") or (thing is warnings and name == "warn")


def _named(instruction: dis.Instruction, frame: FrameType) -> Any:
    known = instruction.opname == "LOAD_GLOBAL"
    return frame.f_globals.get(str(instruction.argval)) if known else None
