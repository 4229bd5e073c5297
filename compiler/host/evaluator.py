"""Many expressions over size variables as one Python function, so that a new shape costs arithmetic and no
walk over trees. Shared sub-expressions are computed once. A quotient or remainder by zero, which has no
value, comes out as 0, and so does an integer made of infinity: an empty dim must not stop the evaluation of
what it leaves unused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from dlcb.compiler.dtype import BOOL
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.ops import OPS, whole

_CONVERSIONS = {"bool": "bool", "int": "int", "uint": "int", "float": "float"}


@dataclass(frozen=True)
class Spread:
    """Inside a tuple or list: the numbers that `function` makes of the argument's number, one after
    another."""

    function: Callable[[int], Iterable[int]]
    argument: Expr


@dataclass(frozen=True)
class Choice:
    """The first tree whose condition holds; what is in the others only is not computed. Where none holds,
    None, or `error` makes what is raised. Equal choices are computed once, so what they hold has a hash."""

    cases: tuple[tuple[Expr, Any], ...]
    error: Callable[[], Exception] | None = field(default=None, compare=False)


def compile_expressions(
    tree: Any,
    sizes: Sequence[str],
    definitions: Sequence[tuple[str, Expr]] = (),
    unknown: int | None = None,
    within: Expr | None = None,
) -> Callable[..., Any]:
    """A function of `sizes`, in this order, that gives `tree` with numbers in place of its expressions; None,
    and nothing is computed, where `within` does not hold.

    `tree` nests tuples (named ones too), lists, mappings and choices; whatever else it holds stays as it is.
    `definitions` are further size variables in terms of `sizes`. An expression over a size variable that
    nothing gives is `unknown`; without that, and in `within`, it is a KeyError that names the variable.
    """
    writer = _Writer(sizes, definitions, unknown)
    done: dict[Any, str] = {}
    first: list[str] = []
    if within is not None:
        if missing := writer.not_given(within):  # a condition that is not known is none that holds
            raise KeyError(missing[0])
        first, condition = writer.write(within, done)
        first += [f"if not {condition}:", "    return None"]
    body, result = writer.write(tree, done)
    lines = "".join(f"    {line}\n" for line in (*first, *body))
    text = f"def evaluate({', '.join(writer.names[size] for size in sizes)}):\n{lines}    return {result}\n"
    exec(compile(text, "<host program>", "exec"), writer.scope)
    return cast(Callable[..., Any], writer.scope["evaluate"])


class _Writer:
    """Writes statements that compute a tree, and the tree in terms of what they compute."""

    def __init__(
        self, sizes: Sequence[str], definitions: Sequence[tuple[str, Expr]], unknown: int | None
    ) -> None:
        self.names = {size: f"s{k}" for k, size in enumerate(sizes)}
        self.scope: dict[str, Any] = {}  # what the statements name beside their variables
        self._definitions, self._unknown = dict(definitions), unknown
        self._given = set(sizes) | set(self._definitions)
        self._numbers = count()

    def write(self, tree: Any, done: dict[Any, str]) -> tuple[list[str], str]:
        """`done` has the variables of what was computed before."""
        lines: list[str] = []
        leaves = list(_leaves(tree))
        self._compute([leaf for leaf in leaves if isinstance(leaf, Expr)], lines, done)
        for leaf in leaves:
            if isinstance(leaf, Choice) and leaf not in done:
                lines += self._choose(leaf, done)
        return lines, self._spell(tree, done)

    def _compute(self, expressions: Sequence[Expr], lines: list[str], done: dict[Any, str]) -> None:
        known = [e for e in expressions if self._unknown is None or self._is_given(e)]
        for node in toposort(known, lambda n: n not in done):
            if node.op == "const":
                done[node] = repr(node.value) if math.isfinite(node.value) else self._constant(node.value)
            elif node.op == "size" and node.value in self._definitions:
                value = self._definitions[node.value]  # stands on sizes and on definitions before it
                self._compute([value], lines, done)
                done[node] = done[value]
            elif node.op == "size":
                done[node] = self.names[node.value]
            else:
                done[node] = f"v{next(self._numbers)}"
                lines.append(f"{done[node]} = {_line(node, [done[arg] for arg in node.args], self.scope)}")

    def not_given(self, e: Expr) -> list[str]:
        """The size variables of `e` that nothing gives."""
        return sorted(size.value for size in e.free if size.value not in self._given)

    def _is_given(self, e: Expr) -> bool:
        return not self.not_given(e)

    def _choose(self, choice: Choice, done: dict[Any, str]) -> list[str]:
        name = f"v{next(self._numbers)}"
        lines: list[str] = []
        for condition, tree in choice.cases:
            statements, result = self.write(tree, dict(done))
            lines.append(f"{'elif' if lines else 'if'} {self._spell(condition, done)}:")
            lines += [f"    {statement}" for statement in (*statements, f"{name} = {result}")]
        otherwise = f"{name} = None" if choice.error is None else f"raise {self._constant(choice.error)}()"
        done[choice] = name
        return [*lines, "else:", f"    {otherwise}"]

    def _spell(self, part: Any, done: Mapping[Any, str]) -> str:
        if isinstance(part, Expr):
            return done.get(part) or repr(self._unknown)
        if isinstance(part, Choice):
            return done[part]
        if isinstance(part, Spread):
            return f"*{self._constant(part.function)}({self._spell(part.argument, done)})"
        if next(_leaves(part), None) is None:
            return self._constant(part)
        if isinstance(part, Mapping):
            return "{" + "".join(f"{key!r}: {self._spell(item, done)}, " for key, item in part.items()) + "}"
        items = "".join(f"{self._spell(item, done)}, " for item in part)
        if isinstance(part, list):
            return f"[{items}]"
        return f"({items})" if type(part) is tuple else f"{self._constant(type(part))}({items})"

    def _constant(self, value: Any) -> str:
        name = f"k{next(self._numbers)}"
        self.scope[name] = value
        return name


def _leaves(tree: Any) -> Iterator[Expr | Choice]:
    """Expressions to compute at once, conditions of choices among them, and the choices."""
    if isinstance(tree, Expr):
        yield tree
    elif isinstance(tree, Spread):
        yield tree.argument
    elif isinstance(tree, Choice):
        yield from (condition for condition, _ in tree.cases)
        yield tree
    elif isinstance(tree, Mapping):
        yield from _leaves(tuple(tree.values()))
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from _leaves(item)


def _line(node: Expr, args: list[str], scope: dict[str, object]) -> str:
    match node.op:
        case "cast" if node.args[0].dtype.is_float and not node.dtype.is_float and node.dtype is not BOOL:
            scope["_whole"] = whole
            return f"_whole({args[0]})"
        case "cast":
            return f"{_CONVERSIONS[node.dtype.kind]}({args[0]})"
        case "where":
            return f"{args[1]} if {args[0]} else {args[2]}"
        case "min" | "max" if not node.dtype.is_float:  # of floats, NaN is the result
            return f"{args[0]} if {args[0]} {'<' if node.op == 'min' else '>'} {args[1]} else {args[1]}"
        case "not":
            return f"not {args[0]}"
        case "floordiv" | "mod" if not (node.args[1].is_const and node.args[1].value):
            return f"{args[0]} {OPS[node.op].symbol} {args[1]} if {args[1]} else 0"
    row = OPS[node.op]
    if row.symbol is not None and node.op != "div":
        return f"{args[0]} {row.symbol} {args[1]}"
    scope[f"_{node.op}"] = row.meaning
    return f"_{node.op}({', '.join(args)})"
