"""The numbers of a program that was traced once. Where a size may stand, a number is a size of its value;
which one, where several have it, and whether it is one at all, follows from where the result is used: such
numbers are explored as size variables of their own, before the graph is made. In a file that was exported at
one size, a number that is neither told by its line nor decided so holds all sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node as FxNode

from dlcb.compiler.bridge import aten_shape, held
from dlcb.compiler.bridge.aligned import Disagreement
from dlcb.compiler.bridge.emit import Emit, Size, Written
from dlcb.compiler.bridge.literals import Sizes, alike
from dlcb.compiler.bridge.one_trace import Exploring
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.seen import Path
from dlcb.compiler.bridge.uncut import Uncut, indexings
from dlcb.compiler.bridge.written import MADE, Call, Origin, Told, told
from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, not_equal
from dlcb.compiler.ir.graph import Value
from dlcb.compiler.shapes.system import Provenance

_LIFTED = frozenset({"aten.lift_fresh_copy.default", "aten.lift_fresh.default"})
_FEW = 64  # entries of a tensor that are looked at one by one
_FURTHER = "name a file of another size as well"
_REMEDY = "export it with dynamic sizes, or name files of other sizes as well"


@dataclass(frozen=True)
class Decision:
    """What a number follows: a size or constant, and the sizes that must then be equal to that, because
    nothing in the graph tells them apart. `size` None: nothing does, and it stays the number that it is."""

    size: Expr | None
    equal: Sequence[Expr] = ()
    unequal_to_one: bool = False  # the size: of one, the number itself would have been broadcast


def decide(system: Exploring, explore: Callable[[], object]) -> list[Decision]:
    """The decision for every number that may follow a size, in order. `explore` makes the graph in
    `system`."""
    try:
        explore()
    except (Disagreement, ShapeError):
        # taken apart the numbers contradict each other: right only where all that may be meant agree
        return [_undecided(system, symbol) for symbol in system.unknown]
    decided = []
    for symbol in system.unknown:
        found, untold = system.simplify(symbol), system.untold.get(symbol)
        if found in system.ones:
            decided.append(Decision(None if untold else ONE))
        elif found.free & system.unknown.keys():
            decided.append(_undecided(system, symbol))
        else:
            broadcast = untold is Origin.UNSEEN and symbol in system.broadcast_as and not found.is_const
            decided.append(Decision(found, (), broadcast))
    return decided


def _undecided(system: Exploring, symbol: Expr) -> Decision:
    if symbol in system.untold:
        return Decision(None)
    first, *others = system.unknown[symbol]
    return Decision(first, others)


class Holds(Exception):
    """A number of a file holds these sizes, by the names of their variables, as they were exported."""

    def __init__(self, names: Sequence[str], why: Provenance) -> None:
        super().__init__(why.detail)
        self.names, self.why = names, why


@dataclass
class Lone:
    """The numbers of a single trace, call by call. `fixed`: of a file, the sizes that it has as numbers
    alone. Where a file leaves a size free, what it makes of that are calls of their own, and no numbers."""

    trace: Trace
    emit: Emit
    sizes: Sizes
    fixed: frozenset[str] | None
    decisions: Iterator[Decision]
    constants: dict[int, None] = field(default_factory=dict)  # sizes in the graph that are numbers
    _line: str = ""
    _in_root: bool = True  # whether it is one of the program's own module
    _call: Call | None = None  # the one that is being lowered, of a file of one size

    def __post_init__(self) -> None:
        nodes = self.trace.nodes if self.fixed else ()
        self._times, self._modules = held.times(nodes), held.modules(nodes)
        self._alike, self._before = held.alike(nodes), held.before(nodes)
        self._indexings = indexings(nodes, self._modules)
        self._axes: dict[Expr, set[int]] = {}
        self._inputs: dict[str, Sequence[Expr]] = {}

    def meet(self, node: FxNode) -> None:
        """The call whose numbers come next."""
        self._call = None
        if not self.fixed or not isinstance(node.target, torch._ops.OpOverload):
            return
        names = self.trace.parameters.names
        of_weight = any(isinstance(each, FxNode) and each.name in names for each in node.args[:1])
        given = held.named(node.target, node.args, node.kwargs)
        passed = {each for each, _ in zip(given, node.args, strict=False)} | node.kwargs.keys()
        origin = held.origin_of(node)
        self._line = origin[0]
        self._call = Call(
            origin[1],
            given,
            frozenset(given) - passed,
            of_weight,
            self._times[origin],
            held.is_by_name(node),
            self._modules,
            self._alike[origin, held.numbers_in(node)],
            self._before[node],
            bool(self._times[origin[0], "reciprocal", origin[2]]),
        )
        self._in_root = len(node.meta.get("nn_module_stack") or ()) <= 1

    def places(self, node: FxNode) -> Sequence[int]:
        """The arguments of a call in which sizes may stand."""
        target = str(node.target)
        sized = aten_shape.SIZE_ARGUMENTS.get(target, ())
        if target == "aten.slice.Tensor" and node.args[2:3] == (1,):
            return sized[1:]  # what begins behind the first element, also where a size was 1
        return sized

    def declare(self, name: str, shape: Sequence[Expr]) -> None:
        """The sizes of an input."""
        self._inputs[name] = shape
        self.place(shape)

    def add(self, sizes: Sequence[Expr]) -> None:
        """Sizes of a result."""
        self.constants.update((size.value, None) for size in sizes if size.is_const)
        self.place(sizes)

    def place(self, shape: Sequence[Expr]) -> None:
        """The sizes of a tensor, by their axes."""
        for axis, size in enumerate(shape):
            self._axes.setdefault(size, set()).update((axis, axis - len(shape)))

    # ---- what a number follows ---------------------------------------------------------------------

    def follow(self, value: int, near: Sequence[Expr], path: Path, sized: bool) -> Size:
        """A whole number at this place of the call: what its line says, or in a place where sizes stand,
        one."""
        found = self._told(path)
        if found is None:
            return self.size(value, near) if sized else value
        if found.origin is Origin.WRITTEN:
            return Written(value)
        if found.origin is Origin.OF_LIBRARY and self._on_constant(near):
            return Written(value)
        if found.origin is Origin.SIZE and (size := self._of_axis(found, value)) is not None:
            return size
        if found.origin is Origin.SIZE and not sized:
            candidates = self.sizes.matches(value, near)
            return candidates[0] if len(candidates) == 1 and value not in self.constants else value
        if found.formula is not None and found.formula.of_size:
            calculate = found.formula
            pool = [
                size
                for size in dict.fromkeys((*near, *self.sizes.seen()))
                if (own := self.sizes.observed(size)) is not None and calculate(own[0]) == value
            ]
            if len(pool) == 1 and not pool[0].is_const and value not in map(calculate, self.constants):
                return calculate.expression(pool[0]) or value
            if pool:  # of several none is told, and another that has the value now is not meant
                return value
        return self.size(value, near, found.origin) if sized else value

    def size(self, value: int, near: Sequence[Expr], origin: Origin | None = None) -> Size:
        """A number in a place where a size may stand, of which the line tells no more than `origin`."""
        system = self.emit.system
        unknown = system.unknown.keys() if isinstance(system, Exploring) else frozenset()
        candidates = [size for size in self.sizes.matches(value, near) if not size.free & unknown]
        if self.fixed is not None:
            fixed = self.fixed
            candidates = [size for size in candidates if {symbol.value for symbol in size.free} <= fixed]
        if origin in MADE:  # not an input's size as it stands
            candidates = [size for size in candidates if size.op != "size"]
        if value == 1 and self.emit.operator in aten_shape.REPEATS:
            return value  # an axis that is not repeated
        untold = origin if origin in _UNTOLD else None
        if untold is Origin.UNSEEN and value == 1 and self.emit.operator not in aten_shape.UNIFORM:
            return value  # what it meets may be broadcast with it
        if not candidates:
            return value
        if isinstance(system, Exploring):
            symbol = system.literal(candidates, untold)
            self.sizes.define(symbol, (value,))
            return symbol
        decided = next(self.decisions, None)
        if decided is None:  # what was explored took another way
            raise self._disagreement(f"the value {value} is explained by no size in the graph")
        if decided.size is None:
            return value
        if decided.unequal_to_one:
            self.emit.require(not_equal(decided.size, ONE), f"{value}, which would be broadcast with it")
        return decided.size

    def ends(self, start: Any, stop: Any, near: Sequence[Expr]) -> tuple[Any, Any]:
        """Both ends of a range, which counts a size from where it starts, or ends at one."""
        if not isinstance(start, int) or not isinstance(stop, int):
            return start, stop
        if isinstance(stop, Written):
            return start, stop
        origin = _origin(self._told((1,)))
        first = start if start == 1 or self._call is not None else self.size(start, near)
        count = self.size(stop - start, near, origin) if start else None
        return first, first + count if isinstance(count, Expr) else self.size(stop, near, origin)

    def _told(self, path: Path) -> Told | None:
        """What the line of a file of one size tells of the number at this place of the call."""
        if self._call is None:
            return None
        name = list(self._call.arguments)[path[0]] if isinstance(path[0], int) else path[0]
        place = path[1] if len(path) > 1 else None
        assert place is None or isinstance(place, int)
        return told(self._line, self._call, name, place)

    def _of_axis(self, found: Told, value: int) -> Expr | None:
        """The size that the line takes of a tensor's axis; None where it may be any of several."""
        if found.axis is None:
            return None
        if self._in_root and found.of in self._inputs:
            shape = self._inputs[found.of]
            pool = shape[found.axis :][:1] if -len(shape) <= found.axis < len(shape) else ()
        else:
            pool = [size for size, axes in self._axes.items() if found.axis in axes]
        same = [size for size in pool if self.sizes.observed(size) == (value,)]
        if len(same) != 1 or same[0].is_const:
            return None
        return same[0] if {symbol.value for symbol in same[0].free} <= (self.fixed or frozenset()) else None

    def _on_constant(self, near: Sequence[Expr]) -> bool:
        """Whether this is a slice of an axis that never changes."""
        assert self._call is not None
        if self._call.operator != "slice" or not near:
            return False
        return near[self._call.arguments["dim"] % len(near)].is_const

    # ---- what holds sizes --------------------------------------------------------------------------

    def hold(self, node: FxNode, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """The sizes of which numbers of the call may have been made hold as the file has them."""
        if self._call is None or isinstance(self.emit.system, Exploring):
            return
        assert isinstance(node.target, torch._ops.OpOverload)
        self._hold(self._call, held.named(node.target, arguments, keywords))
        name = self.trace.parameters.names.get(node.all_input_nodes[0].name) if node.all_input_nodes else None
        if str(node.target) not in _LIFTED or name is None or not name.startswith("constant."):
            return
        tensor = self.trace.parameters.tensors[name]  # that the program's code has made of numbers
        if tensor.numel() <= _FEW and tensor.dtype in (torch.int64, torch.float32, torch.float64):
            entries = {"data": tensor.flatten().tolist()}
            self._hold(Call("tensor", entries, modules=self._modules), entries)

    def _hold(self, call: Call, given: Mapping[str, Any]) -> None:
        known = held.Known(self._file_sizes(), self.constants, self.sizes.observed)
        for number in held.followed(self._line, call, given, known):
            sizes = list(known.sizes) if number.sizes is None else number.sizes
            what = "any size" if number.sizes is None else f"{sizes[0]!r}"
            names = dict.fromkeys(symbol.value for size in sizes for symbol in size.free)
            if len(self.sizes.traces) > 1:
                self._refuse_forms(number)
                continue
            emit, said = self.emit, f"{number.number} may be made of {what}: {_REMEDY}"
            if found := [name for name in names if name in (self.fixed or ())]:
                raise Holds(found, Provenance(emit.operator, emit.build.source, said))

    def cut(self, node: FxNode, arguments: list[Any]) -> list[Any]:
        """The operands of a call, of which the first is cut as the indexing says that the call is of, where
        the file has left that out."""
        if (indexing := self._indexings.get(node)) is None or not arguments:
            return arguments
        x = arguments[0]
        for each in indexing.uncut() if isinstance(x, Value) else ():
            extent = x.shape[each.axis]
            if each.made_of or (each.axis >= 0 and not extent.is_const):
                self._hold_uncut(each, extent, indexing.writes)
            if not indexing.writes and not each.made_of:
                start = None if each.start is None else Written(each.start)
                end = None if each.end is None else Written(each.end)
                x = aten_shape.slice_of(self.emit, x, each.axis, start, end)
        return [x, *arguments[1:]]

    def _hold_uncut(self, uncut: Uncut, extent: Expr, writes: bool) -> None:
        """What a slice that cut nothing in the file says of the sizes of which it may."""
        if isinstance(self.emit.system, Exploring):
            return
        if uncut.made_of and len(self.sizes.traces) == 1:
            names = dict.fromkeys(symbol.value for size in self._file_sizes() for symbol in size.free)
            said = f"a slice that cuts nothing there may be made of any size ({uncut.made_of}): {_REMEDY}"
            if found := [name for name in names if name in (self.fixed or ())]:
                raise Holds(found, Provenance(self.emit.operator, self.emit.build.source, said))
        elif uncut.unknown or writes:
            longest = max(self.sizes.observed(extent) or (0,))
            self.emit.require(extent <= longest, "a slice that cuts nothing in the file, and may beyond it")

    # ---- several files of one model ----------------------------------------------------------------

    def explain(self, values: tuple[int, ...], near: Sequence[Expr]) -> Expr | None:
        """An expression over sizes that has these values in the traces, or None. Where no symbolic forward
        has seen how they are made, Disagreement where it may be any of several."""
        found = self.sizes.explain(values, near)
        if self.fixed is None or found is None or found in self.sizes.seen():
            return found
        every = self.sizes.explanations(values, near)
        other = next((each for each in every if not alike(each, found)), None)
        if other is not None:
            said = " and ".join(map(str, values))
            raise self._disagreement(f"the values {said} may be {found!r} or {other!r}: {_FURTHER}")
        return found

    def _refuse_forms(self, number: held.Held) -> None:
        """Raises Disagreement where a number that is the same in all files may yet be made of a size: they
        lie so that one more of its forms has this value in each."""
        fixed = self.fixed or frozenset()
        symbols = [size for size in self.sizes.seen() if size.op == "size" and size.value in fixed]
        if (form := self.sizes.constant_form(number.value, symbols)) is not None:
            raise self._disagreement(f"{number.number} may be {form!r}, the same in all files: {_FURTHER}")

    def _disagreement(self, said: str) -> Disagreement:
        operator, line = self.emit.operator, self.emit.build.source
        return Disagreement(f"{operator}: {said}", stage="generalize", node=operator, source_line=line)

    def _file_sizes(self) -> dict[Expr, int]:
        """The sizes in the graph that the file has as numbers."""
        return {
            size: values[0]
            for size in self.sizes.seen()
            if (values := self.sizes.observed(size)) is not None
            and any(symbol.value in (self.fixed or ()) for symbol in size.free)
        }


_UNTOLD = (Origin.UNSEEN, Origin.NAMED, *MADE)


def _origin(found: Told | None) -> Origin | None:
    return None if found is None else found.origin
