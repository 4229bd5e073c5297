"""Writes the host program of a schedule: each step becomes a launch or a call over named buffers, each value
gets memory with a lifetime, and every fact that the kernels rely on becomes a guard of the first segment that
can check it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import ONE, TRUE, ZERO, as_expr, equal, product, size
from dlcb.compiler.host.index_origin import origin
from dlcb.compiler.host.indexed import IGNORED, INDEXED, Indexed, axes
from dlcb.compiler.host.program import (
    Binding,
    Buffer,
    CheckedTensor,
    Definition,
    EagerCall,
    Guard,
    IndexCheck,
    Input,
    Launch,
    LaunchParameter,
    LibraryCall,
    Output,
    Program,
    Segment,
    Step,
    Tensor,
    Variant,
)
from dlcb.compiler.ir.graph import Node, Value
from dlcb.compiler.kgen.kernel import Kernel, KernelSet
from dlcb.compiler.passes import steps as passes
from dlcb.compiler.passes.steps import (
    EagerStep,
    KernelStep,
    Layout,
    LibraryStep,
    Schedule,
    ViewStep,
    row_major,
)
from dlcb.compiler.shapes.system import Provenance, Solution

WRITES_INTO = frozenset({"linear", "matmul"})  # library operators that PyTorch lets write into memory of ours


def lower(
    schedule: Schedule,
    kernel_sets: Sequence[KernelSet],
    units: Sequence[str],
    solution: Solution,
    names: Sequence[str],
) -> Program:
    """The host program of a schedule, its prologue included.

    `kernel_sets` has one set for each group; `units` are the store's keys of the binaries with their kernels;
    `names` are the caller's names of the graph's outputs, in order.
    """
    graph = schedule.graph
    by_group = {kernels.group: kernels for kernels in kernel_sets}
    kept = _kept_by_prologue(schedule)
    main = _Lowering(schedule, schedule.steps, by_group)
    main.guards = guards_of(solution)
    for name, value in zip(names, graph.outputs, strict=True):
        main.output(name, value)
    prologue = None
    if schedule.prologue:
        first = _Lowering(schedule, schedule.prologue, by_group)
        for value in kept:
            first.output(value.name, value)
        read_first = first.buffers_read()
        read = [v for v in graph.parameters if v in read_first]
        prologue = first.program(f"{graph.name}.prologue", read, (), units, solution)
    read_later = main.buffers_read()
    parameters = [v for v in (*graph.parameters, *kept) if v in read_later]
    return main.program(graph.name, graph.inputs, parameters, units, solution, prologue)


def guards_of(solution: Solution) -> tuple[Guard, ...]:
    """What run time checks: the solver's guards, and the range of every size variable."""
    guards = [Guard(g.condition, g.declared, _words(g.why)) for g in solution.guards]
    for name, verdict in solution.verdicts.items():
        if verdict.kind == "literal":
            continue
        symbol, why = size(name), _words(verdict.reason)
        if verdict.low is not None and verdict.low > 0:
            guards.append(Guard(as_expr(verdict.low) <= symbol, False, why))
        if verdict.high is not None:
            guards.append(Guard(symbol <= as_expr(verdict.high), False, why))
        if verdict.multiple > 1:
            guards.append(Guard(equal(symbol % verdict.multiple, 0), False, why))
    return tuple(dict.fromkeys(g for g in guards if g.condition is not TRUE))


def _words(why: Provenance) -> str:
    return ", ".join(part for part in (why.operator, why.detail, why.source) if part)


def _kept_by_prologue(schedule: Schedule) -> list[Value]:
    """What the prologue makes and the steps, or the caller, read."""
    made = {v: None for step in schedule.prologue for v in step.outputs}
    wanted = {v for step in schedule.steps for v in step.inputs} | set(schedule.graph.outputs)
    # a view of something the prologue made is followed to its base, which is what stays
    bases = {schedule.layouts[v][0] if v in schedule.layouts else v for v in wanted if v in made}
    return [v for v in made if v in bases]


_Run = KernelStep | LibraryStep  # what a schedule runs; a view runs nothing
_Part = tuple[list[_Run], list[Binding]]


