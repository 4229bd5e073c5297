"""Ranges and divisibility: for an expression and facts about its size variables, the interval its value lies
in and a constant that divides it. Both hold for every assignment that the facts allow and for which the
expression has a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from dlcb.compiler.dtype import DType
from dlcb.compiler.expr.dag import Expr, toposort


@dataclass(frozen=True, slots=True)
class Interval:
    """The integers from `low` to `high`, both included; None is without end."""

    low: int | None = None
    high: int | None = None

    def __contains__(self, value: int) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def __and__(self, other: Interval) -> Interval:
        """The integers in both; empty where `low` exceeds `high`."""
        return Interval(_greatest(self.low, other.low), _least(self.high, other.high))

    def __or__(self, other: Interval) -> Interval:
        """The least interval around both."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Interval(low, high)

    def __add__(self, other: Interval) -> Interval:
        low = None if self.low is None or other.low is None else self.low + other.low
        high = None if self.high is None or other.high is None else self.high + other.high
        return Interval(low, high)

    def __neg__(self) -> Interval:
        low = None if self.high is None else -self.high
        return Interval(low, None if self.low is None else -self.low)

    def __mul__(self, other: Interval) -> Interval:
        if self.low is not None and other.low is not None and self.low >= 0 and other.low >= 0:
            high = None if self.high is None or other.high is None else self.high * other.high
            if 0 in (self.high, other.high):
                high = 0
            return Interval(self.low * other.low, high)
        ends = [_times(a, b) for a in (_low(self), _high(self)) for b in (_low(other), _high(other))]
        return Interval(_finite(min(ends)), _finite(max(ends)))

    def __floordiv__(self, other: Interval) -> Interval:
        """For a divisor that is not negative; a quotient by zero has no value and does not count."""
        if other.low is None or other.low < 0:
            return ANY
        ends = [
            _quotient(a, b)
            for a in (_low(self), _high(self))
            for b in (max(1, other.low), max(1, _high(other)))
        ]
        return Interval(_finite(min(ends)), _finite(max(ends)))

    def __mod__(self, other: Interval) -> Interval:
        """For a divisor that is not negative."""
        if other.low is None or other.low < 0:
            return ANY
        below = None if other.high is None else max(other.high - 1, 0)
        if self.low is not None and self.low >= 0:
            if self.high is not None and self.high < max(1, other.low):
                return self
            return Interval(0, _least(self.high, below))
        return Interval(0, below)

    def __repr__(self) -> str:
        low = "-inf" if self.low is None else self.low
        return f"{low}..{'' if self.high is None else self.high}"


ANY = Interval()
NATURAL = Interval(0)
TRUTH = Interval(0, 1)
_INFINITY = float("inf")
_WIDE = 16  # variables of an expression that is not listed under each of them


def _greatest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


# ends as numbers: integers and the two infinities


def _low(x: Interval) -> int | float:
    return -_INFINITY if x.low is None else x.low


def _high(x: Interval) -> int | float:
    return _INFINITY if x.high is None else x.high


def _finite(end: int | float) -> int | None:
    return None if end in (_INFINITY, -_INFINITY) else int(end)


def _times(a: int | float, b: int | float) -> int | float:
    return 0 if a == 0 or b == 0 else a * b


def _quotient(a: int | float, b: int | float) -> int | float:
    if a in (_INFINITY, -_INFINITY):
        return a
    if b == _INFINITY:
        return 0 if a >= 0 else -1
    return a // b


def of_type(dtype: DType) -> Interval:
    """The values an element of an integer type can have; 64-bit types count as without end."""
    if dtype.kind == "bool":
        return TRUTH
    if dtype.is_float or dtype.bits == 64:
        return ANY
    if dtype.kind == "uint":
        return Interval(0, 2**dtype.bits - 1)
    return Interval(-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)


