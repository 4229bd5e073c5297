"""Makes a failing program smaller while it still fails in the same way: fewer outputs, and operators
replaced by one of their operands, by an input or by a constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dlcb.compiler.dtype import BOOL
from dlcb.compiler.errors import CompilerError

from .draw import trimmed
from .program import Input, Program, Step, graph

_TRIES = 60


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found in a bounded number of tries for which `fails` still says True."""
    tries, smaller = 0, True
    while smaller:
        smaller = False
        for candidate in _candidates(program):
            tries += 1
            if tries > _TRIES:
                return program
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _candidates(program: Program) -> Iterator[Program]:
    for name in program.outputs if len(program.outputs) > 1 else ():
        yield trimmed(replace(program, outputs=(name,)))
    for k in reversed(range(len(program.steps))):
        step = program.steps[k]
        if step.op == "full" and not step.attributes["shape"]:
            continue
        if step.name not in program.outputs:
            yield from _without(program, k)
        elif len(program.outputs) == 1:
            for operand in step.operands:
                if any(operand == earlier.name for earlier in program.steps):
                    yield trimmed(replace(program, outputs=(operand,)))


def _without(program: Program, k: int) -> Iterator[Program]:
    step = program.steps[k]
    value = next((v for v in graph(replace(program, outputs=(step.name,))).outputs), None)
    assert value is not None
    steps = (*program.steps[:k], *program.steps[k + 1 :])
    shape, dtype = value.shape, value.dtype
    if all(s.op in ("size", "const") for s in shape):
        given = Input(f"in_{step.name}", shape, dtype)
        yield trimmed(
            replace(program, inputs=(*program.inputs, given), steps=_renamed(steps, step.name, given.name))
        )
    constant = Step(
        step.name, "full", (), {"shape": shape, "value": True if dtype is BOOL else 2, "dtype": dtype}
    )
    if step.op != "full":
        yield trimmed(replace(program, steps=(*program.steps[:k], constant, *program.steps[k + 1 :])))


def _renamed(steps: tuple[Step, ...], old: str, new: str) -> tuple[Step, ...]:
    return tuple(
        replace(s, operands=tuple(new if name == old else name for name in s.operands)) for s in steps
    )


def builds(program: Program) -> bool:
    """Whether the program's sizes still make sense."""
    try:
        graph(program)
    except (CompilerError, ZeroDivisionError, KeyError):
        return False
    return True
