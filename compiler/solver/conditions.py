"""Rules of and, or, least, greatest, where and checked indices."""

from __future__ import annotations

from dlcb.compiler.expr.dag import Expr, operands, toposort
from dlcb.compiler.expr.node import FALSE, ONE, TRUE, ZERO, apply, equal, substitute
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.comparison import is_bool, is_index, joined, negation
from dlcb.compiler.solver.pattern import Name, any_of
from dlcb.compiler.solver.pattern import apply as op
from dlcb.compiler.solver.polynomial import add, constant, subtract
from dlcb.compiler.solver.prove import Knowledge
from dlcb.compiler.solver.rule import Rule, RuleSet

# ---- and, or ----


def connective(know: Knowledge, x: Expr) -> Expr | None:
    """Equal parts once; a part beside its negation decides; a part that another one implies goes."""
    parts = sorted(operands(x.op, x), key=lambda part: part.digest)
    if _contradict(parts):
        return FALSE if x.op == "and" else TRUE
    present = set(parts)
    if x.op == "or" and know.stated.one_of(present):
        return TRUE
    kept = [part for part in parts if not _implied(x.op, part, present)]
    return joined(x.op, _at_known_values(know, x.op, kept))


_OPPOSITES = {"lt": "le", "le": "lt", "eq": "ne", "ne": "eq", "and": "or", "or": "and"}


def _contradict(parts: list[Expr]) -> bool:
    """Is one of `parts` the negation of another?"""
    present, heads = set(parts), {part.op for part in parts}
    return any(
        _OPPOSITES.get(part.op, part.op) in heads | {"not"} and negation(part) in present for part in parts
    )


def _at_known_values(know: Knowledge, op: str, parts: list[Expr]) -> list[Expr]:
    """(v == k) & p -> (v == k) & (p at v = k); (v == k) | p -> p  if p holds at v = k."""
    for part in parts:
        if part.op != "eq" or part.args[0].op != "size" or not part.args[1].is_const:
            continue
        # of v == k | v == c, for another c, neither says anything about the other
        others = [
            other
            for other in parts
            if other is not part
            and part.args[0] in other.free
            and not (op == "or" and _is_value_of(other, part))
        ]
        there = {other: know.simplify(at_value(know, other, *part.args)) for other in others}
        if op == "or" and TRUE in there.values():
            return [other for other in parts if other is not part]
        if op == "and" and others:
            return [there.get(other, other) for other in parts]
    return parts


def _is_value_of(x: Expr, other: Expr) -> bool:
    """Is `x` v == k as `other` is, for the same v?"""
    return x.op == "eq" and x.args[0] is other.args[0] and x.args[1].is_const


def _implied(op: str, part: Expr, present: set[Expr]) -> bool:
    """a | (a & b) -> a and a & (a | b) -> a: whether `part` may go because of what stands beside it."""
    inner = "and" if op == "or" else "or"
    return part.op == inner and not present.isdisjoint(operands(inner, part))


# ---- least and greatest, where ----


def extreme(know: Knowledge, x: Expr) -> Expr | None:
    """min and max without operands that another one dominates."""
    parts = sorted(operands(x.op, x), key=polynomial.order)
    kept: list[Expr] = []
    for part in parts:
        if not know.spend(len(kept)):
            return None
        if any(_dominates(know, x.op, other, part) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(know, x.op, part, other)]
        kept.append(part)
    return joined(x.op, kept)


def _dominates(know: Knowledge, op: str, a: Expr, b: Expr) -> bool:
    """Whether min(a, b) is a (or max(a, b) is)."""
    low, high = (a, b) if op == "min" else (b, a)
    return know.nonnegative(subtract(know.polynomial(high), know.polynomial(low)))


def at_value(know: Knowledge, e: Expr, v: Expr, k: Expr) -> Expr:
    """`e` with `k` for `v`, or as it is where the budget is spent. Loop indices stay the nodes they are:
    others know them by identity."""
    concerned = list(toposort([e], lambda node: v in node.free or node.reads))
    if not know.spend(len(concerned)):
        return e
    indices = {node: node for node in concerned if node.op == "index" and node is not v}
    return substitute(e, {**indices, v: k})


