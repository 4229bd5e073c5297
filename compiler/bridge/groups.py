"""The sizes of a reshape: a reshape splits and merges contiguous groups of dims. That finds what -1 stands
for, and with a single trace which of the literals follow an input, also where sizes happen to be equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.bridge.emit import Emit, Size, Written, factors
from dlcb.compiler.bridge.literals import alike
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, product

Observed = Callable[[Expr], Sequence[int] | None]  # the values that a size had in the traces


def resolve(e: Emit, dims: Sequence[Expr], shape: Sequence[Size]) -> tuple[Expr, ...]:
    """The sizes that `dims` are reshaped to. `shape` may hold -1 once."""
    if e.single:
        shape = _match(e, dims, shape)
    unknown = [k for k, size in enumerate(shape) if isinstance(size, int) and size == -1]
    sizes: list[Any] = list(shape)
    for k in unknown:
        sizes[k] = e.quotient(dims, [size for j, size in enumerate(shape) if j != k])
    return tuple(as_expr(size) for size in sizes)


@dataclass(frozen=True)
class Group:
    """Axes that a reshape makes of others: their places before and after, whether those before never change,
    the values of the sizes that are multiplied in them, and of the axes themselves (none: not known)."""

    before: range
    after: range
    constant: bool
    factors: frozenset[int]
    values: tuple[int, ...] = ()


def parted(dims: Sequence[Expr], shape: Sequence[Size], observed: Observed) -> list[Group]:
    """The groups of a reshape as far as the one trace shows them: all axes are one where it does not."""
    before, after = _values(dims, observed), _values(shape, observed)
    places = [(range(len(dims)), range(len(shape)))]
    if before is not None and after is not None and 0 not in before:
        known = math.prod(size for size in after if size != -1)
        after = [math.prod(before) // known if size == -1 else size for size in after]
        places = _cut(dims, shape, before, after)
    return [
        Group(
            left,
            right,
            _are_constants(dims, left),
            frozenset(_values(factors(dims[k] for k in left), observed) or ()),
            () if before is None else tuple(before[k] for k in left),
        )
        for left, right in places
    ]


def _match(e: Emit, dims: Sequence[Expr], shape: Sequence[Size]) -> list[Size]:
    """`shape` with literals replaced by the dims of the group they stand in, as far as the one trace
    shows."""
    before, after = _values(dims, e.observed), _values(shape, e.observed)
    if before is None or after is None or 0 in before or all(dim.is_const for dim in dims):
        return list(shape)
    known = math.prod(size for size in after if size != -1)
    after = [math.prod(before) // known if size == -1 else size for size in after]
    matched: list[Size] = []
    for left, right in _apart(e, dims, after, _cut(dims, shape, before, after)):
        matched += _within(
            e,
            [dims[k] for k in left],
            [before[k] for k in left],
            [after[k] for k in right],
            [shape[k] for k in right],
        )
    return matched


def _values(sizes: Sequence[Size], observed: Observed) -> list[int] | None:
    """What the sizes were in the trace; None where one is known at run time only."""
    values = [observed(as_expr(size)) for size in sizes]
    return None if None in values else [value[0] for value in values if value is not None]


def _cut(
    dims: Sequence[Expr], shape: Sequence[Size], before: Sequence[int], after: Sequence[int]
) -> list[tuple[range, range]]:
    """The groups of a reshape. Where free dims would become by themselves a number that the program writes
    out, or makes of another size, they only happen to be equal: all axes are one group then."""
    groups = _joined(_groups(before, after))
    for left, right in groups:
        if len(right) == 1 and _is_another([dims[k] for k in left], shape[right.start]):
            return [(range(len(dims)), range(len(shape)))]
    return groups


def _is_another(dims: Sequence[Expr], size: Size) -> bool:
    """Whether a number that the program writes out, or makes of a size, is none that these dims have."""
    if all(dim.is_const for dim in dims):
        return False
    if isinstance(size, Expr):
        return not alike(size, product(dims))
    return isinstance(size, Written) and size != -1


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """The finest cut of both lists into runs of equal product; a 1 stands beside a 1 where there is one."""
    result: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        start_i, start_j = i, j
        left = right = 1
        while True:
            level = left == right and i - start_i <= j - start_j
            if i < len(before) and (left < right or level or j >= len(after)):
                left *= before[i]
                i += 1
            elif j < len(after):
                right *= after[j]
                j += 1
            else:
                break
            if left == right and i > start_i and j > start_j:
                break
        result.append((range(start_i, i), range(start_j, j)))
    return result


def _joined(groups: Sequence[tuple[range, range]]) -> list[tuple[range, range]]:
    """A 1 that has nothing beside it joins the group before it, or the one behind the first."""
    result = list(groups[:1])
    for left, right in groups[1:]:
        if all((left, right, *result[-1])):
            result.append((left, right))
        else:
            first, second = result[-1]
            result[-1] = range(first.start, left.stop), range(second.start, right.stop)
    return result


def _apart(
    e: Emit, dims: Sequence[Expr], after: Sequence[int], groups: Sequence[tuple[range, range]]
) -> list[tuple[range, range]]:
    """The groups, where a free 1 that leads constants goes with the dims before them: a batch of 1 is merged
    with positions and parted from them, and has nothing to do with features."""
    result = list(groups[:1])
    for group in groups[1:]:
        (left, right), (first, second) = group, result[-1]
        ones = next((k for k in left if dims[k].is_const or e.observed(dims[k]) != (1,)), left.stop)
        if left.start < ones < left.stop and _are_constants(dims, range(ones, left.stop)) and len(right) == 1:
            first, left = range(first.start, ones), range(ones, left.stop)
        elif _are_constants(dims, left) and any(
            e.observed(factor) == (1,) for k in first for factor in factors((dims[k],))
        ):
            parted = next((k for k in right if after[k] != 1), right.stop)
            if parted < right.stop:
                second, right = range(second.start, parted), range(parted, right.stop)
        result[-1] = first, second
        result.append((left, right))
    return result


def _are_constants(dims: Sequence[Expr], places: Iterable[int]) -> bool:
    return all(dims[k].is_const for k in places)


def _within(e: Emit, dims: list[Expr], before: list[int], after: list[int], shape: list[Size]) -> list[Size]:
    """The sizes of one group: as they are, merged, or the group's factors in order; what is left over
    stays a literal."""
    if len(after) == 1:
        e.merge(dims)
        return [product(dims)]
    if before == after and not any(_is_another([dim], size) for dim, size in zip(dims, shape, strict=True)):
        return list(dims)
    # factors of a product have no order of their own: that in which they were merged last, or else met first
    merged = [factor for dim in dims for factor in e.merged.get(dim, ())]
    symbols = sorted((factor for factor in factors(dims) if not factor.is_const), key=e.first_met)
    if all(factor in merged for factor in symbols):
        symbols.sort(key=merged.index)
    sizes: list[Any] = list(after)
    rest = next((k for k, size in enumerate(shape) if isinstance(size, int) and size == -1), len(shape))
    # what stands behind the rest is of the last factors
    for k in (*range(rest), *range(len(shape) - 1, rest, -1), *range(rest, len(shape))[:1]):
        value, size = after[k], shape[k]
        if isinstance(size, Expr):
            symbols = [symbol for symbol in symbols if symbol is not size]
            sizes[k] = size
            continue
        free = value != 1 and not isinstance(size, Written)
        from_here = symbols if k <= rest else reversed(symbols)
        equal = next((symbol for symbol in from_here if free and e.observed(symbol) == (value,)), None)
        if equal is not None:
            symbols.remove(equal)
            sizes[k] = equal
    for k, size in enumerate(
        sizes if rest == len(shape) else ()
    ):  # a batch of 1 comes first, as it does elsewhere
        if symbols and type(size) is int and size == 1 and e.observed(symbols[0]) == (1,):
            sizes[k] = symbols.pop(0)
    if symbols:  # one literal beside a factor that was not found whole holds the rest of the group
        literals = [
            k for k, size in enumerate(sizes) if (isinstance(size, int) and size == -1) or shape[k] == -1
        ]
        for k in literals[:1] or _merged(dims, sizes):
            sizes[k] = -1 if len(literals) == 1 else sizes[k]
            sizes[k] = e.quotient(dims, [size for j, size in enumerate(sizes) if j != k])
    return sizes


def _merged(dims: Sequence[Expr], sizes: Sequence[Any]) -> Sequence[int]:
    """The place among literals into which free dims go together with a part of the constants beside them, as
    a batch and its heads do: the first where the constants are inside, the last where they are outside."""
    constants = [size for size in dims if size.is_const]
    if not constants or not all(isinstance(size, int) for size in sizes):
        return ()
    whole = math.prod(size.value for size in constants)
    if dims[-len(constants) :] == constants and whole % math.prod(sizes[1:]) == 0:
        return (0,)
    if dims[: len(constants)] == constants and whole % math.prod(sizes[:-1]) == 0:
        return (len(sizes) - 1,)
    return ()
