"""Patterns over expressions: written with the same operators as what they match, and matched against one node
and the few levels below it. A name that occurs twice must meet the same node twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.ops import OPS, Arithmetic

Bindings = Mapping[str, Expr]


class Pattern(Arithmetic):
    """Something that matches expressions. `heads` are the operators it can match at its root, None for
    any."""

    heads: frozenset[str] | None = None

    def match(self, node: Expr, bound: Bindings) -> Iterator[Bindings]:
        """Every way to extend `bound` so that this pattern is `node`."""
        raise NotImplementedError


class Name(Pattern):
    """Matches any node that `test` accepts and binds it to `name`."""

    def __init__(
        self, name: str, test: Callable[[Expr], bool] | None = None, heads: tuple[str, ...] = ()
    ) -> None:
        self.name, self.test = name, test
        self.heads = frozenset(heads) or None

    def match(self, node: Expr, bound: Bindings) -> Iterator[Bindings]:
        known = bound.get(self.name)
        if known is not None:
            if known is node:
                yield bound
        elif (self.heads is None or node.op in self.heads) and (self.test is None or self.test(node)):
            yield {**bound, self.name: node}


class Literal(Pattern):
    """Matches the constant `value`, of any type."""

    heads = frozenset(("const",))

    def __init__(self, value: Any) -> None:
        self.value = value

    def match(self, node: Expr, bound: Bindings) -> Iterator[Bindings]:
        if node.op == "const" and node.value == self.value:
            yield bound


class Application(Pattern):
    """Matches a scalar operator over patterns; the operands of a commutative one in either order."""

    def __init__(self, op: str, args: tuple[Pattern, ...]) -> None:
        self.op, self.args = op, args
        self.heads = frozenset((op,))
        self.swapped = args[::-1] if len(args) == 2 and OPS[op].commutative else None

    def match(self, node: Expr, bound: Bindings) -> Iterator[Bindings]:
        if node.op != self.op or len(node.args) != len(self.args):
            return
        yield from _match_all(self.args, node.args, bound)
        if self.swapped is not None:
            yield from _match_all(self.swapped, node.args, bound)


def _match_all(patterns: tuple[Pattern, ...], nodes: tuple[Expr, ...], bound: Bindings) -> Iterator[Bindings]:
    if not patterns:
        yield bound
        return
    for extended in patterns[0].match(nodes[0], bound):
        yield from _match_all(patterns[1:], nodes[1:], extended)


def pattern(x: Pattern | int | bool) -> Pattern:
    """`x` itself, or the pattern of a number."""
    return x if isinstance(x, Pattern) else Literal(x)


def apply(op: str, *args: Pattern | int | bool) -> Application:
    """The scalar operator `op` over patterns; the spelling of what has no infix form."""
    return Application(op, tuple(pattern(arg) for arg in args))


Pattern._apply = staticmethod(apply)


def any_of(name: str, *heads: str, test: Callable[[Expr], bool] | None = None) -> Name:
    """A node whose operator is one of `heads`."""
    return Name(name, test, heads)


def number(name: str) -> Name:
    """A constant."""
    return Name(name, heads=("const",))
