"""Cut a program into kernels, library calls and views:
every value is either inlined into the kernels that read it or written to memory by exactly one step.

Nodes are visited from the outputs backwards. A node whose readers all sit in one kernel joins that kernel if
it can be computed there without repeating work; else it starts a kernel of its own, or, when something
outside needs it as well, becomes a further output of that kernel. A reduction joins only where its
coordinates are the leading axes of the kernel's domain, so that it is computed once a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import equal, product
from dlcb.compiler.ir import ops
from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.passes.access import Reading, read
from dlcb.compiler.passes.cost import is_cheap, is_expensive
from dlcb.compiler.passes.steps import EagerStep, Group, KernelStep, LibraryStep, Step, ViewStep
from dlcb.compiler.passes.views import Views

_LARGEST_GROUP = 128  # nodes; beyond it compile time grows and registers run out
_SERIAL = 4  # elements; a reduction this short is computed where it is read, again for each reader

# What one coordinate of a value depends on, seen from the kernel's domain:
# axes of the anchor and reduction loops.
_Token = int | Node
_Dependence = tuple[frozenset[_Token], ...]


@dataclass(eq=False)
class _Kernel:
    """A kernel being grown. `seen[v]` holds, for each way v is read,
    what each of its coordinates depends on."""

    anchor: Value
    members: set[Node] = field(default_factory=set)
    outputs: list[Value] = field(default_factory=list)
    seen: dict[Value, set[_Dependence]] = field(default_factory=dict)
    rows: int | None = None  # set by the first reduction that is hoisted out of the inner loop


class _Fusion:
    def __init__(
        self, graph: Graph, nodes: Sequence[Node], kept: Iterable[Value], prefix: str, views: bool
    ) -> None:
        self.prefix = prefix
        self.may_view = views
        self.system = graph.system
        self.nodes = nodes
        self.own = {result for node in nodes for result in node.results}
        self.views = Views(graph.system)
        self.readers: dict[Value, list[Node]] = {}
        for node in nodes:
            for value in node.inputs:
                self.readers.setdefault(value, []).append(node)
        self.kernels: list[_Kernel] = []
        self.inside: dict[Node, list[_Kernel]] = {}  # the kernels a node is computed in
        self.forced: set[Value] = set()  # values that must lie in memory
        self.viewed: dict[Value, ViewStep] = {}
        self.kept = dict.fromkeys(kept)  # in their order, which decides who is a view of whom

    # ---- which values must lie in memory -------------------------------------------------------------------

    def force(self) -> None:
        for value in self.kept:
            self._force(value)
        for node in self.nodes:
            if not fusable(node):
                for value in node.inputs:
                    self._force(value)

    def _force(self, value: Value) -> None:
        """`value` must have memory: as a view of something that has it anyway, else written by a kernel."""
        if self._comes_in_memory(value):
            return
        base = self.views.of(value) if self.may_view else None
        if base is not None and base[0].producer is not None and base[0].producer.op is ops.contiguous:
            self._force(base[0])  # that is what this operator says
        if base is not None and (self._comes_in_memory(base[0]) or base[0] in self.forced):
            self.viewed[value] = ViewStep(value, *base)
        else:
            self.forced.add(value)

    def _comes_in_memory(self, value: Value) -> bool:
        """Is `value` from outside these nodes, or made by what is not compiled by coordinates?"""
        return value not in self.own or not fusable(value.made_by)

    # ---- growing kernels -----------------------------------------------------------------------------------

    def grow(self) -> None:
        for node in reversed(self.nodes):
            if not fusable(node) or (node.result in self.viewed and not self._readers_inside(node.result)):
                continue
            value = node.result
            homes = self._readers_inside(value)
            if value not in self.forced and not homes:
                continue  # whatever read it reads a view instead
            joins = value not in self.forced and all(self._fits(node, home) for home in homes)
            if joins and (len(homes) == 1 or is_cheap(node)):
                for home in homes:
                    self._join(node, home)
                continue
            self.forced.add(value)
            writer = next((home for home in homes if self._further_output(value, home)), None)
            if writer is None:
                self._start(node)
            else:
                self._join(node, writer)
                writer.outputs.append(value)

    def _readers_inside(self, value: Value) -> list[_Kernel]:
        homes: list[_Kernel] = []
        for reader in self.readers.get(value, ()):
            for home in self.inside.get(reader, ()):
                if home not in homes:
                    homes.append(home)
        return homes

    def _start(self, node: Node) -> None:
        kernel = _Kernel(node.result, outputs=[node.result])
        kernel.seen[node.result] = {tuple(frozenset((axis,)) for axis in range(node.result.rank))}
        self.kernels.append(kernel)
        self._join(node, kernel)

    def _join(self, node: Node, kernel: _Kernel) -> None:
        kernel.members.add(node)
        self.inside.setdefault(node, []).append(kernel)
        if (
            node.op.fold
            and (hoisted := self._hoisted_rows(node, kernel)) is not None
            and not self._serial(node)
        ):
            kernel.rows = hoisted
        reading = read(node)
        for access in reading.accesses:
            operand = node.inputs[access.operand]
            ways = kernel.seen.setdefault(operand, set())
            for dependence in kernel.seen[node.result]:
                ways.add(tuple(_through(c, reading, dependence, node) for c in access.coordinates))

    # ---- what may join -------------------------------------------------------------------------------------

    def _fits(self, node: Node, kernel: _Kernel) -> bool:
        """May `node` be computed inside `kernel` without repeating work?"""
        if len(kernel.members) >= _LARGEST_GROUP:
            return False
        ways = kernel.seen[node.result]
        if node.op.fold:
            if self._serial(node) and self._as_anchor(node.result, kernel, ways):
                return True
            if self._short(node) and self._at_domain(ways):
                return True
            rows = self._hoisted_rows(node, kernel)
            return rows is not None and (kernel.rows is None or kernel.rows == rows)
        if is_expensive(node) and not self._as_anchor(node.result, kernel, ways):
            # worth repeating only where it is computed once a row, or along the row's own reductions
            if any(
                isinstance(token, Node) and self._window(token)
                for way in ways
                for axis in way
                for token in axis
            ):
                return False
            return self._same_size(node.result, kernel.anchor) or self._reads_once(node.result, kernel)
        return True

    def _hoisted_rows(self, node: Node, kernel: _Kernel) -> int | None:
        """The number of leading anchor axes that `node`'s elements correspond to one to one, or None."""
        tokens = set[_Token]().union(*(axis for way in kernel.seen[node.result] for axis in way))
        axes = {token for token in tokens if isinstance(token, int)}
        if len(axes) < len(tokens):
            return None  # read inside another reduction's loop at that loop's index
        leading = len(axes)
        if axes != set(range(leading)):
            # an axis of extent 1 leaves no trace in the coordinates
            leading = max(axes, default=-1) + 1
            if any(self._size(kernel.anchor, axis) != 1 for axis in range(leading) if axis not in axes):
                return None
        if not self._equal(product(node.result.shape), product(kernel.anchor.shape[:leading])):
            return None
        return leading

    def _size(self, value: Value, axis: int) -> int | None:
        size = value.shape[axis]
        return size.value if size.is_const else None

    def _serial(self, node: Node) -> bool:
        return self._window(node) or self._short(node)

    def _short(self, node: Node) -> bool:
        count = product(self._extents(node))
        return count.is_const and count.value <= _SERIAL

    def _at_domain(self, ways: Iterable[_Dependence]) -> bool:
        return all(isinstance(token, int) for way in ways for axis in way for token in axis)

    def _as_anchor(self, value: Value, kernel: _Kernel, ways: Iterable[_Dependence]) -> bool:
        """Is `value` read once for each element of the kernel's domain?"""
        return self._same_size(value, kernel.anchor) and self._at_domain(ways)

    def _reads_once(self, value: Value, kernel: _Kernel) -> bool:
        """Is `value` read once for each of its own elements by a whole-axis reduction of the kernel?"""
        reducers = (node for node in kernel.members if node.op.fold and not self._window(node))
        return any(
            self._equal(product(value.shape), product((*node.result.shape, *self._extents(node))))
            for node in reducers
        )

    def _extents(self, node: Node) -> tuple[Expr, ...]:
        return tuple(r.args[0] for r in read(node).over)

    def _window(self, node: Node) -> bool:
        """A reduction over a window of constant size, computed serially for each element."""
        return all(extent.is_const for extent in self._extents(node)) and any(
            c.op != "index" for access in read(node).accesses for c in access.coordinates if c.free
        )

    def _further_output(self, value: Value, kernel: _Kernel) -> bool:
        """May `kernel` write `value` as well? It must be computed there anyway,
        and nothing outside may stand between."""
        node = value.made_by
        if not self._fits(node, kernel):
            return False
        if kernel.anchor.producer is not None and kernel.anchor.producer.op.fold and kernel.rows is None:
            return False
        same = len(value.shape) == len(kernel.anchor.shape) and all(
            self._equal(a, b) for a, b in zip(value.shape, kernel.anchor.shape, strict=True)
        )
        if not same:
            return False
        straight = tuple(frozenset((axis,)) for axis in range(value.rank))
        if straight not in kernel.seen[value]:
            return False
        return not self._leads_back(value, kernel)

    def _leads_back(self, value: Value, kernel: _Kernel) -> bool:
        """Does a step other than `kernel` that reads `value` lead to something that `kernel` reads? Then they
        cannot be one step. A node may be computed in several kernels, so steps are followed, not nodes."""
        stack, reached = [value], {value}
        while stack:
            current = stack.pop()
            for reader in self.readers.get(current, ()):
                homes = self.inside.get(reader, ())
                if kernel in homes and current is not value and current.producer not in kernel.members:
                    return True
                made = [
                    v
                    for home in homes
                    if home is not kernel and current.producer not in home.members
                    for v in home.outputs
                ]
                if not homes or reader.result in self.viewed:
                    made += reader.results
                stack.extend(v for v in made if v not in reached)
                reached.update(made)
        return False

    def _same_size(self, a: Value, b: Value) -> bool:
        return self._equal(product(a.shape), product(b.shape))

    def _equal(self, a: Expr, b: Expr) -> bool:
        return a is b or self.system.known(equal(a, b)) is True

    # ---- steps ---------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        made: dict[Value, Step] = {}
        steps: list[Step] = [*self.viewed.values()]
        for node in self.nodes:
            if not fusable(node):
                steps.append(EagerStep(node) if node.op.kind == "opaque" else LibraryStep(node))
        for number, kernel in enumerate(reversed(self.kernels)):
            nodes = tuple(node for node in self.nodes if node in kernel.members)
            inputs = dict.fromkeys(
                value for node in nodes for value in node.inputs if value.producer not in kernel.members
            )
            rows = kernel.anchor.rank if kernel.rows is None else kernel.rows
            name = f"{self.prefix}{number}_{kernel.anchor.made_by.op.name}"
            steps.append(KernelStep(Group(name, nodes, tuple(inputs), tuple(kernel.outputs), rows)))
        for step in steps:
            made.update(dict.fromkeys(step.outputs, step))
        return _ordered(steps, made, {node: k for k, node in enumerate(self.nodes)})


