"""Random integer expressions and assignments: the material of the randomised proofs that rewriting keeps
values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import apply, const, evaluate, index, size

SIZES = (0, 1, 2, 3, 7, 12, 97, 4096)  # the hostile ones first
NAMES = ("n", "m", "k")
n, m, k = map(size, NAMES)
INDICES = tuple(index(name, extent) for name, extent in zip("abcdef", (n, m, n * m, 4, 12, 32), strict=True))
NUMBERS = tuple(map(const, (-7, -1, 0, 1, 2, 3, 4, 12, 32, 384)))
LEAVES = (n, m, k, *INDICES, *NUMBERS)


def integer(random: Random, depth: int) -> Expr:
    """A random expression of sizes, indices and numbers, negative values among them."""
    if depth == 0 or random.random() < 0.15:
        return random.choice(LEAVES)
    kind = random.random()
    if kind < 0.45:
        op = random.choice(("add", "add", "sub", "mul", "mul", "min", "max"))
        return apply(op, integer(random, depth - 1), integer(random, depth - 1))
    if kind < 0.8:
        divisor = random.choice(LEAVES) if random.random() < 0.7 else integer(random, depth - 1)
        return apply(random.choice(("floordiv", "mod")), integer(random, depth - 1), divisor)
    if kind < 0.85:
        return apply("abs", integer(random, depth - 1))
    return apply("where", truth(random, depth - 1), integer(random, depth - 1), integer(random, depth - 1))


def truth(random: Random, depth: int) -> Expr:
    """A random condition over random integers."""
    compared = apply(random.choice(("lt", "le", "eq", "ne")), integer(random, depth), integer(random, depth))
    kind = random.random()
    if kind < 0.6:
        return compared
    if kind < 0.75:
        return apply("not", compared)
    return apply(random.choice(("and", "or")), compared, truth(random, depth))


def structured(random: Random) -> Expr:
    """What address arithmetic is made of: flattened positions taken apart again."""
    sizes = [random.choice((n, m, k, const(4), const(12), const(32))) for _ in range(3)]
    indices = [index(name, extent) for name, extent in zip("xyz", sizes, strict=True)]
    flat = (indices[0] * sizes[1] + indices[1]) * sizes[2] + indices[2]
    inner = sizes[2] * random.choice((sizes[1], const(1), const(2)))
    match random.randrange(6):
        case 0:
            return flat // inner
        case 1:
            return flat % inner
        case 2:
            return flat // sizes[2] % sizes[1]
        case 3:
            return flat // sizes[2] * sizes[2] + flat % sizes[2]
        case 4:
            return apply("lt", flat, sizes[0] * sizes[1] * sizes[2])
        case _:
            return apply("where", apply("eq", sizes[0], 1), 0, indices[0]) * 3 + (flat + 7) // 3


def assignment(
    random: Random,
    roots: Sequence[Expr],
    sizes: Mapping[str, Sequence[int]] | None = None,
    fixed: Mapping[Expr, Expr] | None = None,
) -> dict[str, int] | None:
    """Values for what occurs in `roots`, indices below their extents; None where an extent is 0.

    `sizes` gives each name's choices, `fixed` what a size is computed from."""
    values = {name: random.choice((sizes or {}).get(name, SIZES)) for name in NAMES}
    values.update({v.value: evaluate(e, values) for v, e in (fixed or {}).items()})
    for node in toposort(roots):
        if node.op == "index" and node.value not in values:
            extent = evaluate(node.args[0], values)
            if extent <= 0:
                return None
            values[node.value] = random.choice((0, extent - 1, random.randrange(extent)))
    return values


def value(e: Expr, values: Mapping[str, int]) -> Any:
    """The value of `e`, or None where it has none."""
    try:
        return evaluate(e, values)
    except ZeroDivisionError:
        return None
