"""Shapes whose rank may be unknown: a shape is a list of parts, each a dim or a shape variable that stands
for any number of dims. Stating that two shapes are the same unpacks their lists from both ends, that they
broadcast from the last axis on; dims go to the system of sizes, and what is left binds shape variables, so
that rank is inferred as well as sizes. What stays undecided is checked where the shapes are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr
from dlcb.compiler.expr.show import brief
from dlcb.compiler.shapes.statement import UNSTATED, Provenance
from dlcb.compiler.shapes.system import System
from dlcb.compiler.solver.engine import STEPS, Engine, Report
from dlcb.compiler.solver.pattern import Bindings, Pattern
from dlcb.compiler.solver.rule import Rule, RuleSet


@dataclass(frozen=True)
class ShapeVariable:
    """Stands for a list of dims of unknown length."""

    name: str

    def __repr__(self) -> str:
        return f"*{self.name}"


Part: TypeAlias = Expr | ShapeVariable


@dataclass(frozen=True)
class Shape:
    """The append of `parts`. Appends within appends are flat: (a ++ b) ++ c is a ++ (b ++ c)."""

    parts: tuple[Part, ...] = ()

    @property
    def rank(self) -> int | None:
        """The number of dims, None where a shape variable is left."""
        return len(self.parts) if self.is_list else None

    @property
    def is_list(self) -> bool:
        return not any(isinstance(part, ShapeVariable) for part in self.parts)

    @property
    def dims(self) -> tuple[Expr, ...]:
        """The sizes; ShapeError where the rank is not known."""
        if not self.is_list:
            raise ShapeError(f"the rank of {self!r} is not known", stage="shapes")
        return self.parts  # type: ignore[return-value]

    def __add__(self, other: Shape) -> Shape:
        return Shape(self.parts + other.parts)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.parts))}]"

    def in_brief(self) -> str:
        """The same, without what long expressions hold far inside."""
        return f"[{', '.join(brief(part) if isinstance(part, Expr) else repr(part) for part in self.parts)}]"


def shape(*parts: Part | Shape | int) -> Shape:
    """A shape from sizes, numbers, shape variables and shapes, appended."""
    flat: list[Part] = []
    for part in parts:
        if isinstance(part, Shape):
            flat.extend(part.parts)
        else:
            flat.append(part if isinstance(part, ShapeVariable) else as_expr(part))
    return Shape(tuple(flat))


@dataclass(frozen=True)
class Same:
    """The statement left == right; `said` is what it came from."""

    left: Shape
    right: Shape
    why: Provenance
    said: tuple[Shape, Shape]
    op: str = field(default="same", init=False)

    def rest(self, left: tuple[Part, ...], right: tuple[Part, ...]) -> Same:
        return Same(Shape(left), Shape(right), self.why, self.said)

    def mentions(self, part: Part) -> bool:
        return part in self.left.parts or part in self.right.parts


@dataclass(frozen=True)
class Joined:
    """The statement that left and right broadcast to result; `said` is what it came from."""

    left: Shape
    right: Shape
    result: Shape
    why: Provenance
    said: tuple[Shape, Shape]
    op: str = field(default="joined", init=False)

    def rest(self, left: tuple[Part, ...], right: tuple[Part, ...], result: Shape) -> Joined:
        return Joined(Shape(left), Shape(right), result, self.why, self.said)

    def mentions(self, part: Part) -> bool:
        return part in self.left.parts or part in self.right.parts or part in self.result.parts

    def is_result(self, parts: tuple[Part, ...]) -> Same:
        return Same(self.result, Shape(parts), self.why, self.said)


class Shapes:
    """What is known of shape variables, over a system of sizes. `budget` limits the engine's steps."""

    def __init__(self, system: System, budget: int = STEPS) -> None:
        self.system = system
        self.bound: dict[ShapeVariable, Shape] = {}
        # what no rule decides yet; looked at again when a variable is bound
        self.residual: list[Same | Joined] = []
        self.stated: list[Same | Joined] = []
        self._engine = Engine(UNPACKING, budget)
        self._names: dict[str, int] = {}  # in the order in which they were made
        self._numbers: dict[str, int] = {}  # hint -> how many were named after it

    def fresh(self, hint: str) -> ShapeVariable:
        """A new, uniquely named shape variable."""
        name, count = hint, self._numbers.get(hint, 0)
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._numbers[hint] = count
        self._names[name] = len(self._names)
        return ShapeVariable(name)

    def age(self, variable: ShapeVariable) -> int:
        return self._names.get(variable.name, -1)

    def same(self, left: Shape, right: Shape, why: Provenance = UNSTATED) -> Shape:
        """States that two shapes are the same and gives it. ShapeError where they cannot be, naming both."""
        self._state(Same(left, right, why, (left, right)))
        return self.resolve(left)

    def broadcast(self, left: Shape, right: Shape, why: Provenance = UNSTATED) -> Shape:
        """The shape that both broadcast to, aligned at the last axis; a shape variable stands for what is not
        decided of it. ShapeError where they do not broadcast, naming both."""
        result = shape(self.fresh("joined"))
        self._state(Joined(left, right, result, why, (left, right)))
        return self.resolve(result)

    def _state(self, it: Same | Joined) -> None:
        self.stated.append(it)
        self._engine.run([it], self, self._keep)

    def _keep(self, it: Same | Joined) -> None:
        self.residual.append(it)

    def at(self, found: Mapping[ShapeVariable, Shape]) -> Shapes:
        """All that was stated, stated again where run time has found what shape variables stand for.
        ShapeError for a statement that does not hold there, or that even this does not decide."""
        system = System()
        system.adopt(self.system)
        there = Shapes(system)
        there._names = dict(self._names)
        there.bound.update(found)
        # what was made on the way was made from the statements, and is stated after them
        made = [Same(shape(v), value, UNSTATED, (shape(v), value)) for v, value in self.bound.items()]
        for it in (*self.stated, *made, *self.residual):
            there._state(it)
        for it in there.residual:
            left, right = it.said
            raise ShapeError(
                f"{it.why.operator or 'the caller'}: shapes {left!r} and {right!r} are not known well enough",
                stage="shapes", node=it.why.operator, source_line=it.why.source,
            )  # fmt: skip
        return there

    def resolve(self, x: Shape) -> Shape:
        """`x` with bound shape variables and known sizes put in."""
        parts: list[Part] = []
        stack = list(reversed(x.parts))
        while stack:
            part = stack.pop()
            if isinstance(part, Expr):
                parts.append(self.system.simplify(part))
            elif part in self.bound:
                stack.extend(reversed(self.bound[part].parts))
            else:
                parts.append(part)
        return Shape(tuple(parts))

    def report(self) -> Report:
        return self._engine.report()


