"""How scalar operators are spelled in C: a base table of templates by operator, which a target copies and
changes where it departs. An operator that a target cannot spell is UnsupportedOperator, which names both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy

from dlcb.compiler.dtype import BOOL, DType
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr

Spelled = tuple[str, int]  # text and the precedence of its outermost operator
ATOM = 100
_LONGEST_INT = 2**31
# what the prelude calls the functions that join two elements of a reduction
JOINS = {"sum": "Add", "prod": "Multiply", "max": "Greatest", "min": "Least", "any": "Or", "all": "And"}


@dataclass(frozen=True)
class Infix:
    symbol: str
    precedence: int


@dataclass(frozen=True)
class Call:
    """`name(arguments)`. `{f}` in the name becomes "f" for float32 and nothing for float64."""

    name: str


Spelling = Infix | Call

_EXPONENTIALS = "exp exp2 expm1 log log2 log10 log1p pow sqrt erf"
_ANGLES = "sin cos tan asin acos atan atan2 sinh cosh tanh"
_ROUNDING = "floor ceil trunc fmod"

FLOATS: dict[str, Spelling] = {
    **{name: Call(name + "{f}") for name in f"{_EXPONENTIALS} {_ANGLES} {_ROUNDING}".split()},
    "add": Infix("+", 12),
    "sub": Infix("-", 12),
    "mul": Infix("*", 13),
    "div": Infix("/", 13),
    "floordiv": Call("floor_div"),
    "mod": Call("floor_mod"),
    "min": Call("min_of"),
    "max": Call("max_of"),
    "neg": Call("-"),
    "abs": Call("fabs{f}"),
    "sign": Call("sign_of"),
    "round": Call("rint{f}"),
    "rsqrt": Call("reciprocal_sqrt"),
}

INTEGERS: dict[str, Spelling] = {
    "add": Infix("+", 12),
    "sub": Infix("-", 12),
    "mul": Infix("*", 13),
    "floordiv": Call("floor_div"),
    "mod": Call("floor_mod"),
    "fmod": Call("trunc_mod"),
    "min": Call("min_of"),
    "max": Call("max_of"),
    "abs": Call("abs_of"),
    "sign": Call("sign_of"),
    "neg": Call("-"),
    "pow": Call("int_pow"),
    "and": Infix("&", 8),
    "or": Infix("|", 6),
    "xor": Infix("^", 7),
    "not": Call("!"),
}

TRUTHS: dict[str, Spelling] = {  # by the type of the operands, these always give a truth value
    "lt": Infix("<", 10),
    "le": Infix("<=", 10),
    "eq": Infix("==", 9),
    "ne": Infix("!=", 9),
    "and": Infix("&", 8),
    "or": Infix("|", 6),
    "xor": Infix("^", 7),
    "not": Call("!"),
    "isnan": Call("is_nan"),
    "isinf": Call("is_inf"),
    "min": Call("min_of"),
    "max": Call("max_of"),
}


def tables(**changes: Spelling) -> Mapping[str, Mapping[str, Spelling]]:
    """The base tables with a target's own rows for operators on floats."""
    return {"float": FLOATS | changes, "int": INTEGERS, "uint": INTEGERS, "bool": TRUTHS}


def spell(
    table: Mapping[str, Mapping[str, Spelling]], target: str, node: Expr, args: Sequence[Spelled]
) -> Spelled:
    """One application of a scalar operator; `args` are its spelled operands."""
    if node.op == "where":
        condition, yes, no = (inside(arg, 4) for arg in args)
        return f"{condition} ? {yes} : {no}", 3
    row = table[node.dtype.kind].get(node.op)
    if row is None:
        raise UnsupportedOperator(f"no spelling of {node.op} on {node.dtype} in {target}", stage="kgen")
    if isinstance(row, Infix):
        left, right = args
        tight = row.precedence
        return f"{inside(left, tight)} {row.symbol} {inside(right, tight + 1)}", tight
    if row.name in "-!":
        return f"{row.name}{inside(args[0], ATOM)}", 14
    name = row.name.format(f="f" if node.dtype.bits == 32 else "")
    return f"{name}({', '.join(text for text, _ in args)})", ATOM


def inside(spelled: Spelled, precedence: int) -> str:
    """The text, in parentheses where it binds less tightly than its surroundings."""
    text, own = spelled
    return text if own >= precedence else f"({text})"


def constant(value: float, dtype: DType) -> Spelled:
    """A literal of the given type."""
    if dtype is BOOL:
        return ("true" if value else "false"), ATOM
    if not dtype.is_float:
        if value == -(2**63):
            return "(-9223372036854775807LL - 1)", ATOM
        value = int(value)
        text = f"{value}LL" if abs(value) >= _LONGEST_INT else str(value)
        return text, ATOM if value >= 0 else 14
    if math.isnan(value):
        return ("NAN_F" if dtype.bits <= 32 else "NAN_D"), ATOM
    if math.isinf(value):
        name = "INF_F" if dtype.bits <= 32 else "INF_D"
        return (name, ATOM) if value > 0 else (f"-{name}", 14)
    if dtype.bits <= 32:
        single = numpy.float32(value)
        text = repr(float(str(single))) if numpy.isfinite(single) else ("INF_F" if value > 0 else "-INF_F")
        text = text if "INF" in text else text + "f"
    else:
        text = repr(value)
    return text, ATOM if not text.startswith("-") else 14
