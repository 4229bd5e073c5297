"""Draws random programs: an operator is chosen first, each as likely as any other, then operands that suit
it are picked among the values so far or added as inputs. What depends on rounding (comparisons, floor,
argmax, casts to integers) is applied only to values that every float type holds exactly, so that all who
run the program must decide alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dlcb.compiler.bridge.emit import to_torch
from dlcb.compiler.dtype import BOOL, FLOAT32, UINT8
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import size

from .draft import LONGEST, Draft, Unsuited
from .program import Input, Program, Sizes, numbers
from .rows import ROWS

_TRIES = 8  # operands for one operator
_EDGES = (
    *(0.0, -0.0, 0.5, -0.9, 1.0, -1.0, 127.0, 128.0, -129.0, 255.0, 256.0, 2049.0, 32768.0, 65504.0, 65519.0),
    *(65520.0, 2.0**24 + 1, 2.0**31 - 1, -(2.0**31), 2.0**32 + 5, 2.0**63, -(2.0**63), 1e39),
    *(float("inf"), -float("inf"), float("nan")),
)


def program(seed: int, for_bridge: bool = False) -> Program:
    """The program of this seed: 3 to 20 operators; its outputs are all values that nothing reads."""
    d = Draft(seed, plain_types=for_bridge and seed % 2 == 0)  # PyTorch lacks some operators in half types
    wanted = d.random.randint(3, LONGEST)
    rows = sorted(ROWS)
    while len(d.steps) < wanted:
        op = d.one(rows)
        for _ in range(_TRIES):  # an operator that suits few values is still drawn as often as others
            inputs, steps = len(d.inputs), len(d.steps)
            try:
                ROWS[op](d, op)
                break
            except Unsuited:
                del d.inputs[inputs:], d.steps[steps:]
                d.rebuild()
    rounded = frozenset(name for name, v in d.values.items() if v.dtype.is_float and not d.facts[name].stable)
    return trimmed(Program(seed, tuple(d.inputs), tuple(d.steps[:LONGEST]), (), rounded))


def trimmed(p: Program) -> Program:
    """`p` with the unread values as its outputs, or the same outputs, and without inputs and steps that
    these do not need. Inputs that alone show a free dim stay."""
    read = {name for step in p.steps for name in step.operands}
    outputs = p.outputs or tuple(step.name for step in p.steps if step.name not in read)
    needed = set(outputs)
    steps = []
    for step in reversed(p.steps):
        if step.name in needed:
            steps.append(step)
            needed.update(step.operands)
    kept = [x for x in p.inputs if x.name in needed]
    wanted = {s.value for x in kept for s in _sizes(x.shape)} | {
        s.value for step in steps for value in step.attributes.values() for s in _sizes(value)
    }
    shown = {s.value for x in kept if not x.parameter for s in x.shape if s.op == "size"}
    for name in sorted(wanted - shown):
        there = [x for x in p.inputs if any(s.op == "size" and s.value == name for s in x.shape)]
        kept.append(there[0] if there else Input(f"shape_of_{name}", (size(name),), FLOAT32))
    if not any(not x.parameter for x in kept):
        kept.append(Input("unused", (size("n0"),), FLOAT32))
    order = {x.name: k for k, x in enumerate(p.inputs)}
    kept = sorted(dict.fromkeys(kept), key=lambda x: order.get(x.name, len(order)))
    return replace(p, inputs=tuple(kept), steps=tuple(reversed(steps)), outputs=outputs)


def _sizes(value: Any) -> set[Expr]:
    if isinstance(value, Expr):
        return set(value.free)
    if isinstance(value, tuple):
        return {s for item in value for s in _sizes(item)}
    return set()


# ---- inputs --------------------------------------------------------------------------------------


def parameters(p: Program) -> dict[str, torch.Tensor]:
    """The values of the program's parameters."""
    generator = torch.Generator().manual_seed(p.seed)
    return {x.name: tensor(x, {}, generator) for x in p.inputs if x.parameter}


def tensor(given: Input, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """A contiguous tensor for an input at these sizes."""
    shape, kind = numbers(given.shape, sizes), to_torch(given.dtype)
    if isinstance(given.values, tuple):
        low, high = numbers(given.values, sizes)
        return torch.randint(low, max(high, low + 1), shape, generator=generator).to(kind)
    if given.dtype is BOOL:
        return torch.rand(shape, generator=generator) < 0.5
    if given.values == "wide":
        return _wide(shape, generator).to(kind)
    quarters = torch.randint(-12, 13, shape, generator=generator)
    if given.values == "divisor":
        quarters = torch.where(quarters == 0, 4, quarters)
    if given.values == "positive":
        quarters = quarters.abs() + 1
    if given.dtype.is_float:
        values = quarters / 4
        if given.values == "special" and values.numel():
            flat = values.view(-1)
            for k, odd in enumerate((float("nan"), float("inf"), -float("inf"))):
                flat[(5 * k + 1) % flat.numel()] = odd
        return values.to(kind)
    return (quarters.abs() if given.dtype is UINT8 else quarters).to(kind)


def _wide(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Numbers of all magnitudes, some of them at the edge of a type, some no numbers."""
    signs = torch.randint(0, 2, shape, generator=generator) * 2.0 - 1
    powers = torch.randint(-30, 70, shape, generator=generator).double()
    values = signs * torch.exp2(powers) * (1 + torch.rand(shape, generator=generator, dtype=torch.float64))
    edges = torch.tensor(_EDGES, dtype=torch.float64)
    at_edge = edges[torch.randint(0, len(_EDGES), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.5, values, at_edge)
