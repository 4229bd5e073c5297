"""Turns what a kernel or a check recorded, a position and a value, into the error that names the caller's
input and the place in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlcb.compiler.errors import IndexRangeError
from dlcb.compiler.expr.node import evaluate, evaluate_all
from dlcb.compiler.host.program import POSITION, Definition, IndexCheck


def index_error(
    check: IndexCheck,
    position: int,
    value: int,
    sizes: Mapping[str, int],
    definitions: Sequence[Definition] = (),
) -> IndexRangeError:
    """The error for `value` at row-major `position` of the tensor of indices that `check` is about."""
    known = dict(sizes)
    for definition in definitions:
        if all(free.value in known for free in definition.value.free):
            known[definition.name] = evaluate(definition.value, known)
    low, high = evaluate_all([check.low, check.high], known)
    if check.coordinates is not None:
        place = evaluate_all(check.coordinates, {**known, POSITION: position})
    else:
        place = []
        for extent in reversed(evaluate_all(check.shape, known)):
            place.insert(0, position % extent)
            position //= extent
    return IndexRangeError(check.input, tuple(place), value, low, high, stage="run")
