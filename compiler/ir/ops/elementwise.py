"""Operators whose output element depends on the operands' elements at the same place, broadcast where sizes
are 1.

Each row says the scalar function, the type it is computed in and the type of its result; half types are
computed in float32. Division and remainder follow PyTorch: floor division and `mod` round down, `fmod`
towards zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from dlcb.compiler.dtype import BOOL, INT64, DType
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import apply
from dlcb.compiler.ir.op import Op, Operand, broadcast_shape, given_dtype, promoted, same_dtype, same_shape
from dlcb.compiler.ir.ops.rules import Coordinates, computed, floated, linear, trailing, truth

TypeRule = Callable[..., DType]


def _pointwise(
    name: str,
    scalar: Callable[..., Expr],
    takes: TypeRule = promoted,
    gives: TypeRule | None = None,
    unary: bool = False,
    traits: frozenset[str] = frozenset(),
) -> Op:
    """`scalar` on operands converted to the type of `takes`; the result has the type of `gives`, if not the
    same."""

    def at(i: Coordinates, r: Coordinates, *operands: Operand, **attributes: Any) -> Expr:
        common = computed(takes(*(x.type for x in operands)))
        return scalar(*(node.cast(x[i] if unary else x.along(i), common) for x in operands), **attributes)

    shape = same_shape if unary else broadcast_shape
    return Op(name, "pointwise", shape, gives or takes, at, traits=traits)


def _unary(
    name: str,
    takes: TypeRule = floated,
    gives: TypeRule | None = None,
    scalar: Callable[..., Expr] | None = None,
) -> Op:
    return _pointwise(name, scalar or partial(apply, name), takes, gives, unary=True)


def _binary(
    name: str,
    scalar: Callable[..., Expr],
    takes: TypeRule = promoted,
    gives: TypeRule | None = None,
    *traits: str,
) -> Op:
    return _pointwise(name, scalar, takes, gives, traits=frozenset(traits))


def _as_bool(*types: Any, **attributes: Any) -> DType:
    return BOOL


# ---- one operand


def _sign(x: Expr) -> Expr:  # 0 for NaN
    return node.cast(x > 0, x.dtype) - node.cast(x < 0, x.dtype)


def _whole(name: str) -> Callable[[Expr], Expr]:
    """Rounding, which leaves integers as they are."""
    return lambda x: apply(name, x) if x.dtype.is_float else x


def _bitwise_not(x: Expr) -> Expr:
    if x.dtype is BOOL:
        return apply("not", x)
    return -1 - x if x.dtype.kind == "int" else (1 << x.dtype.bits) - 1 - x


def _sigmoid(x: Expr) -> Expr:  # exp may overflow to infinity; the quotient is then 0, as it should be
    return 1 / (1 + apply("exp", -x))


def _gelu(x: Expr, approximate: str = "none") -> Expr:
    if approximate == "tanh":
        return 0.5 * x * (1 + apply("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + apply("erf", x * math.sqrt(0.5)))


neg = _unary("neg", same_dtype)
abs = _unary("abs", same_dtype)
sign = _unary("sign", same_dtype, scalar=_sign)
exp = _unary("exp")
exp2 = _unary("exp2")
expm1 = _unary("expm1")
log = _unary("log")
log2 = _unary("log2")
log10 = _unary("log10")
log1p = _unary("log1p")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
tanh = _unary("tanh")
erf = _unary("erf")
floor = _unary("floor", same_dtype, scalar=_whole("floor"))
ceil = _unary("ceil", same_dtype, scalar=_whole("ceil"))
trunc = _unary("trunc", same_dtype, scalar=_whole("trunc"))
round = _unary("round", same_dtype, scalar=_whole("round"))  # half to even
isnan = _unary("isnan", same_dtype, truth)
isinf = _unary("isinf", same_dtype, truth)
logical_not = _unary("logical_not", _as_bool, truth, partial(apply, "not"))
bitwise_not = _unary("bitwise_not", same_dtype, scalar=_bitwise_not)
reciprocal = _unary("reciprocal", scalar=lambda x: 1 / x)
contiguous = _unary("contiguous", same_dtype, scalar=lambda x: x)  # the same values, in memory of their own
relu = _unary("relu", same_dtype, scalar=lambda x: node.maximum(x, 0))  # NaN stays NaN
sigmoid = _unary("sigmoid", scalar=_sigmoid)
silu = _unary("silu", scalar=lambda x: x / (1 + apply("exp", -x)))
gelu = _unary("gelu", scalar=_gelu)


def _cast(i: Coordinates, r: Coordinates, x: Operand, dtype: DType) -> Expr:
    return node.cast(node.cast(x[i], x.dtype), computed(dtype))  # of the number that the operand's type holds


cast = Op("cast", "pointwise", same_shape, given_dtype, _cast)


# ---- two operands


def _add(a: Expr, b: Expr) -> Expr:
    return a | b if a.dtype is BOOL else a + b


def _mul(a: Expr, b: Expr) -> Expr:
    return a & b if a.dtype is BOOL else a * b


def _division(name: str, scalar: Callable[[Expr, Expr], Expr]) -> Op:
    """A division or remainder. Integer divisors are checked as indices are: 0 is reported, and never divided
    by, since that would end the process."""

    def at(i: Coordinates, r: Coordinates, a: Operand, b: Operand) -> Expr:
        common = computed(promoted(a.type, b.type))
        divisor = node.cast(b.along(i), common)
        if not common.is_float and not (divisor.is_const and divisor.value != 0):
            own = trailing(i, b.shape)
            legal = node.cast(node.not_equal(divisor, 0), INT64)
            seen = node.check(legal, 1, 2, b.name, linear(own, b.shape))
            divisor = node.where(node.equal(seen, 1), divisor, 1)
        return scalar(node.cast(a.along(i), common), divisor)

    return Op(name, "pointwise", broadcast_shape, promoted, at)


def _floordiv(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        # the least integer over -1 overflows, which ends the process on x86
        return (
            a // b
            if b.is_const or b.dtype.kind == "uint"
            else node.where(node.equal(b, -1), -a, a // _not_minus_one(b))
        )
    # the quotient of a - fmod(a, b), stepped down where the signs differ; the division's rounding is undone
    quotient = (a - apply("fmod", a, b)) / b
    quotient = quotient - node.cast(_signs_differ(a, b), a.dtype)
    whole = apply("floor", quotient)
    whole = whole + node.cast(quotient - whole > 0.5, a.dtype)
    whole = node.where(node.equal(quotient, 0), a / b * 0, whole)  # a zero has the sign of a / b
    return node.where(node.equal(b, 0), a / b, whole)


def _mod(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        return a % _not_minus_one(b)
    remainder = apply("fmod", a, b)  # nothing is added to a zero, which keeps its sign
    return node.where(_signs_differ(a, b), remainder + b, remainder)


def _fmod(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_float:
        return apply("fmod", a, b)
    remainder = _mod(a, b)
    if a.dtype.kind == "uint":
        return remainder
    turned = node.not_equal(remainder, 0) & node.not_equal(a < 0, b < 0)
    return node.where(turned, remainder - b, remainder)


def _not_minus_one(b: Expr) -> Expr:
    """1 for -1: the remainder is 0 by either."""
    if b.is_const or b.dtype.kind == "uint":
        return b
    return node.where(node.equal(b, -1), 1, b)


def _signs_differ(a: Expr, b: Expr) -> Expr:
    remainder = apply("fmod", a, b)
    return node.not_equal(remainder, 0) & node.not_equal(b < 0, remainder < 0)


def _pow(a: Expr, b: Expr) -> Expr:
    if b.is_const:  # the exponents that PyTorch treats apart as well
        if b.value == 2:
            return a * a
        if b.value == 3:
            return a * a * a
        if a.dtype.is_float and b.value == 0.5:
            return apply("sqrt", a)
        if a.dtype.is_float and b.value == -0.5:
            return apply("rsqrt", a)
        if a.dtype.is_float and b.value == -1:
            return 1 / a
    return apply("pow", a, b)


add = _binary("add", _add, promoted, None, "commutative", "associative")
sub = _binary("sub", lambda a, b: a - b)
mul = _binary("mul", _mul, promoted, None, "commutative", "associative")
div = _binary("div", lambda a, b: a / b, floated)
floordiv = _division("floordiv", _floordiv)
mod = _division("mod", _mod)
fmod = _division("fmod", _fmod)
pow = _binary("pow", _pow)
minimum = _binary("minimum", node.minimum, promoted, None, "commutative", "associative", "idempotent")
maximum = _binary("maximum", node.maximum, promoted, None, "commutative", "associative", "idempotent")
atan2 = _binary("atan2", partial(apply, "atan2"), floated)
eq = _binary("eq", node.equal, promoted, truth, "commutative")
ne = _binary("ne", node.not_equal, promoted, truth, "commutative")
lt = _binary("lt", lambda a, b: a < b, promoted, truth)
le = _binary("le", lambda a, b: a <= b, promoted, truth)
gt = _binary("gt", lambda a, b: a > b, promoted, truth)
ge = _binary("ge", lambda a, b: a >= b, promoted, truth)
logical_and = _binary(
    "logical_and", lambda a, b: a & b, _as_bool, truth, "commutative", "associative", "idempotent"
)
logical_or = _binary(
    "logical_or", lambda a, b: a | b, _as_bool, truth, "commutative", "associative", "idempotent"
)
logical_xor = _binary("logical_xor", lambda a, b: a ^ b, _as_bool, truth, "commutative", "associative")
bitwise_and = _binary(
    "bitwise_and", lambda a, b: a & b, promoted, None, "commutative", "associative", "idempotent"
)
bitwise_or = _binary(
    "bitwise_or", lambda a, b: a | b, promoted, None, "commutative", "associative", "idempotent"
)
bitwise_xor = _binary("bitwise_xor", lambda a, b: a ^ b, promoted, None, "commutative", "associative")


# ---- three operands


def _branches(condition: Any, yes: Any, no: Any) -> DType:
    return promoted(yes, no)


def _where(i: Coordinates, r: Coordinates, condition: Operand, yes: Operand, no: Operand) -> Expr:
    common = computed(_branches(condition.type, yes.type, no.type))
    chosen = node.cast(condition.along(i), BOOL)
    return node.where(chosen, node.cast(yes.along(i), common), node.cast(no.along(i), common))


where = Op("where", "pointwise", broadcast_shape, _branches, _where)
