"""Rules of comparisons, conditions, least and greatest: decided where bounds, divisibility or a stated truth
decide them, and otherwise brought to one form."""

from __future__ import annotations

from math import gcd

from dlcb.compiler.dtype import BOOL, INDEX
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import FALSE, ONE, TRUE, ZERO, apply, const, equal, substitute
from dlcb.compiler.solver import polynomial
from dlcb.compiler.solver.pattern import Name, any_of
from dlcb.compiler.solver.pattern import apply as p
from dlcb.compiler.solver.polynomial import Polynomial, add, constant, scale, subtract, to_expr
from dlcb.compiler.solver.prove import Knowledge
from dlcb.compiler.solver.rule import Rule, RuleSet


def _compares_indices(x: Expr) -> bool:
    return x.args[0].dtype is INDEX and x.args[1].dtype is INDEX


def _is_index(x: Expr) -> bool:
    return x.dtype is INDEX


def _is_bool(x: Expr) -> bool:
    return x.dtype is BOOL


def _difference(know: Knowledge, x: Expr) -> Polynomial:
    """right - left"""
    return subtract(know.polynomial(x.args[1]), know.polynomial(x.args[0]))


# ---- comparison
# -------------------------------------------------------------------------------------------------------


def order_decided(know: Knowledge, x: Expr) -> Expr | None:
    if not know.is_coordinate(x):
        return None
    gap = _difference(know, x)
    if x.op == "lt":
        gap = add(gap, constant(-1))
    if know.nonnegative(gap):
        return TRUE
    return FALSE if know.nonnegative(add(scale(gap, -1), constant(-1))) else None


def order_normal(know: Knowledge, x: Expr) -> Expr | None:
    """What is subtracted goes to the other side; a common factor goes; an integer bound is rounded."""
    if not know.is_coordinate(x):
        return None
    gap = _difference(know, x)
    if x.op == "lt":
        gap = add(gap, constant(-1))
    number = gap.get((), 0)
    terms = {monomial: coefficient for monomial, coefficient in gap.items() if monomial}
    shared = gcd(*terms.values()) if terms else 1
    terms = {monomial: coefficient // shared for monomial, coefficient in terms.items()}
    number //= shared  # g*s + c >= 0 exactly if s + floor(c/g) >= 0
    right = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient > 0}
    left = {monomial: -coefficient for monomial, coefficient in terms.items() if coefficient < 0}
    if number == -1 and left and right:
        return apply("lt", to_expr(left), to_expr(right))
    if number >= 0:
        return apply("le", to_expr(left), to_expr(add(right, constant(number))))
    if not right:  # 0 <= -left + number has no solution where left >= 0; it is decided elsewhere if so
        return apply("le", to_expr(left), const(number))
    return apply("le", to_expr(add(left, constant(-number))), to_expr(right))


def _equation(know: Knowledge, x: Expr) -> Polynomial | None:
    """left - right, without a common factor and with a positive leading term; None where no integers solve
    it."""
    terms = subtract(know.polynomial(x.args[0]), know.polynomial(x.args[1]))
    number = terms.pop((), 0)
    if not terms:
        return constant(number) if number == 0 else None
    step = 0  # divides every value of the left side
    for monomial, coefficient in terms.items():
        multiple = coefficient
        for factor in monomial:
            multiple *= know.divisor(factor)
        step = gcd(step, multiple)
    if number % step if step else number:
        return None
    shared = gcd(*terms.values(), number)
    sign = 1 if terms[polynomial.leading(terms)] > 0 else -1
    return {
        monomial: sign * coefficient // shared
        for monomial, coefficient in [*terms.items(), ((), number)]
        if coefficient
    }


def equality_decided(know: Knowledge, x: Expr) -> Expr | None:
    if not know.is_coordinate(x):
        return None
    difference = _equation(know, x)
    if difference is None:
        return FALSE
    if not difference:
        return TRUE
    below = add(difference, constant(-1))
    above = add(scale(difference, -1), constant(-1))
    return FALSE if know.nonnegative(below) or know.nonnegative(above) else None


def equality_normal(know: Knowledge, x: Expr) -> Expr | None:
    if not know.is_coordinate(x):
        return None
    difference = _equation(know, x)
    if difference is None:
        return None
    left = {monomial: coefficient for monomial, coefficient in difference.items() if coefficient > 0}
    right = {monomial: -coefficient for monomial, coefficient in difference.items() if coefficient < 0}
    if set(left) == {()}:
        left, right = right, left
    return equal(to_expr(left), to_expr(right))


def inequality(know: Knowledge, x: Expr) -> Expr | None:
    """a != b as the negation of a == b."""
    same = know.simplify(equal(*x.args))
    return negation(same)


