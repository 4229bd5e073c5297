"""Schedules and kernels as bytes, between the processes of one compilation and never in a store.

Expressions are interned where they arrive, and what a process has once (operators, element types, rules of
the solver) goes by name, so that identity means there what it meant here."""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

from dlcb.compiler.dtype import DTYPES, DType
from dlcb.compiler.expr.dag import Expr, intern
from dlcb.compiler.ir.op import Op
from dlcb.compiler.ir.ops import OPS
from dlcb.compiler.shapes.rules import STATEMENTS
from dlcb.compiler.solver.rule import Rule
from dlcb.compiler.solver.simplify import EXPRESSIONS

_RULES = {("expressions", rule.name): rule for rule in EXPRESSIONS}
_RULES |= {("statements", rule.name): rule for rule in STATEMENTS}
_KEYS = {id(rule): key for key, rule in _RULES.items()}


def to_bytes(value: Any) -> bytes:
    """Raises what pickle raises where something in `value` stays in its process: an operator or a rule
    without a name, a closure, expressions that are nested too deeply."""
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def from_bytes(data: bytes) -> Any:
    """What `to_bytes` was given."""
    return pickle.loads(data)


def _of_expression(e: Expr) -> tuple[Any, ...]:
    return intern, (e.op, e.args, e.value, e.dtype)


def _of_type(dtype: DType) -> tuple[Any, ...]:
    return _type, (dtype.name,)


def _of_operator(operator: Op) -> tuple[Any, ...]:
    if OPS.get(operator.name) is not operator:
        raise pickle.PicklingError(f"operator {operator.name} is none of those that all processes have")
    return _operator, (operator.name,)


def _of_rule(rule: Rule) -> tuple[Any, ...]:
    if id(rule) not in _KEYS:
        raise pickle.PicklingError(f"rule {rule.name} is none of those that all processes have")
    return _rule, _KEYS[id(rule)]


def _type(name: str) -> DType:
    return DTYPES[name]


def _operator(name: str) -> Op:
    return OPS[name]


def _rule(table: str, name: str) -> Rule:
    return _RULES[table, name]


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | {
        Expr: _of_expression,
        DType: _of_type,
        Op: _of_operator,
        Rule: _of_rule,
    }
