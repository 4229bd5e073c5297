"""Slices that a file does not hold: where one cuts nothing at the sizes at hand, PyTorch leaves it out, and
only the line of the indexing shows it. `x[:, :512]` is made again with its number; of `x[:, : self.longest]`
the number is not known, but that it cuts nothing up to the file's size; any other end may have been made of
any size."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node as FxNode

from dlcb.compiler.bridge.attributes import set_in_forward
from dlcb.compiler.bridge.formulas import is_own, size_axis, value_of
from dlcb.compiler.bridge.record import TensorType
from dlcb.compiler.bridge.written import (
    calls_others,
    in_order,
    is_of_library,
    line_of,
    mentions,
    parsed,
    runs_once,
)

_VIEWS = ("slice", "select", "unsqueeze")
_READS = (*_VIEWS, "alias", "index")
_WRITES = ("fill", "copy", "index_put")


@dataclass(frozen=True)
class Uncut:
    """A slice of an operand's axis that cuts nothing at the sizes at hand. `start`, `end`: numbers that the
    line writes out; `unknown`: an attribute of the module is an end, so that it may cut beyond the size at
    hand; `made_of`: an end, as the line has it, that sizes may have made."""

    axis: int
    start: int | None = None
    end: int | None = None
    unknown: bool = False
    made_of: str = ""


@dataclass(frozen=True)
class Indexing:
    """One `x[...]` of the program's code: the calls that it became, how many come from its line, and how many
    of these ran before it."""

    calls: Sequence[FxNode]
    times: int
    before: int
    modules: frozenset[str]

    @property
    def writes(self) -> bool:
        return any(_operator(call) in _WRITES for call in self.calls)

    def uncut(self) -> Sequence[Uncut]:
        """The slices that were left out. One of axis -1 where the line does not show the indexing."""
        operands = self.calls[0].all_input_nodes
        operand = operands[0].meta.get("val") if operands else None
        if not isinstance(operand, (Tensor, TensorType)):
            return ()
        path, text, number = line_of(self.calls[0].meta.get("stack_trace") or "")
        if "/torch/nn/modules/" in path or is_of_library(path, text, None):
            return ()
        shown = [each for each in in_order(parsed(text)) if _is_of_tensor(each)]
        if len(shown) < self.times and calls_others(text, self.modules):
            return (_UNSEEN,)
        if len(shown) == self.times and runs_once(text):
            shown = [shown[self.before]]
        set_here = set_in_forward(path, number, text)
        found = dict.fromkeys(
            tuple(_described(each, axis, entry, set_here) for axis, entry in left)
            for each in shown
            if (left := _left_out(_entries(each), self.calls, tuple(operand.shape))) is not None
        )
        if len(found) < 2:
            return next(iter(found), (_UNSEEN,))
        made = next((each for entries in found for each in entries if each.made_of), None)
        return (made or _UNSEEN,)


_UNSEEN = Uncut(-1, made_of="in a function that forward calls")


def indexings(nodes: Iterable[FxNode], modules: frozenset[str]) -> dict[FxNode, Indexing]:
    """The indexings of a program, each by its first call."""
    groups: dict[str, list[FxNode]] = {}
    for node in nodes:
        name, kind = node.meta.get("torch_fn") or ("", "")
        if kind.endswith(("__getitem__", "__setitem__")) and _operator(node) in (*_READS, *_WRITES):
            groups.setdefault(name, []).append(node)
    times = Counter(_origin(calls[0]) for calls in groups.values())
    before: Counter[tuple[str, str]] = Counter()
    found = {}
    for calls in groups.values():
        origin = _origin(calls[0])
        found[calls[0]] = Indexing(calls, times[origin], before[origin], modules)
        before[origin] += 1
    return found


def _operator(node: FxNode) -> str:
    return str(node.target).split(".")[1].strip("_") if isinstance(node.target, OpOverload) else ""


def _origin(node: FxNode) -> tuple[str, str]:
    """The line, and the module that it ran in."""
    stack = node.meta.get("nn_module_stack") or {}
    return node.meta.get("stack_trace") or "", next(reversed(stack), "")


def _is_of_tensor(node: ast.AST) -> bool:
    """Whether this may index a tensor, and no list of sizes."""
    return isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") != "shape"


def _entries(subscript: ast.AST) -> Sequence[ast.expr]:
    assert isinstance(subscript, ast.Subscript)
    index = subscript.slice
    return index.elts if isinstance(index, ast.Tuple) else [index]


# ---- which entries of an index became no call --------------------------------------------------------


def _left_out(
    entries: Sequence[ast.expr], calls: Sequence[FxNode], shape: Sequence[int]
) -> list[tuple[int, ast.Slice]] | None:
    """The slices among `entries` that became none of `calls`, with their axes; None where these calls are not
    of this index. PyTorch takes entries in order, each at the next axis."""
    views = iter([call for call in calls if _operator(call) in _VIEWS])
    by_tensors = any(_operator(call) in ("index", "index_put") for call in calls)
    call, place, axis = next(views, None), 0, 0
    found: list[tuple[int, ast.Slice]] = []
    for entry in entries:
        kind = _kind(entry)
        at = None if call is None or call.args[1] != place else call
        if kind is Ellipsis:
            rest = len(shape) - sum(1 for each in entries if _kind(each) not in (None, Ellipsis))
            place, axis = place + rest, axis + rest
            continue
        if axis >= len(shape) and kind is not None:
            return None
        if isinstance(entry, ast.Slice):
            if at is not None and _operator(at) == "slice":
                if not _may_be(entry, at, shape[axis]):
                    return None
                call = next(views, None)
            elif any((entry.lower, entry.upper, entry.step)):
                if not _may_cut_nothing(entry, shape[axis]):
                    return None
                found.append((axis, entry))
            place, axis = place + 1, axis + 1
        elif at is not None and _operator(at) == "unsqueeze" and not isinstance(kind, int):
            call, place = next(views, None), place + 1  # None, or a name that is
        elif at is not None and _operator(at) == "select" and kind is not None:
            call, axis = next(views, None), axis + 1
        elif by_tensors and kind is not None and not isinstance(kind, int):
            place, axis = place + 1, axis + 1
        else:
            return None
    return found if call is None else None


def _kind(entry: ast.expr) -> object:
    """What an entry is: None, Ellipsis, a whole number, or the expression that it is."""
    if isinstance(entry, ast.Constant):
        return entry.value
    value = None if isinstance(entry, ast.Slice) else value_of(entry)
    return entry if value is None else value


def _may_be(entry: ast.Slice, call: FxNode, size: int) -> bool:
    """Whether a slice that is written may be this call: numbers that stand there do not contradict it."""
    given_ends = (*call.args[2:5], None, None, None)
    for bound, given in zip(_bounds(entry), given_ends, strict=False):
        written = None if bound is None else value_of(bound)
        if not (isinstance(written, int) and isinstance(given, int) and isinstance(size, int)):
            continue
        if given not in (written, written + size, min(written, size), max(written + size, 0)):
            return False
    return True


def _may_cut_nothing(entry: ast.Slice, size: int) -> bool:
    start, end, step = (None if bound is None else value_of(bound) for bound in _bounds(entry))
    if step not in (None, 1):
        return False
    return (start is None or start == 0 or start <= -size) and (end is None or end >= size)


def _bounds(entry: ast.Slice) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    return entry.lower, entry.upper, entry.step


# ---- what their ends are -----------------------------------------------------------------------------


def _described(subscript: ast.AST, axis: int, entry: ast.Slice, set_here: frozenset[str]) -> Uncut:
    assert isinstance(subscript, ast.Subscript)
    unknown, made_of = False, ""
    for bound in filter(None, _bounds(entry)):
        if isinstance(value_of(bound), int) or _is_its_size(subscript, bound, axis):
            continue
        if is_own(bound) and not mentions(bound, set_here):
            unknown = True
        else:
            made_of = made_of or ast.unparse(bound)
    start, end = _written(entry.lower), _written(entry.upper)
    return Uncut(axis, start or None, end, unknown, made_of)


def _written(bound: ast.expr | None) -> int | None:
    value = None if bound is None else value_of(bound)
    return value if isinstance(value, int) else None


def _is_its_size(subscript: ast.Subscript, bound: ast.expr, axis: int) -> bool:
    """Whether an end is the size of the axis that it cuts, as `x[:, : x.shape[1]]` has it."""
    of = bound.value.value if isinstance(bound, ast.Subscript) and hasattr(bound.value, "value") else None
    if isinstance(bound, ast.Call) and isinstance(bound.func, ast.Attribute):
        of = bound.func.value
    return size_axis(bound) == axis and of is not None and ast.unparse(of) == ast.unparse(subscript.value)