def negation(x: Expr) -> Expr | None:
    """The condition that holds exactly where `x` does not, without `not`; None where there is none."""
    if x.is_const:
        return FALSE if x.value else TRUE
    if x.op == "not":
        return x.args[0]
    if x.op == "or" and x.dtype is BOOL:
        return _joined("and", [negation(part) or apply("not", part) for part in x.args])
    if x.op == "and" and x.dtype is BOOL:
        return _joined("or", [negation(part) or apply("not", part) for part in x.args])
    if x.op not in ("lt", "le", "eq", "ne") or not _compares_indices(x):
        return None  # of floats neither a < b nor b <= a may hold
    a, b = x.args
    match x.op:
        case "lt":
            return apply("le", b, a)
        case "le":
            return apply("lt", b, a)
        case "eq":
            return apply("ne", a, b)
        case _:
            return equal(a, b)


def stated(know: Knowledge, x: Expr) -> Expr | None:
    if not know.truths:
        return None
    if x in know.truths:
        return TRUE
    opposite = negation(x)
    if opposite is not None and opposite.op in ("lt", "le"):
        opposite = order_normal(know, opposite) or opposite
    return FALSE if opposite in know.truths else None


# ---- and, or
# ----------------------------------------------------------------------------------------------------------


def _parts(op: str, x: Expr) -> list[Expr]:
    found: list[Expr] = []
    stack = list(x.args)
    seen: set[Expr] = set()
    while stack:
        part = stack.pop()
        if part in seen:
            continue
        seen.add(part)
        if part.op == op:
            stack.extend(part.args)
        else:
            found.append(part)
    return sorted(found, key=lambda part: part.digest)


