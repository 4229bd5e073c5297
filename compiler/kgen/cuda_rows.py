"""CUDA kernels whose reductions run along contiguous memory: a nest of rows comes in, text goes out in which
a warp or a block takes a row, keeps in registers what it walks again, and joins what its threads found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import ZERO, index, product, substitute
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.cstyle import ATOM, JOINS, Spelled, inside
from dlcb.compiler.kgen.cuda import Cuda, Lanes, first_of
from dlcb.compiler.kgen.lower import Scope, identifier, identity
from dlcb.compiler.kgen.schedule import Nest, beneath, kept_loops, worth_keeping
from dlcb.compiler.kgen.variants import WARP, Variant, row_start
from dlcb.compiler.shapes.system import System


class Rows(Cuda):
    """Rows over teams; within a row, elements over the threads of a team. Of a row that starts off every
    alignment, the aligned accesses that lie within it are walked; the elements before and behind them are
    fewer than a warp has threads, each of which takes one."""

    def __init__(self, nest: Nest, tensors: dict[str, Value], system: System, variant: Variant) -> None:
        super().__init__(nest, tensors, system, variant)
        self._block_joins = 0
        self._accesses: dict[tuple[Expr, str], tuple[str, str]] = {}  # where they begin, and their number
        self._ends: Scope | None = None  # of the elements around them, while it is written
        self._ends_kept: dict[Expr, Spelled] = {}

    def run(self) -> list[str]:
        self.row = row = Scope(self.root, frozenset(self.nest.rows))
        each = [e for e in self.nest.elements if set(e.indices) & set(self.nest.inner)]
        once = [e for e in self.nest.elements if e not in each]
        if each:
            self._spread(self.nest.inner, each, row, self._member, str(self.variant.team))
        if once:
            leader = Scope(row, frozenset())
            self._store(once, row, leader)
            row.add([f"if ({self._member} == 0)"], leader)
        if self._block_joins == 1:
            row.lines.append("__syncthreads();")  # before the next row's join writes what this one's reads
        teams = self.variant.threads // self.variant.team
        first = "blockIdx.x" if teams == 1 else f"blockIdx.x * {teams} + threadIdx.x / {WARP}"
        step = "gridDim.x" if teams == 1 else f"gridDim.x * {teams}"
        self._over(self.nest.rows, row, self.root, first, step, 1)
        return [*self._shared_lines(WARP), *self.root.lines]

    @property
    def _member(self) -> str:
        return "threadIdx.x" if self.variant.team > WARP else f"threadIdx.x % {WARP}"

    # ---- a walk along the row --------------------------------------------------------------------

    def _spread(
        self, loops: Sequence[Expr], elements: Sequence[Element], home: Scope, first: str, step: str
    ) -> None:
        if self.variant.repeat > 1 or self.variant.shifted:
            self._spread_ahead(loops[-1], elements, home, first)
            return
        super()._spread(loops, elements, home, first, step)
        if self.variant.peeled:
            with self._at_ends(loops[-1], home) as ends:
                self._store(elements, ends, ends)

    def _spread_ahead(self, loop: Expr, elements: Sequence[Element], home: Scope, first: str) -> None:
        """Stores of several turns at a time, all of whose loads are sent before the first is waited for."""
        width, team, repeat = self.variant.width, self.variant.team, self.variant.repeat
        reading, (storing, lanes) = self._chunk((loop,), home)[0], self._chunk((loop,), home)
        turns, ends = Scope(home, frozenset()), Scope(home, frozenset((loop,)))
        if self.variant.shifted:
            self._read_ends(loop, elements, home, ends)
        self._wanted = ["within"]
        turns.lines.extend(self._read_ahead(loop, elements, reading, lanes))
        self._wanted = []
        after = self._store(elements, storing, lanes)
        self._unroll(storing, lanes)
        storing.lines.extend(after)
        name = identifier(first_of(loop).value if width > 1 else loop.value)
        counter, at, kind = self.fresh("at"), self.fresh("at"), self._index_type
        before, count = "", self._size(self.system.simplify(loop.args[0] // width))
        if self.variant.shifted:
            before, count = self._accesses_of(loop, home)
            before += " + "
        for scope in (reading, storing):
            turn = Scope(turns, frozenset())
            turn.lines.append(f"const {kind} {at} = {counter} + turn * {team};")
            # of the sum, the last part becomes one of the access
            place = f"{before}{counter} * {width} + turn * {team * width}"
            scope.lines.insert(0, f"const {kind} {name} = {place};")
            if scope is reading:
                turn.lines += [f"const bool within = {at} < {count};", *scope.lines]
            else:
                turn.add([f"if ({at} < {count})"], scope)
            turns.add(["#pragma unroll", f"for (int turn = 0; turn < {repeat}; ++turn)"], turn)
        head = f"for ({kind} {counter} = {first}; {counter} < {count}; {counter} += {team * repeat})"
        home.add([head], turns)
        if self.variant.shifted:
            self._store(elements, ends, ends)
            ends.lines.insert(
                0, f"const {kind} {identifier(loop.value)} = {identifier(_end_of(loop).value)};"
            )
            home.add(["if (at_end)"], ends)

    def _read_ahead(
        self, loop: Expr, elements: Sequence[Element], reading: Scope, lanes: Scope
    ) -> Iterator[str]:
        """Add to `reading` what can be read before anything is computed, which `lanes` then find; gives lines
        that declare where it is held."""
        width, number = self.variant.width, 0
        here = first_of(loop) if width > 1 else loop
        for node in _read_along(loop, elements):
            if width > 1 and not self._packed_load(node, lanes):
                continue
            kind = self._pack_type(node.dtype) if width > 1 else self.type_name(node.dtype)
            offset, guard = self.compute([substitute(node.args[0], {loop: here}), node.args[1]], reading)
            place = f"{node.value} + {inside(offset, 12)}"
            held = f"held{number}[turn]"
            if self.variant.shifted:
                apart, pack = self._apart(node, loop, lanes), self.fresh("pack")
                access = f"reinterpret_cast<const {kind}*>({place} - {apart})"
                wanted = " && ".join(self._conditions(node, guard))
                reading.lines.append(f"{held} = load_two({wanted}, {access}, {apart});")
                lanes.around.lines.append(f"const {kind} {pack} = shifted({held}, {apart});")
                kind, held = f"Two<{kind}>", pack
            else:
                access = f"reinterpret_cast<const {kind}*>({place})" if width > 1 else place
                reading.lines.append(f"{held} = {self._wanted_load(access, node, guard)};")
            lanes.names[node] = held + (".at[lane]" if width > 1 else ""), ATOM
            yield f"{kind} held{number}[{self.variant.repeat}];"
            number += 1

    def _apart(self, node: Expr, loop: Expr, lanes: Scope) -> str:
        """By how many elements a row that is read lies off an aligned address where accesses to the one that
        is stored begin."""
        home = lanes.around.around
        (before, _), name = self._accesses_of(loop, home), self.fresh("apart")
        (start,) = self.compute([substitute(node.args[0], {loop: ZERO})], home)
        home.lines.append(
            f"const int {name} = int({inside(start, 12)} + {before} & {self.variant.width - 1});"
        )
        return name

    def _read_ends(self, loop: Expr, elements: Sequence[Element], home: Scope, ends: Scope) -> None:
        """Add to `home` the loads of the element of a row that no aligned access holds and this thread takes.
        `ends`, in which it is stored, then finds them."""
        (before, count), width, end = self._accesses_of(loop, home), self.variant.width, _end_of(loop)
        reading, member = Scope(home, frozenset((end,))), f"int({self._member})"
        place = f"{member} < {before} ? {member} : {member} + {count} * {width}"
        home.lines += [
            f"const {self._index_type} {identifier(end.value)} = {place};",
            f"const bool at_end = {identifier(end.value)} < {self._end(loop, home)};",
        ]
        self._wanted = ["at_end"]
        for node in _read_along(loop, elements):
            name = self.fresh("last")
            offset, guard = self.compute([substitute(node.args[0], {loop: end}), node.args[1]], reading)
            load = self._wanted_load(f"{node.value} + {inside(offset, 12)}", node, guard)
            reading.lines.append(f"const {self.type_name(node.dtype)} {name} = {load};")
            ends.names[node] = name, ATOM
        self._wanted = []
        home.lines += reading.lines

    def _over(
        self,
        loops: Sequence[Expr],
        scope: Scope,
        home: Scope,
        first: str,
        step: str,
        width: int,
        lane: Expr | None = None,
        unrolled: str = "",
    ) -> None:
        if not self.variant.peeled or width == 1:
            super()._over(loops, scope, home, first, step, width, lane, unrolled)
            return
        (loop,) = loops
        (before, count), counter = self._accesses_of(loop, home), self.fresh("at")
        name = identifier(first_of(loop).value)
        scope.lines.insert(0, f"const {self._index_type} {name} = {before} + {counter} * {width};")
        self._loop(loops, counter, count, first, step, scope, home, unrolled)

    def _accesses_of(self, loop: Expr, home: Scope) -> tuple[str, str]:
        """How many elements of a row stand before its first aligned access, and how many of these it has."""
        start, end, width = row_start(self.nest, loop), self._end(loop, home), self.variant.width
        if (start, end) not in self._accesses:
            before, count = self.fresh("before"), self.fresh("count")
            parts = self.nest.parts
            home = home.home(start.free if parts is None else start.free | parts.end.free)
            place = inside(self.compute([start], home)[0], 14)
            home.lines += [
                f"const int {before} = min_of(-{place} & {width - 1}, int({end}));",
                f"const int {count} = ({end} - {before}) / {width};",
            ]
            self._accesses[start, end] = before, count
        return self._accesses[start, end]

    @contextmanager
    def _at_ends(self, loop: Expr, home: Scope) -> Iterator[Scope]:
        """The scope of a thread's element of a row that no aligned access holds; it is added to `home`."""
        (before, count), width = self._accesses_of(loop, home), self.variant.width
        self._ends = ends = Scope(home, frozenset((loop,)))
        self._rows_kept, self._ends_kept = self._ends_kept, self._rows_kept
        yield ends
        self.loop_written()
        self._rows_kept, self._ends_kept = self._ends_kept, self._rows_kept
        self._ends = None
        kind, member = self._index_type, f"int({self._member})"
        place = f"{member} < {before} ? {member} : {member} + {count} * {width}"
        ends.lines.insert(0, f"const {kind} {identifier(loop.value)} = {place};")
        condition = f"{member} < {self._end(loop, home)} - {count} * {width}"
        if self._wanted:
            ends.lines.insert(0, f"const bool within = {condition};")
        home.add([] if self._wanted else [f"if ({condition})"], ends)

    def _loop(
        self,
        loops: Sequence[Expr],
        counter: str,
        count: str,
        first: str,
        step: str,
        scope: Scope,
        home: Scope,
        unrolled: str,
    ) -> None:
        if not self.variant.turns or tuple(loops) != kept_loops(self.nest):
            super()._loop(loops, counter, count, first, step, scope, home, unrolled)
            return
        turn = Scope(home, frozenset())  # a fixed number of them: their values stay in registers
        turn.lines.append(f"const {self._index_type} {counter} = {first} + turn * {self.variant.team};")
        if self._wanted:
            turn.lines += [f"const bool within = {counter} < {count};", *scope.lines]
        elif count == str(self.variant.turns * self.variant.team):
            turn.lines.extend(scope.lines)
        else:
            turn.add([f"if ({counter} < {count})"], scope)
        home.add(["#pragma unroll", f"for (int turn = 0; turn < {self.variant.turns}; ++turn)"], turn)
        self.loop_written()

    def _spell(self, node: Expr, args: list[Spelled], home: Scope) -> Spelled:
        if node.op == "load" and home is self._ends and self._wanted:
            return self._wanted_load(f"{node.value} + {inside(args[0], 12)}", node, args[1]), ATOM
        return super()._spell(node, args, home)

    # ---- reductions ------------------------------------------------------------------------------

    def fold(self, folds: Sequence[Expr], home: Scope, scope: Scope) -> None:
        if home is not self.root and home.bound != frozenset(self.nest.rows):
            super().fold(folds, home, scope)
            return
        accumulators = self._started(folds, home)
        self._fold_team(folds, accumulators, home)
        for fold, accumulator in zip(folds, accumulators, strict=True):
            join = f"{JOINS[fold.value]}()"
            if self.variant.team == WARP:
                home.lines.append(f"{accumulator} = join_warp({accumulator}, {join});")
            else:
                shared = self._shared_for(fold)
                start = f"({self.local_type(fold)}){inside(identity(fold), 14)}"
                home.lines.append(f"{accumulator} = join_block({accumulator}, {start}, {join}, {shared});")
                self._block_joins += home is self.row
        self._finished(folds, accumulators, home)

    def _fold_team(self, folds: Sequence[Expr], accumulators: Sequence[str], home: Scope) -> None:
        """What each thread of a team finds in a row."""
        loops = folds[0].args[1:]
        chunk, lanes = self._chunk(loops, home)
        self._wanted = ["within"] if self._reads_ahead(folds, lanes) else []
        self._join(folds, accumulators, lanes)
        self._unroll(chunk, lanes)
        lane = lanes.lane if isinstance(lanes, Lanes) else None
        self._over(loops, chunk, home, self._member, str(self.variant.team), self.variant.width, lane)
        if self.variant.peeled:
            with self._at_ends(loops[-1], home) as ends:
                self._join(folds, accumulators, ends)
        self._wanted = []

    def _reads_ahead(self, folds: Sequence[Expr], lanes: Scope) -> bool:
        """May the turns in a row be walked without a branch? Then all their loads are under way together: a
        branch would end with a wait for its own."""
        loops, steps = folds[0].args[1:], product(loop.args[0] for loop in folds[0].args[1:])
        if not self.variant.turns or not isinstance(lanes, Lanes) or loops != kept_loops(self.nest):
            return False
        elements = self.variant.turns * self.variant.team * self.variant.width
        if steps.is_const and steps.value == elements and not self.variant.peeled:
            return False  # there is none
        read = (node for fold in folds for node in beneath(fold.args[0]) if node.op in ("load", "check"))
        return all(self._packed_load(node, lanes) for node in read if lanes.lane in node.free)

    def kept(self) -> frozenset[Expr]:
        return worth_keeping(self.nest, memory_is_dear=True) if self.variant.turns else frozenset()

    def keep(self, node: Expr, memory: Scope) -> Spelled:
        if self._ends is not None:
            name = self.fresh("kept")
            memory.lines.append(f"{self.local_type(node)} {name};")
            return name, ATOM
        name = f"row{len(self._rows_kept) + len(self._fresh_rows)}"
        lanes = f"[{self.variant.width}]" if self.variant.width > 1 else ""
        memory.lines.append(f"{self.local_type(node)} {name}[{self.variant.turns}]{lanes};")
        return f"{name}[turn]" + ("[lane]" if lanes else ""), ATOM


def _end_of(loop: Expr) -> Expr:
    """An element along `loop` that no aligned access holds."""
    return index(f"{loop.value}_end", loop.args[0])


def _read_along(loop: Expr, elements: Sequence[Element]) -> Iterator[Expr]:
    """Loads at places along `loop` that no other load along it decides."""
    decided: set[Expr] = set()  # by what is read along the loop
    for node in toposort(e.scalar for e in elements):
        if any(arg in decided for arg in node.args):
            decided.add(node)
        elif node.op in ("load", "check") and loop in node.free:
            decided.add(node)
            if node.op == "load":
                yield node
