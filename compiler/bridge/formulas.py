"""The numbers that an expression of a line stands for: written out, attributes of the module, or calculated
from one unknown number, which is then a formula."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.expr.dag import Expr

Number = int | float


@dataclass(frozen=True)
class Formula:
    """What a line calculates from one unknown, which is the size of a tensor as it stands, if `of_size`."""

    calculate: Callable[[Any], Any]
    of_size: bool

    def __call__(self, n: int) -> Number | None:
        """Its value for a size; None where it has none."""
        value = _calculated(self.calculate, n)
        return value if isinstance(value, (int, float)) else None

    def expression(self, size: Expr) -> Expr | None:
        """The same as an expression over a size; None where it is more than whole numbers."""
        value = _calculated(self.calculate, size)
        return value if isinstance(value, Expr) and value.dtype == size.dtype else None


def value_of(written: ast.AST) -> Number | None:
    """The number that an expression of numbers is; None for any other."""
    match written:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = value_of(operand)
            return None if positive is None else -positive
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON:
            a, b = value_of(left), value_of(right)
            return None if a is None or b is None else _calculated(_PYTHON[type(op)], a, b)
        case ast.Attribute(value=ast.Name(id="math" | "torch" | "np"), attr="pi" | "e" | "inf" as name):
            return float(getattr(math, name))
        case ast.Call(func=func, args=args, keywords=[]) if function := _of_numbers(func):
            values = [value_of(each) for each in args]
            return None if None in values else _calculated(function, *values)
    return None


_PYTHON: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if abs(a) < 1e6 and abs(b) < 64 else math.nan,
}


def _calculated(function: Any, *operands: Any) -> Any:
    try:
        return function(*operands)
    except (ArithmeticError, TypeError, ValueError, AttributeError):
        return None


def is_own(written: ast.AST) -> bool:
    """Whether this is an attribute of the module, an entry of one, or arithmetic of such and numbers."""
    match written:
        case ast.Attribute(value=ast.Name(id="self")):
            return True
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return is_own(inner)
        case ast.BinOp(left=left, right=right):
            sides = [side for side in (left, right) if value_of(side) is None]
            return bool(sides) and all(map(is_own, sides))
        case ast.Call(func=func, args=[inner], keywords=[]) if _of_numbers(func) is not None:
            return is_own(inner)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="finfo" | "iinfo")):
            return True
    return False


_OF_NUMBERS: dict[str | None, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "log", "log2", "exp", "ceil", "floor", "pow")},
    **{each.__name__: each for each in (int, float, abs, round, max, min)},
}


def is_calculated(written: ast.AST) -> bool:
    """Whether this is more than a name, or a sum of names, which may add nothing."""
    match written:
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            return any(value_of(side) or is_calculated(side) for side in (left, right))
        case ast.BinOp() | ast.IfExp() | ast.BoolOp():
            return True
        case ast.UnaryOp(operand=operand):
            return is_calculated(operand)
        case ast.Call(func=func):
            return _of_numbers(func) is not None or called(func) == "numel"
    return False


def _of_numbers(function: ast.expr) -> Callable[..., Any] | None:
    """The function of numbers that this is; a tensor's methods have the same names."""
    plain = isinstance(function, ast.Name) or getattr(function, "value", None).__class__ is ast.Name
    of_module = getattr(getattr(function, "value", None), "id", "math") in ("math", "np")
    return _OF_NUMBERS.get(called(function)) if plain and of_module else None


def is_size(written: ast.AST) -> bool:
    """Whether this is one size of a tensor."""
    match written:
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case (
            ast.Call(func=ast.Attribute(attr="size"), args=[_]) | ast.Call(func=ast.Name(id="len"), args=[_])
        ):
            return True
    return False


def size_axis(written: ast.AST) -> int | None:
    """The axis of which this is the size; None where it is no size, or where the axis is no number."""
    match written:
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=axis):
            value = value_of(axis)
        case ast.Call(func=ast.Attribute(attr="size"), args=[axis], keywords=[]):
            value = value_of(axis)
        case ast.Call(func=ast.Name(id="len"), args=[_]):
            value = 0
        case _:
            return None
    return value if isinstance(value, int) else None


def takes_a_size(written: ast.AST) -> bool:
    """Whether the line itself asks a tensor for its size here."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in ("shape", "size", "numel"))
        or (isinstance(each, ast.Name) and each.id == "len")
        for each in ast.walk(written)
    )


def formula_of(written: ast.expr) -> Formula | None:
    """What the line calculates; None where that is from several unknown numbers."""
    unknown: set[str] = set()
    of_size: list[bool] = []

    def read(part: ast.expr) -> Callable[[int], Any]:
        value = value_of(part)
        match part:
            case _ if value is not None:
                return lambda n: value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = read(operand)
                return lambda n: -inner(n)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON:
                function, a, b = _PYTHON[type(op)], read(left), read(right)
                return lambda n: function(a(n), b(n))
            case ast.Call(func=func, args=args, keywords=[]) if function := _of_numbers(func):
                operands = [read(each) for each in args]
                return lambda n: function(*(each(n) for each in operands))
        unknown.add(ast.unparse(part))
        of_size.append(is_size(part))
        return lambda n: n

    calculate = read(written)
    return Formula(calculate, of_size[0]) if len(unknown) == 1 else None


def same_number(written: Number | None, value: Any) -> bool:
    if written is None or not isinstance(value, (int, float)):
        return False
    return written == value or abs(written - value) <= 1e-12 * abs(value)


def called(function: ast.expr) -> str | None:
    """The name of a function, or of what an attribute is."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name.rstrip("_") if isinstance(name, str) else None
