"""The numbers in a program's calls as the symbolic forward saw them: exact expressions over sizes, where a
static trace has only values. A call of the traces is recognised by operator, line and the values of all its
numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dlcb.compiler.expr.dag import Expr

Path = tuple[int | str, ...]  # where a number stands: the argument's place or name, then places in lists
Numbers = dict[Path, Any]  # a Python number, an expression, or None where nothing is known
_RESULT = "->"
Place = tuple[str, int] | None  # the user's file and line


def numbers(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Numbers:
    """The numbers among a call's arguments, symbolic ones too."""
    found: Numbers = {}

    def walk(value: Any, path: Path) -> None:
        if isinstance(value, (list, tuple)):
            for k, item in enumerate(value):
                walk(item, (*path, k))
        elif isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(value, bool):
            found[path] = value

    walk(arguments, ())
    for name, value in keywords.items():
        walk(value, (name,))
    return found


def result_sizes(results: Any) -> Numbers:
    """The symbolic sizes of a call's results, each with the place that `result_place` gives."""
    tensors = results if isinstance(results, (list, tuple)) else [results]
    return {
        result_place(place, axis): size
        for place, tensor in enumerate(tensors)
        if isinstance(tensor, torch.Tensor)
        for axis, size in enumerate(tensor.shape)
        if isinstance(size, torch.SymInt)
    }


def result_place(place: int, axis: int) -> Path:
    """Where the size of an axis of a call's result stands beside the numbers of its arguments."""
    return (_RESULT, place, axis)


def is_result(path: Path) -> bool:
    """Whether this is the place of a result's size, not of a number that the call is given."""
    return path[0] == _RESULT


def moved(given: Numbers, places: int) -> Numbers:
    """The same numbers in a call that has so many further operands after its first."""
    return {
        (path[0] + places, *path[1:]) if isinstance(path[0], int) else path: value
        for path, value in given.items()
    }


class Seen:
    """Calls in the order in which they were met. `complete`: there were no others."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, Place], list[Numbers]] = {}
        self.complete = False

    def add(self, target: str, place: Place, given: Numbers) -> None:
        self._calls.setdefault((target, place), []).append(given)

    def agrees(self, other: Seen) -> bool:
        """Whether both met the same calls, operator by operator, with the same numbers, wherever they
        stand."""
        return self._by_target() == other._by_target()

    def _by_target(self) -> dict[str, list[Numbers]]:
        found: dict[str, list[Numbers]] = {}
        for (target, _), calls in self._calls.items():
            found.setdefault(target, []).extend(calls)
        return found

    def reader(self) -> Reader:
        return Reader({key: list(calls) for key, calls in self._calls.items()}, self.complete)


class Reader:
    """Goes through the calls once, beside a trace."""

    def __init__(self, calls: dict[tuple[str, Place], list[Numbers]], complete: bool) -> None:
        self._left = calls
        self._expressions = list(
            dict.fromkeys(
                (value, path)
                for each in calls.values()
                for call in each
                for path, value in call.items()
                if isinstance(value, Expr) and not value.is_const and not is_result(path)
            )
        )
        self.complete = complete

    def unplaced(
        self, traced: Sequence[Numbers], observed: Callable[[Expr], Sequence[Any] | None]
    ) -> dict[Path, list[Expr]]:
        """For each number of a call whose line is not known: the expressions in the program's calls that have
        its values, wherever these change, and at the same place of a call, or at one before, where not."""
        found: dict[Path, list[Expr]] = {}
        for path, value in traced[0].items():
            values = [each.get(path) for each in traced]
            changes = any(each != value for each in values)
            near = (path, *moved({path: None}, -1))
            found[path] = [
                each
                for each, place in self._expressions
                if (changes or place in near) and list(observed(each) or ()) == values
            ]
        return found

    def next(
        self,
        target: str,
        place: Place,
        traced: Sequence[Numbers],
        observed: Callable[[Expr], Sequence[Any] | None],
    ) -> Numbers | None:
        """The next call of this operator at this line whose numbers have the values that `traced` shows, one
        entry a trace; None where no such call was seen. `observed` gives an expression's values in the
        traces."""
        left = self._left.get((target, place), [])
        for k, call in enumerate(left):
            if all(_fits(value, each, observed) for value, each in _beside(call, traced)):
                return left.pop(k)
        return None


def _beside(call: Numbers, traced: Sequence[Numbers]) -> Iterator[tuple[Any, list[Any]]]:
    for path, value in call.items():
        if all(path in each for each in traced):
            yield value, [each[path] for each in traced]


def _fits(value: Any, found: Sequence[Any], observed: Callable[[Expr], Sequence[Any] | None]) -> bool:
    if value is None:
        return True
    values = observed(value) if isinstance(value, Expr) else [value] * len(found)
    if values is None:
        return False
    return all(same(a, b) or abs(a - b) <= 1e-12 * abs(b) for a, b in zip(values, found, strict=True))


def same(a: Any, b: Any) -> bool:
    """Whether two arguments are one; NaN is, too."""
    if isinstance(a, torch.ScriptObject) or isinstance(b, torch.ScriptObject):  # which cannot be compared
        return a is b
    return bool(a == b or all(isinstance(x, float) and math.isnan(x) for x in (a, b)))
