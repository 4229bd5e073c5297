"""C++ for the CPU: a nest comes in, a kernel's text goes out. Threads share the rows and the blocks of
lanes; the innermost loop is vector code. A row kernel reduces along vectors; a column kernel keeps one
accumulator for each lane of a block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dlcb.compiler.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT8, DType
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, apply, index, product
from dlcb.compiler.expr.ops import TRANSCENDENTAL, cost_of
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.cstyle import ATOM, JOINS, Call, Spelled, inside, tables
from dlcb.compiler.kgen.lower import Lowering, Scope, identifier, identity
from dlcb.compiler.kgen.schedule import Nest, beneath, extent, is_serial, kept_loops, worth_keeping
from dlcb.compiler.kgen.verify import conditions
from dlcb.compiler.shapes.system import System

BLOCK_START = index("begin", ONE)  # stands for the block of lanes, in which accumulators live
BLOCK_END = index("end", ONE)
BLOCK = {"flat": 2048, "column": 1024}  # lanes that one thread takes at a time
_STRIP = 32  # elements of a row that are joined side by side: four vectors of eight; of extrema twice as many
_BESIDE, _LIGHT = 4, 40  # elements of a column that are joined first; operations, where that pays
# Additions to one accumulator in float32, which then joins one in double. Where all elements are equal, every
# addition rounds in the same direction, so that the error grows with their number.
_ADDITIONS = 16
_TERMS = 1024  # what takes long to compute is kept for so many elements, then summed as plain elements are
# elements, plain ones and such as call a function; with fewer, starting threads costs more than they save
_WORTH_A_THREAD, _DEAR_AND_WORTH_IT = 16384, 4096
_SIGNATURE = "void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads"
_CLAUSES = {"sum": "+", "prod": "*", "max": "greatest", "min": "least", "any": "|", "all": "&"}


@dataclass(frozen=True)
class _Strips:
    """Text of a loop over strips of a row: the name of a strip's first element, its length, the lines before
    the loop, of one element, and after the loop, for parts of so many elements (0: all in one), and those
    before and after the loop over what is left."""

    first: str
    length: int
    part: int
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    before_rest: list[str] = field(default_factory=list)
    after_rest: list[str] = field(default_factory=list)


class Cpp(Lowering):
    target = "C++"
    table: ClassVar = tables(exp=Call("exp_of"), erf=Call("erf_of"))
    # where threads may share the work: the text of how much it is, and how much is worth a thread
    shared: tuple[str, int] | None = None

    def __init__(self, nest: Nest, tensors: Mapping[str, Value], system: System) -> None:
        super().__init__(nest, tensors, system)
        self.pointers: dict[str, str] = {}  # further ones to a buffer, and its name
        # by buffer and guard the pointer of each load
        self._guarded: dict[tuple[str, Expr], dict[Expr, str]] = {}

    def memory(self, load: Expr) -> str:
        """Each of several reads of a buffer under one condition has a pointer of its own, which the compiler
        cannot know to be the same: GCC 12.2, among others, joins such reads to one masked read of a vector,
        and forgets to shuffle it (PR 114375)."""
        buffer, guard = str(load.value), load.args[1]
        if guard is TRUE:
            return buffer
        names = self._guarded.setdefault((buffer, guard), {})
        if load not in names:
            names[load] = self.fresh(f"{buffer}_") if names else buffer
            if names[load] != buffer:
                self.pointers[names[load]] = buffer
        return names[load]

    def run(self) -> list[str]:
        """The lines of the kernel's body."""
        if self.nest.kind == "row":
            self._rows()
        else:
            self._lanes()
        return self.root.lines

    # ---- loops -----------------------------------------------------------------------------------

    def _rows(self) -> None:
        self.row = row = Scope(self.root, frozenset(self.nest.rows)) if self.nest.rows else self.root
        once = [e for e in self.nest.elements if not set(e.indices) & set(self.nest.inner)]
        each = [e for e in self.nest.elements if e not in once]
        if each:
            scopes = self._nested(self.nest.inner, row)
            after = self._store(each, scopes[-1])
            self._close(self.nest.inner, scopes, row, self._simd(scopes[-1]))
            row.lines.extend(after)
        self._store(once, row)
        self._outermost(list(map(self._loop, self.nest.rows)), row)

    def _lanes(self) -> None:
        lane = self.nest.lane
        if lane is None:
            self._store(self.nest.elements, self.root)
            return
        block = Scope(self.root, frozenset((*self.nest.rows, BLOCK_START, BLOCK_END)))
        tables = self._tables()
        ranges: dict[Expr, list[Element]] = {}
        for element in self.nest.elements:
            ranges.setdefault(element.guard, []).append(element)
        first = BLOCK_START if self._blocked else ZERO
        for guard, elements in ranges.items():
            lanes = Scope(block, frozenset((lane,)), names=dict(tables))
            after = self._store(elements, lanes)
            loop = self._lane_loop()
            if len(ranges) > 1:
                loop, first = self._range_of_lanes(guard, first, block)
            if lanes.lines:
                block.add([*self._simd(lanes), loop], lanes)
            block.lines.extend(after)
        loops, before = [*map(self._loop, self.nest.rows)], list[str]()
        if self._blocked:
            size, length = self._extent(lane), str(BLOCK[self.nest.kind])
            if self.nest.kind == "column":  # the wider the better, as long as no thread goes without work
                rows = self._size(product(i.args[0] for i in self.nest.rows))
                before = [f"const int64_t length = share({size}, threads, {rows}, {length});"]
                length = "length"
            block.lines.insert(
                0, f"const int64_t end = begin + {length} < {size} ? begin + {length} : {size};"
            )
            loops.append(f"for (int64_t begin = 0; begin < {size}; begin += {length})")
        self._outermost(loops, block, before)

    @property
    def _lane(self) -> Expr:
        """The index that neighbouring lanes take, of a nest that has lanes."""
        assert self.nest.lane is not None
        return self.nest.lane

    @property
    def _blocked(self) -> bool:
        """Are there more lanes than one thread takes at a time, as far as is known?"""
        size = self._lane.args[0]
        return not size.is_const or size.value > BLOCK[self.nest.kind]

    def _outermost(self, loops: Sequence[str], scope: Scope, before: Sequence[str] = ()) -> None:
        """Write the loops that threads share; `before` are lines that need to know how many there are."""
        if not loops:
            if scope is not self.root:
                self.root.lines.extend(scope.lines)
            return
        dear = _are_dear(toposort(e.scalar for e in self.nest.elements))
        least = _DEAR_AND_WORTH_IT if dear else _WORTH_A_THREAD
        self.shared = self._size(self.nest.work()), least
        self.root.lines.extend(before)
        collapse = f" collapse({len(loops)})" if len(loops) > 1 else ""
        self.root.add([f"#pragma omp for{collapse} schedule(static) nowait", *loops], scope)

    def _nested(self, loops: Sequence[Expr], outer: Scope, part: int = 0) -> list[Scope]:
        """A scope for each loop; with `part` the innermost one has a scope of its own around it."""
        scopes: list[Scope] = []
        for loop in loops:
            if part and loop is loops[-1]:
                outer = Scope(outer, frozenset())
            outer = Scope(outer, frozenset((loop,)))
            scopes.append(outer)
        return scopes

    def _close(
        self,
        loops: Sequence[Expr],
        scopes: Sequence[Scope],
        home: Scope,
        innermost: Sequence[str],
        part: int = 0,
        after: Sequence[str] = (),
        strips: _Strips | None = None,
        first: str = "start",
    ) -> None:
        """Write the loops, innermost first; with `part` the innermost one walks parts of so many elements,
        each from `first` on, and `after` are the lines that end one."""
        for number in reversed(range(len(loops))):
            last = number == len(loops) - 1
            parent = scopes[number - 1] if number else home
            if not last:
                parent.add([self._loop(loops[number])], scopes[number])
                continue
            size, around, begin, end = self._extent(loops[number]), parent, "0", ""
            if part:
                around, begin, end = scopes[number].around, first, "stop"
                around.lines.insert(
                    0, f"const int64_t stop = start + {part} < {size} ? start + {part} : {size};"
                )
            self._walk(loops[number], begin, end or size, scopes[number], around, innermost, strips)
            if part:
                around.lines.extend(after)
                parent.add([f"for (int64_t start = 0; start < {size}; start += {part})"], around)

    def _walk(
        self,
        loop: Expr,
        first: str,
        end: str,
        scope: Scope,
        home: Scope,
        pragma: Sequence[str],
        strips: _Strips | None,
    ) -> None:
        """Write an innermost loop, after the strips of it that are whole."""
        name, count = identifier(loop.value), loop.args[0]
        if strips is None:
            home.add([*pragma, f"for (int64_t {name} = {first}; {name} < {end}; ++{name})"], scope)
        else:
            around, strip = Scope(home, frozenset()), Scope(home, frozenset())
            start, length, last = strips.first, strips.length, end
            home.lines.append(f"int64_t {start} = {first};")
            if strips.part:
                last, most = f"{start}_end", f"{start} + {strips.part}"
                around.lines.append(f"const int64_t {last} = {most} < {end} ? {most} : {end};")
            around.lines.extend(strips.before)
            strip.lines.extend(strips.body)
            each = f"for (int64_t {name} = {start}; {name} < {start} + {length}; ++{name})"
            whole = f"for (; {start} + {length} <= {last}; {start} += {length})"
            around.add([whole, "#pragma omp simd", each], strip)
            around.lines.extend(strips.after)
            home.add([f"{'while' if strips.part else 'if'} ({start} + {length} <= {end})"], around)
            if count.is_const and count.value % length == 0:
                return
            rest = Scope(home, frozenset(), list(strips.before_rest))
            rest.add([*pragma, f"for (int64_t {name} = {start}; {name} < {end}; ++{name})"], scope)
            rest.lines.extend(strips.after_rest)
            home.add([f"if ({start} < {end})"], rest)

    def _loop(self, loop: Expr) -> str:
        name = identifier(loop.value)
        return f"for (int64_t {name} = 0; {name} < {self._extent(loop)}; ++{name})"

    def _lane_loop(self) -> str:
        name = identifier(self._lane.value)
        return (
            f"for (int64_t {name} = begin; {name} < end; ++{name})"
            if self._blocked
            else self._loop(self._lane)
        )

    def _tables(self) -> dict[Expr, Spelled]:
        """What every row would compute for its lanes again, and is dear: computed once, before the rows, and
        read from memory. Of a column kernel nothing is: its reductions have loops over lanes of their own."""
        lane, nodes = self._lane, self.nest.nodes
        if self.nest.kind != "flat" or not self.nest.rows:
            return {}
        along = {
            n for n in nodes if n.args and not n.reads and {v for v in n.free if v.op == "index"} == {lane}
        }
        dear: set[Expr] = set()
        for node in nodes:
            if node in along and (_is_dear(node) or not dear.isdisjoint(node.args)):
                dear.add(node)
        used = {arg for n in nodes if n not in along for arg in n.args}
        kept = [n for n in nodes if n in dear and n in used]
        if not kept:
            return {}
        home = Scope(self.root, frozenset((lane,)))
        name, tables = identifier(lane.value), dict[Expr, Spelled]()
        for node, (value, _) in zip(kept, self.compute(kept, home), strict=True):
            memory = self.row_memory(self.type_name(node.dtype), lane, self.root)
            home.lines.append(f"{memory}[{name}] = {value};")
            tables[node] = f"{memory}[{name}]", ATOM
        self.root.add([*self._simd(home), self._loop(lane)], home)
        return tables

    def _range_of_lanes(self, guard: Expr, first: Expr, block: Scope) -> tuple[str, Expr]:
        """The loop over those lanes of a block from `first` on for which `guard` holds (see `cut`), and where
        it ends: at `first` where there are none."""
        end = BLOCK_END if self._blocked else self._lane.args[0]
        for condition in conditions(guard):
            end = apply("min", end, condition.args[1])
        ((text, _),) = self.compute([apply("max", first, end)], block)
        last, name = index(self.fresh("last"), ONE), identifier(self._lane.value)
        block.bound |= {last}
        block.lines.append(f"const int64_t {last.value} = {text};")
        start = "0" if first is ZERO else first.value
        return f"for (int64_t {name} = {start}; {name} < {last.value}; ++{name})", last

    def _extent(self, loop: Expr) -> str:
        return self._size(loop.args[0])

    def _size(self, size: Expr) -> str:
        return self.parameter(size)

    @staticmethod
    def _simd(scope: Scope, clauses: str = "") -> list[str]:
        return [] if scope.reports else [f"#pragma omp simd{clauses}"]

    def _store(self, elements: Sequence[Element], scope: Scope) -> list[str]:
        """Add stores to `scope`; what must follow its loop is returned."""
        spelled = self.compute([root for e in elements for root in (e.scalar, e.offset)], scope)
        for element, value, offset in zip(elements, spelled[::2], spelled[1::2], strict=True):
            scope.lines.append(f"{self.results[element.value]}[{offset[0]}] = {value[0]};")
        return []

    # ---- reductions ------------------------------------------------------------------------------

    def fold(self, folds: Sequence[Expr], home: Scope, scope: Scope) -> None:
        accumulators = [self.fresh("sum" if fold.value == "sum" else "fold") for fold in folds]
        self._running.extend(folds)
        if self._per_lane(folds[0]):
            self._fold_lanes(folds, accumulators, home)
        else:
            self._fold_scalars(folds, accumulators, home)
        del self._running[-len(folds) :]

    def _fold_scalars(self, folds: Sequence[Expr], accumulators: Sequence[str], home: Scope) -> None:
        loops = folds[0].args[1:]
        if _side_by_side(folds):
            self._fold_strips(folds, accumulators, home)
            return
        part = _part(folds, _TERMS, alone=True)
        scopes = self._nested(loops, home, part)
        bodies = self.compute([fold.args[0] for fold in folds], scopes[-1])
        after: list[str] = []
        clauses = ""
        for fold, accumulator, body in zip(folds, accumulators, bodies, strict=True):
            if part and _summed(fold):
                home.names[fold] = f"(float){accumulator}", 14
                home.lines.append(f"double {accumulator} = 0.0;")
                terms, place = f"terms_of_{accumulator}", f"{identifier(loops[-1].value)} - start"
                scopes[-1].around.lines.append(f"alignas(64) float {terms}[{part}];")
                scopes[-1].lines.append(f"{terms}[{place}] = {body[0]};")
                after.append(f"{accumulator} += sum_of({terms}, stop - start);")
                continue
            home.names[fold] = accumulator, ATOM
            home.lines.append(f"{self.type_name(fold.dtype)} {accumulator} = {identity(fold)[0]};")
            scopes[-1].lines.append(self.joined(fold, accumulator, body))
            clauses += f" reduction({_CLAUSES[fold.value]}:{accumulator})"
        vector = [] if is_serial(folds[0]) and len(loops) > 1 else self._simd(scopes[-1], clauses)
        self._close(loops, scopes, home, vector, part, after)
        if loops == kept_loops(self.nest):
            self.loop_written()

    def _fold_strips(self, folds: Sequence[Expr], accumulators: Sequence[str], home: Scope) -> None:
        """Whole strips, each of whose elements has an accumulator of its own, then the rest of the row."""
        loops = folds[0].args[1:]
        first, place, length = self.fresh("strip"), identifier(loops[-1].value), _strip(folds)
        scopes = self._nested(loops, home)
        bodies = self.compute([fold.args[0] for fold in folds], scopes[-1])
        strips = _Strips(first, length, _part(folds, _ADDITIONS * length), body=list(scopes[-1].lines))
        clauses = ""
        for fold, accumulator, body in zip(folds, accumulators, bodies, strict=True):
            kind, start, name = self.type_name(fold.dtype), identity(fold)[0], accumulator
            home.names[fold] = accumulator, ATOM
            lanes = f"{name}_lanes"
            strips.before.extend(_filled(kind, lanes, length, start))
            strips.body.append(self.joined(fold, f"{lanes}[{place} - {first}]", body))
            joined = f"join_lanes<{length}>({lanes}, {JOINS[fold.value]}())", ATOM
            if strips.part and _summed(fold):
                name = f"rest_of_{accumulator}"
                home.lines.append(f"double {accumulator} = 0.0;")
                home.names[fold] = f"(float){accumulator}", 14
                strips.after.append(f"{accumulator} += {joined[0]};")
                strips.before_rest.append(f"{kind} {name} = {start};")
                strips.after_rest.append(f"{accumulator} += {name};")
            else:  # joined with what earlier rounds of the loops around it have found
                home.lines.append(f"{kind} {name} = {start};")
                strips.after.append(self.joined(fold, name, joined))
            scopes[-1].lines.append(self.joined(fold, name, body))
            clauses += f" reduction({_CLAUSES[fold.value]}:{name})"
        self._close(loops, scopes, home, self._simd(scopes[-1], clauses), strips=strips)
        if loops == kept_loops(self.nest):
            self.loop_written()

    def _fold_lanes(self, folds: Sequence[Expr], accumulators: Sequence[str], home: Scope) -> None:
        """An accumulator for each lane, which a few elements of a column join at once where that pays."""
        loops = folds[0].args[1:]
        beside = self.beside(folds)
        part = _part(folds, max(_ADDITIONS * beside, 2 * _ADDITIONS), alone=True)
        scopes = self._nested(loops, home, part)
        lanes = Scope(scopes[-1], frozenset((self._lane,)))
        bodies = self.compute([fold.args[0] for fold in folds], lanes)
        name = identifier(self._lane.value)
        if self._blocked:
            length, count, here = str(BLOCK["column"]), "end - begin", f"[{name} - begin]"
        else:
            length = count = self._extent(self._lane)
            here = f"[{name}]"
        each = Scope(None, frozenset(), [*scopes[-1].lines, *lanes.lines])  # of a few elements
        before, after, ends = list[str](), list[str](), list[str]()
        for fold, accumulator, body in zip(folds, accumulators, bodies, strict=True):
            kind, start, running = self.type_name(fold.dtype), identity(fold)[0], accumulator
            home.names[fold] = accumulator + here, ATOM
            before.append(f"{kind} few_of_{accumulator} = {start};")
            each.lines.append(self.joined(fold, f"few_of_{accumulator}", body))
            if part and _summed(fold):
                running = f"part_of_{accumulator}"
                scopes[-1].around.lines += _filled("float", running, length, "0.0f", count)
                ends.append(
                    f"for (int64_t lane = 0; lane < {count}; ++lane) {accumulator}[lane] += {running}[lane];"
                )
                home.names[fold] = f"(float){accumulator}{here}", 14
                kind, start = "double", "0.0"
            home.lines += _filled(kind, accumulator, length, start, count)
            after.append(self.joined(fold, running + here, (f"few_of_{accumulator}", ATOM)))
            lanes.lines.append(self.joined(fold, running + here, body))
        first = "start"
        if part and beside > 1:
            first, row = self.fresh("few"), identifier(loops[-1].value)
            few, around = Scope(None, frozenset(), before), scopes[-1].around
            loop = f"for (int64_t {row} = {first}; {row} < {first} + {beside}; ++{row})"
            few.add([f"#pragma GCC unroll {beside}", loop], each)
            few.lines.extend(after)
            around.lines.append(f"int64_t {first} = start;")
            whole = f"for (; {first} + {beside} <= stop; {first} += {beside})"
            around.add([whole, *self._simd(lanes), self._lane_loop()], few)
        scopes[-1].add([*self._simd(lanes), self._lane_loop()], lanes)
        self._close(loops, scopes, home, [], part, ends, first=first)

    def beside(self, folds: Sequence[Expr]) -> int:
        """Elements of a column that are joined with each other before they join those before, so that these
        are read and written less often: several where no more is done to an element than to load it."""
        loop, nodes = folds[0].args[-1], {n for fold in folds for n in beneath(fold.args[0])}
        short = loop.args[0].is_const and loop.args[0].value < _BESIDE
        light = sum(map(cost_of, nodes)) <= _LIGHT and not _are_dear(nodes)
        asks = any(n.op in ("check", "reduce") and {loop, self._lane} & n.free for n in nodes)
        return _BESIDE if light and not short and not asks else 1

    def _per_lane(self, node: Expr) -> bool:
        return node.op == "reduce" and self.nest.lane is not None and self.nest.lane in node.free

    def _home(self, node: Expr, scope: Scope) -> Scope:
        # an accumulator for each lane lives outside the loop over lanes
        return scope.home(
            (node.free - {self.nest.lane}) | {BLOCK_START} if self._per_lane(node) else node.free
        )

    def kept(self) -> frozenset[Expr]:
        return worth_keeping(self.nest) if len(kept_loops(self.nest)) == 1 else frozenset()

    def keep(self, node: Expr, memory: Scope) -> Spelled:
        (loop,) = kept_loops(self.nest)
        return f"{self.row_memory(self.type_name(node.dtype), loop, memory)}[{identifier(loop.value)}]", ATOM

    def row_memory(self, element: str, loop: Expr, home: Scope) -> str:
        """The name of memory for what a loop over a row computes."""
        name = self.fresh("row")
        number = name.removeprefix("row")
        home.lines.append(f"{element}* const {name} = scratch<{element}, {number}>({self._extent(loop)});")
        return name

    # ---- spelling --------------------------------------------------------------------------------

    def type_name(self, dtype: DType) -> str:
        return dtype.cpp

    def _spell(self, node: Expr, args: list[Spelled], home: Scope) -> Spelled:
        if node.op in ("min", "max") and node.dtype.is_float and node.args[1].is_const:
            args = args[::-1]  # of a number in the first place the compiler knows that it is not NaN
        whole = node.args[0] if node.op == "cast" and node.dtype.is_float else node
        cut = whole.op == "cast" and whole.dtype.kind == "int" and whole.args[0].dtype.is_float
        if whole is node or not cut:
            return super()._spell(node, args, home)
        wide = node.dtype.accumulator
        return self.convert((f"from_whole<{wide.cpp}>({args[0][0]})", ATOM), wide, node.dtype)

    def divide(self, numerator: Spelled, divisor: Expr, node: Expr) -> Spelled:
        name = self.parameter(divisor, "magic64")
        return f"divide({numerator[0]}, {name}, {name}_shift)", ATOM

    def convert(self, text: Spelled, old: DType, new: DType) -> Spelled:
        return convert(text, old, new, self.type_name)

    def cut_off(self, text: Spelled, old: DType, new: DType) -> Spelled:
        # short integers are the ends of long ones
        through = INT64 if new is INT64 or (old is FLOAT64 and new is UINT8) else INT32
        wide = self.convert(text, old, old.accumulator)
        return self.convert((f"whole<{through.cpp}>({wide[0]})", ATOM), through, new)


