"""One row for each scalar operator: what it means in Python, what type it yields, and the facts rules may
use.

Floor division and modulo are Python's (the result has the divisor's sign); integer division by zero has no
value."""

# ruff: noqa: PLR0124 - only NaN differs from itself

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.dtype import BOOL, DType, promote


def _same(*types: DType) -> DType:
    return types[0]


def _joined(*types: DType) -> DType:
    result = types[0]
    for other in types[1:]:
        result = promote(result, other)
    return result


def _truth(*types: DType) -> DType:
    return BOOL


def _branches(condition: DType, yes: DType, no: DType) -> DType:
    return promote(yes, no)


SLOW, TRANSCENDENTAL = 4, 16  # costs: divisions and roots; what a polynomial or a table computes


@dataclass(frozen=True)
class ScalarOp:
    """A scalar operator. `meaning` evaluates it on Python numbers; `type_of` gives the result type from the
    arguments'."""

    name: str
    meaning: Callable[..., Any]
    type_of: Callable[..., DType]
    commutative: bool = False
    associative: bool = False
    idempotent: bool = False
    symbol: str | None = None  # infix spelling in the text form
    precedence: int = 0  # of the infix spelling; higher binds tighter
    cost: int = 1  # rough, in additions

    @property
    def arity(self) -> int:
        """How many operands it takes."""
        if self.name == "where":
            return 3
        return 2 if self.symbol or self.name in ("min", "max", "fmod", "pow", "atan2") else 1


def whole(number: float) -> int:
    """An integer made of a number of sizes; of infinity and NaN, which have none, 0."""
    return int(number) if math.isfinite(number) else 0


def _divide(a: Any, b: Any) -> float:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _guarded(function: Callable[..., float], otherwise: float = math.nan) -> Callable[..., float]:
    """`function`, with `otherwise` where Python raises and IEEE arithmetic does not."""

    def meaning(*numbers: Any) -> float:
        try:
            return function(*numbers)
        except (ValueError, ZeroDivisionError):
            return otherwise
        except OverflowError:
            return math.inf

    return meaning


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _power(a: Any, b: Any) -> Any:
    if a == 0 and b < 0:
        return math.inf
    power = a**b
    return math.nan if isinstance(power, complex) else power  # a negative number to a fractional power


def _sign(x: Any) -> Any:
    return (x > 0) - (x < 0) if x == x else x