def _joined(op: str, parts: list[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        result = apply(op, result, part)
    return result


def connective(know: Knowledge, x: Expr) -> Expr | None:
    """Equal parts once; a part beside its negation decides; a part that another one implies goes."""
    parts = _parts(x.op, x)
    present = set(parts)
    if any(negation(part) in present for part in parts):
        return FALSE if x.op == "and" else TRUE
    kept = [part for part in parts if not any(_implied(x.op, part, other) for other in parts)]
    return _joined(x.op, _at_known_values(know, x.op, kept))


def _at_known_values(know: Knowledge, op: str, parts: list[Expr]) -> list[Expr]:
    """(v == k) & p -> (v == k) & (p at v = k); (v == k) | p -> p  if p holds at v = k."""
    for part in parts:
        if part.op != "eq" or part.args[0].op != "size" or not part.args[1].is_const:
            continue
        others = [other for other in parts if other is not part and part.args[0] in other.free]
        there = {other: know.simplify(at_value(other, *part.args)) for other in others}
        if op == "or" and TRUE in there.values():
            return [other for other in parts if other is not part]
        if op == "and" and others:
            return [there.get(other, other) for other in parts]
    return parts


def _implied(op: str, part: Expr, other: Expr) -> bool:
    """a | (a & b) -> a and a & (a | b) -> a: whether `part` may go because `other` stands beside it."""
    inner = "and" if op == "or" else "or"
    return part.op == inner and part is not other and other in set(_parts(inner, part))


# ---- least and greatest, where
# ----------------------------------------------------------------------------------------


def extreme(know: Knowledge, x: Expr) -> Expr | None:
    """min and max without operands that another one dominates."""
    parts = sorted(_parts(x.op, x), key=polynomial.order)
    kept: list[Expr] = []
    for part in parts:
        if any(_dominates(know, x.op, other, part) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(know, x.op, part, other)]
        kept.append(part)
    return _joined(x.op, kept)


def _dominates(know: Knowledge, op: str, a: Expr, b: Expr) -> bool:
    """Whether min(a, b) is a (or max(a, b) is)."""
    low, high = (a, b) if op == "min" else (b, a)
    return know.nonnegative(subtract(know.polynomial(high), know.polynomial(low)))


def at_value(e: Expr, v: Expr, k: Expr) -> Expr:
    """`e` with `k` for `v`. Loop indices stay the nodes they are: others know them by identity."""
    indices = {node: node for node in toposort([e]) if node.op == "index" and node is not v}
    return substitute(e, {**indices, v: k})


def where_at_one_value(know: Knowledge, v: Expr, k: Expr, x: Expr, y: Expr) -> Expr | None:
    """where(v == k, x, y) -> y where y is x at v = k."""
    if v not in y.free and v.op in ("size", "index"):
        return None
    return y if know.simplify(at_value(y, v, k)) is x else None


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
    return apply("where", equal(v, k), at_value(x, v, k), y)


c, x, y, z = Name("c", _is_bool), Name("x"), Name("y"), Name("z")
n, i, v = Name("n", _is_index), Name("i", _is_index), Name("v", _is_index)
k = Name("k", _is_index, heads=("const",))
variable = any_of("v", "size")
number = Name("x", _is_index)
d = Name("d", _is_index, heads=("const",))

COMPARISON: RuleSet = (
    # a condition that was stated is true, its negation false
    Rule("stated", any_of("x", "lt", "le", "eq", "ne", "and", "or", "not", test=_is_bool), stated),
    # a < b -> true  if b - a - 1 >= 0;  -> false  if a - b >= 0
    Rule("order by bounds", any_of("x", "lt", "le", test=_compares_indices), order_decided),
    # a == b -> true  if a - b is 0;  -> false  if it is never 0
    Rule("equality by bounds", any_of("x", "eq", test=_compares_indices), equality_decided),
    # g*a - g*b < 0 -> a < b
    Rule("order", any_of("x", "lt", "le", test=_compares_indices), order_normal, priority=1),
    # g*a - g*b == 0 -> a == b
    Rule("equality", any_of("x", "eq", test=_compares_indices), equality_normal, priority=1),
    # x == min(x, y) -> x <= y, x == max(x, y) -> y <= x
    Rule(
        "equal to the least",
        p("eq", i, p("min", i, n)),
        lambda know, i, n: apply("le", i, n),
    ),
    Rule(
        "equal to the greatest",
        p("eq", i, p("max", i, n)),
        lambda know, i, n: apply("le", n, i),
    ),
    # min(x, k) == d -> x == d  if d < k; max(x, k) == d -> x == d  if d > k
    Rule(
        "least is less",
        p("eq", p("min", i, k), d),
        lambda know, i, k, d: equal(i, d),
        given=lambda know, i, k, d: d.value < k.value,
    ),
    Rule(
        "greatest is greater",
        p("eq", p("max", i, k), d),
        lambda know, i, k, d: equal(i, d),
        given=lambda know, i, k, d: d.value > k.value,
    ),
    # a != b -> not (a == b)
    Rule("inequality", any_of("x", "ne", test=_compares_indices), inequality),
    # not (a < b) -> b <= a, not (a == b) -> a != b
    Rule("negation", any_of("x", "not"), lambda know, x: negation(x.args[0])),
)


CONDITIONS: RuleSet = (
    # check(x, low, high) -> x  if low <= x < high
    Rule("check passes", any_of("x", "check"), check_passes),
    # a & a -> a, a & not a -> false, a | (a & b) -> a
    Rule("connective", any_of("x", "and", "or", test=_is_bool), connective),
    # min(a, b) -> a  if a <= b
    Rule("extreme", any_of("x", "min", "max", test=_is_index), extreme),
    # where(a != b, x, y) -> where(a == b, y, x)
    Rule(
        "where not equal",
        p("where", p("ne", Name("a", _is_index), Name("b", _is_index)), x, y),
        lambda know, a, b, x, y: apply("where", equal(a, b), y, x),
    ),
    # where(not c, x, y) -> where(c, y, x)
    Rule("where not", p("where", p("not", c), x, y), lambda know, c, x, y: apply("where", c, y, x)),
    # where(c, where(c, x, y), z) -> where(c, x, z)
    Rule(
        "where then", p("where", c, p("where", c, x, y), z), lambda know, c, x, y, z: apply("where", c, x, z)
    ),
    # where(c, x, where(c, y, z)) -> where(c, x, z)
    Rule(
        "where else", p("where", c, x, p("where", c, y, z)), lambda know, c, x, y, z: apply("where", c, x, z)
    ),
    # where(c, true, false) -> c
    Rule(
        "where truth",
        p("where", c, Name("x", lambda e: e is TRUE), Name("y", lambda e: e is FALSE)),
        lambda know, c, x, y: c,
    ),
    # where(n == 1, 0, i) -> i  if 0 <= i < n
    Rule(
        "where one",
        p("where", p("eq", n, Name("one", lambda e: e is ONE)), Name("zero", lambda e: e is ZERO), i),
        lambda know, n, one, zero, i: i,
        given=lambda know, n, one, zero, i: index_of_one(know, n, i),
    ),
    # where(v == k, x, y) -> where(v == k, x at v = k, y)
    Rule("where then at one value", p("where", p("eq", variable, k), x, y), where_then_at_one_value),
    # where(v == k, x, y) -> y  if y is x at v = k
    Rule("where at one value", p("where", p("eq", v, k), number, Name("y", _is_index)), where_at_one_value),
)
