"""Rules that recur in operator declarations, each under one name: element types, identities of folds,
windows, and the coordinates of reductions, reshapes and clamped ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlcb.compiler.dtype import BOOL, FLOAT32, INT64, UINT8, DType
from dlcb.compiler.expr import node
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, as_expr, const
from dlcb.compiler.expr.ops import FOLDS
from dlcb.compiler.ir.op import Inference, Operand, Shape, Type, promoted

Coordinates = Sequence[Expr]

# ---- element types


def computed(dtype: DType) -> DType:
    """The type arithmetic is done in: float32 for the half types, else the type itself."""
    return FLOAT32 if dtype.is_float and dtype.bits == 16 else dtype


def floated(*types: Type, **attributes: Any) -> DType:
    """The promoted type, float32 where that is an integer or bool."""
    joined = promoted(*types)
    return joined if joined.is_float else FLOAT32


def truth(*types: Type, **attributes: Any) -> DType:
    return BOOL


def byte_or_truth(x: Type, **attributes: Any) -> DType:
    """bool, except that uint8 stays: how PyTorch types `any` and `all`."""
    return UINT8 if x.dtype is UINT8 else BOOL


def accumulated(x: Type, **attributes: Any) -> DType:
    """The type of a sum or product: int64 for integers and bool, floats as they are."""
    return x.dtype if x.dtype.is_float else INT64


def positions(*types: Type, **attributes: Any) -> DType:
    return INT64


def identity(fold: str, dtype: DType) -> Expr:
    """What leaves a fold as it is, as a constant of the type it is computed in; integers use the type's
    limits."""
    value = FOLDS[fold].identity
    if fold in ("max", "min") and not dtype.is_float:
        signed = dtype.kind == "int"
        least = -(1 << (dtype.bits - 1)) if signed else 0
        greatest = 1 if dtype is BOOL else (1 << (dtype.bits - int(signed))) - 1
        value = least if fold == "max" else greatest
    return const(value, computed(dtype))


def number(value: Expr | int | float | bool, dtype: DType) -> Expr:
    """A scalar in the type `dtype` is computed in; `value` is a number or an expression over sizes."""
    return node.cast(value, computed(dtype)) if isinstance(value, Expr) else const(value, computed(dtype))


# ---- coordinates


def linear(coordinates: Coordinates, sizes: Sequence[Expr]) -> Expr:
    """The row-major position of `coordinates` in a tensor of these sizes, in Horner form."""
    position: Expr = ZERO
    for coordinate, extent in zip(coordinates, sizes, strict=True):
        position = position * extent + coordinate
    return position


def unravel(position: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """The coordinates of a row-major position; the inverse of `linear`."""
    coordinates: list[Expr] = []
    for extent in reversed(sizes[1:]):
        coordinates.append(position % extent)
        position = position // extent
    return [*([position] if sizes else []), *reversed(coordinates)]


def replaced(i: Coordinates, axis: int, coordinate: Expr) -> list[Expr]:
    """`i` with another coordinate on `axis`."""
    return [*i[:axis], coordinate, *i[axis + 1 :]]


def trailing(i: Coordinates, sizes: Sequence[Expr]) -> list[Expr]:
    """The coordinates of a tensor of these sizes that broadcasting reads for the output's `i`."""
    return [
        ZERO if extent is ONE else node.where(node.equal(extent, 1), 0, coordinate)
        for coordinate, extent in zip(list(i)[len(i) - len(sizes) :], sizes, strict=True)
    ]


def joined(i: Coordinates, r: Coordinates, axes: Sequence[int], keepdim: bool, rank: int) -> list[Expr]:
    """Coordinates in the operand of a reduction: `r` on the reduced axes, `i` on the others."""
    folded = dict(zip(axes, r, strict=True))
    kept = (i[axis] for axis in range(rank) if axis not in folded) if keepdim else iter(i)
    return [folded[axis] if axis in folded else next(kept) for axis in range(rank)]


def within(coordinate: Expr, extent: Expr | int) -> Expr:
    """0 <= coordinate < extent."""
    return (coordinate >= 0) & (coordinate < as_expr(extent))


def read(x: Operand, coordinates: Coordinates, guard: Expr, otherwise: Expr) -> Expr:
    """The element where `guard` holds, else `otherwise`."""
    return x[coordinates] if guard is TRUE else x.inside(coordinates, guard, otherwise)


def wrapped(position: Expr | int, extent: Expr) -> Expr:
    """A Python position: negative values count from the end."""
    position = as_expr(position)
    if position.is_const:
        return position if position.value >= 0 else position + extent
    return node.where(position < 0, position + extent, position)


