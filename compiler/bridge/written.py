"""Whether a number that an exported program gives to a call was written by the program's author, or may have
been made of a size: a file keeps the line of `forward` that a call comes from. `x * 0.5`, `x * self.scale`
settle their numbers; of `x / n` the line tells nothing; what a function does that it calls is unseen."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from dlcb.compiler.expr.dag import Expr

Number = int | float


class Origin(Enum):
    """Where a number comes from, as far as the line tells."""

    WRITTEN = "the line writes it out, it is an attribute of the module, or what the call takes by default"
    OF_PYTORCH = "one of PyTorch's own modules gives it to the call: an attribute, or a size as it stands"
    SIZE = "the line gives the call the size of a tensor there, as it stands"
    NAMED = "the line gives the call a name there"
    CALCULATED = "the line calculates what it gives the call there, so that it is no size as it stands"
    UNSEEN = "the line does not show the call"


@dataclass(frozen=True)
class Formula:
    """What a line calculates from one unknown, which is the size of a tensor as it stands, if `of_size`."""

    calculate: Callable[[Any], Any]
    of_size: bool

    def __call__(self, n: int) -> Number | None:
        """Its value for a size; None where it has none."""
        value = _calculated(self.calculate, n)
        return value if isinstance(value, (int, float)) else None

    def expression(self, size: Expr) -> Expr | None:
        """The same as an expression over a size; None where it is more than whole numbers."""
        value = _calculated(self.calculate, size)
        return value if isinstance(value, Expr) and value.dtype == size.dtype else None


@dataclass(frozen=True)
class Told:
    """Where a number comes from; `formula`: what the line makes of a size, where it calculates with one."""

    origin: Origin
    formula: Formula | None = None


@dataclass(frozen=True)
class Call:
    """One call of a program: its operator's name without overload, and the operator's arguments by name and
    in order, defaults filled in."""

    operator: str
    arguments: Mapping[str, Any]
    left_out: frozenset[str] = frozenset()  # arguments that the program does not give
    of_weight: bool = False  # whether the first argument is one of the program's weights
    times: int = 1  # how many calls of this operator come from the same line


def told(stack_trace: str, call: Call, name: str, place: int | None = None) -> Told:
    """Where argument `name` of `call` comes from, or the entry at `place` of it, where it is a list."""
    path, text = _line(stack_trace)
    if path.startswith(_MODULES):
        return Told(Origin.OF_PYTORCH)
    shown = _shown(text, call.operator)
    found = [given.told(call, name, place) for given in shown if given.may_be(call)]
    order = _ANY if call.operator in _ARITHMETIC and len(shown) <= call.times else _EACH
    kind = next((kind for kind in order if any(each.origin is kind for each in found)), Origin.UNSEEN)
    of_kind = [each for each in found if each.origin is kind]
    return of_kind[0] if len(of_kind) == 1 else Told(kind)


# Of several calls that a line shows the one at hand is not known: what tells of all. Sides of operators may
# be tensors, so that one number that is written settles it, unless numbers are calculated in this way too.
_EACH = (Origin.CALCULATED, Origin.NAMED, Origin.SIZE, Origin.WRITTEN)
_ANY = (Origin.WRITTEN, Origin.CALCULATED, Origin.SIZE, Origin.NAMED)
_MODULES = f"{Path(torch.__file__).parent}/nn/modules/"


def _line(stack_trace: str) -> tuple[str, str]:
    """The file and text of the innermost line of a node's stack trace."""
    path = text = ""
    for line in stack_trace.splitlines():
        if line.strip().startswith('File "'):
            path, text = line.strip()[6:].partition('"')[0], ""
        elif not text:
            text = line.strip()
    return path, text


# ---- the calls of a line -----------------------------------------------------------------------------

_ARITHMETIC: dict[str, tuple[type, ...]] = {
    "add": (ast.Add,),
    "sub": (ast.Sub,),
    "rsub": (ast.Sub,),
    "mul": (ast.Mult,),
    "reciprocal": (ast.Div,),
    "div": (ast.Div,),
    "true_divide": (ast.Div,),
    "floor_divide": (ast.FloorDiv,),
    "remainder": (ast.Mod,),
    "pow": (ast.Pow,),
    "eq": (ast.Eq,),
    "ne": (ast.NotEq,),
    "lt": (ast.Lt, ast.Gt),
    "le": (ast.LtE, ast.GtE),
    "gt": (ast.Gt, ast.Lt),
    "ge": (ast.GtE, ast.LtE),
}
_ON_THE_RIGHT = frozenset({"sub", "div", "true_divide", "floor_divide", "remainder"})
_INDEXING = frozenset({"slice", "select"})
_SPREAD = frozenset(
    {"repeat", "tile", "expand", "view", "reshape", "zeros", "ones", "new_zeros", "new_ones", "empty"}
)
# PyTorch's functions that are written in Python, and what they call
_FUNCTIONS = {
    "interpolate": ("upsample",),
    "normalize": ("linalg_vector_norm", "norm", "clamp_min"),
    "split": ("split_with_sizes",),
    "norm": ("linalg_vector_norm",),
    "subtract": ("sub",),
    "multiply": ("mul",),
    "divide": ("div",),
    "clip": ("clamp",),
    "tile": ("repeat",),
}
_FAMILIES = ("fft", "linalg", "special")  # modules of functions, with which their operators' names begin
_MODULE_NAMES = frozenset({"torch", "F", "nn", "functional", "math", "_C", "_nn", "_VF", *_FAMILIES})


