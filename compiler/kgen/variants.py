"""Which variants of a CUDA kernel are made, and what each takes for granted: a nest comes in, variants with
their guards over the sizes go out, most specialised first. The host launches the first whose guards hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dlcb.compiler.dtype import BOOL, INDEX, DType
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    apply,
    as_expr,
    ceildiv,
    equal,
    index,
    product,
    substitute,
    substitute_all,
)
from dlcb.compiler.kgen.affine import Sum, linear, over_sizes
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.schedule import Nest, Parts, is_short, worth_keeping
from dlcb.compiler.kgen.verify import products
from dlcb.compiler.shapes.system import System

THREADS = 256  # in a block, unless a team of another size is one
WARP = 32
TILE = 32  # threads across the columns that a block takes; the least side of a tile
_LARGE_TILE = 64
_WIDEST_TILED = 8  # elements
_TILE_BYTES = 40 << 10  # of a block's shared memory, with room for what pads the rows
FEW = 4  # threads across a block whose columns are few
ACCESS = 16  # bytes that a thread moves at once
_MOST_BLOCKS = 1 << 16  # further elements are reached by striding
TEAMS = (WARP, 64, 128, 256, 512, 1024)  # threads that may share a row; more than a warp are a block
_KEPT = 16  # registers of a thread for values of a row: more leave too few threads to hide memory's latency
_KEPT_OF_HALVES = 64  # where an access fills eight: then joining among more threads takes longer than memory
_FREE_TEAMS = (WARP, 128, 512)  # for rows of free length: few, as each is a kernel to compile
_WARP_TURNS = 32  # accesses of a lane in a row of which nothing is kept; a longer one is a block's
_UNDER_WAY = 4  # loads that a thread has under way at once
_COPYING_BLOCKS = 4  # of a multiprocessor, which then have eight accesses of a thread under way
_COLUMN_BLOCKS = 6  # columns of halves are seldom split into more; those of other types are
_LIGHT = 40  # operations of an element, those of addresses included
_LARGEST_INT = 2**31 - 1


@dataclass(frozen=True)
class Variant:
    """What one kernel takes for granted: elements a thread moves at once, bits of an index, threads that
    share a row, and how many turns they take in it."""

    width: int = 1
    index_bits: int = 32
    team: int = THREADS
    # turns that each thread takes in a row, whose values stay in registers; 0: as many as the row needs
    turns: int = 0
    shape: str = ""  # "columns" or "tile" where threads exchange elements through shared memory
    across: int = TILE  # threads side by side along the columns of a block
    tail: bool = False  # are there elements beyond the last whole access?
    repeat: int = 1  # elements of a thread whose loads are to be under way together
    peeled: bool = False  # may rows start and end within an access?
    shifted: bool = False  # if peeled: may what is read start elsewhere within an access than what is stored?
    streams: bool = False  # should what it stores leave the cache to what it reads?
    # blocks of a multiprocessor among which registers are shared out; left alone (0), NVRTC waits for loads
    # early to have registers for more of them
    blocks: int = 0

    @property
    def threads(self) -> int:
        """In a block."""
        return THREADS if self.team == WARP else self.team

    @property
    def suffix(self) -> str:
        width = f"_w{self.width}" if self.width > 1 else ""
        team = "_warp" if self.team == WARP else f"_{self.team}" if self.team != THREADS else ""
        turns = f"_t{self.turns}" if self.turns else ""
        shape = f"_{self.shape}" if self.shape else ""
        shape += f"_{self.across}" if self.across != TILE else ""
        peeled = "_shifted" if self.shifted else "_peeled" if self.peeled else ""
        return width + team + turns + shape + peeled + ("_64" if self.index_bits == 64 else "")


@lru_cache(maxsize=4096)  # asked for every node of an address
def narrowable(node: Expr) -> bool:
    """Is an integer made of coordinates and sizes alone?"""
    return not node.reads and not any(below.dtype.is_float for below in toposort([node]))


def steps_of(offset: Expr, lane: Expr, width: int) -> list[Expr] | None:
    """What must be a multiple of `width` so that `width` elements from a multiple of it can be moved at
    once; None where the elements are not neighbours, or never aligned."""
    sums = linear(offset)
    others = [(term, c) for term, c in sums.items() if term is not lane]
    if sums.get(lane) is not ONE or any(lane in term.free for term, _ in others):
        return None
    if any(c.is_const and c.value % width for _, c in others):
        return None
    return [c for _, c in others if not c.is_const]


def accesses(nest: Nest) -> list[tuple[Expr, DType]]:
    """The addresses and element types of all loads and stores."""
    loads = [(n.args[0], n.dtype) for n in nest.nodes if n.op == "load"]
    return [*loads, *((e.offset, e.value.dtype) for e in nest.elements)]


def vector_loops(nest: Nest) -> list[Expr]:
    """The loops whose neighbouring elements a thread takes: the innermost of the domain and of each team
    reduction."""
    if nest.kind != "row":
        loads = crossed(nest)
        return [i for i in (nest.lane, *(loads or ())[:1]) if i is not None]
    loops = [nest.inner[-1]] if nest.inner else []
    rows = set(nest.rows)
    folds = [f for f in nest.reductions if {v for v in f.free if v.op == "index"} <= rows]
    return [*loops, *(fold.args[-1] for fold in folds if fold.args[-1] not in loops)]


def widest(nest: Nest) -> int:
    """Elements of the widest type that fit one access, if any access is along the vector loops; of a column
    kernel, where folds repeat them, if all are."""
    loops = vector_loops(nest)
    # partial results are few, and wider than what is reduced
    moved = accesses(nest) if nest.parts is None else accesses(nest)[: -len(nest.elements)]
    sizes = [d.itemsize for offset, d in moved for loop in loops if linear(offset).get(loop) is ONE]
    if not sizes:
        return 1
    width = max(1, min(ACCESS // size for size in sizes))
    return width if nest.kind != "column" or _side_by_side(nest, width) else 1


def _side_by_side(nest: Nest, width: int) -> bool:
    """Is everything that neighbouring lanes read one access of `width` elements, or one element?"""
    lane = nest.lane
    assert lane is not None
    nodes = [node for node in nest.nodes if node.op in ("load", "check")]
    return all(
        node.op == "load"
        and lane not in node.args[1].free
        and (lane not in node.free or steps_of(node.args[0], lane, width) is not None)
        for node in nodes
    )


def wide_guards(nest: Nest, width: int, system: System, whole: bool = True) -> tuple[Expr, ...] | None:
    """What must hold for accesses of `width` elements; None where they cannot be had. Unless `whole` loops
    may end within an access."""
    loops = vector_loops(nest)
    multiples = [loop.args[0] for loop in loops] if whole else []
    if nest.parts is not None and nest.parts.place in loops:
        multiples.append(nest.parts.total)
    for offset, dtype in accesses(nest):
        for loop in loops:
            if dtype.itemsize * width <= ACCESS:
                multiples += steps_of(offset, loop, width) or []
    guards = dict.fromkeys(system.simplify(equal(m % width, 0)) for m in multiples)
    if any(g.is_const and not g.value for g in guards):
        return None
    return tuple(g for g in guards if not g.is_const and system.known(g) is not True)


def row_start(nest: Nest, loop: Expr) -> Expr:
    """Where in memory, in elements, a row along `loop` starts; of several tensors one will do
    (`may_be_peeled`), but what a row kernel stores comes first (`may_be_shifted`)."""
    stores = [(e.offset, e.value.dtype) for e in nest.elements if nest.kind == "row"]
    offset = next(offset for offset, _ in (*stores, *accesses(nest)) if linear(offset).get(loop) is ONE)
    return substitute(offset, {loop: ZERO})


def may_be_peeled(nest: Nest, width: int) -> bool:
    """Do all accesses along a row, in a column kernel all loads, start equally far from an address of
    `width` elements, whatever the sizes?"""
    rows, loops = set(nest.rows), vector_loops(nest)
    walks = [nest.inner, *(fold.args[1:] for fold in nest.reductions)]
    places = [(offset, TRUE) for offset, _ in accesses(nest)]
    if nest.kind == "column" and nest.parts is not None:
        rows, places = {*rows, nest.parts.place}, places[: -len(nest.elements)]
        loops = [] if any(len(walk) > 1 for walk in walks) else loops
    elif nest.kind != "row" or any(len(walk) > 1 for walk in walks if set(walk) & set(loops)):
        return False
    for node in nest.nodes:
        if node.op == "load":
            places.append((ZERO, node.args[1]))
        elif node.op == "check":
            places += [(ZERO, arg) for arg in node.args]
    starts: dict[Expr, Expr] = {}  # of each access along a loop
    for offset, guard in places:
        for loop in loops:
            if loop in guard.free or (loop in offset.free and linear(offset).get(loop) is not ONE):
                return False
            if loop in offset.free:
                starts[offset] = substitute(offset, {loop: ZERO})
    if not loops or not all(any(loop in offset.free for offset in starts) for loop in loops):
        return False
    first = next(iter(starts.values()))
    apart = [step for start in starts.values() for step in linear(start - first).values()]
    indices = {i for start in starts.values() for i in start.free if i.op == "index"}
    if nest.kind == "row" and indices and any(not fold.free & rows for fold in nest.reductions):
        return False  # what is the same in all rows is reduced before them, where none has started
    return indices <= rows and all(step.is_const and step.value % width == 0 for step in apart)


def may_be_shifted(nest: Nest, width: int) -> bool:
    """Are rows without reductions read and stored from their first element to their last, and do all that are
    stored start equally far from an address of `width` elements, whatever the sizes?"""
    (loop,) = nest.inner
    nodes = nest.nodes
    guards = [node.args[1] for node in nodes if node.op == "load"]
    guards += [arg for node in nodes if node.op == "check" for arg in node.args]
    if any(loop in guard.free for guard in (*guards, *(e.guard for e in nest.elements))):
        return False
    walks = [linear(offset) for offset, _ in accesses(nest) if loop in offset.free]
    if any(walk.get(loop) is not ONE or _terms_along(walk, loop) > 1 for walk in walks):
        return False
    starts = [substitute(e.offset, {loop: ZERO}) for e in nest.elements if loop in e.indices]
    apart = [step for start in starts for step in linear(start - starts[0]).values()]
    return len(starts) == len(nest.elements) and all(s.is_const and s.value % width == 0 for s in apart)


def _terms_along(walk: Sum, loop: Expr) -> int:
    return sum(1 for term in walk if loop in term.free)


def narrow_guards(nest: Nest, system: System) -> tuple[Expr, ...]:
    """What must hold for 32-bit indices: no address or coordinate, nor any part of one, passes 2^31."""
    roots = [offset for offset, _ in accesses(nest)]
    nodes = nest.all_nodes
    plain: set[Expr] = set()  # those that are narrowable
    for node in nodes:
        if not node.reads and not node.dtype.is_float and plain.issuperset(node.args):
            plain.add(node)
        if not (node.dtype is INDEX and node in plain):
            roots.extend(arg for arg in node.args if arg.dtype is INDEX)
    magnitudes = _magnitudes([root for root in roots if root in plain], system)
    limits = {system.simplify(magnitude) for magnitude in magnitudes}
    # a counter steps once past its end
    limits |= {
        system.simplify(product(i.args[0] for i in fold.args[1:]) + TEAMS[-1]) for fold in nest.reductions
    }
    limits.add(system.simplify(nest.domain + _MOST_BLOCKS * THREADS))
    sums = {limit: products(limit) for limit in limits}  # no factor in them is negative
    largest = [a for a in limits if not any(a is not b and _covers(sums[b], sums[a]) for b in limits)]
    guards = {system.simplify(limit <= _LARGEST_INT) for limit in largest}
    return tuple(sorted((g for g in guards if not (g.is_const and g.value)), key=repr))


def _covers(a: dict[tuple[Expr, ...], int], b: dict[tuple[Expr, ...], int]) -> bool:
    """Is a sum of products at least another one, term by term?"""
    return all(a.get(factors, 0) >= k for factors, k in b.items())


def _magnitudes(roots: Sequence[Expr], system: System) -> set[Expr]:
    """Expressions over sizes that neither a root nor anything a kernel computes it from exceeds in absolute
    value, one for each of `roots`."""
    done: dict[Expr, Expr] = {}
    for node in toposort(roots):
        args = [done[arg] for arg in node.args]
        hosted = over_sizes(node)  # computed by the host, which knows no largest integer
        if hosted and system.known(node >= ZERO) is True:
            done[node] = node
            continue
        match node.op:
            case "const":
                done[node] = as_expr(abs(int(node.value)))
            case "size":
                done[node] = node
            case "index":
                done[node] = node.args[0]
            case "add" | "sub" | "mul":
                done[node] = apply("add" if node.op != "mul" else "mul", *args)
            case "floordiv":
                done[node] = args[0] + ONE
                if hosted and node.args[1].is_const and node.args[1].value > 0:
                    done[node] = args[0] // node.args[1] + ONE
            case "mod":
                done[node] = apply("max", *args)
            case _ if node.dtype is BOOL:
                done[node] = ONE
            case "cast":
                done[node] = args[0]
            case _:
                done[node] = ZERO
                for arg in args[-2:]:
                    done[node] = apply("max", done[node], arg)
    return {done[root] for root in roots}


Choice = tuple[Nest, Variant, tuple[Expr, ...]]  # a nest, and the variant and guards under which it is used


def choose(nest: Nest, system: System) -> list[Choice]:
    """The variants of `nest` with their guards, best first; the last one has none."""
    made = [(nest, variant, guards) for variant, guards in _variants(nest, system)]
    # the sort is stable: of one width the rows come first
    return sorted([*_looked_up(nest, system), *made], key=lambda c: (c[1].index_bits, -c[1].width))


def _looked_up(nest: Nest, system: System) -> Iterator[Choice]:
    """Kernels in which a team copies a row that data have chosen: it looks up once which one, and then has
    several accesses under way."""
    rows = _as_rows(nest)
    if rows is None:
        return
    narrow, tables = narrow_guards(nest, system), _read_along(rows)
    for width in dict.fromkeys((widest(rows), 1)):
        wide = wide_guards(rows, width, system)
        long = system.simplify(row_length(rows) >= WARP * width)
        teams = [*_teams(rows, width, system)] if long is not FALSE else []
        if wide is not None and width > 1 and teams:
            longer = system.simplify(row_length(rows) > WARP * width * _UNDER_WAY)
            if longer is not FALSE:
                pieces = _in_pieces(rows, WARP * width, system)
                limits = (*_true(longer), *wide, *narrow_guards(pieces, system))
                yield pieces, Variant(width, team=WARP, streams=True), limits
            if longer is not TRUE:
                yield rows, _copying(Variant(width, team=WARP)), (*_true(long), *wide, *narrow)
        for variant, limits in teams:
            if wide is not None and width == 1:
                yield rows, _copying(variant), (*_true(long), *limits, *narrow)
            if wide != () and width > 1 and tables <= _UNDER_WAY and may_be_shifted(rows, width):
                shifted = replace(_copying(variant), peeled=True, shifted=True, repeat=_UNDER_WAY // tables)
                yield rows, shifted, (*_true(long), *limits, *narrow)
        if wide == ():  # every size divides
            return


def _copying(variant: Variant) -> Variant:
    """With several accesses under way; what they store leaves the cache to tables, which are read many
    times."""
    repeat = _UNDER_WAY if variant.width > 1 else 2 * _UNDER_WAY
    return replace(variant, repeat=repeat, streams=True, blocks=_COPYING_BLOCKS)


def _in_pieces(rows: Nest, length: int, system: System) -> Nest:
    """The first `length` elements of all rows, then the next ones of all: a table that no cache holds is then
    met in parts that it does."""
    (loop,) = rows.inner
    total = loop.args[0]
    chunk = index(f"{loop.value}_chunk", system.simplify(ceildiv(total, length)))
    place = index(f"{loop.value}_place", as_expr(length))
    scalars = [part for e in rows.elements for part in e.parts]
    made = substitute_all(scalars, {loop: chunk * length + place})
    elements = tuple(
        Element(e.value, scalar, offset, (chunk, *(place if i is loop else i for i in e.indices)), guard)
        for e, scalar, offset, guard in zip(rows.elements, made[::3], made[1::3], made[2::3], strict=True)
    )
    whole = total.is_const and total.value % length == 0
    parts = None if whole else Parts(total, as_expr(length), chunk, place)
    return replace(rows, rows=(chunk, *rows.rows), inner=(place,), elements=elements, parts=parts)


def _read_along(rows: Nest) -> int:
    """How many tensors are read along the rows."""
    (loop,) = rows.inner
    return sum(1 for n in rows.nodes if n.op == "load" and loop in n.free)


def _as_rows(nest: Nest) -> Nest | None:
    """A flat nest whose lanes read next to each other at a place that data decide, as a row kernel's."""
    lane = nest.lane
    if nest.kind != "flat" or lane is None or not nest.rows:
        return None
    for node in nest.nodes:
        sums = linear(node.args[0]) if node.op == "load" else {}
        if sums.get(lane) is ONE and any(term.reads and lane not in term.free for term in sums):
            return replace(nest, kind="row", lane=None, inner=(lane,))
    return None