def clamped(position: Expr | int, extent: Expr) -> Expr:
    """The bound of a Python slice over an axis of `extent`: wrapped, then kept within 0 and `extent`."""
    position = as_expr(position)
    if position is ZERO or position is extent:
        return position
    if position.is_const and position.value > 0:
        return node.minimum(position, extent)
    if position.is_const:
        return node.maximum(position + extent, 0)
    return node.maximum(node.minimum(wrapped(position, extent), extent), 0)


# ---- reshape: contiguous groups of axes

Monomial = tuple[int, tuple[Expr, ...]]


def _times(product: Monomial, factor: Expr) -> Monomial:
    number, symbols = product
    stack, found = [factor], []
    while stack:
        part = stack.pop()
        if part.op == "mul":
            stack.extend(part.args)
        elif part.is_const:
            number *= part.value
        else:
            found.append(part)
    return number, tuple(sorted((*symbols, *found), key=lambda symbol: symbol.digest)) if found else symbols


def _running(sizes: Sequence[Expr]) -> list[Monomial]:
    products: list[Monomial] = [(1, ())]
    for extent in sizes:
        products.append(_times(products[-1], extent))
    return products


def groups(before: Sequence[Expr], after: Sequence[Expr]) -> list[tuple[range, range]]:
    """The finest cut of two lists of sizes into runs with equal products, as pairs of axis ranges.

    Products are compared as they are written, from the left and from the right; the whole is one group where
    nothing matches. What lies inside a group need not be equal as written: a reshape states that it is."""
    m, n = len(before), len(after)
    left = _matches(_running(before), _running(after))
    right = _matches(_running(before[::-1]), _running(after[::-1]))
    cuts = sorted({*left, *((m - a, n - b) for a, b in right), (m, n)})
    result, a, b = [], 0, 0
    for next_a, next_b in cuts:
        if next_a >= a and next_b >= b and (next_a, next_b) != (a, b):
            result.append((range(a, next_a), range(b, next_b)))
            a, b = next_a, next_b
    return result


def _matches(before: list[Monomial], after: list[Monomial]) -> set[tuple[int, int]]:
    places: dict[Monomial, list[int]] = {}
    for b, product in enumerate(after):
        if product[0] != 0:  # beyond a size 0 every product is 0, which says nothing about groups
            places.setdefault(product, []).append(b)
    return {(a, b) for a, product in enumerate(before) for b in places.get(product, ())}


# ---- windows


def window_size(
    extent: Expr, window: Expr | int, stride: int, padding: int, dilation: int, ceil_mode: bool = False
) -> Expr:
    """How many windows fit along an axis, as PyTorch counts: with `ceil_mode` the last one may hang over the
    end, but must start inside the input or its left padding."""
    span = (window - 1) * dilation + 1
    room = extent + 2 * padding - span
    if not ceil_mode:
        return room // stride + 1
    count = (room + (stride - 1)) // stride + 1
    if isinstance(span, int) and span >= stride + padding:
        return count  # the last window starts before extent + padding whatever the extent
    return node.minimum(count, (extent + padding - 1) // stride + 1)


def window_coordinates(
    i: Coordinates,
    r: Coordinates,
    sizes: Sequence[Expr],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    overhang: bool = False,
) -> tuple[list[Expr], Expr]:
    """Where window place `r` of output place `i` lies in the input, and the condition that it lies inside.

    `overhang`: windows may reach past the end even without padding."""
    coordinates, guard = [], TRUE
    for k, (place, inner) in enumerate(zip(i, r, strict=True)):
        coordinate = place * stride[k] + inner * dilation[k] - padding[k]
        if padding[k]:
            guard = guard & (coordinate >= 0)
        if padding[k] or overhang:
            guard = guard & (coordinate < sizes[k])
        coordinates.append(coordinate)
    return coordinates, guard


def require_positive(infer: Inference, sizes: Sequence[Expr], what: str) -> None:
    """State that none of these sizes is 0."""
    for extent in sizes:
        if infer.known(extent >= 1) is not True:
            infer.require(extent >= 1, what)


def reduced(x: Type, axes: Sequence[int], keepdim: bool) -> Shape:
    """The shape left by folding `axes`."""
    if keepdim:
        return tuple(ONE if axis in axes else extent for axis, extent in enumerate(x.shape))
    return tuple(extent for axis, extent in enumerate(x.shape) if axis not in axes)
