"""The systems of sizes of a program that was traced once, at sizes that it has as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlcb.compiler.bridge.written import Origin
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, as_expr
from dlcb.compiler.shapes.system import UNSTATED, System, Why


class OneTrace(System):
    """The system of a single trace. A size that the file has as a number, and that is broadcast with a
    constant of its value, is that constant: it might be 1 as well, and a range would keep the 1 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.observed: Callable[[Expr], Sequence[int] | None] = lambda size: None
        self.fixed: frozenset[str] = frozenset()  # sizes that the trace has as numbers alone

    def broadcast(self, a: Expr | int, b: Expr | int, why: Why = UNSTATED) -> Expr:
        a, b = self.simplify(as_expr(a)), self.simplify(as_expr(b))
        for size, other in ((a, b), (b, a)):
            held = size.free and {symbol.value for symbol in size.free} <= self.fixed
            if held and other.is_const and other is not ONE and self.observed(size) == (other.value,):
                return self.equal(size, other, why)
        return super().broadcast(a, b, why)


class Exploring(OneTrace):
    """A system in which a literal that is not understood yet is a size variable of its own, `unknown`.
    Where it meets a size of its own value in a broadcast it is that size; a 1 that meets another is 1."""

    def __init__(self, symbols: Sequence[Expr]) -> None:
        super().__init__()
        self.unknown: dict[Expr, list[Expr]] = {}  # the variable of a literal -> the sizes that it may follow
        self.untold: dict[Expr, Origin] = {}  # those of which no line tells that they are sizes
        self.broadcast_as: set[Expr] = set()  # those that met the size that they are in a broadcast
        self.ones: dict[Expr, None] = {}  # literals that were seen to be broadcast
        for symbol in symbols:
            self.age(symbol)

    def literal(self, candidates: list[Expr], untold: Origin | None = None) -> Expr:
        symbol = self.runtime_size("literal")
        self.unknown[symbol] = candidates
        if untold is not None:
            self.untold[symbol] = untold
        return symbol

    def broadcast(self, a: Expr | int, b: Expr | int, why: Why = UNSTATED) -> Expr:
        a, b = self.simplify(as_expr(a)), self.simplify(as_expr(b))
        if (a not in self.unknown and b not in self.unknown) or a is ONE or b is ONE:
            return super().broadcast(a, b, why)
        if self.observed(a) == self.observed(b):
            if self.observed(a) != (1,):
                self.broadcast_as |= {a, b} & self.unknown.keys()
            return self.equal(a, b, why)
        one, other = (a, b) if self.observed(a) == (1,) else (b, a)
        if one in self.unknown:
            self.ones[one] = None
        return other