def _is_dear(node: Expr) -> bool:
    """Does it take longer than a look into memory? Vector code has no fast conversion to long integers."""
    cut_off = node.op == "cast" and node.args[0].dtype.is_float and not node.dtype.is_float
    return cut_off or cost_of(node) >= TRANSCENDENTAL


def _summed(fold: Expr) -> bool:
    return fold.value == "sum" and fold.dtype is FLOAT32


def _part(folds: Sequence[Expr], length: int, alone: bool = False) -> int:
    """Long sums are taken in parts of `length` elements of their innermost loop, added up in double, so that
    their error does not grow; 0: they are short. `alone`: all elements are added to one accumulator."""
    if not any(map(_summed, folds)):
        return 0
    count, inner = extent(folds[0]), folds[0].args[-1].args[0]
    if not count.is_const:
        return length
    additions = count.value if alone else count.value // inner.value
    return length if inner.value > length or additions > 2 * _ADDITIONS else 0


def _are_dear(nodes: Iterable[Expr]) -> bool:
    return any(cost_of(node) >= TRANSCENDENTAL for node in nodes)


def _side_by_side(folds: Sequence[Expr]) -> bool:
    """Should neighbouring elements of a row be joined side by side, so that one addition need not wait for
    the one before? Not where what is joined takes longer to compute than that wait."""
    count = folds[0].args[-1].args[0]
    dear = _are_dear(node for fold in folds for node in beneath(fold.args[0]))
    return not dear and not (count.is_const and count.value < 2 * _STRIP)


