"""Windows that overlap, on CUDA: a group that reduces over them comes in, and variants go out in which a
thread computes a strip of neighbouring results from loads that their windows share."""

from __future__ import annotations

from collections.abc import Iterable

from dlcb.compiler.expr.dag import toposort
from dlcb.compiler.expr.node import ONE
from dlcb.compiler.kgen.coords import Element, Layouts, infer, is_window
from dlcb.compiler.kgen.schedule import Nest, plan
from dlcb.compiler.kgen.variants import Choice, Variant, narrow_guards, wide_guards, widest
from dlcb.compiler.passes.steps import Group
from dlcb.compiler.shapes.system import System

_COLUMNS = (4, 2)  # results in a strip
_MOST_LOADS = 16  # at a time in a thread; more do not stay in registers
ENOUGH_THREADS = 1 << 16  # fewer leave a large GPU idle: then each takes one column


def strips(group: Group, layouts: Layouts, system: System, nest: Nest) -> list[Choice]:
    """The choices of strips, widest accesses first; none where `group` has no windows, or they share no
    loads."""
    checked = any(node.op == "check" for node in nest.nodes)
    if nest.kind != "column" or checked or not all(is_window(node) for node in group.nodes if node.op.fold):
        return []
    if group.anchor.rank < 2 or ONE in group.anchor.shape[-2:]:
        return []
    for columns in _COLUMNS:
        shared = infer(group, layouts, system, columns=columns)
        loads = _loads(shared.elements)
        if loads >= columns * _loads(shared.elements[::columns]):
            return []
        if loads <= _MOST_LOADS:
            break
    made: list[Choice] = []
    strip = plan(shared, group, system)
    narrow = narrow_guards(strip, system)
    for width in dict.fromkeys((widest(strip), 1)):
        wide = wide_guards(strip, width, system)
        if wide is None:
            continue
        enough = system.simplify(strip.domain // width >= ENOUGH_THREADS)
        made.append((strip, Variant(width), (enough, *wide, *narrow)))
        if wide == ():  # every size divides
            break
    return made


def _loads(elements: Iterable[Element]) -> int:
    """Accesses of memory that `elements` make together."""
    return sum(node.op == "load" for node in toposort(e.scalar for e in elements))
