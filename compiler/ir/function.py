"""Functions over tensors of any rank, and loops. A function's signature is a pattern of shapes; a call binds
it to its arguments' shapes and builds the body in place, so that one definition serves many ranks in one
program.

In a pattern `n` is a size, `*s` a list of sizes (one in a shape), and anything else an expression that must
hold. What is bound twice must be equal: the statement goes into the program's system, and a contradiction is
a ShapeError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlcb.compiler.dtype import DTYPES, DType
from dlcb.compiler.errors import CompilerError, ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import substitute
from dlcb.compiler.expr.text import parse
from dlcb.compiler.ir.graph import GraphBuilder, Value
from dlcb.compiler.ir.op import Inference, Shape
from dlcb.compiler.shapes.shape import Shapes, shape
from dlcb.compiler.shapes.system import Provenance, System


@dataclass
class Sizes:
    """What the names of sizes mean in a function's body: `*s` stands for several sizes, any other name for
    one. With `shapes`, the program is of unknown rank, and a list of sizes may be unknown."""

    system: System
    shapes: Shapes | None = None
    one: dict[str, Expr] = field(default_factory=dict)
    several: dict[str, Shape] = field(default_factory=dict)

    def read(self, item: str) -> Shape:
        """The sizes that a text stands for: one, or those of a `*name`. Unknown names become new size
        variables."""
        if item.startswith("*"):
            if item[1:] not in self.several and self.shapes is not None:
                self.several[item[1:]] = (self.shapes.fresh(item[1:]),)  # type: ignore[assignment]
            if item[1:] not in self.several:
                raise ValueError(f"{item} is bound by no argument: known are {sorted(self.several)}")
            return self.several[item[1:]]
        return (self.meaning(parse(item)),)

    def meaning(self, expression: Expr) -> Expr:
        """`expression` with the names of this scope replaced by what they stand for."""
        for symbol in sorted(expression.free, key=lambda symbol: symbol.value):
            if symbol.value not in self.one:
                self.one[symbol.value] = self.system.fresh(symbol.value)
        return substitute(expression, {symbol: self.one[symbol.value] for symbol in expression.free})


@dataclass(frozen=True)
class Pattern:
    """A parameter: its name, element type (None: any) and the items of its shape."""

    name: str
    dtype: DType | None
    items: tuple[str, ...]

    @staticmethod
    def of(text: str) -> Pattern:
        """From "x: float32[*s, n, k]"; the type `any` takes every element type."""
        name, colon, rest = text.partition(":")
        dtype, bracket, shape = rest.strip().partition("[")
        if not (colon and bracket and shape.endswith("]")):
            raise ValueError(f"expected 'name: type[sizes]', found {text!r}")
        items = tuple(item.strip() for item in shape[:-1].split(",") if item.strip())
        if sum(item.startswith("*") for item in items) > 1:
            raise ValueError(f"a shape has one list of sizes at most, found {text!r}")
        return Pattern(name.strip(), None if dtype == "any" else DTYPES[dtype], items)

    def bind(self, value: Value, sizes: Sizes, why: Provenance) -> None:
        """Give the pattern's names their meaning, or state that it agrees with the one they have."""
        if self.dtype is not None and value.dtype is not self.dtype:
            raise ShapeError(f"{self!r} does not take {value!r}: {value.type!r}")
        if sizes.shapes is not None:
            expected = shape(*(part for item in self.items for part in sizes.read(item)))
            sizes.shapes.same(shape(*value.shape), expected, why)
            return
        lists = [k for k, item in enumerate(self.items) if item.startswith("*")]
        missing = len(self.items) - len(lists) - value.rank
        if missing > 0 or (missing and not lists):
            raise ShapeError(f"{self!r} does not fit the rank of {value!r}: {value.type!r}")
        parts: list[Shape] = [(extent,) for extent in value.shape]
        for k in lists:
            parts[k : k - missing] = [value.shape[k : k - missing]]
        infer = sizes.system.inference(why)
        for item, part in zip(self.items, parts, strict=True):
            self._bind_item(item, part, sizes, infer)

    def _bind_item(self, item: str, part: Shape, sizes: Sizes, infer: Inference) -> None:
        if item.startswith("*") and item[1:] not in sizes.several:
            sizes.several[item[1:]] = part
        elif item.isidentifier() and item not in sizes.one:
            (sizes.one[item],) = part
        else:
            known = sizes.read(item)
            if len(known) != len(part):
                raise ShapeError(f"{item} stands for {list(known)} and for {list(part)} ({self!r})")
            for expected, found in zip(known, part, strict=True):
                infer.equal(expected, found, f"{item} in {self!r}")

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype or 'any'}[{', '.join(self.items)}]"


Body = Callable[[GraphBuilder, Sizes, Sequence[Value]], Sequence[Value]]


@dataclass(frozen=True)
class Function:
    """A named body with patterns for its arguments. `body(build, sizes, arguments)` gives the results."""

    name: str
    parameters: tuple[Pattern, ...]
    body: Body

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.parameters))})"


def call(build: GraphBuilder, function: Function, *arguments: Value) -> tuple[Value, ...]:
    """The results of `function`, built in place."""
    if len(arguments) != len(function.parameters):
        raise CompilerError(
            f"{function!r} takes {len(function.parameters)} arguments, found {len(arguments)}"
        )
    sizes = Sizes(build.system, build.shapes)
    for pattern, value in zip(function.parameters, arguments, strict=True):
        where = Provenance(f"call of {function.name}", build.source, f"{value!r}: {value.type!r}")
        pattern.bind(value, sizes, where)
    return tuple(function.body(build, sizes, arguments))


def loop(build: GraphBuilder, function: Function, *arguments: Value, count: int) -> tuple[Value, ...]:
    """The state after `count` turns of `function`. The first arguments are the state, as many as it has
    results, and keep their types from turn to turn; the others stay as they are."""
    state = arguments
    results = len(arguments)
    for turn in range(count):
        new = call(build, function, *state)
        results = len(new)
        for old, value in zip(state, new, strict=False):
            _invariant(build, function, turn, old, value)
        state = (*new, *arguments[results:])
    return state[:results]


def _invariant(build: GraphBuilder, function: Function, turn: int, old: Value, new: Value) -> None:
    what = f"turn {turn + 1} of the loop over {function.name} makes {new.type!r} of the state {old.type!r}"
    if old.dtype is not new.dtype:
        raise ShapeError(what, source_line=build.source)
    why = Provenance(f"loop over {function.name}", build.source, what)
    build.agree(old.shape, new.shape, why, "of the state")