def _strip(folds: Sequence[Expr]) -> int:
    """Elements that are joined side by side. One that is looked at for NaN waits longer for another."""
    count = folds[0].args[-1].args[0]
    extrema = all(fold.value in ("max", "min") and fold.dtype.is_float for fold in folds)
    return 2 * _STRIP if extrema and not (count.is_const and count.value < 4 * _STRIP) else _STRIP


def _filled(kind: str, name: str, length: int | str, start: str, count: str = "") -> list[str]:
    """An array whose elements, or the first `count` of them, are `start`."""
    return [
        f"{kind} {name}[{length}];",
        f"for (int64_t lane = 0; lane < {count or length}; ++lane) {name}[lane] = {start};",
    ]


def convert(text: Spelled, old: DType, new: DType, type_name) -> Spelled:
    """A cast in C; half types go through float32."""
    if old is new:
        return text
    if old in (FLOAT16, BFLOAT16):
        return convert((f"float_of({text[0]})", ATOM), FLOAT32, new, type_name)
    if new in (FLOAT16, BFLOAT16):
        to_float = convert(text, old, FLOAT32, type_name)
        return f"{'half_of' if new is FLOAT16 else 'bfloat_of'}({to_float[0]})", ATOM
    return f"({type_name(new)}){inside(text, 14)}", 14


