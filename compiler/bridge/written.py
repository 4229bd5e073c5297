"""Whether a number that an exported program gives to a call was written by the program's author, or may have
been made of a size: a file keeps the line of `forward` that a call comes from. `x * 0.5`, `x * self.scale`
settle their numbers; of `x / n` the line tells nothing; what a function does that it calls is unseen."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import torch

from dlcb.compiler.bridge.attributes import assigned, set_in_forward
from dlcb.compiler.bridge.formulas import (
    Formula,
    Number,
    called,
    formula_of,
    is_calculated,
    is_own,
    is_size,
    same_number,
    size_axis,
    takes_a_size,
    value_of,
)


class Origin(Enum):
    """Where a number comes from, as far as the line tells."""

    WRITTEN = "the line writes it out, it is an attribute of the module, or what the call takes by default"
    OF_PYTORCH = "one of PyTorch's own modules gives it to the call: an attribute, or a size as it stands"
    SIZE = "the line gives the call the size of a tensor there, as it stands"
    NAMED = "the line gives the call a name there"
    CALCULATED = "the line calculates what it gives the call there, so that it is no size as it stands"
    SET = "the line gives the call an attribute that forward sets"
    OF_LIBRARY = "a function of an installed library that is known gives it to the call"
    UNSEEN = "the line does not show the call"


MADE = (Origin.CALCULATED, Origin.SET)  # of sizes, it may be, and none as it stands


@dataclass(frozen=True)
class Told:
    """Where a number comes from; `formula`: what the line makes of a size, where it calculates with one."""

    origin: Origin
    formula: Formula | None = None
    axis: int | None = None  # of a size: the axis of which it is
    of: str = ""  # and the input of the function that it is of, where that is known
    name: str = ""  # the name that the line gives
    summed: bool = False  # whether it is a sum of names, which may add nothing


@dataclass(frozen=True)
class Call:
    """One call of a program: its operator's name without overload, and the operator's arguments by name and
    in order, defaults filled in."""

    operator: str
    arguments: Mapping[str, Any]
    left_out: frozenset[str] = frozenset()  # arguments that the program does not give
    of_weight: bool = False  # whether the first argument is one of the program's weights
    times: int = 1  # how many calls of this operator come from the same line
    by_name: bool = False  # whether a function of torch was called, and no method or sign
    modules: frozenset[str] = frozenset()  # names of the modules that the program calls
    alike: int = 1  # how many of those calls have the same numbers
    before: int = 0  # how many calls of this operator from this line ran before this one
    inverted: bool = False  # whether its line divides a number by a tensor, which becomes a product


def told(stack_trace: str, call: Call, name: str, place: int | None = None) -> Told:
    """Where argument `name` of `call` comes from, or the entry at `place` of it, where it is a list."""
    path, text, number = line_of(stack_trace)
    if _MODULES in path:
        return Told(Origin.OF_PYTORCH)
    value = call.arguments[name]
    if is_of_library(path, text, value if place is None else value[place]):
        return Told(Origin.OF_LIBRARY)
    shown = _shown(text, call.operator)
    if len(shown) < call.times and calls_others(text, call.modules):
        return Told(Origin.UNSEEN)
    found = [given.told(call, name, place) for given in _this(shown, call, text) if given.may_be(call)]
    settled = sum(1 for each in found if each.origin is Origin.WRITTEN)
    each_shown = call.operator in _ARITHMETIC and len(shown) <= call.times and call.alike <= settled
    each_shown = each_shown and _WRITTEN in found  # and not an attribute alone, which may be any number
    order = _ANY if each_shown else _EACH
    kind = next((kind for kind in order if any(each.origin is kind for each in found)), Origin.UNSEEN)
    if kind is Origin.WRITTEN and mentions(parsed(text), set_in_forward(path, number, text)):
        kind, found = Origin.SET, []  # which of its numbers the attribute is, the line does not tell
    if kind is not Origin.WRITTEN and _WRITTEN in found:  # either of them
        return Told(Origin.NAMED if kind is Origin.SIZE else kind)
    of_kind = [each for each in found if each.origin is kind]
    one = of_kind[0] if len(of_kind) == 1 else Told(kind)
    given = assigned(path, number, text).get(one.name) if one.name else None
    this = value if place is None else value[place]
    return one if given is None else _as_assigned(one, this, *given)


def _as_assigned(told: Told, number: Any, written: ast.expr, of: str) -> Told:
    """A name of which the source says what it stands for, where that is a number, a size, or calculated."""
    if same_number(value_of(written), number):
        return _WRITTEN
    found = _told(written)
    if found.origin is Origin.CALCULATED:
        return Told(Origin.CALCULATED)  # with names that the line does not have
    return replace(found, of=of) if found.origin is Origin.SIZE else told


def _this(shown: Sequence[_Shown], call: Call, text: str) -> Sequence[_Shown]:
    """The one that `call` is, where the line shows as many as ran."""
    if call.operator not in _ARITHMETIC or len(shown) != call.times or call.inverted or not runs_once(text):
        return shown
    this = shown[call.before]
    return (this,) if this.may_be(call) else shown


# Of several calls that a line shows the one at hand is not known: what tells of all. Sides of operators may
# be tensors, so that one number that is written settles it, unless numbers are calculated in this way too.
_EACH = (Origin.CALCULATED, Origin.NAMED, Origin.SIZE, Origin.WRITTEN)
_ANY = (Origin.WRITTEN, Origin.CALCULATED, Origin.SIZE, Origin.NAMED)

# Where packages lie differs between the machines that export and serve
_MODULES = "/torch/nn/modules/"
_TORCH = "-packages/torch/"
# Functions of libraries, as their lines call them, that make no number of a size: what these are given of
# sizes, for masks and positions, stands in the graph as it is; others are heads, groups, and their scale.
_FUNCTIONS_OF = {
    "/transformers/": (
        *("create_causal_mask(", "create_bidirectional_mask(", "_create_attention_masks(", "mask_function("),
        *("attention_interface(", "apply_rotary_pos_emb(", "compute_bias("),
    ),
    "/torchvision/models/": ("channel_shuffle(",),
    "/timm/models/": ("forward_head(",),
}
# The length of a cache that is empty
_EMPTY = {
    "/transformers/": ("past_seen_tokens", "past_key_values_length", "cache_length", "past_length"),
}


def is_of_library(path: str, text: str, value: Any) -> bool:
    """Whether a library is known to give this number to a call of the line."""
    for place, functions in _FUNCTIONS_OF.items():
        empty = _EMPTY.get(place, ()) if value == 0 else ()
        if place in path and any(name in text for name in (*functions, *empty)):
            return True
    return False


def mentions(written: ast.AST, names: frozenset[str]) -> bool:
    """Whether this reads one of these attributes."""
    return bool(names) and any(getattr(node, "attr", None) in names for node in ast.walk(written))


def line_of(stack_trace: str) -> tuple[str, str, int]:
    """The file, text and number of the innermost line of a node's stack trace, but for PyTorch's own
    functions, whose numbers are what they are called with: its modules alone give them attributes."""
    found = [("", "", 0)]
    for line in map(str.strip, stack_trace.splitlines()):
        if line.startswith('File "'):
            path, _, rest = line[6:].partition('"')
            number = re.match(r", line (\d+)", rest)
            found.append((path, "", int(number[1]) if number else 0))
        elif not found[-1][1]:
            found[-1] = found[-1][0], line, found[-1][2]
    own = (each for each in reversed(found) if _MODULES in each[0] or _TORCH not in each[0])
    return next(own)


@lru_cache(maxsize=1024)
def calls_others(text: str, modules: frozenset[str]) -> bool:
    """Whether the line calls what may be a function of the user's, whose calls it does not show."""
    functions = (node.func for node in ast.walk(parsed(text)) if isinstance(node, ast.Call))
    return any(not _is_known(function, modules) for function in functions)