def fusable(node: Node) -> bool:
    """Is `node` compiled by coordinates? Contractions,
    composites that were kept and opaque nodes are run by PyTorch."""
    return node.op.at is not None and node.op.kind not in ("contract", "opaque")


def fuse(
    graph: Graph, nodes: Sequence[Node], kept: Iterable[Value], prefix: str = "k", views: bool = True
) -> list[Step]:
    """`nodes` of `graph` as ordered steps, with `kept` values in memory at the end, as views where they may
    be: what comes from other nodes has memory then. Kernels are named `prefix`number_operator."""
    fusion = _Fusion(graph, nodes, kept, prefix, views)
    fusion.force()
    fusion.grow()
    return fusion.steps()


def _through(coordinate: Expr, reading: Reading, dependence: _Dependence, node: Node) -> frozenset[_Token]:
    """What an operand's coordinate depends on, given what the node's own coordinates depend on."""
    tokens: set[_Token] = set()
    for variable in coordinate.free:
        if variable in reading.out:
            tokens |= dependence[reading.out.index(variable)]
        elif variable in reading.over:
            tokens.add(node)
    return frozenset(tokens)


def _ordered(steps: Sequence[Step], made: dict[Value, Step], position: dict[Node, int]) -> list[Step]:
    """`steps` sorted so that each comes after what it reads; otherwise in program order."""

    def place(step: Step) -> int:
        return max((position.get(v.producer, -1) for v in step.outputs if v.producer is not None), default=-1)

    done: list[Step] = []
    seen: set[Step] = set()
    for first in sorted(steps, key=place):
        stack = [(first, False)]
        while stack:
            step, ready = stack.pop()
            if ready:
                done.append(step)
            elif step not in seen:
                seen.add(step)
                stack.append((step, True))
                stack.extend(
                    (made[v], False) for v in reversed(step.inputs) if v in made and made[v] not in seen
                )
    return done
