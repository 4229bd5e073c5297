"""ATen's pointwise operators as rows over our own: arithmetic with PyTorch's type promotion, comparison,
logic, conversion, activations. In-place forms use the same rows; the lowering writes their result back."""

from __future__ import annotations

import math
from typing import Any

import torch

from dlcb.compiler.bridge.emit import Emit, Row, from_torch
from dlcb.compiler.dtype import BOOL, FLOAT32, DType
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.ir.op import Op

# ---- how many operands, and in which type ----------------------------------------------------------


def _same(op: Op) -> Row:
    """One operand, whose type the result has."""
    return lambda e, x: e.apply(op, x)


def _float(op: Op) -> Row:
    """One operand, converted to float where it is not."""
    return lambda e, x: e.apply(op, e.floating(x))


def _binary(op: Op) -> Row:
    """Two operands in the type they promote to; either may be a number."""
    return lambda e, a, b: e.apply(op, *e.operands(a, b))


def _logical(op: Op) -> Row:
    return lambda e, a, b: e.apply(op, e.boolean(a), e.boolean(b))


def _identity(e: Emit, x: Value, *ignored: Any, **also_ignored: Any) -> Value:
    """What changes memory or training only: clone, contiguous, detach, dropout in eval mode."""
    return x


# ---- arithmetic ------------------------------------------------------------------------------------


def _scaled(e: Emit, x: Any, alpha: Any) -> Any:
    if alpha == 1:
        return x
    return e.apply(ops.mul, *e.operands(x, alpha)) if isinstance(x, Value) else x * alpha