@dataclass(frozen=True)
class _Operands:
    """Two sides of an operator, one of which is a tensor."""

    sides: tuple[ast.expr, ...]

    def may_be(self, call: Call) -> bool:
        return True

    def told(self, call: Call, name: str, place: int | None) -> Told:
        value = call.arguments[name]
        if name in call.left_out or any(_is(_value(side), value) for side in self.sides):
            return _WRITTEN
        if call.operator in _ON_THE_RIGHT:
            return _told(self.sides[-1])
        if any(_is_own(side) for side in self.sides) and not call.of_weight:
            return _WRITTEN
        of_sizes = [side for side in self.sides if _takes_a_size(side)]
        if len(of_sizes) == 1:
            return _told(of_sizes[0])
        calculated = [side for side in self.sides if _is_calculated(side)]
        return Told(Origin.NAMED, _formula(calculated[0]) if len(calculated) == 1 else None)


@dataclass(frozen=True)
class _Index:
    """One entry between the brackets behind a tensor, with its place among them where that is the axis."""

    axis: int | None
    given: Mapping[str, ast.expr]

    def may_be(self, call: Call) -> bool:
        return set(self.given) <= set(call.arguments) and self.axis in (None, call.arguments["dim"])

    def told(self, call: Call, name: str, place: int | None) -> Told:
        return _told(self.given[name]) if name in self.given else _WRITTEN


@dataclass(frozen=True)
class _Entries:
    """A list of numbers that becomes a tensor."""

    entries: tuple[ast.expr, ...]

    def may_be(self, call: Call) -> bool:
        return len(self.entries) == len(call.arguments["data"])

    def told(self, call: Call, name: str, place: int | None) -> Told:
        return _told(self.entries[place or 0])


@dataclass(frozen=True)
class _Arguments:
    """A call with arguments, as a function or as a tensor's method; `same`: they stand in the operator's
    order."""

    positional: tuple[ast.expr, ...]
    keywords: Mapping[str, ast.expr]
    method: bool
    same: bool

    def may_be(self, call: Call) -> bool:
        """Whether nothing that is written here contradicts the numbers of `call`."""
        if not self.same:
            return True
        return all(
            _value(written) is None or _is(_value(written), number)
            for name, argument in call.arguments.items()
            for place, number in _numbers(argument)
            if (written := self._at(call, name, place)) is not None
        )

    def told(self, call: Call, name: str, place: int | None) -> Told:
        if any(isinstance(each, ast.Starred) for each in self.positional) or "" in self.keywords:
            return Told(Origin.NAMED)
        if not self.same:
            return _of_all([*self.positional[0 if self.method else 1 :], *self.keywords.values()])
        written = self._at(call, name, place)
        return _WRITTEN if written is None else _told(written)

    def _at(self, call: Call, name: str, place: int | None) -> ast.expr | None:
        """What is written for an argument, or for one entry of it; None where the call's default counts."""
        if name in self.keywords:
            return _entry(self.keywords[name], place)
        k = list(call.arguments).index(name) - (1 if self.method else 0)
        entries = self.positional[k:] if k >= 0 else ()
        if place is not None and call.operator in _SPREAD and len(entries) == len(call.arguments[name]) > 1:
            return entries[place]  # x.repeat(1, 2) and x.repeat((1, 2)) are one call
        return _entry(entries[0], place) if entries else None


def _entry(written: ast.expr, place: int | None) -> ast.expr:
    """One entry of a list that is written out; of anything else the whole."""
    if place is not None and isinstance(written, (ast.Tuple, ast.List)) and place < len(written.elts):
        return written.elts[place]
    return written


def _numbers(argument: Any) -> Iterator[tuple[int | None, Number]]:
    """The numbers in an argument, with their places in it where it is a list."""
    entries = enumerate(argument) if isinstance(argument, (list, tuple)) else ((None, argument),)
    for place, value in entries:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield place, value