def _variants(nest: Nest, system: System) -> list[tuple[Variant, tuple[Expr, ...]]]:
    narrow = narrow_guards(nest, system)
    long = any(not is_short(fold) for fold in nest.reductions)
    if nest.kind == "column" and nest.lane is not None and long:
        return [*_columns(nest, narrow, system), (Variant(1, 64), ())]
    if crossed(nest) is not None:
        return [*_tiles(nest, narrow, system), (Variant(1, 64), ())]
    width = widest(nest)
    wide = wide_guards(nest, width, system) if width > 1 else None
    made: list[tuple[Variant, tuple[Expr, ...]]] = []
    if wide and nest.kind == "flat" and not nest.rows:
        guards = wide_guards(nest, width, system, whole=False)
        assert guards is not None  # there are fewer
        return [(Variant(width, tail=True), (*guards, *narrow)), (Variant(1, 64), ())]
    if wide is not None:
        made += [(v, (*limits, *wide, *narrow)) for v, limits in _teams(nest, width, system)]
    if wide != () and width > 1 and may_be_peeled(nest, width):
        made += [(replace(v, peeled=True), (*limits, *narrow)) for v, limits in _teams(nest, width, system)]
        made.append((Variant(), narrow))  # tensors that lie off every alignment
    elif wide != ():
        made += [(v, (*limits, *narrow)) for v, limits in _teams(nest, 1, system)]
    return [*made, (Variant(1, 64), ())]


