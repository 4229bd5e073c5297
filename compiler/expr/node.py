"""Constructors of expressions, and what one does with them: substitute, evaluate, ask for a linear
coefficient.

A constructor folds constants and the identities that hold for every type (x + 0, x * 1, where on a constant);
everything that needs facts about sizes or more than one level is a rule of the solver."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dlcb.compiler.dtype import BOOL, INDEX, DType
from dlcb.compiler.expr import dag
from dlcb.compiler.expr.dag import Expr, intern, toposort
from dlcb.compiler.expr.ops import FOLDS, OPS


def const(value: Any, dtype: DType = INDEX) -> Expr:
    """A constant of the given type."""
    if dtype.kind == "bool":
        value = bool(value)
    elif dtype.is_float:
        value = float(value)
    else:
        value = int(value)
    return intern("const", (), value, dtype)


TRUE, FALSE = const(True, BOOL), const(False, BOOL)
ZERO, ONE = const(0), const(1)


def size(name: str) -> Expr:
    """A size variable: a non-negative integer known at launch."""
    return intern("size", (), name, INDEX)


def index(name: str, extent: Expr | int) -> Expr:
    """A loop index: an integer i with 0 <= i < extent."""
    return intern("index", (as_expr(extent),), name, INDEX)


def load(buffer: str, offset: Expr | int, dtype: DType, guard: Expr = TRUE) -> Expr:
    """The element of `buffer` at `offset` (in elements from the buffer's first); zero, and nothing read,
    unless `guard`."""
    return intern("load", (as_expr(offset), guard), buffer, dtype)


def check(
    x: Expr, low: Expr | int, high: Expr | int, label: str, position: Expr | int, guard: Expr = TRUE
) -> Expr:
    """`x` itself; when `guard` holds and not low <= x < high, the fact is recorded under `label` with
    `position` and `x`.

    `position` is the row-major position of `x` in the tensor of indices that `label` names. What reads at a
    checked index must be guarded by the same range: a check records, it does not clamp."""
    return intern("check", (x, as_expr(low), as_expr(high), as_expr(position), guard), label, x.dtype)


def reduce(fold: str, indices: Iterable[Expr], body: Expr) -> Expr:
    """`body` folded over all values of `indices`, which it binds. The result has the body's type."""
    indices = tuple(indices)
    if fold not in FOLDS:
        raise ValueError(f"unknown fold {fold!r}: expected one of {', '.join(FOLDS)}")
    return intern("reduce", (body, *indices), fold, body.dtype) if indices else body


def cast(x: Expr, dtype: DType) -> Expr:
    """`x` converted to `dtype`, as C converts."""
    if x.dtype is dtype:
        return x
    if x.is_const and (math.isfinite(x.value) or dtype.is_float):
        return const(x.value, dtype)
    return intern("cast", (x,), None, dtype)


def as_expr(x: Expr | int | float | bool, like: DType | None = None) -> Expr:
    """`x` itself, or the constant of a Python number; `like` gives the type of a constant."""
    if isinstance(x, Expr):
        return x
    if like is not None:
        return const(x, like)
    if isinstance(x, bool):
        return const(x, BOOL)
    if isinstance(x, int):
        return const(x)
    raise TypeError(
        f"expected an expression or an integer, found {x!r}; a float constant needs a type: const(x, dtype)"
    )


def apply(name: str, *operands: Expr | int | float | bool) -> Expr:
    """The scalar operator `name` on its operands; Python numbers take the type of the first expression
    operand."""
    row = OPS[name]
    args: list[Any] = list(operands)
    if not all(isinstance(x, Expr) for x in args):
        typed = next((x.dtype for x in operands if isinstance(x, Expr) and x.dtype is not BOOL), None)
        args = [as_expr(x, typed if not isinstance(x, bool) else BOOL) for x in operands]
    simple = _identity(name, args)
    if simple is not None:
        return simple
    result = row.type_of(*(arg.dtype for arg in args))
    if all(arg.is_const for arg in args):
        folded = _fold(name, args, result)
        if folded is not None:
            return folded
    if row.commutative and len(args) == 2 and _order(args[1]) < _order(args[0]):
        args.reverse()
    return intern(name, tuple(args), None, result)


def _fold(name: str, args: list[Expr], result: DType) -> Expr | None:
    if name in ("floordiv", "mod") and args[1].value == 0:
        return None  # has no value: stays as it is, and raises when evaluated
    value = OPS[name].meaning(*(arg.value for arg in args))
    if not result.is_float and isinstance(value, float) and not math.isfinite(value):
        return None
    return const(value, result)


def _order(x: Expr) -> tuple[int, str]:
    """Compound expressions, then sizes, then indices, constants last; a stable order that reads well (n * m *
    k + i + 1)."""
    rank = {"size": 1, "index": 2, "const": 3}.get(x.op, 0)
    return rank, x.digest.hex() if rank == 0 else "" if rank == 3 else x.value


def _identity(name: str, args: list[Expr]) -> Expr | None:
    a = args[0]
    if name == "neg" and not a.dtype.is_float:
        return apply("sub", const(0, a.dtype), a)  # so that the rules know one spelling
    if name == "where":
        if a.is_const:
            chosen = args[1] if a.value else args[2]
            other = args[2] if a.value else args[1]
            return chosen if chosen.dtype is other.dtype else None
        return args[1] if args[1] is args[2] else None
    if name == "not":
        return a.args[0] if a.op == "not" else None
    if len(args) != 2:
        return None
    b = args[1]
    if a.dtype is not b.dtype:
        return None
    exact = not a.dtype.is_float  # x * 0 -> 0 and x - x -> 0 do not hold for NaN
    match name:
        case "add" if exact:
            if _is(a, 0):
                return b
            if _is(b, 0):
                return a
        case "sub":
            if _is(b, 0):
                return a
            if a is b and exact:
                return const(0, a.dtype)
        case "mul":
            for x, y in ((a, b), (b, a)):
                if _is(x, 1):
                    return y
                if _is(x, 0) and exact:
                    return x
        case "div" | "floordiv":
            if _is(b, 1) and (name == "floordiv") == exact:
                return a
            if _is(a, 0) and exact and b.is_const and b.value != 0:
                return a
        case "mod":
            if _is(b, 1):
                return const(0, a.dtype)
        case "min" | "max":
            if a is b:
                return a
        case "and" if a.dtype is BOOL:
            if a is b or b is TRUE or a is FALSE:
                return a
            if a is TRUE or b is FALSE:
                return b
        case "or" if a.dtype is BOOL:
            if a is b or b is FALSE or a is TRUE:
                return a
            if a is FALSE or b is TRUE:
                return b
        case "eq" | "le" if a is b and exact:
            return TRUE
        case "ne" | "lt" if a is b and exact:
            return FALSE
    return None


def _is(x: Expr, value: int) -> bool:
    return x.is_const and x.value == value


def remake(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """A node like `node` over other arguments, through the constructors, so that it folds again."""
    match node.op:
        case "cast":
            return cast(args[0], node.dtype)
        case "load" | "index" | "reduce" | "check":
            return intern(node.op, args, node.value, args[0].dtype if node.op == "reduce" else node.dtype)
        case _:
            return apply(node.op, *args)


def substitute(root: Expr, replace: Mapping[Expr, Expr]) -> Expr:
    """`root` with every node of `replace` exchanged (not applied again to what was put in)."""
    return dag.rebuild([root], replace, remake)[0]


def substitute_all(roots: Iterable[Expr], replace: Mapping[Expr, Expr]) -> list[Expr]:
    """As `substitute`, sharing the work between several roots."""
    return dag.rebuild(list(roots), replace, remake)


def evaluate(root: Expr, values: Mapping[str, int]) -> Any:
    """The Python number that `root` has when the size variables and free indices have these values.

    Raises KeyError for a variable without a value and ZeroDivisionError for a division that has none."""
    return evaluate_all([root], values)[0]


def evaluate_all(roots: Iterable[Expr], values: Mapping[str, int]) -> list[Any]:
    """As `evaluate`, each shared node once."""
    roots = list(roots)
    done: dict[Expr, Any] = {}
    for node in toposort(roots):
        if node.op == "const":
            done[node] = node.value
        elif node.op in ("size", "index"):
            done[node] = values[node.value]
        elif node.op == "cast":
            done[node] = const(done[node.args[0]], node.dtype).value
        else:
            done[node] = OPS[node.op].meaning(*(done[arg] for arg in node.args))
    return [done[root] for root in roots]


# ---- the spoken forms ----------------------------------------------------------------------------


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    return apply("min", a, b)


def maximum(a: Expr | int, b: Expr | int) -> Expr:
    return apply("max", a, b)


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """a / b rounded up, for b > 0."""
    return -((-as_expr(a)) // as_expr(b))


def where(condition: Expr, yes: Expr | int, no: Expr | int) -> Expr:
    return apply("where", condition, yes, no)


def equal(a: Expr | int, b: Expr | int) -> Expr:
    return apply("eq", a, b)


def not_equal(a: Expr | int, b: Expr | int) -> Expr:
    return apply("ne", a, b)


def all_of(conditions: Iterable[Expr]) -> Expr:
    result = TRUE
    for condition in conditions:
        result = apply("and", result, condition)
    return result


def product(factors: Iterable[Expr | int]) -> Expr:
    result: Expr = ONE
    for factor in factors:
        result = result * factor
    return result


# the infix operators of expr.ops.Arithmetic build through the constructor above
Expr._apply = staticmethod(apply)
