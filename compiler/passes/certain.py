"""What a scalar expression is whatever the data: zero times anything, minus infinity plus anything, a branch
whose condition is known. Numbers are rounded to their types, so that what overflows is infinite. Infinities
and NaN in the data are left out of account: a proof that rests on this holds where there are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import const
from dlcb.compiler.expr.ops import OPS

Scalar: TypeAlias = bool | int | float
_ROUNDED: dict[str, type[numpy.floating]] = {
    "float16": numpy.float16,
    "bfloat16": numpy.float32,
    "float32": numpy.float32,
}


def certain(expression: Expr, loaded: Callable[[int], Scalar | None]) -> Scalar | None:
    """The number that `expression` is, or None where it depends on what is not known. `loaded(place)` says
    what a load with the constant offset `place` gives, None where that is not known."""
    found: dict[Expr, Scalar | None] = {}
    for node in toposort([expression]):
        args = [found[arg] for arg in node.args]
        match node.op:
            case "const":
                found[node] = _as(node.value, node)
            case "load":
                found[node] = loaded(node.args[0].value)
            case "check":
                found[node] = args[0]
            case "cast":
                found[node] = None if args[0] is None else _as(args[0], node)
            case "where":
                yes, no = args[1:]
                found[node] = (yes if args[0] else no) if args[0] is not None else yes if yes == no else None
            case "size" | "index" | "reduce":
                found[node] = None
            case _:
                found[node] = _applied(node, args)
    return found[expression]


def _applied(node: Expr, args: list[Scalar | None]) -> Scalar | None:
    whole = [arg for arg in args if arg is not None]
    if len(whole) == len(args):
        return _as(OPS[node.op].meaning(*whole), node)
    match node.op:
        case "and":
            return False if False in whole and node.dtype.kind == "bool" else None
        case "or":
            return True if True in whole and node.dtype.kind == "bool" else None
        case "mul":
            return _as(0, node) if 0 in whole else None
        case "div" if args[0] == 0:
            return _as(0, node)
        case "add" if whole and math.isinf(whole[0]):
            return whole[0]
        case "sub" if whole and math.isinf(whole[0]):
            return whole[0] if args[0] is not None else -whole[0]
    return None


def _as(value: Scalar, node: Expr) -> Scalar | None:
    if not node.dtype.is_float and not math.isfinite(value):
        return None
    if node.dtype.name in _ROUNDED:
        with numpy.errstate(over="ignore"):
            value = float(_ROUNDED[node.dtype.name](value))
    found: Scalar = const(value, node.dtype).value
    return found