def _columns(
    nest: Nest, narrow: tuple[Expr, ...], system: System
) -> Iterator[tuple[Variant, tuple[Expr, ...]]]:
    """Blocks whose warps take rows side by side; of few columns a warp takes several rows at once."""
    assert nest.lane is not None
    most, columns = widest(nest), nest.lane.args[0]
    one = system.simplify(columns <= FEW)
    if nest.parts is not None and most >= FEW and not (one.is_const and not one.value):
        wide = wide_guards(nest, FEW, system)  # for rows of one access
        if wide is not None:
            yield Variant(FEW, shape="columns", across=1), (*_true(one), *wide, *narrow)
    many = system.simplify(columns >= FEW * WARP)
    for width in dict.fromkeys((most, 1)):
        wide = wide_guards(nest, width, system)
        peeled = nest.parts is not None and wide != () and width == ACCESS // 2 and may_be_peeled(nest, width)
        if peeled and not (many.is_const and not many.value):  # its join is faster for aligned rows, too
            variant = Variant(width, shape="columns", peeled=True, blocks=_COLUMN_BLOCKS)
            yield variant, (*_true(many), *narrow)
        if wide is not None:
            few = system.simplify(columns <= FEW * width)
            if nest.parts is not None and not (few.is_const and not few.value):
                yield Variant(width, shape="columns", across=FEW), (*_true(few), *wide, *narrow)
            if nest.parts is None or not (few.is_const and few.value):
                yield Variant(width, shape="columns"), (*wide, *narrow)
            if wide == ():  # every size divides
                return