_Shown = _Operands | _Index | _Entries | _Arguments


@lru_cache(maxsize=4096)
def _shown(text: str, operator: str) -> tuple[_Shown, ...]:
    """What the line has that may be a call of `operator`."""
    return tuple(each for node in ast.walk(_parsed(text)) for each in _shown_by(node, operator))


def _shown_by(node: ast.AST, operator: str) -> Iterator[_Shown]:
    signs = _ARITHMETIC.get(operator, ())
    match node:
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, signs):
            if _value(node) is None and not _is_own(node):  # else the author's own arithmetic
                yield _Operands((left, right))
        case ast.AugAssign(op=op, value=value) if isinstance(op, signs):
            yield _Operands((value,))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, signs):
            yield _Operands((left, right))
        case ast.Subscript(slice=index) if operator in _INDEXING:
            yield from _indices(index, operator)
        case ast.Subscript(slice=index) if operator == "tensor":
            items = index.elts if isinstance(index, ast.Tuple) else [index]
            yield from (_Entries(tuple(item.elts)) for item in items if isinstance(item, ast.List))
        case ast.Call(func=func, args=[ast.List(elts=entries) | ast.Tuple(elts=entries), *_]) if (
            operator == "tensor" and _called(func) in _TENSORS
        ):
            yield _Entries(tuple(entries))
        case ast.Call(func=func, args=[entry, *_]) if operator == "tensor" and _called(func) in _TENSORS:
            yield _Entries((entry,))
        case ast.Call(func=func, args=args, keywords=keywords) if (name := _called(func)) is not None:
            same = operator in (name, *(f"{family}_{name}" for family in _FAMILIES))
            if same or any(operator.startswith(each) for each in _FUNCTIONS.get(name, ())):
                by_name = {each.arg or "": each.value for each in keywords}
                yield _Arguments(tuple(args), by_name, _is_method(func), same)


_TENSORS = frozenset({"tensor", "as_tensor", "scalar_tensor", "new_tensor", "asarray"})


def _indices(index: ast.expr, operator: str) -> Iterator[_Index]:
    """The entries of an index that may be a slice, or a position."""
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    plain = all(isinstance(item, ast.Slice) for item in items)  # nothing adds or removes an axis
    for axis, item in enumerate(items):
        if isinstance(item, ast.Slice) and operator == "slice":
            bounds = {"start": item.lower, "end": item.upper, "step": item.step}
            given = {name: bound for name, bound in bounds.items() if bound is not None}
            yield _Index(axis if plain else None, given)
        elif operator == "select" and not isinstance(item, ast.Slice):
            yield _Index(None, {"index": item})


def _called(function: ast.expr) -> str | None:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name.rstrip("_") if isinstance(name, str) else None


def _is_method(function: ast.expr) -> bool:
    """Whether what stands before the dot is a tensor, and no module of functions."""
    if not isinstance(function, ast.Attribute):
        return False
    before = function.value
    return _called(before) not in _MODULE_NAMES if isinstance(before, (ast.Name, ast.Attribute)) else True


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.AST:
    """The line as a tree; of a statement over several lines what stands in this one; nothing where that is
    no Python."""
    kept, rest = _balanced(text)
    kept = kept.removeprefix("el") if kept.startswith("elif ") else kept
    for attempt in (f"{kept}{rest}", f"{kept}{rest} pass"):
        try:
            return ast.parse(attempt)
        except (SyntaxError, ValueError):
            continue
    return ast.Module([], [])


def _balanced(text: str) -> tuple[str, str]:
    """The text up to a bracket that closes what an earlier line has opened, and what closes its own: what
    stands there on further lines is anything."""
    closing = {"(": ")", "[": "]", "{": "}"}
    stack: list[str] = []
    for place, letter in enumerate(text):
        if letter in closing:
            stack.append(closing[letter])
        elif letter in closing.values() and (not stack or stack.pop() != letter):
            return text[:place], ""
    kept = text.rstrip(" \\")
    rest = "".join(f", *_{letter}" for letter in reversed(stack))
    return kept, rest[2:] if kept.endswith(("(", "[", "{", ",")) else rest


# ---- the numbers of a line ---------------------------------------------------------------------------


def _value(written: ast.AST) -> Number | None:
    """The number that an expression of numbers is; None for any other."""
    match written:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _value(operand)
            return None if positive is None else -positive
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON:
            a, b = _value(left), _value(right)
            return None if a is None or b is None else _calculated(_PYTHON[type(op)], a, b)
        case ast.Attribute(value=ast.Name(id="math" | "torch" | "np"), attr="pi" | "e" | "inf" as name):
            return float(getattr(math, name))
        case ast.Call(func=func, args=args, keywords=[]) if function := _of_numbers(func):
            values = [_value(each) for each in args]
            return None if None in values else _calculated(function, *values)
    return None


