"""Backward coordinate inference: a group comes in, and for each output one scalar expression over the
coordinates of the group's domain goes out, in which every input is a load and every shared sub-expression
one node.

Producers inside the group are inlined by asking their operator's coordinate rule; the guard under which an
element is wanted goes along, so that what is read under a condition is a guarded load. No operator is listed
here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dlcb.compiler.dtype import DType
from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.expr.dag import Expr, rebuild, toposort
from dlcb.compiler.expr.node import (
    ONE,
    TRUE,
    ZERO,
    all_of,
    apply,
    as_expr,
    cast,
    ceildiv,
    equal,
    index,
    load,
    product,
    reduce,
    remake,
    where,
)
from dlcb.compiler.expr.ops import FOLDS
from dlcb.compiler.ir.graph import Node, Value
from dlcb.compiler.ir.op import Shape, Type
from dlcb.compiler.kgen.deadline import hurry
from dlcb.compiler.kgen.verify import conditions, guard_in_bounds
from dlcb.compiler.passes.access import broadcast_coordinate, broadcast_coordinates
from dlcb.compiler.passes.steps import Group, Layout, row_major
from dlcb.compiler.shapes.system import System

# for each value its base buffer and its place there, as in Schedule.layouts
Layouts = Mapping[Value, tuple[Value, Layout]]
# an element: its tensor, its coordinates, the guard under which it is read
_Key = tuple[Value, tuple[Expr, ...], Expr]
_LARGEST_WINDOW = 49  # elements
_DEEPEST = 20  # elements computed inside each other, each a few calls of Python's


@dataclass(frozen=True)
class Element:
    """What a kernel stores for one output: `scalar` at `offset`, for every value of the domain's first
    `len(indices)` indices where `guard` holds."""

    value: Value
    scalar: Expr
    offset: Expr
    indices: tuple[Expr, ...]
    guard: Expr = TRUE

    @property
    def parts(self) -> tuple[Expr, Expr, Expr]:
        """All expressions of it."""
        return self.scalar, self.offset, self.guard


@dataclass(frozen=True)
class Scalars:
    """A group as scalars: the domain's indices in order, the outputs' elements, and the index checks by
    their label."""

    domain: tuple[Expr, ...]
    elements: tuple[Element, ...]
    # the inputs by the names that loads use: in0, in1 ...
    tensors: dict[str, Value]

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(e.value for e in self.elements))


def names(group: Group) -> dict[Value, str]:
    """What the values of `group` are called in its scalars: by their place alone, so that equal groups are
    equal scalars."""
    made = [result for node in group.nodes for result in node.results]
    return {value: f"in{k}" for k, value in enumerate(group.inputs)} | {
        value: f"made{k}" for k, value in enumerate(made)
    }


def infer(group: Group, layouts: Layouts, system: System, columns: int = 1, places: int = 1) -> Scalars:
    """The outputs of `group` as scalar expressions. Raises UnsupportedOperator for a node without a
    coordinate rule.

    With `columns` the last axis of small windows is a sum written out, for so many neighbours along the last
    axis but one: what several windows read is one load. The domain then counts strips of neighbours.

    With `places` so many neighbours along the last axis of more than one element, whose size they divide, are
    elements of their own. The domain then counts groups of them."""
    return _Inference(group, layouts, system, columns, places).run()


def is_window(node: Node) -> bool:
    """Does a reduction join a small constant number of elements?"""
    if not node.op.fold or node.op.over is None:
        return False
    count = product(node.op.over(*(value.type for value in node.inputs), **node.attributes))
    return count.is_const and 0 < count.value <= _LARGEST_WINDOW


class _Pending(Exception):
    """An element that must be computed first."""

    def __init__(self, key: _Key) -> None:
        super().__init__()
        self.key = key


class _Inference:
    def __init__(self, group: Group, layouts: Layouts, system: System, columns: int, places: int) -> None:
        self.group = group
        self.layouts = layouts
        self.system = system
        self.inside = set(group.nodes)
        self.names = names(group)
        self.made: dict[_Key, Expr] = {}
        self.columns, self.places = columns, places
        self.depth = 0  # of elements that are being computed, each for the one before
        self.fitting: dict[tuple[Shape, Shape], tuple[bool, ...]] = {}
        self.innermost = 0  # the axis whose places are elements of their own
        self.terms: dict[tuple[_Key, int], Expr] = {}  # of windows written out
        self.loops: list[Expr] = []  # every loop index so far
        self.divided: dict[Expr, bool] = {}  # whether a coordinate holds a quotient or a remainder
        self.checks: dict[Expr, bool] = {}  # whether an expression holds an index check

    def run(self) -> Scalars:
        anchor = self.group.anchor
        shape = tuple(self.system.simplify(size) for size in anchor.shape)
        domain = tuple(ZERO if size is ONE else index(f"i{axis}", size) for axis, size in enumerate(shape))
        if self.places > 1:
            self.innermost = max(axis for axis, i in enumerate(domain) if i is not ZERO)
            count = self.system.simplify(shape[self.innermost] // self.places)
            group = ZERO if count is ONE else index(f"i{self.innermost}", count)
            domain = (*domain[: self.innermost], group, *domain[self.innermost + 1 :])
        # a reduction over the innermost axis shares its index, and so its elements
        self.loops = [i for i in reversed(domain) if i is not ZERO]
        elements: list[Element] = []
        for value in self.group.outputs:
            indices = domain if self._same_shape(value, anchor) else domain[: self.group.rows]
            stored = self._in_places if self.places > 1 else self._in_columns
            elements += stored(value, indices)
        if self.columns > 1:
            domain = _with_strip(domain, self.columns)
        return Scalars(domain, tuple(elements), {self.names[value]: value for value in self.group.inputs})

    def _in_columns(self, value: Value, indices: tuple[Expr, ...]) -> Iterator[Element]:
        """What is stored of `value`; with strips, in each of their columns."""
        if self.columns == 1:
            yield self._stored(value, indices, indices)
            return
        size, strip = indices[-2].args[0], _with_strip(indices, self.columns)
        for column in range(self.columns):
            place = strip[-2] * self.columns + column
            guard = self.system.simplify(place < size) if column else TRUE
            yield self._stored(value, strip, (*indices[:-2], place, indices[-1]), guard)

    def _in_places(self, value: Value, indices: tuple[Expr, ...]) -> Iterator[Element]:
        """What is stored of `value` in each place of a group."""
        axis = self.innermost
        if axis >= len(indices):
            yield self._stored(value, indices, indices)
            return
        for place in range(self.places):
            coordinate = indices[axis] * self.places + place
            places = (*indices[:axis], coordinate, *indices[axis + 1 :])
            yield self._stored(value, indices, places)

    def _stored(
        self, value: Value, indices: tuple[Expr, ...], places: tuple[Expr, ...], guard: Expr = TRUE
    ) -> Element:
        coordinates = (*places, *(ZERO for _ in range(value.rank - len(places))))
        scalar = _narrowed(self.element(value, coordinates, TRUE), value.dtype)
        return Element(value, scalar, self._offset(value, coordinates), indices, guard)

    def _same_shape(self, a: Value, b: Value) -> bool:
        equals = (self.system.known(equal(x, y)) is True for x, y in zip(a.shape, b.shape, strict=False))
        return a.rank == b.rank and all(equals)

    # ---- one element. What is missing is computed where it is asked for; at some depth, since recursion has
    # an end, it is computed first, and the rules that asked for it run again

    def element(self, value: Value, coordinates: Sequence[Expr], guard: Expr) -> Expr:
        """The element as arithmetic sees it: half types come as float32."""
        wanted = self._key(value, coordinates, guard)
        stack = [wanted]
        while stack:
            key = stack[-1]
            if key not in self.made:
                try:
                    self.made[key] = self._compute(*key)
                except _Pending as pending:
                    stack.append(pending.key)
                    continue
            stack.pop()
        return self.made[wanted]

    def _key(self, value: Value, coordinates: Sequence[Expr], guard: Expr) -> _Key:
        places = tuple(self.system.simplify(as_expr(c)) for c in coordinates)
        if guard is not TRUE and self._is_written(value) and self._is_walked(value, places):
            guard = TRUE
        return value, places, guard

    def _is_written(self, value: Value) -> bool:
        """Whether a value of this group is put together under a condition, as a write into another is."""
        node = value.producer
        return node is not None and node.op.name == "where" and node in self.inside

    def _is_walked(self, value: Value, places: tuple[Expr, ...]) -> bool:
        """Whether an element is that of `value` at the domain's own indices. It exists whatever condition it
        is asked under, and is made once: writes into parts of parts read what they write to on both sides of
        a condition, so that the kernel would double with each."""
        sizes = map(self.system.simplify, value.shape)
        return all(
            place is ZERO if size is ONE else place.op == "index" and place.args[0] is size
            for place, size in zip(places, sizes, strict=True)
        )

    def read(self, value: Value, coordinates: Sequence[Expr], guard: Expr) -> Expr:
        key = self._key(value, coordinates, guard)
        made = self.made.get(key)
        if made is None:
            if self.depth == _DEEPEST and not self._is_from_outside(value):
                raise _Pending(key)
            self.depth += 1
            try:
                made = self.made[key] = self._compute(*key)
            finally:
                self.depth -= 1
        return made

    def fits(self, shape: Shape, result: Shape) -> tuple[bool, ...]:
        """Which axes of `shape` are known to be as long as those of `result` that they are broadcast to."""
        known = self.fitting.get((shape, result))
        if known is None:
            pairs = zip(shape, result[len(result) - len(shape) :], strict=True)
            known = tuple(self.system.known(equal(size, other)) is True for size, other in pairs)
            self.fitting[shape, result] = known
        return known

    def _is_from_outside(self, value: Value) -> bool:
        node = value.producer
        return node is None or (node not in self.inside and node.op.kind != "create")

    def _compute(self, value: Value, coordinates: tuple[Expr, ...], guard: Expr) -> Expr:
        hurry(len(self.made))
        if self._is_from_outside(value):
            return self._load(value, coordinates, guard)
        node = value.made_by
        if node.op.at is None:
            raise UnsupportedOperator(
                f"operator {node.op.name} has no coordinate rule",
                stage="kgen",
                node=value.name,
                source_line=node.source,
            )
        if node.op.fold:
            # what does not speak of this element's place is dropped: it may speak of a loop that the
            # reduction shares
            place = set().union(*(c.free for c in coordinates))
            guard = all_of(
                condition
                for condition in conditions(guard)
                if condition.free <= place | {v for v in condition.free if v.op == "size"}
            )
        if self.columns > 1 and is_window(node):
            return self._written_out(node, coordinates, guard)
        operands = [_Operand(self, operand, node, guard) for operand in node.inputs]
        scalar = node.op.at(coordinates, self._over(node, coordinates), *operands, **node.attributes)
        scalar = self._checked_under(guard, scalar)
        asked = node.op.kind == "pointwise" and all(x.dtype is not value.dtype for x in node.inputs)
        if asked or (node.op.kind == "create" and value.rank):
            scalar = cast(scalar, value.dtype)  # the user asks for this type, so the number is rounded to it
        # other results of a half type stay wide until they are stored, as does a plain number, with which
        # eager computes as it is
        scalar = _computed(scalar, value.dtype)
        if node.op.fold:
            scalar = reduce(node.op.fold, self._over(node, coordinates), scalar)
        return scalar

    def _written_out(self, node: Node, coordinates: tuple[Expr, ...], guard: Expr) -> Expr:
        """A reduction over a window, whose innermost loop is joined element by element."""
        assert node.op.at is not None and node.op.fold is not None
        *loops, last = self._over(node, coordinates)
        operands = [_Operand(self, operand, node, guard) for operand in node.inputs]
        key = self._key(node.result, coordinates, guard)
        total: Expr | None = None
        for place in range(last.args[0].value):
            if (key, place) not in self.terms:
                term = node.op.at(coordinates, (*loops, as_expr(place)), *operands, **node.attributes)
                self.terms[key, place] = _computed(self._checked_under(guard, term), node.result.dtype)
            term = self.terms[key, place]
            total = term if total is None else apply(FOLDS[node.op.fold].join, total, term)
        assert total is not None
        return reduce(node.op.fold, loops, total)

    def _checked_under(self, guard: Expr, scalar: Expr) -> Expr:
        """`scalar` with its index checks made only where it is wanted: elsewhere its loads give zeros, no
        indices."""
        wanted = set(conditions(guard))
        if not wanted or not self._holds_check(scalar):
            return scalar
        replace: dict[Expr, Expr] = {}
        for node in toposort([scalar], self.checks.__getitem__):
            if node.op == "check" and not wanted <= set(conditions(node.args[4])):
                *place, own = rebuild(list(node.args), replace, remake)
                replace[node] = remake(node, (*place, apply("and", guard, own)))
        return rebuild([scalar], replace, remake)[0] if replace else scalar

    def _holds_check(self, scalar: Expr) -> bool:
        """Whether there is a check in `scalar`; each node is looked at once in a group, not once an
        element."""
        for node in toposort([scalar], lambda each: each not in self.checks):
            self.checks[node] = node.op == "check" or any(self.checks[arg] for arg in node.args)
        return self.checks[scalar]

    def _over(self, node: Node, coordinates: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The loop indices of a reduction. Loops of equal extent share an index where they are not nested:
        what they compute is then the same expression, to be computed once."""
        if node.op.over is None:
            return ()
        taken = set().union(*(c.free for c in coordinates))
        chosen: list[Expr] = []
        for extent in node.op.over(*(value.type for value in node.inputs), **node.attributes):
            count = self.system.simplify(extent)
            loop = next((i for i in self.loops if i.args[0] is count and i not in taken), None)
            if loop is None:
                loop = index(f"r{len(self.loops)}", count)
                self.loops.append(loop)
            taken.add(loop)
            chosen.append(loop)
        return tuple(chosen)

    def _load(self, value: Value, coordinates: tuple[Expr, ...], guard: Expr) -> Expr:
        guard = guard_in_bounds(self.system, value.shape, coordinates, guard)
        return _computed(
            load(self.names[value], self._offset(value, coordinates), value.dtype, guard), value.dtype
        )

    def _is_divided(self, coordinate: Expr) -> bool:
        """Whether there is a quotient or a remainder in `coordinate`."""
        if coordinate not in self.divided:
            self.divided[coordinate] = bool(_divisions(coordinate))
        return self.divided[coordinate]

    def _offset(self, value: Value, coordinates: Sequence[Expr]) -> Expr:
        """The place of an element in its base buffer."""
        layout = self.layouts[value][1] if value in self.layouts else row_major(value.shape)
        offset = layout.offset
        for coordinate, stride in zip(coordinates, layout.strides, strict=True):
            offset = offset + coordinate * stride
        if not any(map(self._is_divided, coordinates)):
            return offset
        divided = _divisions(offset)
        # a quotient and its remainder may be coordinates of one place in memory
        joined = self.system.simplify(offset)
        return joined if len(_divisions(joined)) < len(divided) else offset


