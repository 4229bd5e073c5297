"""Random programs around neighbours that are different expressions: several values side by side along their
last axis, or every second, third or fourth element of one, with operators of all kinds between."""

from __future__ import annotations

from dlcb.compiler.dtype import BOOL
from dlcb.compiler.expr.node import ONE, as_expr

from . import rows
from .draft import LARGEST_RANK, Draft, Unsuited
from .draw import trimmed
from .program import Program

_BESIDE = (
    *(
        "add",
        "mul",
        "sub",
        "maximum",
        "where",
        "neg",
        "exp",
        "cast",
        "pad",
        "slice",
        "concat",
        "flip",
        "roll",
    ),
    *("permute", "expand", "reshape", "repeat", "sum", "max", "softmax", "layer_norm", "embedding", "tril"),
)
_SHORTEST, _LONGEST = 6, 18


def program(seed: int) -> Program:
    """The program of this seed; two of five operators join neighbours, or take them apart."""
    d = Draft(seed)
    wanted = d.random.randint(_SHORTEST, _LONGEST)
    while len(d.steps) < wanted:
        inputs, steps = len(d.inputs), len(d.steps)
        try:
            if not d.steps or d.chance(0.3):
                join(d)
            elif d.chance(0.15):
                take_apart(d)
            else:
                op = d.one(_BESIDE)
                rows.ROWS[op](d, op)
        except Unsuited:
            del d.inputs[inputs:], d.steps[steps:]
            d.rebuild()
    rounded = frozenset(name for name, v in d.values.items() if v.dtype.is_float and not d.facts[name].stable)
    return trimmed(Program(seed, tuple(d.inputs), tuple(d.steps), (), rounded))


def join(d: Draft) -> str:
    """Two to eight values of one shape, element by element; mostly as one axis."""
    first = d.pick(rank=(1, LARGEST_RANK - 1))
    value = d.values[first]
    count = d.one((2, 2, 2, 3, 3, 4, 8))
    there = [name for name, v in d.values.items() if v.shape == value.shape and v.dtype is value.dtype]
    parts = [first]
    while len(parts) < count:
        part = d.one(there) if d.chance(0.5) else d.partner(first)
        if d.values[part].shape != value.shape:
            part = d.add("where" if value.dtype is BOOL else "maximum", *_beside(d, first, part))
        parts.append(part)
    d.random.shuffle(parts)
    columns = [d.add("reshape", part, shape=(*value.shape, ONE)) for part in parts]
    joined = d.add("concat", *columns, axis=value.rank)
    if d.chance(0.3):
        return joined
    return d.add("reshape", joined, shape=(*value.shape[:-1], value.shape[-1] * count))


def _beside(d: Draft, first: str, part: str) -> tuple[str, ...]:
    """Operands that give a value of the shape of `first`."""
    return (first, first, part) if d.values[first].dtype is BOOL else (first, part)


def take_apart(d: Draft) -> str:
    """One of the neighbours that an axis consists of."""
    count = d.one((2, 3, 4))
    system = d.build.system
    x = d.pick(rank=(1, LARGEST_RANK - 1), fits=lambda v: system.divisor(v.shape[-1]) % count == 0)
    *shape, last = d.values[x].shape
    apart = d.add("reshape", x, shape=(*shape, system.simplify(last // count), as_expr(count)))
    return d.add("select", apart, axis=len(shape) + 1, index=as_expr(d.random.randrange(count)))