_PYTHON: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if abs(a) < 1e6 and abs(b) < 64 else math.nan,
}


def _calculated(function: Any, *operands: Any) -> Any:
    try:
        return function(*operands)
    except (ArithmeticError, TypeError, ValueError, AttributeError):
        return None


def _is_own(written: ast.AST) -> bool:
    """Whether this is an attribute of the module, an entry of one, or arithmetic of such and numbers."""
    match written:
        case ast.Attribute(value=ast.Name(id="self")):
            return True
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return _is_own(inner)
        case ast.BinOp(left=left, right=right):
            sides = [side for side in (left, right) if _value(side) is None]
            return bool(sides) and all(map(_is_own, sides))
        case ast.Call(func=func, args=[inner], keywords=[]) if _of_numbers(func) is not None:
            return _is_own(inner)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="finfo" | "iinfo")):
            return True
    return False


_OF_NUMBERS: dict[str | None, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "log", "log2", "exp", "ceil", "floor", "pow")},
    **{each.__name__: each for each in (int, float, abs, round, max, min)},
}


def _told(written: ast.expr) -> Told:
    """Where the numbers in an argument come from, when it is written so."""
    if isinstance(written, (ast.Tuple, ast.List)):
        return _of_all(written.elts)
    if isinstance(written, ast.Constant) or _value(written) is not None or _is_own(written):
        return _WRITTEN
    if _is_calculated(written):
        return Told(Origin.CALCULATED, _formula(written))
    return Told(Origin.SIZE if _is_size(written) else Origin.NAMED)


def _of_all(entries: Sequence[ast.expr]) -> Told:
    found = [_told(entry).origin for entry in entries]
    return Told(next((kind for kind in _EACH if kind in found), Origin.WRITTEN))


_WRITTEN = Told(Origin.WRITTEN)


def _is_calculated(written: ast.AST) -> bool:
    """Whether this is more than a name, or a sum of names, which may add nothing."""
    match written:
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            return any(_value(side) or _is_calculated(side) for side in (left, right))
        case ast.BinOp() | ast.IfExp() | ast.BoolOp():
            return True
        case ast.UnaryOp(operand=operand):
            return _is_calculated(operand)
        case ast.Call(func=func):
            return _of_numbers(func) is not None or _called(func) == "numel"
    return False


def _of_numbers(function: ast.expr) -> Callable[..., Any] | None:
    """The function of numbers that this is; a tensor's methods have the same names."""
    plain = isinstance(function, ast.Name) or getattr(function, "value", None).__class__ is ast.Name
    of_module = getattr(getattr(function, "value", None), "id", "math") in ("math", "np")
    return _OF_NUMBERS.get(_called(function)) if plain and of_module else None


def _is_size(written: ast.AST) -> bool:
    """Whether this is one size of a tensor."""
    match written:
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case (
            ast.Call(func=ast.Attribute(attr="size"), args=[_]) | ast.Call(func=ast.Name(id="len"), args=[_])
        ):
            return True
    return False


def _takes_a_size(written: ast.AST) -> bool:
    """Whether the line itself asks a tensor for its size here."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in ("shape", "size", "numel"))
        or (isinstance(each, ast.Name) and each.id == "len")
        for each in ast.walk(written)
    )


def _formula(written: ast.expr) -> Formula | None:
    """What the line calculates; None where that is from several unknown numbers."""
    unknown: set[str] = set()
    of_size: list[bool] = []

    def read(part: ast.expr) -> Callable[[int], Any]:
        value = _value(part)
        match part:
            case _ if value is not None:
                return lambda n: value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = read(operand)
                return lambda n: -inner(n)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON:
                function, a, b = _PYTHON[type(op)], read(left), read(right)
                return lambda n: function(a(n), b(n))
            case ast.Call(func=func, args=args, keywords=[]) if function := _of_numbers(func):
                operands = [read(each) for each in args]
                return lambda n: function(*(each(n) for each in operands))
        unknown.add(ast.unparse(part))
        of_size.append(_is_size(part))
        return lambda n: n

    calculate = read(written)
    return Formula(calculate, of_size[0]) if len(unknown) == 1 else None


def _is(written: Number | None, value: Any) -> bool:
    if written is None or not isinstance(value, (int, float)):
        return False
    return written == value or abs(written - value) <= 1e-12 * abs(value)