def _divisions(offset: Expr) -> list[Expr]:
    return [node for node in toposort([offset]) if node.op in ("floordiv", "mod")]


def _with_strip(indices: tuple[Expr, ...], columns: int) -> tuple[Expr, ...]:
    """`indices` with that of the last axis but one counting strips of `columns` places."""
    axis = indices[-2]
    return (*indices[:-2], index(f"{axis.value}_strip", ceildiv(axis.args[0], columns)), indices[-1])


class _Operand:
    """An operand of `node` as its coordinate rule sees it (ir.op.Operand)."""

    def __init__(self, inference: _Inference, value: Value, node: Node, guard: Expr) -> None:
        self.type: Type = value.type
        self.name = inference.names[value]
        self._inference, self._value, self._node, self._guard = inference, value, node, guard

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __getitem__(self, coordinates: Sequence[Expr]) -> Expr:
        return self._inference.read(self._value, coordinates, self._guard)

    def along(self, i: Sequence[Expr]) -> Expr:
        result = self._node.result.shape
        if len(result) != len(i):
            return self[broadcast_coordinates(self.shape, i)]
        fits = self._inference.fits(self.shape, result)
        trailing = zip(self.shape, fits, i[len(i) - len(fits) :], strict=True)
        return self[[own if fit else broadcast_coordinate(size, own) for size, fit, own in trailing]]

    def inside(self, coordinates: Sequence[Expr], guard: Expr, otherwise: Expr) -> Expr:
        guard = self._inference.system.simplify(guard)
        both = _joined(self._guard, guard)
        element = self._inference.read(self._value, coordinates, both)
        otherwise = cast(as_expr(otherwise, element.dtype), element.dtype)
        if _zero_outside(element, both) and otherwise.is_const and otherwise.value == 0:
            return element
        return where(guard, element, otherwise)


