"""C++ kernels on float16: a nest comes in, text goes out whose loops work on float32 in buffers. Runs of
neighbouring elements are converted before and after a loop, a vector at a time by the machine's own
instructions, which compilers do not use inside a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlcb.compiler.dtype import FLOAT16, FLOAT32
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, substitute
from dlcb.compiler.kgen.affine import linear
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.cpp import BLOCK, BLOCK_START, Cpp
from dlcb.compiler.kgen.cstyle import ATOM, Spelled
from dlcb.compiler.kgen.lower import Scope, identifier
from dlcb.compiler.kgen.schedule import kept_loops


@dataclass(frozen=True)
class _Run:
    """Neighbouring elements that a loop walks: where the run is converted, the text of its start in memory
    and of its length, and the buffer's name and element in the loop."""

    home: Scope
    start: str
    count: str
    buffer: str
    place: str


class Half(Cpp):
    """Loads of float16 come from converted runs, and stores go to them, where the loop walks neighbours."""

    def operands(self, node: Expr, scope: Scope) -> tuple[Expr, ...]:
        if _is_cast(node, FLOAT16, FLOAT32) and self._reads_run(node.args[0], self._home(node, scope)):
            return ()
        return super().operands(node, scope)

    def _spell(self, node: Expr, args: list[Spelled], home: Scope) -> Spelled:
        if not (_is_cast(node, FLOAT16, FLOAT32) and self._reads_run(node.args[0], home)):
            return super()._spell(node, args, home)
        load = node.args[0]
        run = self._run(load.args[0], home)
        run.home.lines.append(f"widen({load.value} + {run.start}, {run.count}, {run.buffer});")
        return run.place, ATOM

    def _store(self, elements: Sequence[Element], scope: Scope) -> list[str]:
        moved = {e: text for e in elements if (text := self._moved(e, scope))}
        runs = {
            e: self._run(e.offset, scope)
            for e in elements
            if e not in moved and _is_cast(e.scalar, FLOAT32, FLOAT16) and self._walks(e.offset, scope)
        }
        after = super()._store([e for e in elements if e not in runs and e not in moved], scope)
        values = self.compute([e.scalar.args[0] for e in runs], scope)
        for (element, run), value in zip(runs.items(), values, strict=True):
            scope.lines.append(f"{run.place} = {value[0]};")
            after.append(f"narrow({run.buffer}, {run.count}, {self.results[element.value]} + {run.start});")
        return [*after, *moved.values()]

    def beside(self, folds: Sequence[Expr]) -> int:
        return 1  # runs are converted a row at a time

    def _moved(self, element: Element, scope: Scope) -> str:
        """The text that converts a run of lanes from memory to memory, where no more is done to them."""
        node = element.scalar
        name = {FLOAT16: "narrow", FLOAT32: "widen"}.get(node.dtype)
        if name is None or node.op != "cast" or {node.dtype, node.args[0].dtype} != {FLOAT16, FLOAT32}:
            return ""
        load = node.args[0]
        straight = self._reads_run(load, scope) and self._walks(element.offset, scope)
        if self.nest.kind == "row" or not straight:
            return ""
        _, source, count, _ = self._stretch(load.args[0], scope)
        _, target, _, _ = self._stretch(element.offset, scope)
        return f"{name}({load.value} + {source}, {count}, {self.results[element.value]} + {target});"

    def _reads_run(self, load: Expr, home: Scope) -> bool:
        return load.op == "load" and load.args[1] is TRUE and self._walks(load.args[0], home)

    def _walks(self, offset: Expr, scope: Scope) -> bool:
        """Does the loop of `scope` walk neighbours from a start that is known before it?"""
        loop, home = self._innermost(), self._before(scope)
        if loop is None or home is None or scope.bound != {loop}:
            return False
        sums = linear(offset)
        others = {i for term in sums if term is not loop for i in term.free if i.op == "index"}
        if self.nest.kind == "row" and not others <= set(self.nest.rows):
            return False
        return sums.get(loop) is ONE and loop not in others

    def _innermost(self) -> Expr | None:
        if self.nest.kind != "row":
            return self.nest.lane
        loops = kept_loops(self.nest)
        return loops[0] if len(loops) == 1 else None

    def _before(self, scope: Scope) -> Scope | None:
        """Where a run is converted: a row once for all loops over it, lanes just before their loop."""
        return self.outside(scope) if self.nest.kind == "row" else scope.parent

    def _run(self, offset: Expr, scope: Scope) -> _Run:
        """The run that starts where the loop of `scope` does, with a buffer of its own."""
        home, start, count, place = self._stretch(offset, scope)
        if self.nest.kind == "row":
            loop = self._innermost()
            assert loop is not None
            buffer = self.row_memory("float", loop, home)
        else:
            buffer = self.fresh("run")
            home.lines.append(f"float {buffer}[{BLOCK[self.nest.kind] if self._blocked else count}];")
        return _Run(home, start, count, buffer, buffer + place)

    def _stretch(self, offset: Expr, scope: Scope) -> tuple[Scope, str, str, str]:
        """Of the elements that the loop of `scope` walks from `offset` on: where their start is known, the
        texts of it and of their number, and the place of one among them."""
        loop, home = self._innermost(), self._before(scope)
        assert loop is not None and home is not None
        name = identifier(loop.value)
        blocked = self.nest.kind != "row" and self._blocked
        first = BLOCK_START if blocked else ZERO
        count, place = ("end - begin", f"[{name} - begin]") if blocked else (self._extent(loop), f"[{name}]")
        (start,) = self.compute([substitute(offset, {loop: first})], home)
        return home, start[0] if " " not in start[0] else f"({start[0]})", count, place


def _is_cast(node: Expr, old: object, new: object) -> bool:
    return node.op == "cast" and node.dtype is new and node.args[0].dtype is old
