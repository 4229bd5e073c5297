"""Random programs of casts between all types and of operators that round nothing. Whatever is fused, each
output must be eager PyTorch's, number by number, also beyond the range of a type."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from dlcb.compiler.dtype import BOOL, DTYPES
from dlcb.compiler.errors import CompilerError
from dlcb.compiler.thunks.model import CompiledModel

from . import draw, rows
from .compiled import Ready, accepts
from .draft import INTEGERS, Draft, Unsuited
from .judge import Verdict, drawn_sizes, eager, first_difference, strided
from .program import Program, Sizes, graph

_ALL = tuple(t for t in DTYPES.values() if not t.is_complex)
_FLOATS = tuple(t for t in _ALL if t.is_float)
_NUMBERS = tuple(t for t in _ALL if t is not BOOL)
_SHORTEST, _LONGEST = 4, 14


def cast(d: Draft, op: str) -> None:
    x = d.pick(_ALL)
    d.add(op, x, dtype=d.one([t for t in _ALL if t is not d.values[x].dtype]))


def choice(d: Draft, op: str) -> None:
    x = d.pick(_ALL)
    d.add(op, d.partner(x, (BOOL,)), x, d.partner(x))


ROWS: dict[str, rows.Row] = {
    **dict.fromkeys(("neg", "abs", "relu"), rows.unary(_NUMBERS)),
    **dict.fromkeys(("floor", "ceil", "trunc", "isnan", "isinf"), rows.unary(_FLOATS)),
    **dict.fromkeys(("minimum", "maximum"), rows.binary(_ALL, mixed=False)),
    **dict.fromkeys(("eq", "lt", "le"), rows.binary(_ALL, mixed=False)),
    **dict.fromkeys(("add", "sub", "mul"), rows.binary(INTEGERS, mixed=False)),
    "where": choice,
    **{name: rows.ROWS[name] for name in ("reshape", "permute", "expand", "slice", "flip", "pad")},
}


def program(seed: int) -> Program:
    """The program of this seed; every second operator is a cast."""
    d = Draft(seed)
    d.floats = _FLOATS
    wanted = d.random.randint(_SHORTEST, _LONGEST)
    while len(d.steps) < wanted:
        op = "cast" if d.chance(0.5) else d.one(sorted(ROWS))
        inputs, steps = len(d.inputs), len(d.steps)
        try:
            cast(d, op) if op == "cast" else ROWS[op](d, op)
        except Unsuited:
            del d.inputs[inputs:], d.steps[steps:]
            d.rebuild()
    given = tuple(replace(x, values="wide") for x in d.inputs)
    return draw.trimmed(Program(seed, given, tuple(d.steps), ()))


def judge(made: Program, each: Ready, model: CompiledModel, count: int) -> Verdict:
    """`model` at up to `count` tuples of sizes that its guards accept."""
    verdict, dice = Verdict(), random.Random(made.seed)
    parameters = draw.parameters(made)
    for number, sizes in enumerate(drawn_sizes(made, graph(made), each, dice)):
        if verdict.shapes == count or number > 20 * count:
            break
        generator = torch.Generator().manual_seed(number)
        tensors = {x.name: strided(draw.tensor(x, sizes, generator), dice) for x in made.given}
        if accepts(model, each.graph, sizes):
            verdict.shapes += 1
            verdict.failures += _different(made, model, tensors, parameters, sizes)
        else:
            verdict.refused += 1
    return verdict


def _different(
    made: Program,
    model: CompiledModel,
    tensors: dict[str, torch.Tensor],
    parameters: dict[str, torch.Tensor],
    sizes: Sizes,
) -> list[str]:
    device = model.device.torch_device
    theirs = eager(made, {**tensors, **parameters}, dict(sizes), device)
    try:
        ours = [x.cpu() for x in model.call(*(x.to(device) for x in tensors.values()))]
    except CompilerError as error:
        return [] if theirs is None else [f"{sizes}: {type(error).__name__}: {error}, but eager computes it"]
    if theirs is None:
        return []
    lines = []
    for name, mine, right in zip(made.outputs, ours, theirs, strict=True):
        same = mine.shape == right.shape and mine.dtype == right.dtype
        wrong = (mine != right) & ~(mine.isnan() & right.isnan()) if same else torch.ones(1, dtype=torch.bool)
        if bool(wrong.any()):
            lines.append(f"{sizes} output {name}: {first_difference(mine, right, right, wrong)}")
    return lines