def where_at_one_value(know: Knowledge, v: Expr, k: Expr, x: Expr, y: Expr) -> Expr | None:
    """where(v == k, x, y) -> y where y is x at v = k."""
    if v not in y.free and v.op in ("size", "index"):
        return None
    return y if know.simplify(at_value(know, y, v, k)) is x else None


def index_of_one(know: Knowledge, n: Expr, i: Expr) -> bool:
    position = know.polynomial(i)
    return know.nonnegative(position) and know.nonnegative(
        add(subtract(know.polynomial(n), position), constant(-1))
    )


def check_passes(know: Knowledge, x: Expr) -> Expr | None:
    checked, low, high = x.args[:3]
    if not know.is_coordinate(checked):
        return None
    above = subtract(know.polynomial(checked), know.polynomial(low))
    below = add(subtract(know.polynomial(high), know.polynomial(checked)), constant(-1))
    return checked if know.nonnegative(above) and know.nonnegative(below) else None


def where_then_at_one_value(know: Knowledge, v: Expr, k: Expr, x: Expr, y: Expr) -> Expr | None:
    """where(v == k, x, y) -> where(v == k, x at v = k, y)"""
    if v not in x.free:
        return None
    return apply("where", equal(v, k), at_value(know, x, v, k), y)


c, x, y, z = Name("c", is_bool), Name("x"), Name("y"), Name("z")
n, i, v = Name("n", is_index), Name("i", is_index), Name("v", is_index)
k = Name("k", is_index, heads=("const",))
variable = any_of("v", "size")
number = Name("x", is_index)

CONDITIONS: RuleSet = (
    # check(x, low, high) -> x  if low <= x < high
    Rule("check passes", any_of("x", "check"), check_passes),
    # a & a -> a, a & not a -> false, a | (a & b) -> a
    Rule("connective", any_of("x", "and", "or", test=is_bool), connective),
    # min(a, b) -> a  if a <= b
    Rule("extreme", any_of("x", "min", "max", test=is_index), extreme),
    # where(a != b, x, y) -> where(a == b, y, x)
    Rule(
        "where not equal",
        op("where", op("ne", Name("a", is_index), Name("b", is_index)), x, y),
        lambda know, a, b, x, y: apply("where", equal(a, b), y, x),
    ),
    # where(not c, x, y) -> where(c, y, x)
    Rule("where not", op("where", op("not", c), x, y), lambda know, c, x, y: apply("where", c, y, x)),
    # where(c, where(c, x, y), z) -> where(c, x, z)
    Rule(
        "where then",
        op("where", c, op("where", c, x, y), z),
        lambda know, c, x, y, z: apply("where", c, x, z),
    ),
    # where(c, x, where(c, y, z)) -> where(c, x, z)
    Rule(
        "where else",
        op("where", c, x, op("where", c, y, z)),
        lambda know, c, x, y, z: apply("where", c, x, z),
    ),
    # where(c, true, false) -> c
    Rule(
        "where truth",
        op("where", c, Name("x", lambda e: e is TRUE), Name("y", lambda e: e is FALSE)),
        lambda know, c, x, y: c,
    ),
    # where(n == 1, 0, i) -> i  if 0 <= i < n
    Rule(
        "where one",
        op("where", op("eq", n, Name("one", lambda e: e is ONE)), Name("zero", lambda e: e is ZERO), i),
        lambda know, n, one, zero, i: i,
        given=lambda know, n, one, zero, i: index_of_one(know, n, i),
    ),
    # where(v == k, x, y) -> where(v == k, x at v = k, y)
    Rule("where then at one value", op("where", op("eq", variable, k), x, y), where_then_at_one_value),
    # where(v == k, x, y) -> y  if y is x at v = k
    Rule("where at one value", op("where", op("eq", v, k), number, Name("y", is_index)), where_at_one_value),
)
