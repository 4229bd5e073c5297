"""Constructors of expressions, and what one does with them: substitute, evaluate, ask for a linear
coefficient.

A constructor folds constants and the identities that hold for every type (x + 0, x * 1, where on a constant);
everything that needs facts about sizes or more than one level is a rule of the solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from dlcb.compiler.dtype import BOOL, INDEX, DType
from dlcb.compiler.expr import dag
from dlcb.compiler.expr.dag import Expr, intern, toposort
from dlcb.compiler.expr.ops import FOLDS, OPS


def const(value: Any, dtype: DType = INDEX) -> Expr:
    """A constant of the given type: what an element of it holds where `value` is stored. One of float32 keeps
    all its digits, so that what is folded is rounded once, where it is printed or converted."""
    if dtype is INDEX:
        return _number(int(value))
    return intern("const", (), float(value) if dtype.name == "float32" else dtype.held(value), dtype)


@lru_cache(maxsize=4096)
def _number(value: int) -> Expr:
    return intern("const", (), value, INDEX)


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
    if x.is_const:
        held = x.dtype.held(x.value)
        if dtype.is_float or not x.dtype.is_float or _fits(held, dtype):
            return const(held, dtype)
    if x.op == "cast" and x.args[0].dtype is dtype and dtype.is_float and x.dtype is dtype.accumulator:
        return x.args[0]  # what was widened is as it was
    return intern("cast", (x,), None, dtype)


def _fits(number: float, dtype: DType) -> bool:
    """Whether a float converts to a type of integers or truths without loss of more than its fraction: what
    comes of others depends on the target."""
    return math.isfinite(number) and (dtype.kind == "bool" or dtype.held(number) == int(number))


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
    for x in operands:
        if x.__class__ is not Expr:
            return _applied(name, *_typed(operands))
    return _applied(name, *operands)


@lru_cache(maxsize=4096)  # three of four were made before, most of them a moment ago
def _applied(name: str, *args: Expr) -> Expr:
    identity = _IDENTITIES.get(name)
    if identity is not None:
        simple = identity(*args)
        if simple is not None:
            return simple
    row = OPS[name]
    result = row.type_of(*[arg.dtype for arg in args])
    for arg in args:
        if arg.op != "const":
            break
    else:
        folded = _fold(name, args, result)
        if folded is not None:
            return folded
    if row.commutative and _precedes(args[1], args[0]):
        args = args[::-1]
    return intern(name, args, None, result)


def _typed(operands: tuple[Any, ...]) -> tuple[Expr, ...]:
    typed = next((x.dtype for x in operands if isinstance(x, Expr) and x.dtype is not BOOL), None)
    return tuple(as_expr(x, typed if not isinstance(x, bool) else BOOL) for x in operands)


def _fold(name: str, args: tuple[Expr, ...], result: DType) -> Expr | None:
    if name in ("floordiv", "mod") and args[1].value == 0:
        return None  # has no value: stays as it is, and raises when evaluated
    value = OPS[name].meaning(*(arg.value for arg in args))
    if not result.is_float and isinstance(value, float) and not math.isfinite(value):
        return None
    return const(value, result)


_RANKS = {"size": 1, "index": 2, "const": 3}  # of operands; 0 for what is compound


def _precedes(a: Expr, b: Expr) -> bool:
    """Does `a` stand before `b` as an operand? Compound expressions first, then sizes, then indices,
    constants last; a stable order that reads well (n * m * k + i + 1)."""
    rank = _RANKS.get(a.op, 0)
    other = _RANKS.get(b.op, 0)
    if rank != other:
        return rank < other
    return bool(a.digest < b.digest if rank == 0 else rank < 3 and a.value < b.value)


# ---- identities, by operator: what holds for all operands, or None. NaN breaks x * 0 -> 0 and x - x -> 0, an
# operand that checks an index is not left out


def _exact(a: Expr, b: Expr) -> bool:
    return a.dtype is b.dtype and not a.dtype.is_float


def _is(x: Expr, value: int) -> bool:
    return x.op == "const" and bool(x.value == value)


def _idle(x: Expr) -> bool:
    """May `x` be left out where its value does not matter?"""
    return not x.reads or all(node.op != "check" for node in toposort([x]))


def _neg(a: Expr) -> Expr | None:
    return None if a.dtype.is_float else apply("sub", const(0, a.dtype), a)  # so that rules know one spelling


def _where(condition: Expr, yes: Expr, no: Expr) -> Expr | None:
    if condition.is_const:
        chosen, other = (yes, no) if condition.value else (no, yes)
        return chosen if chosen.dtype is other.dtype else None
    return yes if yes is no and _idle(condition) else None


def _not(a: Expr) -> Expr | None:
    return a.args[0] if a.op == "not" else None


def _add(a: Expr, b: Expr) -> Expr | None:
    if not _exact(a, b):
        return None
    return b if _is(a, 0) else a if _is(b, 0) else None


def _sub(a: Expr, b: Expr) -> Expr | None:
    if a.dtype is b.dtype and _is(b, 0):
        return a
    return const(0, a.dtype) if a is b and not a.dtype.is_float and _idle(a) else None


def _mul(a: Expr, b: Expr) -> Expr | None:
    if a.dtype is not b.dtype:
        return None
    if _is(a, 1):
        return b
    if _is(b, 1):
        return a
    if a.dtype.is_float:
        return None
    return a if _is(a, 0) and _idle(b) else b if _is(b, 0) and _idle(a) else None


def _div(a: Expr, b: Expr) -> Expr | None:
    return a if a.dtype is b.dtype and a.dtype.is_float and _is(b, 1) else None


def _floordiv(a: Expr, b: Expr) -> Expr | None:
    if not _exact(a, b):
        return None
    return a if _is(b, 1) or (_is(a, 0) and b.is_const and b.value != 0) else None


def _mod(a: Expr, b: Expr) -> Expr | None:
    return const(0, a.dtype) if a.dtype is b.dtype and _is(b, 1) else None


def _extreme(a: Expr, b: Expr) -> Expr | None:
    return a if a is b else None


def _and(a: Expr, b: Expr) -> Expr | None:
    if a.dtype is not BOOL or b.dtype is not BOOL:
        return None
    if a is b or b is TRUE or a is TRUE:
        return b if a is TRUE else a
    return a if a is FALSE and _idle(b) else b if b is FALSE and _idle(a) else None


def _or(a: Expr, b: Expr) -> Expr | None:
    if a.dtype is not BOOL or b.dtype is not BOOL:
        return None
    if a is b or b is FALSE or a is FALSE:
        return b if a is FALSE else a
    return a if a is TRUE and _idle(b) else b if b is TRUE and _idle(a) else None


def _reflexive(a: Expr, b: Expr) -> Expr | None:
    return TRUE if a is b and not a.dtype.is_float and _idle(a) else None


def _irreflexive(a: Expr, b: Expr) -> Expr | None:
    return FALSE if a is b and not a.dtype.is_float and _idle(a) else None


def _no_number(a: Expr) -> Expr | None:
    return None if a.dtype.is_float or not _idle(a) else FALSE


_IDENTITIES: dict[str, Callable[..., Expr | None]] = {
    "neg": _neg,
    "where": _where,
    "not": _not,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "floordiv": _floordiv,
    "mod": _mod,
    "min": _extreme,
    "max": _extreme,
    "and": _and,
    "or": _or,
    "eq": _reflexive,
    "le": _reflexive,
    "ne": _irreflexive,
    "lt": _irreflexive,
    "isnan": _no_number,
    "isinf": _no_number,
}


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

    Raises KeyError for a variable without a value and ZeroDivisionError for a division that has none, and
    where an integer is made of what is none (`int(log(0))`)."""
    return _run(_steps((root,)), values)[-1]


