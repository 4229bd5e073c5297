"""The same random programs on their way through PyTorch: spelled as a module, captured without annotations,
generalised, and compiled from what the bridge understood."""

from __future__ import annotations

from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.source import InputDeclaration, ModelSource

from . import draw
from .program import Input, Program
from .spelling import Spelt


def captured(program: Program) -> Captured:
    """The program as the bridge sees it. Every free dim is declared by name."""
    outputs = tuple(f"out{k}" for k in range(len(program.outputs)))
    source = ModelSource(
        f"b{program.seed}", "1", factory="fuzz", inputs=tuple(map(_declared, program.given)), outputs=outputs
    )
    return generalize(source, Spelt(program, draw.parameters(program)).eval(), CompileOptions())


def _declared(given: Input) -> InputDeclaration:
    shape = tuple(s.value for s in given.shape)
    return InputDeclaration(given.name, given.dtype.name, shape, _values(given))


def _values(given: Input) -> tuple[float, float] | None:
    """A range that is legal whatever the sizes."""
    if isinstance(given.values, tuple):
        return (0, 1)
    return (1, 4) if given.values in ("divisor", "positive") else None