class _Lowering:
    """One list of steps on its way to segments."""

    def __init__(
        self,
        schedule: Schedule,
        steps: Sequence[passes.Step],
        kernel_sets: Mapping[str, KernelSet],
    ) -> None:
        self.schedule, self.steps, self.kernel_sets = schedule, steps, kernel_sets
        self.views = {step.value: (step.base, step.layout) for step in steps if isinstance(step, ViewStep)}
        self.guards: tuple[Guard, ...] = ()
        self.outputs: list[tuple[str, Value]] = []

    def output(self, name: str, value: Value) -> None:
        self.outputs.append((name, value))

    def layout(self, value: Value) -> tuple[Value, Layout]:
        """Base buffer and layout; a value without an entry has memory of its own, row-major."""
        found = self.schedule.layouts.get(value) or self.views.get(value)
        return found if found is not None else (value, row_major(value.shape))

    def base(self, value: Value) -> Value:
        return self.layout(value)[0]

    def buffers_read(self) -> set[Value]:
        read = {self.base(v) for step in self.steps for v in step.inputs}
        return read | {self.base(v) for _, v in self.outputs}

    def program(
        self,
        name: str,
        inputs: Iterable[Value],
        parameters: Iterable[Value],
        units: Sequence[str],
        solution: Solution,
        prologue: Program | None = None,
    ) -> Program:
        inputs = tuple(inputs)
        bound = {dim for value in inputs for dim in value.shape if dim.op == "size"}
        definitions = tuple(
            Definition(symbol.value, solution.apply(symbol))
            for symbol in solution.substitution
            if symbol not in bound or solution.apply(symbol) is not symbol
        )
        given = tuple(Input(v.name, v.dtype.name, tuple(v.shape)) for v in inputs)
        return Program(
            name=name,
            inputs=given,
            parameters=tuple(
                Buffer(v.name, v.dtype.name, product(v.shape), "parameter", 0, 0) for v in parameters
            ),
            definitions=definitions,
            segments=self._segments(inputs, definitions),
            outputs=tuple(Output(name, value.name) for name, value in self.outputs),
            units=tuple(units),
            prologue=prologue,
        )

    # ---- segments: an eager call that makes sizes known ends one

    def _segments(self, inputs: Sequence[Value], definitions: Sequence[Definition]) -> tuple[Segment, ...]:
        given = {d.name: d.value for d in definitions}
        known = {dim.value for v in inputs for dim in v.shape if dim.op == "size" and dim.value not in given}
        guards = list(self.guards)
        parts = self._cut(known, given)
        last_part = self._last_part(parts)
        segments: list[Segment] = []
        for number, (steps, binds) in enumerate(parts):
            # what is left over in the end is about sizes of results that nothing needs, so that none is made
            ready = [g for g in guards if _depends(g.condition, given) <= known]
            guards = [g for g in guards if g not in ready]
            segments.append(
                self._segment(number, steps, tuple(binds), tuple(ready), last_part, len(parts) - 1)
            )
            known |= {binding.size for binding in binds}
        return tuple(segments)

    def _cut(self, known: set[str], given: Mapping[str, Expr]) -> list[_Part]:
        """Steps up to and with each eager step that makes sizes known."""
        known = set(known)
        parts: list[_Part] = [([], [])]
        for step in self.steps:
            if isinstance(step, ViewStep):
                continue
            parts[-1][0].append(step)
            if not isinstance(step, EagerStep):
                continue
            for value in step.outputs:
                for axis, dim in enumerate(value.shape):
                    if dim.op == "size" and dim.value not in known and dim.value not in given:
                        parts[-1][1].append(Binding(dim.value, value.name, axis))
                        known.add(dim.value)
            if parts[-1][1]:
                parts.append(([], []))
        return parts

    def _last_part(self, parts: Sequence[_Part]) -> dict[Value, int]:
        """For each buffer the number of the last part that reads it; an output is read after all."""
        last: dict[Value, int] = {}
        for number, (steps, _) in enumerate(parts):
            for step in steps:
                last.update((self.base(v), number) for v in step.inputs)
        last.update((self.base(v), len(parts)) for _, v in self.outputs)
        return last

    def _segment(
        self,
        number: int,
        steps: Sequence[_Run],
        binds: tuple[Binding, ...],
        guards: tuple[Guard, ...],
        last_part: Mapping[Value, int],
        last_number: int,
    ) -> Segment:
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        places: dict[Value, str] = {}
        tensors: dict[str, Tensor] = {}
        lowered: list[Step] = []
        workspaces: list[Buffer] = []
        for step in steps:
            if isinstance(step, KernelStep) and (kernels := self.kernel_sets[step.group.name]).before:
                at = len(lowered)
                workspaces += (
                    Buffer(w.name, w.dtype.name, w.elements, "arena", at, at + 1) for w in kernels.workspaces
                )
                lowered.append(self._launch(step, kernels.before))
            at = len(lowered)
            for value in step.outputs:
                first.setdefault(value, at)
                last[value] = at
                places[value] = self._place(step, value, number, last_part)
            last.update((base, at) for base in map(self.base, step.inputs) if base in first)
            if isinstance(step, KernelStep):
                lowered.append(self._launch(step, self.kernel_sets[step.group.name].variants))
                continue
            call, used = self._call(step, places)
            lowered.append(call)
            tensors |= {tensor.name: tensor for tensor in used}
        measured = {binding.result for binding in binds}  # a result that only gives a size is kept for that
        for value in first:
            if last_part.get(value, number) > number or value.name in measured:
                last[value] = len(lowered)  # it outlives the segment
        if number == last_number:  # an output is shown by the last segment, when every size is known
            for _, value in self.outputs:
                tensors[value.name] = self._tensor(value)
        return Segment(
            guards=guards,
            buffers=(
                *(
                    Buffer(v.name, v.dtype.name, product(v.shape), places[v], first[v], last[v])
                    for v in first
                ),
                *workspaces,
            ),
            tensors=tuple(tensors.values()),
            steps=tuple(lowered),
            binds=binds,
        )

    def _place(self, step: _Run, value: Value, part: int, last_part: Mapping[Value, int]) -> str:
        row = self.layout(value)[1] == row_major(value.shape)
        ours = isinstance(step, KernelStep) or (
            not isinstance(step, EagerStep) and step.node.op.name in WRITES_INTO and row
        )
        if not ours:
            return "call"
        return "result" if last_part.get(value, part) > part else "arena"

    def _tensor(self, value: Value) -> Tensor:
        base, layout = self.layout(value)
        return Tensor(
            value.name,
            base.name,
            value.dtype.name,
            tuple(value.shape),
            tuple(as_expr(s) for s in layout.strides),
            as_expr(layout.offset),
        )

    # ---- steps: one program step for each schedule step

    def _call(self, step: LibraryStep, places: Mapping[Value, str]) -> tuple[Step, list[Tensor]]:
        """The call and the tensors that it is about."""
        node = step.node
        if node.op.name == "linear" and places[node.result] != "call":
            matrices = self._matrices(node)
            if matrices is not None:
                *given, result = (tensor.name for tensor in matrices)
                return LibraryCall("product", tuple(given), dict(node.attributes), result, ()), matrices
        tensors = [self._tensor(value) for value in (*step.inputs, *step.outputs)]
        inputs = tuple(v.name for v in node.inputs)
        if node.op.name == "eager":
            target, arguments = node.attributes["target"], node.attributes["arguments"]
            results = tuple(v.name for v in node.results)
            return EagerCall(target, inputs, arguments, results, self._call_checks(node)), tensors
        return LibraryCall(node.op.name, inputs, dict(node.attributes), node.result.name, ()), tensors

    def _matrices(self, node: Node) -> list[Tensor] | None:
        """A linear layer's operands and result as matrices: rows, columns, perhaps a bias, result. None where
        the rows do not lie at even distances."""
        x, weight, *bias = node.inputs
        rows, result, columns = self._rows(x), self._rows(node.result), self._tensor(weight)
        if rows is None or result is None:
            return None
        columns = replace(
            columns,
            name=f"columns of {weight.name}",
            shape=tuple(reversed(columns.shape)),
            strides=tuple(reversed(columns.strides)),
        )
        return [rows, columns, *map(self._tensor, bias), result]

    def _rows(self, value: Value) -> Tensor | None:
        """A tensor as a matrix of all its rows."""
        tensor = self._tensor(value)
        shape, strides = tensor.shape, tensor.strides
        even = all(strides[k] is strides[k + 1] * shape[k + 1] for k in range(len(shape) - 2))
        if len(shape) < 2 or not even:
            return None
        matrix = product(shape[:-1]), shape[-1]
        return replace(tensor, name=f"rows of {value.name}", shape=matrix, strides=strides[-2:])

    def _launch(self, step: KernelStep, variants: Iterable[Kernel]) -> Launch:
        values = {v.name: v for v in (*step.inputs, *step.outputs)}
        values |= {v.name: v for node in step.group.nodes for v in (*node.inputs, *node.results)}
        return Launch(tuple(self._variant(kernel, values) for kernel in variants))

    def _variant(self, kernel: Kernel, values: Mapping[str, Value]) -> Variant:
        names = (b.value_name for b in kernel.buffers)  # a workspace is no value of the program
        return Variant(
            kernel=kernel.name,
            buffers=tuple(self.base(values[name]).name if name in values else name for name in names),
            parameters=tuple(LaunchParameter(p.kind, as_expr(p.value)) for p in kernel.parameters),
            guards=tuple(kernel.guards),
            alignment=kernel.alignment,
            grid=_three(kernel.grid),
            block=_three(kernel.block),
            shared_bytes=as_expr(kernel.shared_bytes),
            domain=as_expr(kernel.domain),
            checks=tuple(self._index_check(values[c.value_name], c.low, c.high) for c in kernel.checks),
        )

    def _call_checks(self, node: Node) -> tuple[CheckedTensor, ...]:
        """The ranges that an eager operator's indices must lie in, looked at before the call."""
        arguments, checks = node.attributes["arguments"], []
        for row in INDEXED.get(node.attributes["target"], ()):
            table = _input(arguments, row.table, node)
            axis = row.axis if row.axis_argument is None else arguments[row.axis_argument]
            indices = arguments[row.indices]
            entries = [
                node.inputs[int(each[1:])] if isinstance(each, str) and each.startswith("$") else None
                for each in (indices if isinstance(indices, tuple) else (indices,))
            ]
            spanned = (1 if value is None or not _is_mask(value) else value.rank for value in entries)
            for value, place in zip(entries, axes(axis, spanned), strict=False):
                if value is None or _is_mask(value) or value.dtype.is_float:
                    continue  # a float: shares of classes
                extent = table.shape[place % table.rank]
                if row.flat or row.sizes is not None:
                    extent = product(table.shape if row.sizes is None else arguments[row.sizes])
                low = ZERO - extent if row.wraps else ZERO
                check = self._index_check(value, low, extent + ONE if row.ends else extent)
                checks.append(CheckedTensor(value.name, check, _ignored(row, arguments)))
        return tuple(checks)

    def _index_check(self, indices: Value, low: Expr, high: Expr) -> IndexCheck:
        name, coordinates = origin(indices)
        return IndexCheck(name, coordinates, tuple(indices.shape), low, high)


def _three(numbers: Sequence[Expr | int]) -> tuple[Expr, Expr, Expr]:
    x, y, z = map(as_expr, numbers)
    return x, y, z


def _input(arguments: Sequence[object], position: int, node: Node) -> Value:
    return node.inputs[int(str(arguments[position])[1:])]


def _is_mask(indices: Value) -> bool:
    return indices.dtype.name in ("bool", "uint8")


def _ignored(row: Indexed, arguments: Sequence[object]) -> int | None:
    if row.ignored is None:
        return None
    given = arguments[row.ignored] if len(arguments) > row.ignored else IGNORED
    return given if isinstance(given, int) else IGNORED


def _depends(e: Expr, definitions: Mapping[str, Expr]) -> set[str]:
    names: set[str] = set()
    for free in e.free:
        names |= _depends(definitions[free.value], definitions) if free.value in definitions else {free.value}
    return names