def _joined(guard: Expr, further: Expr) -> Expr:
    """Both conditions, with each bound once: writes into parts of parts ask under one bound after the other,
    and an element is made once for each guard it is asked under."""
    held, asked = [*conditions(guard)], [*conditions(further)]
    new = [one for one in asked if not any(_implies(other, one) for other in held)]
    kept = [one for one in held if not any(_implies(other, one) for other in new)]
    if len(kept) < len(held):
        guard = all_of(kept)
    if len(new) < len(asked):
        further = all_of(new)
    return apply("and", guard, further)


def _implies(one: Expr, other: Expr) -> bool:
    """Whether `other` is seen to hold where `one` does: they are one, or bound the same by numbers."""
    if one is other:
        return True
    if one.op != "le" or other.op != "le":
        return False
    (low, high), (lower, higher) = one.args, other.args
    if low.is_const and lower.is_const:
        return high is higher and low.value >= lower.value
    return high.is_const and higher.is_const and low is lower and high.value <= higher.value


def _zero_outside(element: Expr, guard: Expr) -> bool:
    """Is `element` a load that gives zero wherever `guard` does not hold?"""
    read = element.args[0] if element.op == "cast" else element
    return read.op == "load" and set(conditions(guard)) <= set(conditions(read.args[1]))


def _computed(scalar: Expr, dtype: DType) -> Expr:
    """`scalar` in the type that arithmetic on `dtype` is done in."""
    return cast(scalar, dtype.accumulator if dtype.is_float else dtype)


def _narrowed(scalar: Expr, dtype: DType) -> Expr:
    """`scalar` in `dtype` again; what was widened from it is taken as it was."""
    widened = scalar.op == "cast" and scalar.args[0].dtype is dtype and scalar.dtype is dtype.accumulator
    return scalar.args[0] if widened else cast(scalar, dtype)
