"""The bytes that a call of a host program needs, as one expression over the sizes of its inputs: what is live
together at the worst step. It is plain text in the model's signature, so that whoever admits requests knows a
batch's memory before it exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce

from dlcb.compiler.dtype import dtype
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import as_expr, maximum, substitute
from dlcb.compiler.host.arena import ALIGNMENT
from dlcb.compiler.host.interpreter import bound_sizes
from dlcb.compiler.host.program import Buffer, Program, Segment
from dlcb.compiler.solver.polynomial import Polynomial
from dlcb.compiler.solver.simplify import Simplifier

Load = Mapping[tuple[Expr, int], int]  # how often memory for (elements, bytes of one) is live


def footprint(program: Program) -> Expr:
    """Bytes at most of arena and results, beside parameters, inputs and the libraries' own workspaces. Memory
    whose size only the run tells is left out, and so is what gaps in the arena take."""
    loads = [load for segment in program.segments for load in _worst(segment)]
    return reduce(maximum, _greatest([_bytes(load, program) for load in loads]))


def _greatest(sums: Sequence[Expr]) -> list[Expr]:
    """`sums` without those of which another one has at least as much in each term: the later layers of a
    model need a part of what an earlier one does."""
    know = Simplifier()
    kept: list[tuple[Expr, Polynomial]] = []
    for total in sums:
        terms = know.polynomial(total)
        if not any(_covers(know, other, terms) for _, other in kept):
            kept = [each for each in kept if not _covers(know, terms, each[1])] + [(total, terms)]
    return [total for total, _ in kept]


def _covers(know: Simplifier, more: Polynomial, less: Polynomial) -> bool:
    """Whether no term of `more` is less than that of `less`, whatever the sizes."""
    for term in {**less, **more}:
        further = more.get(term, 0) - less.get(term, 0)
        if further < 0 or (further > 0 and not all(_is_never_negative(know, factor) for factor in term)):
            return False
    return True


def _is_never_negative(know: Simplifier, factor: Expr) -> bool:
    low = know.interval(factor).low
    return low is not None and low >= 0


def _bytes(load: Load, program: Program) -> Expr:
    known = set(bound_sizes(program))
    total = as_expr(ALIGNMENT * sum(load.values()))
    for (elements, itemsize), count in load.items():
        size = _in_terms_of_inputs(elements, program)
        if {symbol.value for symbol in size.free} <= known:
            total += size * (itemsize * count)
    return total


def _worst(segment: Segment) -> list[Load]:
    """What is live at each step, without what another step exceeds in every part."""
    always = Counter(_part(buffer) for buffer in segment.buffers if buffer.place in ("result", "call"))
    arena = [buffer for buffer in segment.buffers if buffer.place == "arena"]
    loads: list[Counter[tuple[Expr, int]]] = []
    met: set[frozenset[tuple[tuple[Expr, int], int]]] = set()  # as equal layers have them
    for step in range(len(segment.steps) + 1):
        live = always + Counter(_part(buffer) for buffer in arena if buffer.first <= step <= buffer.last)
        content = frozenset(live.items())
        if content in met or any(live <= other for other in loads):
            continue
        met.add(content)
        loads = [other for other in loads if not other <= live] + [live]
    return list(loads)


def _part(buffer: Buffer) -> tuple[Expr, int]:
    return buffer.elements, dtype(buffer.dtype).itemsize


def _in_terms_of_inputs(elements: Expr, program: Program) -> Expr:
    for definition in reversed(program.definitions):  # each may stand on those before it
        found = next((symbol for symbol in elements.free if symbol.value == definition.name), None)
        if found is not None:
            elements = substitute(elements, {found: definition.value})
    return elements
