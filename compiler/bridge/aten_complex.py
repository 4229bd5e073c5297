"""Complex tensors. One that the program puts together of real ones, as rotary embeddings do, stays two of
these, and calls on it become operators of ours on both. What only PyTorch makes, as a Fourier transform, is
one value, and so is all that is made with it: calls on it are PyTorch's, until one gives real numbers
again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dlcb.compiler.bridge import aten_reduce, aten_shape, aten_split
from dlcb.compiler.bridge.emit import Emit, Row
from dlcb.compiler.dtype import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, INT64, DType
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Value

_WHOLE = {FLOAT32: COMPLEX64, FLOAT64: COMPLEX128}


@dataclass(frozen=True)
class Complex:
    """A complex tensor as its two parts, of equal shapes and types. `both`: a parameter in which they lie
    side by side on the last axis."""

    real: Value
    imag: Value
    both: Value | None = None

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.real.shape

    @property
    def rank(self) -> int:
        return self.real.rank


def whole(e: Emit, argument: Any) -> Any:
    """An argument as calls of PyTorch's take it: one value in place of two parts."""
    if isinstance(argument, (list, tuple)):
        return [whole(e, item) for item in argument]
    if not isinstance(argument, Complex):
        return argument
    if (kind := _WHOLE.get(argument.real.dtype)) is None:
        raise UnsupportedOperator(f"{e.operator}: a complex tensor of {argument.real.dtype!r} parts")
    if argument.both is not None:
        return _called(e, "aten.view_as_complex.default", (argument.both,), argument.shape, kind)
    parts = argument.real, argument.imag
    return _called(e, "aten.complex.default", parts, argument.shape, kind)


def _called(e: Emit, target: str, operands: tuple[Value, ...], shape: tuple[Expr, ...], kind: DType) -> Value:
    arguments = tuple(f"${place}" for place in range(len(operands)))
    return e.apply(ops.eager, *operands, target=target, arguments=arguments, shapes=(shape,), dtypes=(kind,))


def in_parts(e: Emit, both: Value) -> Complex:
    """The complex tensor whose parts lie side by side on the last axis of a real one."""
    real, imag = (e.apply(ops.select, both, axis=both.rank - 1, index=as_expr(k)) for k in (0, 1))
    return Complex(real, imag, both if both.kind == "parameter" else None)


def is_complex(argument: Any) -> bool:
    """Whether an argument of a call is, or holds, a complex number or tensor."""
    if isinstance(argument, (list, tuple)):
        return any(map(is_complex, argument))
    return isinstance(argument, (Complex, complex)) or is_whole(argument)


def is_whole(argument: Any) -> bool:
    """Whether an argument is, or holds, a complex tensor that PyTorch made."""
    if isinstance(argument, (list, tuple)):
        return any(map(is_whole, argument))
    return isinstance(argument, Value) and argument.dtype.is_complex


# ---- rows ------------------------------------------------------------------------------------------


def _operand(e: Emit, x: Any) -> tuple[Any, Any]:
    """An operand of arithmetic in parts: real ones have zeros for the other."""
    if isinstance(x, Value):
        return x, e.apply(ops.full, shape=x.shape, value=0.0, dtype=e.floating(x).dtype)
    return (x.real, x.imag) if isinstance(x, (Complex, complex)) else (x, 0.0)


def _sum(sign: int) -> Row:
    """A sum, or a difference. PyTorch multiplies the second operand by 1 + 0j, or `alpha`, whatever it is:
    what is infinite in one part is then NaN in the other."""

    def parts(e: Emit, a: Any, b: Any, *, alpha: complex = 1) -> Complex:
        left, right = _operand(e, a), _scaled(e, b, sign * complex(alpha))
        real, imag = (e.apply(ops.add, *e.operands(*pair)) for pair in zip(left, right, strict=True))
        return Complex(real, imag)

    return parts


def _scaled(e: Emit, x: Any, alpha: complex) -> tuple[Any, Any]:
    """The two parts of `alpha` times a tensor or a number."""
    if isinstance(x, (Value, Complex)):
        z = _mul(e, x, alpha)
        return z.real, z.imag
    if isinstance(x, Expr):
        if alpha not in (1, -1):
            raise UnsupportedOperator(f"{alpha} times a size", node=e.operator)
        return (x if alpha == 1 else -x), 0.0
    x = complex(x)
    return x.real * alpha.real - x.imag * alpha.imag, x.real * alpha.imag + x.imag * alpha.real


def _mul(e: Emit, a: Any, b: Any) -> Complex:
    (ar, ai), (br, bi) = _operand(e, a), _operand(e, b)
    kind = e.result_type(ar, br)

    def times(x: Any, y: Any) -> Value:
        return e.apply(ops.mul, *e.operands(x, y, kind=kind))

    return Complex(
        e.apply(ops.sub, times(ar, br), times(ai, bi)), e.apply(ops.add, times(ar, bi), times(ai, br))
    )


