"""How sizes move together: what each has to take along when it changes comes in; every size that follows
others, as a linear expression over those that lead, goes out."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, size

Sizes = Mapping[str, int]
Direction = dict[str, Fraction]  # size -> how much it moves


def followers(first: Sizes, moves: Mapping[str, Sizes]) -> dict[str, Expr]:
    """`moves[name]`: sizes that a program accepts where `name` has another value than in `first`, which it
    accepts too. Gives the sizes that are not free to move, each over those that are: a total over its parts,
    a repeated size over the one it repeats."""
    leaders: dict[str, Direction] = {}
    for name, sizes in moves.items():
        step = sizes[name] - first[name]
        direction = {each: Fraction(sizes[each] - own, step) for each, own in first.items()}
        for leader, known in leaders.items():
            direction = _without(direction, leader, known)
        if not direction[name]:
            continue  # it moves as those before it do
        leader = next((each for each in (name, *first) if _leads_wholes(each, direction)), name)
        direction = {each: part / direction[leader] for each, part in direction.items()}
        leaders = {other: _without(known, leader, direction) for other, known in leaders.items()}
        leaders[leader] = direction
    following = [name for name in first if name not in leaders]
    found: dict[str, Expr] = {}
    for name in following:
        parts = {leader: direction[name] for leader, direction in leaders.items() if direction[name]}
        if parts and all(part.denominator == 1 for part in parts.values()):
            offset = first[name] - sum(int(part) * first[leader] for leader, part in parts.items())
            found[name] = sum((int(part) * size(each) for each, part in parts.items()), as_expr(offset))
    return found


def _leads_wholes(name: str, direction: Direction) -> bool:
    """Whether all that moves in this direction moves by multiples of what `name` does: a half leads its
    whole."""
    own = direction[name]
    return own != 0 and all((part / own).denominator == 1 for part in direction.values())


def _without(direction: Direction, name: str, other: Direction) -> Direction:
    """`direction` along `other` until `name` stands still."""
    share = direction[name]
    return {each: part - share * other[each] for each, part in direction.items()}
