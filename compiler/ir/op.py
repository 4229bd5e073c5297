"""The declaration of an operator: shape rule, element type, coordinate rule, and the fold if it reduces,
side by side.

Shape checking, the text form, the NumPy oracle and kernel generation all read this one place. An operator
with an `at` rule is compiled by coordinates; one with `expand` is a composite of others; one with neither is
opaque (PyTorch runs it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dlcb.compiler.dtype import DType, promote
from dlcb.compiler.expr.dag import Expr

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class Type:
    """Sizes and element type of a tensor. A size is an expression over size variables."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(repr, self.shape))}]"


class Inference(Protocol):
    """What a shape rule may ask and state. Every statement carries where it came from; a contradiction
    raises ShapeError."""

    def equal(self, a: Expr, b: Expr, what: str = "") -> Expr:
        """State a == b; gives the simpler of the two. `what` names the axis or operands, for messages."""
        ...

    def broadcast(self, a: Expr, b: Expr, what: str = "") -> Expr:
        """The size that `a` and `b` broadcast to: equal, or one of them is 1."""
        ...

    def require(self, condition: Expr, what: str = "") -> None:
        """State a condition over sizes."""
        ...

    def exact_quotient(self, a: Expr, b: Expr, what: str = "") -> Expr:
        """a / b, stating that b divides a."""
        ...

    def known(self, condition: Expr) -> bool | None:
        """True or False where the condition is decided by what was stated so far, else None."""
        ...

    def fresh(self, hint: str, low: int = 0, high: int | None = None) -> Expr:
        """A new size variable (a size that is known only at run time)."""
        ...


class Operand(Protocol):
    """An input as a coordinate rule sees it: a function from coordinates to a scalar expression."""

    type: Type
    name: str

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> DType: ...

    def __getitem__(self, coordinates: Sequence[Expr]) -> Expr:
        """The element at these coordinates, all of which are in range. Half types come as float32."""
        ...

    def along(self, i: Sequence[Expr]) -> Expr:
        """The element that broadcasting takes for output coordinates `i`: trailing axes, 0 where the
        size is 1."""
        ...

    def inside(self, coordinates: Sequence[Expr], guard: Expr, otherwise: Expr) -> Expr:
        """The element where `guard` holds (only then are the coordinates in range and is anything read),
        else `otherwise`."""
        ...


@dataclass(frozen=True)
class Op:
    """One operator.

    shape(infer, *types, **attributes) -> Shape (or a tuple of Shapes with several results)
    dtype(*types, **attributes) -> DType (or a tuple of DTypes)
    at(i, r, *operands, **attributes) -> Expr: the element at output coordinates `i`; with a fold, the body at
        reduction coordinates `r`, whose extents are over(*types, **attributes)
    finish(i, folded, *operands, **attributes) -> Expr: the element at `i` made from the folded value; if
        missing, the folded value is the element
    expand(build, *values, **attributes) -> Value: the composite in terms of other operators
    kind: "pointwise" | "move" | "reduce" | "index" | "create" | "contract" | "composite" | "opaque". It says
        who runs the operator: "contract" and "opaque" are never compiled by coordinates, although they may
        have an `at`, which serves the oracle and proofs
    """

    name: str
    kind: str
    shape: Callable[..., Shape | tuple[Shape, ...]]
    dtype: Callable[..., DType | tuple[DType, ...]]
    at: Callable[..., Expr] | None = None
    over: Callable[..., Shape] | None = None
    fold: str | None = None
    expand: Callable[..., Any] | None = None
    finish: Callable[..., Expr] | None = None
    traits: frozenset[str] = field(default_factory=frozenset)

    def __repr__(self) -> str:
        return self.name


# ---- rules that recur


def broadcast_shape(infer: Inference, *types: Type, **attributes: Any) -> Shape:
    """The shape that all operands broadcast to, aligned at the last axis."""
    rank = max(t.rank for t in types)
    shape: list[Expr] = []
    for axis in range(-rank, 0):
        sizes = [t.shape[axis] for t in types if t.rank >= -axis]
        joined = sizes[0]
        for other in sizes[1:]:
            joined = infer.broadcast(joined, other, f"axis {axis}")
        shape.append(joined)
    return tuple(shape)


def same_shape(infer: Inference, first: Type, *others: Type, **attributes: Any) -> Shape:
    return first.shape


def same_dtype(first: Type, *others: Type, **attributes: Any) -> DType:
    return first.dtype


def promoted(*types: Type, **attributes: Any) -> DType:
    """The operands' common type, as PyTorch promotes tensors."""
    result = types[0].dtype
    for other in types[1:]:
        result = promote(result, other.dtype)
    return result


def given_dtype(*types: Type, dtype: DType, **attributes: Any) -> DType:
    """The type that the attribute `dtype` says."""
    return dtype