def _mean(name: str) -> Row:
    """The parts' means, divided by 1 + 0j as PyTorch divides by complex numbers."""
    row = _both(aten_reduce.ROWS[name])

    def mean(e: Emit, *arguments: Any, **keywords: Any) -> Complex:
        z = row(e, *arguments, **keywords)
        nothing = e.scalar(0.0, z.real.dtype)
        real, imag = (e.apply(ops.mul, part, nothing) for part in (z.real, z.imag))
        return Complex(e.apply(ops.add, z.real, imag), e.apply(ops.sub, z.imag, real))

    return mean


def _neg(e: Emit, z: Complex) -> Complex:
    return Complex(e.apply(ops.neg, z.real), e.apply(ops.neg, z.imag))


def _conj(e: Emit, z: Complex) -> Complex:
    return Complex(z.real, e.apply(ops.neg, z.imag))


def _complex(e: Emit, real: Value, imag: Value) -> Complex:
    return Complex(*aten_shape.ROWS["aten.broadcast_tensors.default"](e, [real, imag]))


def _polar(e: Emit, radius: Value, angle: Value) -> Complex:
    return Complex(
        e.apply(ops.mul, radius, e.apply(ops.cos, angle)), e.apply(ops.mul, radius, e.apply(ops.sin, angle))
    )


def _view_as_real(e: Emit, z: Complex) -> Value:
    # a choice rather than a join, in which a kernel would guard each access of what is joined
    shape = (*z.shape, as_expr(2))
    real, imag = (e.apply(ops.expand, e.unsqueeze(part, z.rank), shape=shape) for part in (z.real, z.imag))
    places = e.apply(ops.arange, start=as_expr(0), stop=as_expr(2), step=1, dtype=INT64)
    return e.apply(ops.where, e.apply(ops.eq, places, e.scalar(0, INT64)), real, imag)


def _both(row: Row) -> Row:
    """A row that moves elements, or adds them up, on both parts; all tensors of its first argument are
    complex, and further ones are indices."""

    def parts(e: Emit, first: Any, *arguments: Any, **keywords: Any) -> Any:
        given = first if isinstance(first, (list, tuple)) else [first]
        if keywords or not all(isinstance(each, Complex) for each in given) or is_complex(arguments):
            raise UnsupportedOperator("complex and real operands together", node=e.operator)
        listed = isinstance(first, (list, tuple))
        real, imag = (
            row(e, each if listed else each[0], *arguments)
            for each in ([z.real for z in given], [z.imag for z in given])
        )
        if isinstance(real, Value):
            return Complex(real, imag)
        return [Complex(*each) for each in zip(real, imag, strict=True)]

    return parts


def _like(row: Row) -> Row:
    """The same where a second tensor lends its shape alone."""
    both = _both(row)
    return lambda e, z, other: both(e, z, other.real if isinstance(other, Complex) else other)


_MOVES = (
    *("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int"),
    *("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "permute.default"),
    *("transpose.int", "t.default", "mT.default", "numpy_T.default", "movedim.int", "movedim.intlist"),
    *("expand.default", "broadcast_to.default", "repeat.default", "tile.default"),
    *("repeat_interleave.self_int", "slice.Tensor", "narrow.default", "select.int", "cat.default"),
    *("stack.default", "flip.default", "roll.default", "index_select.default", "index.Tensor"),
)
_SHAPED = ("view_as.default", "reshape_as.default", "expand_as.default")
_SAME = ("clone", "contiguous", "detach", "alias", "resolve_conj", "resolve_neg", "lift_fresh_copy")
_SUMS, _MEANS = ("sum.default", "sum.dim_IntList"), ("mean.default", "mean.dim")

ROWS: dict[str, Row] = {
    "aten.view_as_complex.default": in_parts,
    "aten.view_as_real.default": _view_as_real,
    "aten.complex.default": _complex,
    "aten.polar.default": _polar,
    "aten.real.default": lambda e, z: z.real,
    "aten.imag.default": lambda e, z: z.imag,
    "aten.add.Tensor": _sum(1),
    "aten.sub.Tensor": _sum(-1),
    "aten.mul.Tensor": _mul,
    "aten.neg.default": _neg,
    **{f"aten.{name}.default": _conj for name in ("conj", "_conj", "conj_physical", "_conj_physical")},
    **{f"aten.{name}.default": lambda e, z, **memory: z for name in _SAME},
    **{f"aten.{name}": _both(aten_shape.ROWS[f"aten.{name}"]) for name in _MOVES},
    **{f"aten.{name}": _like(aten_shape.ROWS[f"aten.{name}"]) for name in _SHAPED},
    **{f"aten.{name}": _both(aten_reduce.ROWS[f"aten.{name}"]) for name in _SUMS},
    **{f"aten.{name}": _mean(f"aten.{name}") for name in _MEANS},
    "aten.unbind.int": _both(aten_split.ROWS["aten.unbind.int"]),
}