class _Sides(Pattern):
    """Matches a statement whose two sides `test` accepts, in either order."""

    heads = frozenset(("same",))

    def __init__(self, test: Callable[[tuple[Part, ...], tuple[Part, ...]], bool]) -> None:
        self.test = test

    def match(self, node: Same, bound: Bindings) -> Iterator[Bindings]:  # type: ignore[override]
        for a, b in ((node.left.parts, node.right.parts), (node.right.parts, node.left.parts)):
            if self.test(a, b):
                yield {"it": node, "a": a, "b": b}  # type: ignore[dict-item]


Parts: TypeAlias = tuple[Part, ...]


def _is_dim(part: Part) -> bool:
    return isinstance(part, Expr)


def _dims_at(end: int) -> Callable[[Parts, Parts], bool]:
    return lambda a, b: bool(a and b) and _is_dim(a[end]) and _is_dim(b[end])


def resolved(shapes: Shapes, it: Same, a: Parts, b: Parts) -> tuple[Same, ...] | None:
    left, right = shapes.resolve(it.left), shapes.resolve(it.right)
    return None if (left, right) == (it.left, it.right) else (it.rest(left.parts, right.parts),)


def first_dims(shapes: Shapes, it: Same, a: Parts, b: Parts) -> tuple[Same, ...]:
    _equal(shapes, it, a[0], b[0])
    return (it.rest(a[1:], b[1:]),)


def last_dims(shapes: Shapes, it: Same, a: Parts, b: Parts) -> tuple[Same, ...]:
    _equal(shapes, it, a[-1], b[-1])
    return (it.rest(a[:-1], b[:-1]),)


def _equal(shapes: Shapes, it: Same, a: Part, b: Part) -> None:
    shapes.system.equal(a, b, _because(it))  # type: ignore[arg-type]


def _because(it: Same | Joined) -> Provenance:
    left, right = it.said
    detail = ", ".join(filter(None, (it.why.detail, f"shapes {left.in_brief()} and {right.in_brief()}")))
    return Provenance(it.why.operator, it.why.source, detail)


def bind(shapes: Shapes, it: Same, a: Parts, b: Parts) -> tuple[Same | Joined, ...]:
    """Of two variables the older represents both."""
    if len(b) == 1 and isinstance(b[0], ShapeVariable) and shapes.age(b[0]) > shapes.age(a[0]):  # type: ignore[arg-type]
        a, b = b, a
    shapes.bound[a[0]] = Shape(b)  # type: ignore[index]
    waiting, shapes.residual = shapes.residual, []
    again: list[Same | Joined] = []
    for statement in waiting:
        (again if statement.mentions(a[0]) else shapes.residual).append(statement)  # type: ignore[arg-type]
    return tuple(again)


