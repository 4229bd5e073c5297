"""CUDA C++: a nest comes in, a kernel's text for one variant goes out. Here stands what all share, and
the kernels that give each thread elements of its own, neighbouring ones where an access moves several. A
variant fixes the width of accesses and of indices, so that the kernel tests neither (kgen.variants)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dlcb.compiler.dtype import BOOL, FLOAT32, INDEX, INT64, UINT8, DType
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import TRUE, ZERO, apply, index, product, substitute
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.kgen.coords import Element
from dlcb.compiler.kgen.cpp import convert
from dlcb.compiler.kgen.cstyle import ATOM, Call, Spelled, inside, tables
from dlcb.compiler.kgen.lower import Lowering, Scope, identifier, identity
from dlcb.compiler.kgen.schedule import Nest
from dlcb.compiler.kgen.variants import ACCESS, Variant, narrowable, steps_of
from dlcb.compiler.shapes.system import System

_UNDER_WAY = 9  # steps of short loops: each may read a window and a weight


@dataclass(eq=False)
class Lanes(Scope):
    """The unrolled loop over the neighbouring elements of one thread; `first` is the first of them, bound in
    the parent."""

    lane: Expr = ZERO
    first: Expr = ZERO


class Cuda(Lowering):
    target = "CUDA"
    table: ClassVar = tables(rsqrt=Call("reciprocal_sqrt"))

    def __init__(self, nest: Nest, tensors: dict[str, Value], system: System, variant: Variant) -> None:
        self.variant = variant
        super().__init__(nest, tensors, system)
        self._shared: dict[str, str] = {}  # name -> element type
        floats = [v.dtype for v in (*tensors.values(), *nest.outputs) if v.dtype.is_float]
        self._all_half = bool(floats) and all(dtype.bits == 16 for dtype in floats)
        # quotients that are rounded to a half type, so that rounding twice before does no harm
        self._by_inverse = {
            e.scalar.args[0]
            for e in (self.nest.elements if self._all_half else ())
            if e.scalar.op == "cast" and e.scalar.args[0].op == "div"
        }
        self._wanted: list[str] = []  # conditions without which nothing is read or joined

    def run(self) -> list[str]:
        """The lines of the kernel's body."""
        first = f"blockIdx.x * {self._index_type}(blockDim.x) + threadIdx.x"
        step = f"gridDim.x * {self._index_type}(blockDim.x)"
        self._spread(self.nest.loops, self.nest.elements, self.root, first, step)
        if self.variant.tail:
            self._tail(self.nest.loops[-1])
        return self.root.lines

    def _shared_lines(self, length: int) -> list[str]:
        return [f"__shared__ {element} {name}[{length}];" for name, element in self._shared.items()]

    def _shared_for(self, fold: Expr) -> str:
        """The shared array through which a reduction is joined. Each has its own: the barrier of the next
        join then stands between reading it and writing it again."""
        name = f"shared{len(self._shared)}"
        self._shared[name] = self.local_type(fold)
        return name

    # ---- loops -----------------------------------------------------------------------------------

    def _tail(self, lane: Expr) -> None:
        """The last elements, fewer than an access moves, by the first threads."""
        name, size = identifier(lane.value), self._size(lane.args[0])
        whole = self._size(self.system.simplify(lane.args[0] // self.variant.width))
        rest, last = Scope(self.root, frozenset((lane,))), Scope(self.root, frozenset())
        self._store(self.nest.elements, self.root, rest)
        last.lines.append(f"const {self._index_type} {name} = {whole} * {self.variant.width} + threadIdx.x;")
        last.add([f"if ({name} < {size})"], rest)
        self.root.add([f"if (blockIdx.x == 0 && threadIdx.x < {self.variant.width})"], last)

    @property
    def _unrolled(self) -> str:
        return f"#pragma unroll {self.variant.repeat}" if self.variant.repeat > 1 else ""

    @property
    def _index_type(self) -> str:
        return "int" if self.variant.index_bits == 32 else "Wide"

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
        """Add `scope` to `home`, in a loop whose single counter is taken apart into the loops' indices.
        `unrolled` is a line to stand above it."""
        if not loops:
            home.lines.extend(scope.lines)
            return
        kind, counter = self._index_type, self.fresh("at")
        extents = [loop.args[0] for loop in loops]
        if width > 1:
            extents[-1] = self.system.simplify(extents[-1] // width)
        head: list[str] = []
        rest = counter
        for place in reversed(range(len(loops))):
            loop, extent = loops[place], extents[place]
            name = identifier(loop.value if loop is not lane else first_of(loop).value)
            if place == 0:
                value = rest
            else:
                quotient = self.fresh("at")
                head.append(f"const {kind} {quotient} = {self._quotient(rest, extent)};")
                value = f"{rest} - {quotient} * {self._size(extent)}"
                rest = quotient
            if width > 1 and place == len(loops) - 1:
                value = f"({value}) * {width}" if " " in value else f"{value} * {width}"
            head.append(f"const {kind} {name} = {value};")
        scope.lines[:0] = head
        count = self._count(loops, extents, width, home)
        self._loop(loops, counter, count, first, step, scope, home, unrolled)

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
        """Add `scope` to `home`, in a loop of a counter that stands for `loops`."""
        head = f"for ({self._index_type} {counter} = {first}; {counter} < {count}; {counter} += {step})"
        home.add([unrolled, head] if unrolled else [head], scope)

    def _count(self, loops: Sequence[Expr], extents: Sequence[Expr], width: int, home: Scope) -> str:
        """How many steps the loops take in all."""
        parts = self.nest.parts
        if parts is None or loops[0] is not parts.place:
            return self._size(product(extents))
        end = self._end(loops[0], home)
        if len(loops) == 1:
            return f"{end} / {width}" if width > 1 else end
        return f"{end} * {self._size(product(extents[1:]))}"

    def _end(self, loop: Expr, home: Scope) -> str:
        """The size of a loop; of one over a part of its elements, how many the part has."""
        parts = self.nest.parts
        if parts is None or loop is not parts.place:
            return self._size(loop.args[0])
        around = self._home(parts.end, home)
        end = self.compute([parts.end], around)[0][0]
        if end.isidentifier():
            return end
        around.names[parts.end] = name, _ = self.fresh("end"), ATOM
        around.lines.append(f"const {self._index_type} {name} = {end};")
        return name

    def _quotient(self, numerator: str, extent: Expr) -> str:
        if extent.is_const:
            return f"{numerator} / {extent.value}"
        name = self.parameter(extent, "magic" if self.variant.index_bits == 32 else "magic64")
        return f"divide({numerator}, {name}, {name}_shift)"

    def _spread(
        self,
        loops: Sequence[Expr],
        elements: Sequence[Element],
        home: Scope,
        first: str,
        step: str,
    ) -> None:
        """Store `elements` for all indices of `loops`, neighbouring ones in the lanes of one thread."""
        if not loops:
            block = Scope(home, frozenset())
            self._store(elements, home, block)
            home.add(["if (blockIdx.x == 0 && threadIdx.x == 0)"], block)
            return
        chunk, lanes = self._chunk(loops, home)
        after = self._store(elements, chunk, lanes)
        self._unroll(chunk, lanes)
        chunk.lines.extend(after)
        lane = lanes.lane if isinstance(lanes, Lanes) else None
        self._over(loops, chunk, home, first, step, self.variant.width, lane, self._unrolled)

    def _chunk(self, loops: Sequence[Expr], home: Scope) -> tuple[Scope, Scope]:
        """The scope of one thread's turn, and within it that of one element."""
        if self.variant.width == 1:
            scope = Scope(home, frozenset(loops))
            return scope, scope
        lane = loops[-1]
        chunk = Scope(home, frozenset((*loops[:-1], first_of(lane))))
        return chunk, Lanes(chunk, frozenset((lane,)), lane=lane, first=first_of(lane))

    def _unroll(self, chunk: Scope, lanes: Scope) -> None:
        if isinstance(lanes, Lanes):
            name = identifier(lanes.lane.value)
            first = identifier(lanes.first.value)
            lanes.lines.insert(0, f"const {self._index_type} {name} = {first} + lane;")
            self._each_lane(chunk, lanes)

    def _store(self, elements: Sequence[Element], outer: Scope, scope: Scope) -> list[str]:
        """Add stores to `scope`; what comes after the loop over lanes is returned."""
        packed = [
            e for e in elements if isinstance(scope, Lanes) and self._is_pack(e.offset, scope, e.value.dtype)
        ]
        roots = [part for e in elements for part in (e.parts[:1] if e in packed else e.parts)]
        spelled = iter(self.compute(roots, scope))
        after: list[str] = []
        for element in elements:
            name, value = self.results[element.value], next(spelled)[0]
            if element in packed:
                assert isinstance(scope, Lanes)
                pack = self.fresh("pack")
                kind = self._pack_type(element.value.dtype)
                outer.lines.append(f"{kind} {pack};")
                scope.lines.append(f"{pack}.at[lane] = {value};")
                start = substitute(element.offset, {scope.lane: scope.first})
                offset, guard = self.compute([start, element.guard], outer)
                store = f"*reinterpret_cast<{kind}*>({name} + {_sum(offset)}) = {pack};"
                if self.variant.streams:
                    store = f"store_past(reinterpret_cast<{kind}*>({name} + {_sum(offset)}), {pack});"
                after.append(_where(element, guard) + store)
            else:
                offset, guard = next(spelled), next(spelled)
                store = f"{name}[{offset[0]}] = {value};"
                if self.variant.streams:
                    kind = self.type_name(element.value.dtype)
                    store = f"store_past({name} + {_sum(offset)}, ({kind})({value}));"
                scope.lines.append(_where(element, guard) + store)
        return after

    # ---- accesses of several elements ------------------------------------------------------------

    def _pack_type(self, dtype: DType) -> str:
        return f"Pack<{self.type_name(dtype)}, {self.variant.width}>"

    def _is_pack(self, offset: Expr, lanes: Lanes, dtype: DType) -> bool:
        offset, width = self.unarranged[offset], self.variant.width  # the guards are those of what it was
        return dtype.itemsize * width <= ACCESS and (
            self.variant.peeled or steps_of(offset, lanes.lane, width) is not None
        )

    def _packed_load(self, node: Expr, scope: Scope) -> bool:
        return (
            node.op == "load"
            and isinstance(scope, Lanes)
            and scope.lane in node.free
            and scope.lane not in node.args[1].free
            and self._is_pack(node.args[0], scope, node.dtype)
        )

    def operands(self, node: Expr, scope: Scope) -> tuple[Expr, ...]:
        return () if self._packed_load(node, scope) else super().operands(node, scope)

    def _spell(self, node: Expr, args: list[Spelled], home: Scope) -> Spelled:
        outside = self._home(node.args[1], home) if node in self._by_inverse else home
        if outside is not home:
            inverse = apply("div", 1.0, node.args[1])
            if inverse not in outside.names:
                outside.names[inverse] = self.fresh("v"), ATOM
                name = outside.names[inverse][0]
                outside.lines.append(f"const float {name} = inverse_of({args[1][0]});")
            return f"quotient({args[0][0]}, {args[1][0]}, {outside.names[inverse][0]})", ATOM
        if node.op == "exp" and node.dtype is FLOAT32 and self._all_half:
            return f"exp_roughly({args[0][0]})", ATOM
        if self._is_of_lane(node, home):
            assert isinstance(home, Lanes)
            return self._of_lane(node, identifier(home.first.value))
        if not self._packed_load(node, home):
            return super()._spell(node, args, home)
        assert isinstance(home, Lanes) and home.parent is not None
        kind, name, pack = self._pack_type(node.dtype), node.value, self.fresh("pack")
        offset, guard = self.compute(
            [substitute(node.args[0], {home.lane: home.first}), node.args[1]], home.parent
        )
        access = f"reinterpret_cast<const {kind}*>({name} + {_sum(offset)})"
        home.parent.lines.append(f"const {kind} {pack} = {self._wanted_load(access, node, guard)};")
        return f"{pack}.at[lane]", ATOM

    def _is_of_lane(self, node: Expr, home: Scope) -> bool:
        """Is a lane's index divided by a number of which the number of lanes is a multiple or a part?"""
        if node.op not in ("floordiv", "mod") or not isinstance(home, Lanes) or self.variant.peeled:
            return False
        index, divisor = node.args
        width = self.variant.width
        return (
            index is home.lane and divisor.is_const and not (width % divisor.value and divisor.value % width)
        )

    def _of_lane(self, node: Expr, first: str) -> Spelled:
        """A quotient or remainder of a lane's index. The first index of a thread is a multiple of the number
        of lanes, so that what differs among these is known once their loop is unrolled."""
        divisor, within = node.args[1].value, self.variant.width % node.args[1].value == 0
        if node.op == "mod":
            return ("lane % " + str(divisor), 13) if within else (f"{first} % {divisor} + lane", 12)
        return (f"{first} / {divisor} + lane / {divisor}", 12) if within else (f"{first} / {divisor}", 13)

    def _wanted_load(self, access: str, node: Expr, guard: Spelled) -> str:
        """A load of what `access` points to, which is made without a branch where it has conditions."""
        conditions = self._conditions(node, guard)
        return f"load_if({' && '.join(conditions)}, {access})" if conditions else f"*{access}"

    def _conditions(self, node: Expr, guard: Spelled) -> list[str]:
        return [*self._wanted, *([] if node.args[1] is TRUE else [inside(guard, 6)])]

    # ---- reductions ------------------------------------------------------------------------------

    def fold(self, folds: Sequence[Expr], home: Scope, scope: Scope) -> None:
        if isinstance(home, Lanes) and self.nest.kind == "column":
            self._fold_lanes(folds, home)
            return
        accumulators = self._started(folds, home)
        self._fold_alone(folds, accumulators, home)
        self._finished(folds, accumulators, home)

    def _started(self, folds: Sequence[Expr], home: Scope) -> list[str]:
        """Accumulators with their identities."""
        accumulators = [self.fresh("sum" if fold.value == "sum" else "fold") for fold in folds]
        for fold, accumulator in zip(folds, accumulators, strict=True):
            home.lines.append(f"{self.local_type(fold)} {accumulator} = {identity(fold)[0]};")
        self._running.extend(folds)
        return accumulators

    def _finished(self, folds: Sequence[Expr], accumulators: Sequence[str], home: Scope) -> None:
        del self._running[-len(folds) :]
        home.names |= {
            fold: (accumulator, ATOM) for fold, accumulator in zip(folds, accumulators, strict=True)
        }

    def _fold_lanes(self, folds: Sequence[Expr], home: Lanes) -> None:
        """Reductions of each lane: their loops stand outside of the loop over lanes, so that what the lanes
        read is one access."""
        chunk, loops = home.around, folds[0].args[1:]
        accumulators = self._started_lanes(folds, chunk)
        scopes = self._loops(loops, chunk)
        lanes = self._inner_lanes(home, scopes[-1])
        self._join(folds, accumulators, lanes)
        self._unroll(scopes[-1], lanes)
        self._close(folds, scopes, chunk)
        self._finished(folds, accumulators, home)

    def _started_lanes(self, folds: Sequence[Expr], chunk: Scope) -> list[str]:
        """Accumulators of each lane with their identities."""
        names = [self.fresh("sums" if fold.value == "sum" else "folds") for fold in folds]
        start = Scope(chunk, frozenset())
        for fold, name in zip(folds, names, strict=True):
            chunk.lines.append(f"{self.local_type(fold)} {name}[{self.variant.width}];")
            start.lines.append(f"{name}[lane] = {identity(fold)[0]};")
        self._each_lane(chunk, start)
        self._running.extend(folds)
        return [f"{name}[lane]" for name in names]

    def _inner_lanes(self, home: Lanes, chunk: Scope) -> Lanes:
        """The lanes of `home` once more, inside a loop. Of their values only reductions can be seen there:
        the others are local to another loop."""
        known = {node: spelled for node, spelled in home.names.items() if node.op == "reduce"}
        return Lanes(chunk, home.bound, names=known, lane=home.lane, first=home.first)

    def _each_lane(self, chunk: Scope, scope: Scope) -> None:
        chunk.add(["#pragma unroll", f"for (int lane = 0; lane < {self.variant.width}; ++lane)"], scope)

    def _loops(self, loops: Sequence[Expr], home: Scope) -> list[Scope]:
        """A scope for each of nested loops."""
        scopes: list[Scope] = []
        for loop in loops:
            scopes.append(Scope(scopes[-1] if scopes else home, frozenset((loop,))))
        return scopes

    def _close(self, folds: Sequence[Expr], scopes: Sequence[Scope], home: Scope) -> None:
        """Write the loops, the inner ones into the outer ones; as many of the inner ones are unrolled as keep
        few accesses under way."""
        loops, steps = folds[0].args[1:], len(folds)
        for place in reversed(range(len(loops))):
            name, kind, extent = identifier(loops[place].value), self._index_type, loops[place].args[0]
            steps = steps * extent.value if extent.is_const and steps else 0
            steps = steps if steps <= _UNDER_WAY else 0
            around = scopes[place - 1] if place else home
            head = f"for ({kind} {name} = 0; {name} < {self._end(loops[place], around)}; ++{name})"
            pragma = ["#pragma unroll"] if steps and self.variant.index_bits == 32 else []
            around.add([*pragma, head], scopes[place])

    def _fold_alone(self, folds: Sequence[Expr], accumulators: Sequence[str], home: Scope) -> None:
        loops = folds[0].args[1:]
        scopes = self._loops(loops, home)
        self._join(folds, accumulators, scopes[-1])
        self._close(folds, scopes, home)

    def _join(self, folds: Sequence[Expr], accumulators: Sequence[str], scope: Scope) -> None:
        bodies = self.compute([fold.args[0] for fold in folds], scope)
        wanted = f"if ({' && '.join(self._wanted)}) " if self._wanted else ""
        for fold, accumulator, body in zip(folds, accumulators, bodies, strict=True):
            scope.lines.append(wanted + self.joined(fold, accumulator, body))

    # ---- spelling --------------------------------------------------------------------------------

    def type_name(self, dtype: DType) -> str:
        return dtype.cuda

    def local_type(self, node: Expr) -> str:
        if node.dtype is INDEX:
            return "int" if self._narrow(node) else "Wide"
        return self.type_name(node.dtype)

    def _narrow(self, node: Expr) -> bool:
        """Is `node` a coordinate or address in a kernel with 32-bit indices? Integers read from memory keep
        their width."""
        return self.variant.index_bits == 32 and node.dtype is INDEX and narrowable(node)

    def operand(self, text: Spelled, arg: Expr, node: Expr, wanted: DType) -> Spelled:
        if wanted is INDEX:
            return f"{'Wide' if node.dtype is BOOL else self.local_type(node)}({text[0]})", ATOM
        return super().operand(text, arg, node, wanted)

    def divide(self, numerator: Spelled, divisor: Expr, node: Expr) -> Spelled:
        narrow = self._narrow(node)
        name = self.parameter(divisor, "magic" if narrow else "magic64")
        return f"divide({'int' if narrow else 'Wide'}({numerator[0]}), {name}, {name}_shift)", ATOM

    def convert(self, text: Spelled, old: DType, new: DType) -> Spelled:
        return convert(text, old, new, self.type_name)

    def cut_off(self, text: Spelled, old: DType, new: DType) -> Spelled:
        through = INT64 if new is UINT8 else new  # the machine clamps; a byte is the end of what it gives
        return self.convert(self.convert(text, old, through), through, new)

    def _size(self, size: Expr) -> str:
        return self.parameter(size, "int32" if self.variant.index_bits == 32 else "int64")

    def parameter(self, value: Expr, kind: str = "int64") -> str:
        if kind == "int64" and self.variant.index_bits == 32:
            kind = "int32"
        return super().parameter(value, kind)


def first_of(lane: Expr) -> Expr:
    return index(f"{lane.value}_first", lane.args[0])


def _where(element: Element, guard: Spelled) -> str:
    return "" if element.guard is TRUE else f"if ({guard[0]}) "


def _sum(offset: Spelled) -> str:
    return offset[0] if offset[1] >= 12 else f"({offset[0]})"


def function(name: str, lowering: Cuda, lines: Sequence[str]) -> str:
    """The whole kernel."""
    arguments = [f"const {v.dtype.cuda}* __restrict__ {name}" for name, v in lowering.tensors.items()]
    arguments += [f"{v.dtype.cuda}* __restrict__ {name}" for v, name in lowering.results.items()]
    for parameter in lowering.parameters:
        match parameter.kind:
            case "magic":
                arguments += [f"unsigned {parameter.name}", f"unsigned {parameter.name}_shift"]
            case "magic64":
                arguments += [
                    f"unsigned long long {parameter.name}",
                    f"unsigned long long {parameter.name}_shift",
                ]
            case kind:
                arguments.append(f"{'int' if kind == 'int32' else 'long long'} {parameter.name}")
    arguments.append("long long* status")
    variant = lowering.variant
    bounds = f"{variant.threads}, {variant.blocks}" if variant.blocks else str(variant.threads)
    head = (
        f'extern "C" __global__ void __launch_bounds__({bounds}) {name}(\n    '
        + ",\n    ".join(arguments)
        + "\n) {"
    )
    return "\n".join([head, *("    " + line for line in lines), "}"]) + "\n"
