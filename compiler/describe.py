"""From what the stages found to what is published:
the signature that requests are checked with, and the report that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dlcb.compiler.bridge.generalize import Captured
from dlcb.compiler.bridge.verdicts import DimVerdict
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.host.footprint import footprint
from dlcb.compiler.host.program import Program
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.kgen import KernelSet
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import WHOLE, batch_axes, padding_obstacles
from dlcb.compiler.passes.steps import EagerStep, KernelStep, LibraryStep, Schedule
from dlcb.compiler.report import CallLine, DimLine, KernelLine, Report
from dlcb.compiler.shapes.system import Solution
from dlcb.compiler.signature import BatchAxes, Dim, Guard, Signature, TensorSpec
from dlcb.compiler.source import ModelSource


def describe_signature(
    source: ModelSource, captured: Captured, solution: Solution, graph: Graph, program: Program
) -> Signature:
    """What the model accepts. Sizes beyond a derived limit that eager
    PyTorch may still serve are not refused here."""
    verdicts = {(v.input, v.axis): v for v in captured.verdicts}
    inputs = tuple(
        TensorSpec(
            d.name,
            d.dtype,
            tuple(_dim(source, verdicts[d.name, axis], s) for axis, s in enumerate(d.shape or ())),
        )
        for d in captured.inputs
    )
    bound = {dim.symbol for spec in inputs for dim in spec.dims or () if isinstance(dim, Dim)}
    elsewhere = any(verdict.beyond == "eager" for verdict in captured.verdicts)
    texts: dict[str, tuple[str | None, ...] | None] = {}
    outputs = []
    for name, value in zip(captured.outputs, graph.outputs, strict=True):
        shape = [solution.apply(extent) for extent in value.shape]
        known = [not elsewhere and {v.value for v in extent.free} <= bound for extent in shape]
        texts[name] = tuple(_python(e) if k else None for e, k in zip(shape, known, strict=True))
        dims = (
            e.value if e.is_const and k else Dim(repr(e), 0, None) for e, k in zip(shape, known, strict=True)
        )
        outputs.append(TensorSpec(name, value.dtype.name, tuple(dims)))
    guards = _guards(captured, solution, bound)
    return Signature(
        inputs,
        tuple(outputs),
        texts,
        guards,
        _batch(captured, graph),
        _padding(captured, graph, guards),
        _python(footprint(program)),
    )


def _dim(source: ModelSource, verdict: DimVerdict, declared: str | int) -> Dim | int:
    if verdict.beyond == "eager" and isinstance(declared, str):
        low, high = source.dims.get(declared, (0, None))
        symbol = verdict.size if isinstance(verdict.size, str) else declared
        return Dim(symbol, low, high, 1, "")
    if isinstance(verdict.size, int):
        return verdict.size
    return Dim(verdict.size, verdict.low, verdict.high, verdict.multiple, verdict.reason)


def _guards(captured: Captured, solution: Solution, bound: set[str]) -> tuple[Guard, ...]:
    """Relations between several sizes that the program itself needs,
    so that eager PyTorch would refuse them as well."""
    limited = {verdict.size for verdict in captured.verdicts if verdict.beyond == "eager"}
    guards = []
    for guard in solution.guards:
        names = {variable.value for variable in guard.condition.free}
        if len(names) > 1 and names <= bound and not names & limited:
            why = ", ".join(filter(None, (guard.why.operator, guard.why.detail, guard.why.source)))
            guards.append(Guard(_python(guard.condition), why))
    return tuple(guards)


def _python(e: Expr) -> str:
    """The expression as text that Python reads alike: there `&` and `|` bind tighter than comparisons."""
    parts = [f"({_python(arg)})" if arg.args else repr(arg) for arg in e.args]
    if e.op in ("and", "or"):
        return f" {e.op} ".join(parts)
    if e.op == "not":
        return f"not {parts[0]}"
    return f"where({', '.join(parts)})" if e.op == "where" else repr(e)


def _batch(captured: Captured, graph: Graph) -> BatchAxes | None:
    found = batch_axes(decompose(graph, keep=frozenset()))
    if found is None or found.symbol in _branching(captured):
        return None
    names = {name: found.output_axes[str(k)] for k, name in enumerate(captured.outputs)}
    return BatchAxes(found.symbol, found.input_axes, names)


def _padding(captured: Captured, graph: Graph, guards: Sequence[Guard]) -> dict[str, str]:
    """What stands against padding each free size; the proof is about this graph, and holds for no other
    branch."""
    obstacles = padding_obstacles(decompose(graph, keep=WHOLE))
    tied = {name: guard for guard in guards for name in guard.symbols}
    branching = _branching(captured)
    return {
        name: obstacle
        or (f"{tied[name].expression} must hold" if name in tied else "")
        or ("the program may take another branch at other sizes" if name in branching else "")
        for name, obstacle in obstacles.items()
    }


def _branching(captured: Captured) -> set[str]:
    """Sizes at which the program itself may go another way, so that requests together may be treated as none
    of them would be alone."""
    return {str(verdict.size) for verdict in captured.verdicts if verdict.beyond == "eager"}


def describe_report(
    captured: Captured,
    solution: Solution,
    plan: Schedule,
    kernels: Sequence[KernelSet],
    signature: Signature,
    static: bool,
) -> Report:
    """What was decided, for `dlcb explain`."""
    tier = "static" if static or all(isinstance(v.size, int) for v in captured.verdicts) else "dynamic"
    return Report(
        tier=tier,
        dims=tuple(
            DimLine(v.input, v.axis, str(v.size), v.low, v.high, v.multiple, v.reason, v.source, v.certainty)
            for v in captured.verdicts
        ),
        kernels=_kernel_lines(plan, kernels, tier),
        calls=_call_lines(plan),
        guards=tuple(f"{g.condition!r}  [{g.why.operator} {g.why.source}]" for g in solution.guards),
        notes=captured.notes,
        batching=_batching_lines(signature),
    )


def _batching_lines(signature: Signature) -> tuple[str, ...]:
    if signature.batch is None:
        return ("no size is proven to count independent rows: each request runs alone",)
    rows = signature.batch.symbol
    lines = [f"requests are stacked along '{rows}': its rows are independent"]
    for name, obstacle in signature.padding.items():
        if name != rows:
            found = f"may not be: {obstacle}" if obstacle else "may be: proven to change nothing"
            lines.append(f"'{name}' padded at its end {found}")
    return tuple(lines)


def _kernel_lines(plan: Schedule, kernels: Sequence[KernelSet], tier: str) -> tuple[KernelLine, ...]:
    variants = {kernel_set.group: len(kernel_set.variants) for kernel_set in kernels}
    once = {step.group for step in plan.prologue if isinstance(step, KernelStep)}
    return tuple(
        KernelLine(
            group.name,
            tuple(node.op.name for node in group.nodes),
            tuple(repr(value.type) for value in group.outputs),
            variants[group.name],
            "static, once at load" if group in once else tier,
            tuple(dict.fromkeys(node.source for node in group.nodes if node.source)),
        )
        for group in plan.groups
    )


def _call_lines(plan: Schedule) -> tuple[CallLine, ...]:
    library = Counter(
        s.node.op.name for s in plan.steps if isinstance(s, LibraryStep) and not isinstance(s, EagerStep)
    )
    eager = Counter(
        str(s.node.attributes.get("target", s.node.op.name)) for s in plan.steps if isinstance(s, EagerStep)
    )
    lines = [CallLine(name, "library", count, "contraction") for name, count in library.items()]
    return (
        *lines,
        *(CallLine(name, "eager", count, "no rule for this operator") for name, count in eager.items()),
    )


def any_rank_signature(source: ModelSource) -> Signature:
    """The signature of a model whose inputs may have any rank: names and types only."""
    inputs = tuple(
        TensorSpec(d.name, d.dtype, None if d.shape is None else tuple(_declared(source, s) for s in d.shape))
        for d in source.inputs
    )
    outputs = tuple(TensorSpec(name, source.inputs[0].dtype, None) for name in source.outputs)
    return Signature(inputs, outputs, {name: None for name in source.outputs})


def _declared(source: ModelSource, declared: str | int) -> Dim | int:
    if isinstance(declared, int):
        return declared
    low, high = source.dims.get(declared, (0, None))
    return Dim(declared, low, high)