def columns_of_block(variant: Variant) -> int:
    """Where rows start within an access, a warp's accesses hold one less of whole ones."""
    return (variant.across - variant.peeled) * variant.width


def _tiles(
    nest: Nest, narrow: tuple[Expr, ...], system: System
) -> Iterator[tuple[Variant, tuple[Expr, ...]]]:
    loads = crossed(nest)
    assert loads is not None
    width = min(widest(nest), _WIDEST_TILED) if tile_side(nest) == _LARGE_TILE else 1
    if any(steps_of(node.args[0], loads[0], width) is None for node in loads[1]):
        width = 1
    wide = wide_guards(nest, width, system) if width > 1 else None
    if wide is not None:
        yield Variant(width, shape="tile"), (*wide, *narrow)
    if wide != ():
        yield Variant(1, shape="tile"), narrow


def tile_side(nest: Nest) -> int:
    """How long the sides of a tile are, so that the tiles of all loads fit a block's shared memory."""
    loads = crossed(nest)
    assert loads is not None
    bytes_each = sum(node.dtype.itemsize for node in loads[1])
    return _LARGE_TILE if bytes_each * _LARGE_TILE**2 <= _TILE_BYTES else TILE


def _true(guard: Expr) -> tuple[Expr, ...]:
    return () if guard.is_const else (guard,)