def _add(e: Emit, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    kind = e.result_type(a, b)
    return e.apply(ops.add, *e.operands(a, _scaled(e, b, alpha), kind=kind))


def _sub(e: Emit, a: Any, b: Any, alpha: Any = 1) -> Value:
    kind = e.result_type(a, b)
    return e.apply(ops.sub, *e.operands(a, _scaled(e, b, alpha), kind=kind))


def _rsub(e: Emit, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _sub(e, b, a, alpha)


def _float_kind(e: Emit, *operands: Any) -> DType:
    kind = e.result_type(*operands)
    return kind if kind.is_float else FLOAT32


def _div(e: Emit, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return e.apply(ops.floordiv, *e.operands(a, b))
    if rounding_mode == "trunc" and e.result_type(a, b).kind in ("int", "uint"):
        a, b = e.operands(a, b)  # no float holds them all
        return e.apply(ops.floordiv, e.apply(ops.sub, a, e.apply(ops.fmod, a, b)), b)
    quotient = e.apply(ops.div, *e.operands(a, b, kind=_float_kind(e, a, b)))
    if rounding_mode is None:
        return quotient
    return e.cast(e.apply(ops.trunc, quotient), e.result_type(a, b))


def _reciprocal(e: Emit, x: Value) -> Value:
    return e.apply(ops.reciprocal, e.floating(x))


def _square(e: Emit, x: Value) -> Value:
    return e.apply(ops.mul, x, x)


def _pow(e: Emit, a: Any, b: Any) -> Value:
    kind = e.result_type(a, b)
    if not isinstance(b, (int, float)) or not kind.is_float:
        return e.apply(ops.pow, *e.operands(a, b, kind=kind))
    # the exponents that PyTorch computes without pow
    x = e.cast(a, kind)
    match float(b):
        case 1.0:
            return x
        case 2.0:
            return _square(e, x)
        case 3.0:
            return e.apply(ops.mul, _square(e, x), x)
        case 0.5:
            return e.apply(ops.sqrt, x)
        case -0.5:
            return e.apply(ops.rsqrt, x)
        case -1.0:
            return e.apply(ops.reciprocal, x)
        case -2.0:
            return e.apply(ops.reciprocal, _square(e, x))
    return e.apply(ops.pow, x, e.scalar(float(b), kind))


def _clamp(e: Emit, x: Value, low: Any = None, high: Any = None) -> Value:
    kind = e.result_type(x, *(bound for bound in (low, high) if bound is not None))
    x = e.cast(x, kind)
    for op, bound in ((ops.maximum, low), (ops.minimum, high)):
        if bound is not None:
            x = e.apply(op, x, *e.operands(bound, kind=kind))
    return x


def _clamp_max(e: Emit, x: Value, high: Any) -> Value:
    return _clamp(e, x, None, high)


def _round(e: Emit, x: Value, *, decimals: int = 0) -> Value:
    if decimals:
        raise UnsupportedOperator(f"round to {decimals} decimals", node=e.operator)
    return e.apply(ops.round, x)


def _addcmul(e: Emit, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    return _add(e, x, e.apply(ops.mul, *e.operands(a, b)), alpha=value)


def _addcdiv(e: Emit, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    return _add(e, x, _div(e, a, b), alpha=value)


def _lerp(e: Emit, start: Value, end: Value, weight: Any) -> Value:
    """Reckoned from the nearer end, as by PyTorch: exact there, and infinite where that end is."""
    way = _sub(e, end, start)

    def from_start() -> Value:
        return _add(e, start, e.apply(ops.mul, *e.operands(way, weight)))

    def from_end() -> Value:
        rest = _sub(e, 1.0, weight) if isinstance(weight, Value) else 1.0 - weight
        return _sub(e, end, e.apply(ops.mul, *e.operands(way, rest)))

    if isinstance(weight, (int, float)):
        return from_start() if abs(weight) < 0.5 else from_end()
    near = e.scalar(weight, way.dtype) if isinstance(weight, Expr) else weight
    is_near = e.apply(ops.lt, *e.operands(e.apply(ops.abs, near), 0.5))
    return e.apply(ops.where, is_near, from_start(), from_end())


# ---- choice and conversion -------------------------------------------------------------------------


def _where(e: Emit, condition: Value, yes: Any, no: Any) -> Value:
    return e.apply(ops.where, e.boolean(condition), *e.operands(yes, no))


def _masked_fill(e: Emit, x: Value, mask: Value, value: Any) -> Value:
    return e.apply(ops.where, mask, *e.operands(value, kind=x.dtype), x)


def _to(e: Emit, x: Value, *places: Any, dtype: torch.dtype | None = None, **memory: Any) -> Value:
    """Every form of `to`: whichever argument names a type decides; devices and copies are the runtime's."""
    for place in places:
        if isinstance(place, torch.dtype):
            dtype = place
        elif isinstance(place, Value):
            return e.cast(x, place.dtype)
    return x if dtype is None else e.cast(x, from_torch(dtype))


def _nan_to_num(
    e: Emit, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if not x.dtype.is_float:
        return x
    limits = torch.finfo(getattr(torch, x.dtype.name))
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    kept = e.apply(ops.where, e.apply(ops.isnan, x), e.scalar(nan or 0.0, x.dtype), x)
    kept = e.apply(
        ops.where, e.apply(ops.eq, kept, e.scalar(math.inf, x.dtype)), e.scalar(high, x.dtype), kept
    )
    return e.apply(
        ops.where, e.apply(ops.eq, kept, e.scalar(-math.inf, x.dtype)), e.scalar(low, x.dtype), kept
    )


def _isfinite(e: Emit, x: Value) -> Value:
    odd = e.apply(ops.logical_or, e.apply(ops.isnan, x), e.apply(ops.isinf, x))
    return e.apply(ops.logical_not, odd)


# ---- activations -----------------------------------------------------------------------------------


def _gelu(e: Emit, x: Value, *, approximate: str = "none") -> Value:
    return e.apply(ops.gelu, x, approximate=approximate)


def _hardtanh(e: Emit, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    return _clamp(e, x, low, high)


def _relu6(e: Emit, x: Value) -> Value:
    return _clamp(e, x, 0.0, 6.0) if x.dtype.is_float else _clamp(e, x, 0, 6)


def _hardsigmoid(e: Emit, x: Value) -> Value:
    shifted = e.apply(ops.add, x, e.scalar(3.0, x.dtype))
    return e.apply(ops.div, _clamp(e, shifted, 0.0, 6.0), e.scalar(6.0, x.dtype))


def _hardswish(e: Emit, x: Value) -> Value:
    shifted = e.apply(ops.add, x, e.scalar(3.0, x.dtype))
    return e.apply(ops.div, e.apply(ops.mul, x, _clamp(e, shifted, 0.0, 6.0)), e.scalar(6.0, x.dtype))


def _positive(e: Emit, x: Value) -> Value:
    return e.apply(ops.gt, x, e.scalar(0.0, x.dtype))


def _threshold(e: Emit, x: Value, limit: float, otherwise: float) -> Value:
    below = e.apply(ops.le, x, e.scalar(limit, x.dtype))
    return e.apply(ops.where, below, e.scalar(otherwise, x.dtype), x)


def _rrelu(
    e: Emit, x: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *generator: Any
) -> Value:
    if training:
        raise UnsupportedOperator("slopes drawn by chance", node=e.operator)
    return _leaky_relu(e, x, (lower + upper) / 2)


def _logit(e: Emit, x: Value, eps: float | None = None) -> Value:
    x = e.floating(x)
    if eps is not None and eps >= 0:
        x = _clamp(e, x, eps, 1 - eps)
    return e.apply(ops.log, e.apply(ops.div, x, e.apply(ops.sub, e.scalar(1.0, x.dtype), x)))


def _leaky_relu(e: Emit, x: Value, slope: float = 0.01) -> Value:
    return e.apply(ops.where, _positive(e, x), x, e.apply(ops.mul, x, e.scalar(slope, x.dtype)))


def _elu(e: Emit, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    inner = x if input_scale == 1 else e.apply(ops.mul, x, e.scalar(input_scale, x.dtype))
    below = e.apply(ops.mul, e.apply(ops.expm1, inner), e.scalar(alpha * scale, x.dtype))
    above = x if scale == 1 else e.apply(ops.mul, x, e.scalar(scale, x.dtype))
    return e.apply(ops.where, _positive(e, x), above, below)


def _selu(e: Emit, x: Value) -> Value:
    return _elu(e, x, 1.6732632423543772, 1.0507009873554805)


def _softplus(e: Emit, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = x if beta == 1 else e.apply(ops.mul, x, e.scalar(beta, x.dtype))
    soft = e.apply(ops.log1p, e.apply(ops.exp, scaled))
    soft = soft if beta == 1 else e.apply(ops.div, soft, e.scalar(beta, x.dtype))
    return e.apply(ops.where, e.apply(ops.gt, scaled, e.scalar(threshold, x.dtype)), x, soft)


def _mish(e: Emit, x: Value) -> Value:
    return e.apply(ops.mul, x, e.apply(ops.tanh, _softplus(e, x)))


def _log_sigmoid(e: Emit, x: Value) -> Value:
    # min(x, 0) - log1p(exp(-|x|)), which does not overflow
    tail = e.apply(ops.log1p, e.apply(ops.exp, e.apply(ops.neg, e.apply(ops.abs, x))))
    return e.apply(ops.sub, e.apply(ops.minimum, x, e.scalar(0.0, x.dtype)), tail)


def _prelu(e: Emit, x: Value, weight: Value) -> Value:
    """A slope for each channel (axis 1), or one for all."""
    if weight.rank == 1 and not e.is_one(weight.shape[0]):
        weight = e.reshape(weight, (weight.shape[0], *(1,) * (x.rank - 2)))
    elif weight.rank:
        weight = e.drop(weight, range(weight.rank))
    return e.apply(ops.where, _positive(e, x), x, e.apply(ops.mul, weight, x))


def _glu(e: Emit, x: Value, axis: int = -1) -> Value:
    axis = e.axis(axis, x.rank)
    half = e.quotient((x.shape[axis],), (2,))
    first = e.apply(ops.slice, x, axis=axis, start=half * 0, stop=half, step=1)
    second = e.apply(ops.slice, x, axis=axis, start=half, stop=x.shape[axis], step=1)
    return e.apply(ops.mul, first, e.apply(ops.sigmoid, second))


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_FLOAT_UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf", "sigmoid"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
)

ROWS: dict[str, Row] = {
    **{f"aten.{name}.default": _float(getattr(ops, name)) for name in _FLOAT_UNARY},
    **{
        f"aten.{name}.default": _same(getattr(ops, name))
        for name in ("neg", "abs", "sign", "floor", "ceil", "trunc", "isnan", "isinf", "bitwise_not", "relu")
    },
    "aten.logical_not.default": lambda e, x: e.apply(ops.logical_not, e.boolean(x)),
    "aten.reciprocal.default": _reciprocal,
    "aten.round.default": _round,
    "aten.round.decimals": _round,
    "aten.square.default": _square,
    "aten.isfinite.default": _isfinite,
    "aten.nan_to_num.default": _nan_to_num,
    **{
        f"aten.{name}.{form}": _binary(getattr(ops, name))
        for name in _COMPARISONS
        for form in ("Tensor", "Scalar")
    },
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": _sub,
    "aten.rsub.Tensor": _rsub,
    "aten.rsub.Scalar": _rsub,
    "aten.mul.Tensor": _binary(ops.mul),
    "aten.mul.Scalar": _binary(ops.mul),
    "aten.div.Tensor": _div,
    "aten.div.Scalar": _div,
    "aten.div.Tensor_mode": _div,
    "aten.div.Scalar_mode": _div,
    "aten.true_divide.Tensor": _div,
    "aten.floor_divide.default": _binary(ops.floordiv),
    "aten.floor_divide.Scalar": _binary(ops.floordiv),
    "aten.remainder.Tensor": _binary(ops.mod),
    "aten.remainder.Scalar": _binary(ops.mod),
    "aten.fmod.Tensor": _binary(ops.fmod),
    "aten.fmod.Scalar": _binary(ops.fmod),
    "aten.pow.Tensor_Scalar": _pow,
    "aten.pow.Tensor_Tensor": _pow,
    "aten.pow.Scalar": _pow,
    "aten.atan2.default": lambda e, a, b: e.apply(ops.atan2, *e.operands(a, b, kind=_float_kind(e, a, b))),
    "aten.maximum.default": _binary(ops.maximum),
    "aten.max.other": _binary(ops.maximum),
    "aten.minimum.default": _binary(ops.minimum),
    "aten.min.other": _binary(ops.minimum),
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.clip.default": _clamp,
    "aten.clamp_min.default": _clamp,
    "aten.clamp_min.Tensor": _clamp,
    "aten.clamp_max.default": _clamp_max,
    "aten.clamp_max.Tensor": _clamp_max,
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten.lerp.Scalar": _lerp,
    "aten.lerp.Tensor": _lerp,
    **{
        f"aten.{name}.default": _logical(getattr(ops, name))
        for name in ("logical_and", "logical_or", "logical_xor")
    },
    **{
        f"aten.bitwise_{name}.{form}": _binary(getattr(ops, f"bitwise_{name}"))
        for name in ("and", "or", "xor")
        for form in ("Tensor", "Scalar")
    },
    **{
        f"aten.__{name}__.{form}": _binary(getattr(ops, f"bitwise_{name}"))
        for name in ("and", "or", "xor")
        for form in ("Tensor", "Scalar")
    },
    "aten.where.self": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.Scalar": _where,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    **{
        f"aten.to.{form}": _to
        for form in ("dtype", "device", "dtype_layout", "other", "prim_Device", "prim_dtype")
    },
    "aten._to_copy.default": _to,
    "aten.type_as.default": _to,
    "aten.copy.default": lambda e, x, source, non_blocking=False: e.apply(
        ops.expand, e.cast(source, x.dtype), shape=x.shape
    ),
    **{
        f"aten.{name}.default": _identity
        for name in (
            "clone",
            "contiguous",
            "detach",
            "alias",
            "dropout",
            "feature_dropout",
            "alpha_dropout",
            "lift_fresh_copy",
            "lift_fresh",
            "native_dropout",
            "positive",
            "resolve_conj",
            "resolve_neg",
        )
    },
    "aten.gelu.default": _gelu,
    "aten.silu.default": _float(ops.silu),
    "aten.relu6.default": _relu6,
    "aten.hardtanh.default": _hardtanh,
    "aten.hardsigmoid.default": _hardsigmoid,
    "aten.hardswish.default": _hardswish,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.threshold.default": _threshold,
    "aten.rrelu.default": _rrelu,
    "aten.logit.default": _logit,
    "aten.elu.default": _elu,
    "aten.celu.default": lambda e, x, alpha=1.0: _elu(e, x, alpha, 1.0, 1.0 / alpha),
    "aten.selu.default": _selu,
    "aten.softplus.default": _softplus,
    "aten.mish.default": _mish,
    "aten.log_sigmoid.default": _log_sigmoid,
    "aten.prelu.default": _prelu,
    "aten._prelu_kernel.default": lambda e, x, weight: e.apply(
        ops.where, _positive(e, x), x, e.apply(ops.mul, weight, x)
    ),
    "aten.glu.default": _glu,
    "aten.bool.default": lambda e, x: e.cast(x, BOOL),
}