def _is_known(function: ast.expr, modules: frozenset[str]) -> bool:
    """Whether this is one of PyTorch's or Python's functions, a tensor's method, or a module."""
    name = called(function)
    match function:
        case ast.Attribute(value=ast.Name(id="self")):
            return name in modules
        case ast.Attribute(value=ast.Name() | ast.Attribute() as before) if called(before) in _MODULE_NAMES:
            return True
        case ast.Attribute(value=before):
            return hasattr(torch.Tensor, str(name)) or (is_own(before) and name in modules)
        case ast.Name():
            return hasattr(builtins, str(name))
    return is_own(function)


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
        if name in call.left_out or any(same_number(value_of(side), value) for side in self.sides):
            return _WRITTEN
        if call.operator in _ON_THE_RIGHT:
            return _told(self.sides[-1])
        if any(is_own(side) for side in self.sides) and not call.of_weight:
            return Told(Origin.WRITTEN, name="self")
        of_sizes = [side for side in self.sides if takes_a_size(side)]
        if len(of_sizes) == 1:
            return _told(of_sizes[0])
        calculated = [side for side in self.sides if is_calculated(side)]
        return Told(Origin.NAMED, formula_of(calculated[0]) if len(calculated) == 1 else None)


@dataclass(frozen=True)
class _Index:
    """One entry between the brackets behind a tensor, with its place among them where that is the axis."""

    axis: int | None
    given: Mapping[str, ast.expr]

    def may_be(self, call: Call) -> bool:
        if not set(self.given) <= set(call.arguments) or self.axis not in (None, call.arguments["dim"]):
            return False
        written = ((value_of(bound), call.arguments[name]) for name, bound in self.given.items())
        return all(one is None or one < 0 or one == given for one, given in written)

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
        entries = self.positional[0 if self.method else 1 :]
        if call.operator in _SPREAD and len(entries) > 1 and not any(map(_is_starred, entries)):
            lists = [each for each in call.arguments.values() if isinstance(each, (list, tuple))]
            if len(entries) not in map(len, lists):
                return False
        return all(
            value_of(written) is None or same_number(value_of(written), number)
            for name, argument in call.arguments.items()
            for place, number in _numbers(argument)
            if (written := self._at(call, name, place)) is not None
        )

    def told(self, call: Call, name: str, place: int | None) -> Told:
        if any(map(_is_starred, self.positional)) or "" in self.keywords:
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