def _teams(nest: Nest, width: int, system: System) -> list[tuple[Variant, tuple[Expr, ...]]]:
    """Who shares a row, by its length: a warp takes a short one; one that fits is kept in registers between
    its walks."""
    if nest.kind != "row":
        repeat = _UNDER_WAY if width == 1 and nest.kind == "flat" and _is_light(nest) else 1
        return [(Variant(width, repeat=repeat), ())]
    length, kept = row_length(nest), len(worth_keeping(nest, memory_is_dear=True))
    if not kept:
        if nest.parts is not None:  # a part is long
            return [(Variant(width), ())]
        short = system.simplify(length <= WARP * width * _WARP_TURNS)
        if short.is_const:
            return [(Variant(width, 32, WARP if short.value else THREADS), ())]
        return [(Variant(width, 32, WARP), (short,)), (Variant(width), ())]
    most = max(1, (_KEPT_OF_HALVES if width == ACCESS // 2 else _KEPT) // (width * kept))
    if length.is_const:
        team = next((team for team in TEAMS if length.value <= team * width * most), 0)
        turns = -(-length.value // (team * width)) if team else 0
        return [(Variant(width, 32, team or THREADS, turns), ())]
    made = [
        (Variant(width, 32, team, most), (system.simplify(length <= team * width * most),))
        for team in _FREE_TEAMS
    ]
    return [*made, (Variant(width), ())]


def _is_light(nest: Nest) -> bool:
    """Is an element so little work that a thread should take several?"""
    return len(nest.all_nodes) <= _LIGHT


def crossed(nest: Nest) -> tuple[Expr, list[Expr]] | None:
    """An outer loop of a flat kernel along which some inputs are contiguous that are not so along the lane,
    and the loads of these; None where there is no such loop."""
    found: dict[Expr, list[Expr]] = {}
    if nest.kind != "flat" or nest.lane is None or _narrow_axis(nest.lane):
        return None
    for node in nest.nodes:
        if node.op == "load" and node.args[1] is TRUE:
            sums = linear(node.args[0])
            if sums.get(nest.lane, ZERO) is ZERO or sums[nest.lane] is ONE:
                continue
            for loop in nest.rows:
                if sums.get(loop) is ONE and not _narrow_axis(loop):
                    found.setdefault(loop, []).append(node)
    return max(found.items(), key=lambda item: len(item[1]), default=None)


def _narrow_axis(loop: Expr) -> bool:
    """Would an axis fill less than half of a tile's side?"""
    size = loop.args[0]
    return size.is_const and size.value < TILE // 2


def row_length(nest: Nest) -> Expr:
    lengths = [product(i.args[0] for i in nest.inner)] if nest.inner else []
    rows = set(nest.rows)
    for fold in nest.reductions:
        if {v for v in fold.free if v.op == "index"} <= rows:
            lengths.append(product(i.args[0] for i in fold.args[1:]))
    longest = lengths[0]
    for length in lengths[1:]:
        longest = apply("max", longest, length)
    return longest


def grid(nest: Nest, variant: Variant) -> Expr:
    """Blocks to launch."""
    if nest.kind == "row":
        blocks = ceildiv(product(i.args[0] for i in nest.rows), variant.threads // variant.team)
    elif variant.shape:
        pair = (nest.lane, *(crossed(nest) or ())[:1])
        side = columns_of_block(variant) if variant.shape == "columns" else tile_side(nest)
        blocks = product(ceildiv(i.args[0], side) if i in pair else i.args[0] for i in nest.loops)
    else:
        loops = [i.args[0] for i in nest.loops]
        if variant.width > 1:
            loops[-1] = loops[-1] // variant.width
        blocks = ceildiv(product(loops), THREADS * variant.repeat)
    return apply("min", apply("max", blocks, 1), _MOST_BLOCKS)
