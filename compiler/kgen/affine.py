"""Addresses as sums: an integer expression comes in, and its coefficient for every loop index goes out.
Coefficients are expressions over sizes alone, so that the host can compute them; whatever is not a multiple
of one stays a term of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import ONE, ZERO, where

Sum = Mapping[Expr, Expr]  # term -> coefficient; the term ONE carries the part without any index or data

_DATA = frozenset(("load", "check", "reduce"))


def over_sizes(node: Expr) -> bool:
    """Does `node` depend on sizes alone, so that the host can compute it before a launch?"""
    return not node.reads and all([variable.op == "size" for variable in node.free])


@lru_cache(maxsize=4096)  # one address is asked about again and again
def linear(root: Expr) -> Sum:
    """`root` as a sum of terms with coefficients over sizes."""
    done: dict[Expr, Sum] = {}
    for node in toposort([root], lambda n: n.op not in _DATA and n.op != "index"):
        done[node] = _linear(node, done)
    return done.get(root, {root: ONE})


def _linear(node: Expr, done: Mapping[Expr, Sum]) -> Sum:
    sums = [done.get(arg, {arg: ONE}) for arg in node.args]
    match node.op:
        case "const" | "size":
            return {ONE: node}
        case "add":
            return _add(sums[0], sums[1])
        case "sub":
            return _add(sums[0], {term: -c for term, c in sums[1].items()})
        case "mul":
            for one, other in (sums, sums[::-1]):
                if _constant(one):
                    factor = one.get(ONE, ZERO)
                    return {term: k for term, c in other.items() if (k := c * factor) is not ZERO}
        case "where" if _constant(sums[0]):
            # a choice by sizes becomes a choice of coefficients: the stride is zero where an axis broadcasts
            condition = node.args[0]
            terms = {**sums[1], **sums[2]}
            return {
                term: where(condition, sums[1].get(term, ZERO), sums[2].get(term, ZERO)) for term in terms
            }
    if all(_constant(s) for s in sums):
        return {ONE: node}
    return {node: ONE}


def _constant(terms: Sum) -> bool:
    return not terms or set(terms) == {ONE}


def _add(a: Sum, b: Sum) -> Sum:
    result = dict(a)
    for term, coefficient in b.items():
        total = result.get(term, ZERO) + coefficient
        if total is ZERO:
            result.pop(term, None)
        else:
            result[term] = total
    return result