def evaluate_all(roots: Iterable[Expr], values: Mapping[str, int]) -> list[Any]:
    """As `evaluate`, each shared node once."""
    roots = tuple(roots)
    steps = _steps(roots)
    found = dict(zip([step[0] for step in steps], _run(steps, values), strict=True))
    return [found[root] for root in roots]


_Step = tuple[Expr, Callable[..., Any] | None, tuple[int, ...]]


def _run(steps: Sequence[_Step], values: Mapping[str, int]) -> list[Any]:
    done: list[Any] = []
    for node, meaning, places in steps:
        if meaning is not None:
            done.append(meaning(*[done[place] for place in places]))
        else:
            done.append(node.value if node.op == "const" else values[node.value])
    return done


@lru_cache(maxsize=1024)  # one condition is asked for at thousands of sizes
def _steps(roots: tuple[Expr, ...]) -> list[_Step]:
    """The nodes below `roots`, arguments first, each with what it computes from the results at `places`;
    None for what is given."""
    steps: list[_Step] = []
    place: dict[Expr, int] = {}
    for node in toposort(roots):
        place[node] = len(steps)
        meaning: Callable[..., Any] | None = None
        if node.op == "cast":
            meaning = partial(_converted, node.dtype)
        elif node.op not in ("const", "size", "index"):
            meaning = OPS[node.op].meaning
        steps.append((node, meaning, tuple([place[arg] for arg in node.args])))
    return steps


def _converted(dtype: DType, number: Any) -> Any:
    if not dtype.is_float and isinstance(number, float) and not math.isfinite(number):
        raise ZeroDivisionError(f"{number} is no {dtype.name}")
    return const(number, dtype).value


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
