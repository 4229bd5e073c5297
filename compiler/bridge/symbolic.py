"""PyTorch's symbolic sizes, which are sympy expressions, as our own. Exact: what has no counterpart raises
Untranslatable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from dlcb.compiler.dtype import FLOAT64, INDEX
from dlcb.compiler.expr.bounds import Bounds
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import (
    apply,
    as_expr,
    cast,
    ceildiv,
    const,
    equal,
    evaluate,
    maximum,
    minimum,
    not_equal,
    where,
)

Symbols = Mapping[Any, Expr]  # sympy's symbol -> the size variable that it stands for


class Untranslatable(Exception):
    """An expression that we have no way to say."""


def condition(expression: Any, answer: Any, symbols: Symbols) -> Expr:
    """What the code that asked for `expression`, and was told `answer`, takes for granted from then on."""
    ours = _translate(expression, symbols, _NUMBERS)
    if isinstance(answer, bool) or answer in (sympy.true, sympy.false):
        return ours if bool(answer) else opposite(ours)
    return equal(ours, const(float(answer), FLOAT64) if ours.dtype.is_float else int(answer))


def holds(condition: Expr, sizes: Mapping[str, int]) -> bool:
    """Whether the condition is true of these sizes; one that divides by 0 there is not."""
    try:
        return bool(evaluate(condition, sizes))
    except ZeroDivisionError:
        return False


def opposite(condition: Expr) -> Expr:
    """What holds where `condition` does not, as people write it."""
    if condition.op not in _OPPOSITES or condition.args[0].dtype.is_float:
        return apply("not", condition)
    name, swapped = _OPPOSITES[condition.op]
    return apply(name, *(reversed(condition.args) if swapped else condition.args))


_OPPOSITES = {"lt": ("le", True), "le": ("lt", True), "eq": ("ne", False), "ne": ("eq", False)}


def number(expression: Any, symbols: Symbols) -> Expr:
    """A size, or a float (FLOAT64) that is computed from sizes."""
    return _translate(expression, symbols, _NUMBERS)


def size_of(size: Any, symbols: Symbols) -> Expr | None:
    """A size of PyTorch's; None for one that only run time knows, or that has no counterpart."""
    try:
        return number(size.node.expr, symbols)
    except Untranslatable:
        return None


def _translate(expression: Any, symbols: Symbols, table: Mapping[str, Callable[..., Expr]]) -> Expr:
    if expression in symbols:
        return symbols[expression]
    if expression.is_Integer:
        return as_expr(int(expression))
    if expression.is_number and table is _NUMBERS:
        return const(float(expression), FLOAT64)
    rule = table.get(type(expression).__name__)
    if rule is None:
        raise Untranslatable(str(expression))
    return rule(*(_translate(argument, symbols, table) for argument in expression.args))


def _fold(join: Callable[[Expr, Expr], Expr]) -> Callable[..., Expr]:
    def folded(*operands: Expr) -> Expr:
        result = operands[0]
        for operand in operands[1:]:
            result = join(result, operand)
        return result

    return folded


def _power(base: Expr, exponent: Expr) -> Expr:
    if not exponent.is_const or exponent.value < 0 or base.dtype.is_float:
        raise Untranslatable(f"{base!r} ** {exponent!r}")
    return math.prod([base] * exponent.value, start=as_expr(1))


def _mask(x: Expr, ones: Expr) -> Expr:
    """The last bits of a size are a remainder."""
    if not ones.is_const or ones.value < 0 or ones.value & (ones.value + 1):
        raise Untranslatable(f"{x!r} & {ones!r}")
    return x % (ones.value + 1)


_SIZES: dict[str, Callable[..., Expr]] = {
    "Add": _fold(lambda a, b: a + b),
    "Mul": _fold(lambda a, b: a * b),
    "Pow": _power,
    "PowByNatural": _power,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "BitwiseFn_bitwise_and": _mask,
    "Abs": lambda a: maximum(a, -a),
    "Max": _fold(maximum),
    "Min": _fold(minimum),
    "Equality": equal,
    "Unequality": not_equal,
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: b < a,
    "GreaterThan": lambda a, b: b <= a,
    "And": _fold(lambda a, b: a & b),
    "Or": _fold(lambda a, b: a | b),
    "Not": opposite,
}


# ---- floats ----------------------------------------------------------------------------------------


def _float(x: Expr) -> Expr:
    return x if x.dtype.is_float else cast(x, FLOAT64)


def _on_floats(name: str) -> Callable[..., Expr]:
    return lambda *operands: apply(name, *map(_float, operands))


def _mixed(name: str) -> Callable[..., Expr]:
    """Sums and products join floats and sizes."""

    def joined(a: Expr, b: Expr) -> Expr:
        if a.dtype.is_float or b.dtype.is_float:
            a, b = _float(a), _float(b)
        return apply(name, a, b)

    return _fold(joined)


def _float_power(base: Expr, exponent: Expr) -> Expr:
    if exponent.is_const and exponent.value in (0.5, -0.5):
        return apply("sqrt" if exponent.value > 0 else "rsqrt", _float(base))
    return apply("pow", _float(base), _float(exponent))


def _rounded(name: str, of_sizes: Callable[[Expr, Expr], Expr]) -> Callable[[Expr], Expr]:
    """A rounded quotient of two sizes is a size; any other float is rounded as such."""

    def rounded(x: Expr) -> Expr:
        if x.op == "div" and all(part.op == "cast" and part.args[0].dtype is INDEX for part in x.args):
            return of_sizes(x.args[0].args[0], x.args[1].args[0])
        if x.op == "div" and x.args[0].op == "cast" and x.args[1].is_const and x.args[1].value % 1 == 0:
            return of_sizes(x.args[0].args[0], as_expr(int(x.args[1].value)))
        if not x.dtype.is_float:
            return x
        return cast(apply(name, x), INDEX)

    return rounded


def _towards_zero(a: Expr, b: Expr) -> Expr:
    """a / b as Python's `int` has it, for positive b. No size is negative, a difference may be."""
    least = Bounds({}, {}).interval(a).low
    return a // b if least is not None and least >= 0 else where(as_expr(0) <= a, a // b, -(-a // b))


def _half_to_even(a: Expr, b: Expr) -> Expr:
    """a / b as Python's `round` has it."""
    above = (2 * a + b) // (2 * b)
    tie = equal((2 * a + b) % (2 * b), 0) & equal(above % 2, 1)
    return apply("where", tie, above - 1, above)


_NUMBERS: dict[str, Callable[..., Expr]] = {
    **_SIZES,
    "Add": _mixed("add"),
    "Mul": _mixed("mul"),
    "ToFloat": _float,
    "IntTrueDiv": _on_floats("div"),
    "FloatTrueDiv": _on_floats("div"),
    "FloatPow": _float_power,
    "OpaqueUnaryFn_sqrt": _on_floats("sqrt"),
    "OpaqueUnaryFn_log": _on_floats("log"),
    "OpaqueUnaryFn_log2": _on_floats("log2"),
    "CeilToInt": _rounded("ceil", ceildiv),
    "FloorToInt": _rounded("floor", lambda a, b: a // b),
    "TruncToInt": _rounded("trunc", _towards_zero),
    "RoundToInt": _rounded("round", _half_to_even),
}