def function(name: str, lowering: Cpp, lines: Sequence[str]) -> str:
    """The whole function, with its buffers and parameters taken apart at the top. Where threads may share the
    work, it is a function that each of them calls: one thread alone needs no parallel region, which costs as
    much as a few thousand elements."""
    entry = f'extern "C" void {name}({_SIGNATURE}) {{'
    head = [f"[[gnu::noinline]] static void {name}_part({_SIGNATURE}) {{" if lowering.shared else entry]
    arguments = [(f"const {v.dtype.cpp}", name) for name, v in lowering.tensors.items()]
    arguments += [(v.dtype.cpp, name) for v, name in lowering.results.items()]
    for place, (kind, buffer) in enumerate(arguments):
        head.append(f"    {kind}* __restrict__ {buffer} = static_cast<{kind}*>(buffers[{place}]);")
    for pointer, buffer in lowering.pointers.items():
        head.append(f"    auto* __restrict__ {pointer} = {buffer};")
        head.append(f'    asm("" : "+r"({pointer}));')
    place, places = 0, dict[str, int]()
    for parameter in lowering.parameters:
        places[parameter.name] = place
        head.append(f"    const int64_t {parameter.name} = parameters[{place}];")
        place += 1
        if parameter.kind == "magic64":
            head.append(f"    const int64_t {parameter.name}_shift = parameters[{place}];")
            place += 1
    head.append("    (void)buffers, (void)parameters, (void)status, (void)threads;")
    text = [*head, *("    " + line for line in lines), "}"]
    if lowering.shared:
        size, least = lowering.shared
        work = f"parameters[{places[size]}]" if size in places else size
        part = f"{name}_part(buffers, parameters, status, threads);"
        text += [
            entry,
            f"    if ({work} < {least}) threads = 1;",
            "    if (threads == 1) return " + part,
            "    #pragma omp parallel num_threads(threads)",
            "    " + part,
            "}",
        ]
    return "\n".join(text) + "\n"