class Bounds:
    """Intervals and divisors under given facts: `ranges` and `multiples` of size variables (or of any other
    node).

    Answers are kept: `forget` those over a variable when a fact about it changes."""

    def __init__(self, ranges: Mapping[Expr, Interval], multiples: Mapping[Expr, int]) -> None:
        self._ranges, self._multiples = ranges, multiples
        self._intervals: dict[Expr, Interval] = {}
        self._divisors: dict[Expr, int] = {}
        self._new: list[Expr] = []  # answered since something was forgotten
        # variable -> what was answered before and mentions it; None -> what mentions many
        self._over: dict[Expr | None, dict[Expr, None]] = {}

    def forget(self, symbol: Expr) -> None:
        """Drops what was derived for expressions over `symbol`."""
        for node in self._new:
            for mentioned in node.free if len(node.free) <= _WIDE else (None,):
                self._over.setdefault(mentioned, {})[node] = None
        self._new = []
        wide = self._over.get(None, {})
        about = [node for node in wide if symbol in node.free]
        for node in about:
            del wide[node]
        for node in (*about, *self._over.pop(symbol, ())):
            self._intervals.pop(node, None)
            self._divisors.pop(node, None)

    def interval(self, root: Expr) -> Interval:
        """Where the value of `root` lies; for a Boolean 0 is false and 1 is true."""
        known = self._intervals
        if root not in known:
            for node in toposort([root], lambda n: n not in known):
                derived = self._interval(node, [known[arg] for arg in node.args])
                stated = self._ranges.get(node)
                known[node] = derived if stated is None else derived & stated
                self._new.append(node)
        return known[root]

    def divisor(self, root: Expr) -> int:
        """The largest constant proven to divide `root`; 0 where the value is always 0 (every number divides
        it)."""
        known = self._divisors
        if root not in known:
            for node in toposort([root], lambda n: n not in known):
                derived = _divisor(node, [known[arg] for arg in node.args])
                stated = self._multiples.get(node, 1)
                known[node] = derived * stated // gcd(derived, stated) if derived else 0
                self._new.append(node)
        return known[root]

    def _interval(self, node: Expr, args: list[Interval]) -> Interval:
        match node.op:
            case "const":
                return ANY if node.dtype.is_float else Interval(int(node.value), int(node.value))
            case "size":
                return NATURAL
            case "index":  # where the index exists its extent is at least 1
                high = args[0].high
                return Interval(0, None if high is None else max(high - 1, 0))
            case "lt" | "le" | "eq" | "ne" | "not" | "isnan" | "isinf":
                return TRUTH
        if node.dtype.is_float:
            return ANY
        derived = _integer(node, args)
        # arithmetic in a type narrower than 64 bits wraps: what does not fit says nothing
        limits = of_type(node.dtype)
        fits = limits.low is None or (
            derived.low is not None
            and derived.high is not None
            and derived.low in limits
            and derived.high in limits
        )
        return derived if fits else limits


def _integer(node: Expr, args: list[Interval]) -> Interval:
    match node.op:
        case "add":
            return args[0] + args[1]
        case "sub":
            return args[0] + -args[1]
        case "mul":
            square = node.args[0] is node.args[1] and node.dtype.kind != "bool"
            return args[0] * args[1] & NATURAL if square else args[0] * args[1]
        case "floordiv":
            return args[0] // args[1]
        case "mod":
            return args[0] % args[1]
        case "min":
            high = _least(args[0].high, args[1].high)
            return Interval((args[0] | args[1]).low, high)
        case "max":
            low = _greatest(args[0].low, args[1].low)
            return Interval(low, (args[0] | args[1]).high)
        case "abs":
            return args[0] if args[0].low is not None and args[0].low >= 0 else (args[0] | -args[0]) & NATURAL
        case "sign":
            return args[0] & Interval(-1, 1) if 0 in args[0] else Interval(-1, 1)
        case "where":
            return args[1] | args[2]
        case "check":
            return args[0]
        case "cast" if not node.args[0].dtype.is_float:
            return args[0]
        case _:
            return of_type(node.dtype)


def _divisor(node: Expr, args: list[int]) -> int:
    if node.dtype.is_float or (node.dtype.bits < 64 and node.op != "const"):
        return 1
    match node.op:
        case "const":
            return abs(int(node.value))
        case "add" | "sub" | "mod" | "min" | "max":
            return gcd(args[0], args[1])
        case "where":
            return gcd(args[1], args[2])
        case "mul":
            return args[0] * args[1]
        case "floordiv":
            divisor = node.args[1]
            exact = divisor.is_const and divisor.value != 0 and args[0] % divisor.value == 0
            return args[0] // abs(divisor.value) if exact else 1
        case _:
            return 1