def _maximum(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else max(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else min(a, b)


_ROWS = (
    # arithmetic, on sizes and coordinates as well as on elements
    ScalarOp("add", lambda a, b: a + b, _joined, True, True, symbol="+", precedence=5),
    ScalarOp("sub", lambda a, b: a - b, _joined, symbol="-", precedence=5),
    ScalarOp("mul", lambda a, b: a * b, _joined, True, True, symbol="*", precedence=6),
    ScalarOp("floordiv", lambda a, b: a // b, _joined, symbol="//", precedence=6, cost=SLOW),
    ScalarOp("mod", lambda a, b: a % b, _joined, symbol="%", precedence=6, cost=SLOW),
    ScalarOp("min", _minimum, _joined, True, True, True),
    ScalarOp("max", _maximum, _joined, True, True, True),
    ScalarOp("neg", lambda a: -a, _same),
    ScalarOp("abs", abs, _same),
    ScalarOp("sign", _sign, _same),
    # comparison and logic
    ScalarOp("lt", lambda a, b: a < b, _truth, symbol="<", precedence=3),
    ScalarOp("le", lambda a, b: a <= b, _truth, symbol="<=", precedence=3),
    ScalarOp("eq", lambda a, b: a == b, _truth, True, symbol="==", precedence=3),
    ScalarOp("ne", lambda a, b: a != b, _truth, True, symbol="!=", precedence=3),
    ScalarOp("and", lambda a, b: a & b, _joined, True, True, True, symbol="&", precedence=2),
    ScalarOp("or", lambda a, b: a | b, _joined, True, True, True, symbol="|", precedence=1),
    ScalarOp("xor", lambda a, b: a ^ b, _joined, True, True, symbol="^", precedence=1),
    ScalarOp("not", lambda a: not a, _truth),
    ScalarOp("where", lambda c, a, b: a if c else b, _branches),
    # elements only
    ScalarOp("div", _divide, _joined, symbol="/", precedence=6, cost=SLOW),
    ScalarOp("fmod", _guarded(math.fmod), _joined, cost=SLOW),
    ScalarOp("pow", _guarded(_power), _joined, cost=TRANSCENDENTAL),
    ScalarOp("atan2", math.atan2, _joined, cost=TRANSCENDENTAL),
    ScalarOp("exp", _guarded(math.exp), _same, cost=TRANSCENDENTAL),
    ScalarOp("exp2", _guarded(lambda x: 2.0**x), _same, cost=TRANSCENDENTAL),
    ScalarOp("expm1", _guarded(math.expm1), _same, cost=TRANSCENDENTAL),
    ScalarOp("log", _guarded(_log), _same, cost=TRANSCENDENTAL),
    ScalarOp("log2", _guarded(lambda x: _log(x) / math.log(2)), _same, cost=TRANSCENDENTAL),
    ScalarOp("log10", _guarded(lambda x: -math.inf if x == 0 else math.log10(x)), _same, cost=TRANSCENDENTAL),
    ScalarOp(
        "log1p", _guarded(lambda x: -math.inf if x == -1 else math.log1p(x)), _same, cost=TRANSCENDENTAL
    ),
    ScalarOp("sqrt", _guarded(math.sqrt), _same, cost=SLOW),
    ScalarOp("rsqrt", _guarded(lambda x: math.inf if x == 0 else 1 / math.sqrt(x)), _same, cost=SLOW),
    ScalarOp("sin", _guarded(math.sin), _same, cost=TRANSCENDENTAL),
    ScalarOp("cos", _guarded(math.cos), _same, cost=TRANSCENDENTAL),
    ScalarOp("tan", _guarded(math.tan), _same, cost=TRANSCENDENTAL),
    ScalarOp("asin", _guarded(math.asin), _same, cost=TRANSCENDENTAL),
    ScalarOp("acos", _guarded(math.acos), _same, cost=TRANSCENDENTAL),
    ScalarOp("atan", math.atan, _same, cost=TRANSCENDENTAL),
    ScalarOp("sinh", _guarded(math.sinh), _same, cost=TRANSCENDENTAL),
    ScalarOp("cosh", _guarded(math.cosh), _same, cost=TRANSCENDENTAL),
    ScalarOp("tanh", math.tanh, _same, cost=TRANSCENDENTAL),
    ScalarOp("erf", math.erf, _same, cost=TRANSCENDENTAL),
    ScalarOp("floor", lambda x: x if math.isinf(x) or x != x else float(math.floor(x)), _same),
    ScalarOp("ceil", lambda x: x if math.isinf(x) or x != x else float(math.ceil(x)), _same),
    ScalarOp("trunc", lambda x: x if math.isinf(x) or x != x else float(math.trunc(x)), _same),
    ScalarOp("round", lambda x: x if math.isinf(x) or x != x else float(round(x)), _same),  # half to even
    ScalarOp("isnan", lambda x: x != x, _truth),
    ScalarOp("isinf", math.isinf, _truth),
)
OPS = {row.name: row for row in _ROWS}


def cost_of(node: Any) -> int:
    """What computing `node` from its arguments costs, in additions; 0 for what is no operator."""
    return OPS[node.op].cost if node.op in OPS else 0


@dataclass(frozen=True)
class Fold:
    """How a reduction joins two partial results. `identity` is what an empty reduction yields (None: it has
    no value)."""

    name: str
    join: str  # the scalar operator
    identity: Any


_INF = math.inf
FOLDS = {
    fold.name: fold
    for fold in (
        Fold("sum", "add", 0),
        Fold("prod", "mul", 1),
        Fold("max", "max", -_INF),  # integers: the type's least value
        Fold("min", "min", _INF),
        Fold("any", "or", False),
        Fold("all", "and", True),
    )
}


class Arithmetic:
    """Infix operators, shared by expressions and by the solver's patterns: each builds through `_apply(name,
    *operands)`."""

    __slots__ = ()
    _apply: Callable[..., Any]

    def __add__(self, other: Any) -> Any:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._apply("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("div", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._apply("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._apply("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._apply("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._apply("mod", other, self)

    def __and__(self, other: Any) -> Any:
        return self._apply("and", self, other)

    def __or__(self, other: Any) -> Any:
        return self._apply("or", self, other)

    def __xor__(self, other: Any) -> Any:
        return self._apply("xor", self, other)

    def __lt__(self, other: Any) -> Any:
        return self._apply("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return self._apply("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._apply("lt", other, self)

    def __ge__(self, other: Any) -> Any:
        return self._apply("le", other, self)

    def __neg__(self) -> Any:
        return self._apply("neg", self)