def mismatch(shapes: Shapes, it: Same, a: Parts, b: Parts) -> tuple[Same, ...]:
    left, right = it.said
    found = shapes.resolve(left), shapes.resolve(right)
    known = f" (known to be {found[0]!r} and {found[1]!r})" if found != it.said else ""
    message = f"{it.why.operator or 'the caller'}: shapes {left!r} and {right!r} differ in rank{known}"
    if it.why.detail:
        message += f", for {it.why.detail}"
    raise ShapeError(message, stage="shapes", node=it.why.operator, source_line=it.why.source)


# ---- broadcasting


class _Joins(Pattern):
    """Matches a broadcast whose two sides `test` accepts, in either order."""

    heads = frozenset(("joined",))

    def __init__(self, test: Callable[[Parts, Parts], bool]) -> None:
        self.test = test

    def match(self, node: Joined, bound: Bindings) -> Iterator[Bindings]:  # type: ignore[override]
        for a, b in ((node.left.parts, node.right.parts), (node.right.parts, node.left.parts)):
            if self.test(a, b):
                yield {"it": node, "a": a, "b": b}  # type: ignore[dict-item]


def resolved_join(shapes: Shapes, it: Joined, a: Parts, b: Parts) -> tuple[Joined, ...] | None:
    left, right = shapes.resolve(it.left), shapes.resolve(it.right)
    return None if (left, right) == (it.left, it.right) else (it.rest(left.parts, right.parts, it.result),)


def join_last(shapes: Shapes, it: Joined, a: Parts, b: Parts) -> tuple[Same | Joined, ...]:
    """The last part of the result, and what is left of the three."""
    last = a[-1]
    if last != b[-1]:
        last = shapes.system.broadcast(a[-1], b[-1], _because(it))  # type: ignore[arg-type]
    before = shape(shapes.fresh("joined"))
    return it.is_result((*before.parts, last)), it.rest(a[:-1], b[:-1], before)


def _alone(a: Parts, b: Parts) -> bool:
    return len(a) == 1 and isinstance(a[0], ShapeVariable) and a[0] not in b


def _too_long(a: Parts, b: Parts) -> bool:
    """`a` is a list, and shorter than the dims that `b` has at least; or both sides are unequal with one
    variable in common."""
    least_a, least_b = sum(map(_is_dim, a)), sum(map(_is_dim, b))
    if least_a >= least_b:
        return False
    in_b = Counter(part for part in b if not _is_dim(part))
    return Counter(part for part in a if not _is_dim(part)) <= in_b


UNPACKING: RuleSet = (
    # what is known of shape variables is put in
    Rule("resolve", _Sides(lambda a, b: True), resolved),
    # [] == [] -> nothing left
    Rule("empty", _Sides(lambda a, b: not a and not b), lambda shapes, it, a, b: (), priority=1),
    # a ++ x has more dims than b can have
    Rule("rank", _Sides(_too_long), mismatch, priority=1),
    # s ++ x == s ++ y -> x == y, x ++ s == y ++ s -> x == y
    Rule(
        "same first",
        _Sides(lambda a, b: bool(a and b) and a[0] == b[0]),
        lambda shapes, it, a, b: (it.rest(a[1:], b[1:]),),
        priority=2,
    ),
    Rule(
        "same last",
        _Sides(lambda a, b: bool(a and b) and a[-1] == b[-1]),
        lambda shapes, it, a, b: (it.rest(a[:-1], b[:-1]),),
        priority=2,
    ),
    # [n] ++ x == [m] ++ y -> n == m, x == y; likewise at the end
    Rule("unpack first", _Sides(_dims_at(0)), first_dims, priority=3),
    Rule("unpack last", _Sides(_dims_at(-1)), last_dims, priority=3),
    # s == x -> x for s everywhere
    Rule("bind", _Sides(_alone), bind, priority=4),
    # s ++ t == [] -> s == [], t == []
    Rule(
        "nothing left",
        _Sides(lambda a, b: not b and bool(a) and not any(map(_is_dim, a))),
        lambda shapes, it, a, b: tuple(it.rest((part,), ()) for part in a),
        priority=5,
    ),
    # what is known is put in
    Rule("resolve join", _Joins(lambda a, b: True), resolved_join),
    # [] and y -> y
    Rule("join nothing", _Joins(lambda a, b: not a), lambda shapes, it, a, b: (it.is_result(b),), priority=1),
    # x ++ [n] and y ++ [m] -> (x and y) ++ [n and m], x ++ s and y ++ s -> (x and y) ++ s
    Rule(
        "join last",
        _Joins(lambda a, b: bool(a and b) and (a[-1] == b[-1] or (_is_dim(a[-1]) and _is_dim(b[-1])))),
        join_last,
        priority=2,
    ),
)