def _is_starred(written: ast.expr) -> bool:
    return isinstance(written, ast.Starred)


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
    return tuple(each for node in in_order(parsed(text)) for each in _shown_by(node, operator))


def _shown_by(node: ast.AST, operator: str) -> Iterator[_Shown]:
    signs = _ARITHMETIC.get(operator, ())
    match node:
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, signs):
            if value_of(node) is None and not is_own(node):  # else the author's own arithmetic
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
            operator == "tensor" and called(func) in _TENSORS
        ):
            yield _Entries(tuple(entries))
        case ast.Call(func=func, args=[entry, *_]) if operator == "tensor" and called(func) in _TENSORS:
            yield _Entries((entry,))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"))):
            return  # a module, or a method of the user's
        case ast.Call(func=func, args=args, keywords=keywords) if (name := called(func)) is not None:
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


def _is_method(function: ast.expr) -> bool:
    """Whether what stands before the dot is a tensor, and no module of functions."""
    if not isinstance(function, ast.Attribute):
        return False
    before = function.value
    return called(before) not in _MODULE_NAMES if isinstance(before, (ast.Name, ast.Attribute)) else True


def in_order(written: ast.AST) -> Iterator[ast.AST]:
    """The parts of a line in the order in which Python evaluates them, each behind its operands."""
    waiting = [(written, False)]
    while waiting:
        node, done = waiting.pop()
        if done:
            yield node
            continue
        waiting.append((node, True))
        waiting += [(each, False) for each in reversed(list(ast.iter_child_nodes(node)))]


@lru_cache(maxsize=1024)
def runs_once(text: str) -> bool:
    """Whether each part of the line runs once where the line does."""
    return not any(isinstance(node, _NOT_ONCE) for node in ast.walk(parsed(text)))


_NOT_ONCE = (ast.comprehension, ast.Lambda, ast.IfExp, ast.BoolOp, ast.For, ast.While)


@lru_cache(maxsize=1024)
def parsed(text: str) -> ast.AST:
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


def _told(written: ast.expr) -> Told:
    """Where the numbers in an argument come from, when it is written so."""
    if isinstance(written, (ast.Tuple, ast.List)):
        return _of_all(written.elts)
    if isinstance(written, ast.Constant) or value_of(written) is not None or is_own(written):
        return _WRITTEN
    if is_calculated(written):
        return Told(Origin.CALCULATED, formula_of(written))
    if is_size(written):
        return Told(Origin.SIZE, axis=size_axis(written))
    return Told(Origin.NAMED, name=getattr(written, "id", ""), summed=isinstance(written, ast.BinOp))


def _of_all(entries: Sequence[ast.expr]) -> Told:
    found = [_told(entry).origin for entry in entries]
    return Told(next((kind for kind in _EACH if kind in found), Origin.WRITTEN))


_WRITTEN = Told(Origin.WRITTEN)
