"""The same random programs on their way through PyTorch: spelled as a module, captured without annotations,
generalised, and compiled from what the bridge understood."""

from __future__ import annotations

import random

import torch

from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.source import InputDeclaration, ModelSource

from . import draw
from .judge import eager
from .program import Input, Program
from .spelling import Spelt

_ATTEMPTS, _SIZES = 200, range(2, 10)


def captured(program: Program) -> Captured:
    """The program as the bridge sees it. Every free dim is declared by name."""
    outputs = tuple(f"out{k}" for k in range(len(program.outputs)))
    source = ModelSource(
        f"b{program.seed}", "1", factory="fuzz", inputs=tuple(map(_declared, program.given)), outputs=outputs
    )
    return generalize(source, Spelt(program, draw.parameters(program)).eval(), CompileOptions())


def is_wrongly_declared(program: Program) -> bool:
    """Is a dim that is declared free fixed by the others? The operators drawn may say so: a free dim that
    broadcasts with 6 is 1 or 6. Eager PyTorch decides, at sizes above 1."""
    dice, given, names = random.Random(program.seed), draw.parameters(program), program.size_names

    def runs(sizes: dict[str, int]) -> bool:
        generator = torch.Generator().manual_seed(0)
        tensors = {x.name: draw.tensor(x, sizes, generator) for x in program.given}
        return eager(program, {**tensors, **given}, sizes, torch.device("cpu")) is not None

    drawn = ({name: dice.choice(_SIZES) for name in names} for _ in range(_ATTEMPTS))
    start = next(filter(runs, drawn), None)
    if start is None:
        return True
    return not all(any(runs({**start, name: n}) for n in _SIZES if n != start[name]) for name in names)


def _declared(given: Input) -> InputDeclaration:
    shape = tuple(s.value for s in given.shape)
    return InputDeclaration(given.name, given.dtype.name, shape, _values(given))


def _values(given: Input) -> tuple[float, float] | None:
    """A range that is legal whatever the sizes."""
    if isinstance(given.values, tuple):
        return (0, 1)
    return (1, 4) if given.values in ("divisor", "positive") else None
