"""What the rows of the ATen tables build with: the graph builder in PyTorch's terms, with its element
types and its rules of type promotion. Rows see values, numbers, sizes (integers, or expressions where the
size follows an input), nothing of fx."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from dlcb.compiler.dtype import BOOL, INT64, DType, dtype
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, as_expr, equal, product
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.op import Op
from dlcb.compiler.shapes.system import Provenance

Row: TypeAlias = Callable[..., Any]  # row(emit, *arguments, **keywords) -> Value, or a tuple or list of them
Size: TypeAlias = int | Expr

_TORCH = {
    name: getattr(torch, name)
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
}
_OURS = {torch_type: dtype(name) for name, torch_type in _TORCH.items()}


def to_torch(ours: DType) -> torch.dtype:
    """PyTorch's name of an element type."""
    return _TORCH[ours.name]


def from_torch(torch_type: torch.dtype) -> DType:
    """Our row for PyTorch's element type; UnsupportedOperator for quantised ones."""
    if torch_type not in _OURS:
        raise UnsupportedOperator(f"element type {torch_type} has no counterpart")
    return _OURS[torch_type]


class Written(int):
    """A number that the line of a program of one size writes out: it follows no size."""


class Emit:
    """Adds nodes to a graph for the row that is being lowered."""

    def __init__(self, build: GraphBuilder, observed: Callable[[Expr], tuple[int, ...] | None]) -> None:
        self.build = build
        self.system = build.system
        self.observed = (
            observed  # the values a size had in the traces; None where it is known at run time only
        )
        self.single = False  # one trace only: literals are matched to sizes by their place
        self.merged: dict[Expr, list[Expr]] = {}  # axes that a single trace merges, in their order
        self.operator = ""  # the ATen operator being lowered, for messages

    # ---- nodes -------------------------------------------------------------------------------------

    def apply(self, op: Op, *inputs: Value, **attributes: Any) -> Value:
        return self.build.apply(op, *inputs, **attributes)

    def scalar(self, value: float | Expr, kind: DType) -> Value:
        """A rank-0 tensor."""
        return self.apply(ops.full, shape=(), value=value, dtype=kind)

    def cast(self, x: Value, kind: DType) -> Value:
        return x if x.dtype is kind else self.apply(ops.cast, x, dtype=kind)

    def reshape(self, x: Value, shape: Iterable[Size]) -> Value:
        """`x` with sizes that are already known to hold as many elements."""
        shape = tuple(as_expr(size) for size in shape)
        return x if shape == x.shape else self.apply(ops.reshape, x, shape=shape)

    def unsqueeze(self, x: Value, axis: int) -> Value:
        return self.reshape(x, (*x.shape[:axis], ONE, *x.shape[axis:]))

    def drop(self, x: Value, axes: Sequence[int]) -> Value:
        """`x` without `axes`, whose sizes are 1."""
        return self.reshape(x, [size for axis, size in enumerate(x.shape) if axis not in axes])

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        order = tuple(order)
        return x if order == tuple(range(x.rank)) else self.apply(ops.permute, x, order=order)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        return parts[0] if len(parts) == 1 else self.apply(ops.concat, *parts, axis=axis)

    # ---- axes and sizes ----------------------------------------------------------------------------

    def axis(self, axis: int, rank: int) -> int:
        """The non-negative axis that PyTorch means. UnsupportedOperator for a tensor without axes, where
        PyTorch takes -1 and 0 all the same."""
        if rank == 0:
            raise UnsupportedOperator(
                f"{self.operator}: axis {axis} of a tensor of rank 0", stage="generalize"
            )
        return axis % rank

    def axes(self, axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
        """Sorted axes; None and the empty list mean all."""
        if rank == 0 or axes is None or (not isinstance(axes, int) and not axes):
            return tuple(range(rank))
        return tuple(sorted({self.axis(axis, rank) for axis in ((axes,) if isinstance(axes, int) else axes)}))

    def require(self, condition: Expr, detail: str) -> None:
        self.system.require(condition, Provenance(self.operator, self.build.source, detail))

    def merge(self, dims: Sequence[Expr]) -> None:
        """Note that these axes were merged in this order, where it is known of each."""
        if all(dim.op != "mul" or dim in self.merged for dim in dims):
            self.merged[product(dims)] = [factor for dim in dims for factor in self.merged.get(dim, [dim])]

    def equal(self, a: Expr, b: Expr, detail: str) -> Expr:
        """State that two sizes are equal; gives the simpler one."""
        return self.system.equal(a, b, Provenance(self.operator, self.build.source, detail))

    def first_met(self, size: Expr) -> int:
        """When the newest of the size variables in `size` was first met."""
        return max((self.system.age(symbol) for symbol in size.free), default=-1)

    def is_one(self, size: Expr) -> bool:
        return self.system.known(equal(size, ONE)) is True

    def literal(self, size: Size, what: str) -> int:
        """The integer that `size` must be; UnsupportedOperator where it follows an input."""
        if isinstance(size, int):
            return size
        simple = self.system.simplify(size)
        if not simple.is_const:
            raise UnsupportedOperator(f"{what} must be a constant, found {simple!r}", node=self.operator)
        return simple.value

    def pieces(self, extent: Expr, size: Expr) -> int | None:
        """How many pieces of `size` the axis was cut into in every trace, stated as a fact where the axis is
        free; None where the traces differ."""
        values, sizes = self.observed(extent), self.observed(size)
        if values is None or sizes is None:
            raise UnsupportedOperator(
                f"pieces of an axis whose size {extent!r} is known at run time only", node=self.operator
            )
        counts = {-(-value // each) if each else 1 for value, each in zip(values, sizes, strict=True)}
        if len(counts) > 1:
            return None
        count = max(counts.pop(), 1)
        self.require(size * (count - 1) <= extent, f"{count} pieces of {size!r} in {extent!r}")
        self.require(extent <= size * count, f"{count} pieces of {size!r} in {extent!r}")
        return count

    def quotient(self, dividends: Iterable[Size], divisors: Iterable[Size]) -> Expr:
        """The product of `dividends` divided by that of `divisors`, equal factors cancelled; divisibility
        is stated."""
        above, below = factors(dividends), factors(divisors)
        for factor in list(below):
            if factor in above:
                above.remove(factor)
                below.remove(factor)
        numerator, denominator = product(above), product(below)
        if denominator is ONE:
            return numerator
        why = Provenance(self.operator, self.build.source, f"{numerator!r} divided by {denominator!r}")
        return self.system.exact_quotient(numerator, denominator, why)

    # ---- element types -----------------------------------------------------------------------------

    def result_type(self, *operands: Any) -> DType:
        """The type PyTorch gives to arithmetic on these values and Python numbers."""
        joined = _stand_in(operands[0])
        for operand in operands[1:]:
            other = _stand_in(operand)
            kind = torch.result_type(joined, other)
            rank = max(x.dim() if isinstance(x, torch.Tensor) else 0 for x in (joined, other))
            joined = torch.empty((1,) * rank, dtype=kind, device="meta")
        return from_torch(joined.dtype)

    def operands(self, *operands: Any, kind: DType | None = None) -> list[Value]:
        """The operands as values of one type: `kind`, or what PyTorch promotes them to."""
        if kind is None:
            kind = self.result_type(*operands)
        return [
            self.cast(x, kind) if isinstance(x, Value) else self.scalar(_number(x, kind), kind)
            for x in operands
        ]

    def floating(self, x: Value) -> Value:
        """`x`, or its conversion to the default type where it holds no floats."""
        return x if x.dtype.is_float else self.cast(x, from_torch(torch.get_default_dtype()))

    def boolean(self, x: Value) -> Value:
        return self.cast(x, BOOL)

    def summed(self, x: Value, kind: torch.dtype | None) -> Value:
        """`x` in the type its sum is kept in: what was asked for, else int64 for integers and booleans."""
        if kind is not None:
            return self.cast(x, from_torch(kind))
        return x if x.dtype.is_float else self.cast(x, INT64)


def factors(sizes: Iterable[Size]) -> list[Expr]:
    """The factors of a product, products taken apart and constants joined."""
    factors: list[Expr] = []
    constant = 1
    stack = [as_expr(size) for size in sizes]
    while stack:
        size = stack.pop()
        if size.op == "mul":
            stack.extend(size.args)
        elif size.is_const:
            constant *= size.value
        else:
            factors.append(size)
    return [*factors, as_expr(constant)] if constant != 1 else factors


def _number(value: Any, kind: DType) -> Any:
    if isinstance(value, Expr):
        return value
    if kind.is_float:
        return float(value)
    return bool(value) if kind is BOOL else int(value)


def _stand_in(x: Any) -> Any:
    """A meta tensor or number that promotes as the operand does: rank 0 gives way to rank 1, numbers to
    both."""
    if isinstance(x, Value):
        return torch.empty((1,) * min(x.rank, 1), dtype=to_torch(x.dtype), device="meta")
    if isinstance(x, Expr):
        return 1.0 if x.dtype.is_float else 1
    return x
