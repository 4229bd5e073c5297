"""From what the stages found to what is published:
the signature that requests are checked with, and the report that people read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.places import words_at
from dlcb.compiler.bridge.ranks import Ranks
from dlcb.compiler.bridge.untraced import Untraced
from dlcb.compiler.bridge.verdicts import BY_SHAPE, DimVerdict
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.expr.dag import Expr, toposort
from dlcb.compiler.expr.node import maximum
from dlcb.compiler.expr.ops import OPS
from dlcb.compiler.host.footprint import footprint
from dlcb.compiler.host.program import Program
from dlcb.compiler.ir.graph import Graph, Node
from dlcb.compiler.kgen import KernelSet
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import batch_axes, stacking_obstacles
from dlcb.compiler.passes.padding import WHOLE, padding_obstacles
from dlcb.compiler.passes.steps import EagerStep, KernelStep, LibraryStep, Schedule
from dlcb.compiler.report import CallLine, DimLine, GraphLine, GuardLine, KernelLine, Report
from dlcb.compiler.shapes.system import Guard as SizeGuard
from dlcb.compiler.shapes.system import Solution, System
from dlcb.compiler.signature import BatchAxes, Dim, Guard, Signature, TensorSpec, readable
from dlcb.compiler.source import ModelSource

UNCOVERED = "PyTorch runs the model at sizes that its graphs are not proven to cover"
BRANCHES = "the program may take another branch at other sizes"
NOT_WHOLE = "at some sizes PyTorch itself runs the model"
_CONNECTIVES = {"and": "and", "or": "or", "xor": "!=", "not": "not"}  # of conditions, as Python spells them


def describe_signature(
    source: ModelSource,
    every: Sequence[Captured],
    solutions: Sequence[Solution],
    graphs: Sequence[Graph],
    programs: Sequence[Program],
) -> Signature:
    """What the model accepts, from its graphs in the order in which they are tried. Sizes beyond a derived
    limit that eager PyTorch may still serve are not refused here."""
    captured, solution = every[0], solutions[0]
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
    whole = captured.serves_all(_ranges(source, captured))  # else PyTorch may give other outputs
    unproven = _unproven(every)
    texts: dict[str, tuple[str | None, ...] | None] = {}
    outputs = []
    for place, (name, value) in enumerate(zip(captured.outputs, graphs[0].outputs, strict=True)):
        shape = [solution.apply(extent) for extent in value.shape]
        agreed = whole and all(
            _same_shape(shape, graph.outputs[place].shape, other, graph.system)
            for graph, other in zip(graphs[1:], solutions[1:], strict=True)
        )
        known = [agreed and {v.value for v in extent.free} <= bound for extent in shape]
        texts[name] = tuple(python_text(e) if k else None for e, k in zip(shape, known, strict=True))
        dims = (
            e.value if e.is_const and k else Dim(repr(e), 0, None) for e, k in zip(shape, known, strict=True)
        )
        outputs.append(TensorSpec(name, value.dtype.name, tuple(dims)))
    guards = _guards(captured, solution, bound)
    unless = f"{BY_SHAPE}: {unproven}" if unproven else "" if whole else NOT_WHOLE
    batch, stacking = _batch(every, graphs, unless)
    padding, fill = _padding(source, every, graphs, guards, unless)
    signature = Signature(
        inputs,
        tuple(outputs),
        texts,
        guards,
        batch,
        padding,
        python_text(reduce(maximum, map(footprint, programs))),
        fill,
        stacking,
    )
    signature.read()
    return signature


def _unproven(every: Sequence[Captured]) -> str:
    """Why it is not known what the program does at sizes that were not traced, "" where that is proven."""
    return next((each.unproven for each in every if each.unproven), "")


def _ranges(source: ModelSource, captured: Captured) -> dict[str, tuple[int, int | None]]:
    """The declared range of every size variable."""
    names = {v.size for v in captured.verdicts if isinstance(v.size, str)}
    return {name: source.dims.get(name, (0, None)) for name in names}


def _same_shape(shape: Sequence[Expr], other: Sequence[Expr], solution: Solution, system: System) -> bool:
    """Whether a further graph's output has this shape wherever that graph serves."""
    if len(shape) != len(other):
        return False
    return all(
        system.simplify(solution.apply(a)) is system.simplify(solution.apply(b))
        for a, b in zip(shape, other, strict=True)
    )


def _dim(source: ModelSource, verdict: DimVerdict, declared: str | int) -> Dim | int:
    if verdict.beyond == "eager" and isinstance(declared, str):
        low, high = source.dims.get(declared, (0, None))
        return Dim(verdict.symbol, low, high, 1, "")
    if isinstance(verdict.size, int):
        return verdict.size
    reason = _for_people(verdict.reason)
    return Dim(verdict.size, verdict.low, verdict.high, verdict.multiple, reason)


def _for_people(reason: str) -> str:
    """A reason without the names of values inside the program, which nobody outside of it knows."""
    return readable(re.sub(r" of %[^;]*", "", reason))


def _guards(captured: Captured, solution: Solution, bound: set[str]) -> tuple[Guard, ...]:
    """Relations between several sizes that the program itself needs,
    so that eager PyTorch would refuse them as well."""
    limited = {verdict.size for verdict in captured.verdicts if verdict.beyond == "eager"}
    guards = []
    for guard in solution.guards:
        names = {variable.value for variable in guard.condition.free}
        if len(names) > 1 and names <= bound and not names & limited:
            line = _guard_line(guard)
            guards.append(
                Guard(python_text(guard.condition), ", ".join(filter(None, (line.reason, line.source_line))))
            )
    return tuple(guards)


def python_text(e: Expr) -> str:
    """The expression as text that Python reads alike, as `signature.compile_expression` does: there `&` and
    `|`, with which expressions show conditions, bind tighter than comparisons."""
    if not any(node.op in _CONNECTIVES for node in toposort([e])):
        return repr(e)
    texts = [python_text(arg) for arg in e.args]
    if e.op == "cast":
        return f"{e.dtype.name}({texts[0]})"
    row = OPS[e.op]
    parts = [f"({text})" if arg.args else text for arg, text in zip(e.args, texts, strict=True)]
    if e.op == "not":
        return f"not {parts[0]}"
    joint = _CONNECTIVES.get(e.op, row.symbol)
    return f" {joint} ".join(parts) if joint else f"{e.op}({', '.join(texts)})"


def _batch(
    every: Sequence[Captured], graphs: Sequence[Graph], unless: str
) -> tuple[BatchAxes | None, dict[str, str]]:
    """The batch axes that all graphs agree on, else what stands against each size. One that chooses between
    the graphs is none, since stacking would change it; `unless`, where not empty, stands against all."""
    expanded = [decompose(graph, keep=frozenset()) for graph in graphs]
    proofs, branching = [batch_axes(graph) for graph in expanded], _branching(every)
    first = proofs[0]
    if not unless and first and first.symbol not in branching and all(proof == first for proof in proofs):
        names = {name: first.output_axes[str(k)] for k, name in enumerate(every[0].outputs)}
        return BatchAxes(first.symbol, first.input_axes, names), {}
    obstacles: dict[str, str] = {}
    for graph in expanded:
        for name, obstacle in stacking_obstacles(graph).items():
            obstacles[name] = obstacles.get(name) or obstacle
    return None, {
        name: _quoted(obstacle) or (BRANCHES if name in branching else unless)
        for name, obstacle in obstacles.items()
    }


def _quoted(obstacle: str) -> str:
    """What ends a proof, with the user's own words at the place that it names: operators go by names of ours,
    which may be nowhere in them."""
    place = re.search(r" \(([^()]+:\d+)\)$", obstacle)
    words = words_at(place[1]) if place else ""
    return f"{obstacle[:-1]}: {words})" if words else obstacle


def _padding(
    source: ModelSource,
    every: Sequence[Captured],
    graphs: Sequence[Graph],
    guards: Sequence[Guard],
    unless: str,
) -> tuple[dict[str, str], dict[str, float]]:
    """What stands against padding each free size in any of the graphs, and what inputs are filled up with for
    that; `unless`, where not empty, stands against all."""
    expanded = [decompose(graph, keep=WHOLE) for graph in graphs]
    proofs: list[tuple[dict[str, str], dict[str, float]]] = []
    for fill in _fills(source):
        obstacles: dict[str, str] = {}
        for graph in expanded:
            for name, obstacle in padding_obstacles(graph, fill).items():
                obstacles[name] = obstacles.get(name) or obstacle
        proofs.append((obstacles, fill))
    obstacles, fill = max(proofs, key=lambda proof: list(proof[0].values()).count(""))
    tied = {name: guard for guard in guards for name in guard.symbols}
    branching = _branching(every)
    return {
        name: _quoted(obstacle)
        or (f"{tied[name].expression} must hold" if name in tied else "")
        or (BRANCHES if name in branching else "")
        or unless
        for name, obstacle in obstacles.items()
    }, fill


def _fills(source: ModelSource) -> Iterator[dict[str, float]]:
    """What inputs may be filled up with: indices with their least legal value and all else with 0, or one of
    the masks with 1, since True means padding in some."""
    least: dict[str, float] = {
        given.name: given.values[0] if given.values is not None and "int" in given.dtype else 0
        for given in source.inputs
    }
    yield least
    for given in source.inputs:
        if given.dtype == "bool" or ("int" in given.dtype and given.values == (0, 2)):
            yield {**least, given.name: 1}


def _branching(every: Sequence[Captured]) -> set[str]:
    """Sizes at which the program itself may go another way, so that requests together may be treated as none
    of them would be alone."""
    return {s.value for each in every for branch in each.within for s in branch.condition.free}


def describe_report(
    source: ModelSource,
    every: Sequence[Captured],
    solutions: Sequence[Solution],
    plans: Sequence[Schedule],
    kernels: Sequence[Sequence[KernelSet]],
    signature: Signature,
    static: bool,
) -> Report:
    """What was decided, for `dlcb explain`."""
    captured = every[0]
    pinned = all(isinstance(v.size, int) for v in captured.verdicts)
    tier = "static" if static or (pinned and len(every) == 1) else "dynamic"
    whole = captured.serves_all(_ranges(source, captured))
    beyond = _beyond(len(every), whole)
    return Report(
        tier=tier,
        dims=tuple(
            DimLine(
                v.input,
                v.axis,
                str(v.size),
                v.low,
                v.high,
                v.multiple,
                _for_people(v.reason),
                v.source,
                v.certainty,
                beyond if v.beyond == "eager" else "refused",
            )
            for v in captured.verdicts
        ),
        kernels=tuple(
            replace(line, graph=number)
            for number, (plan, of_graph) in enumerate(zip(plans, kernels, strict=True), 1)
            for line in _kernel_lines(plan, of_graph, tier)
        ),
        calls=tuple(
            replace(line, graph=number)
            for number, plan in enumerate(plans, 1)
            for line in _call_lines(plan, captured.left)
        ),
        guards=tuple(
            _guard_line(guard, number)
            for number, solution in enumerate(solutions, 1)
            for guard in solution.guards
        ),
        notes=captured.notes,
        batching=signature.batching_lines(),
        graphs=tuple(map(_graph_line, every, plans)) if len(every) > 1 else (),
        elsewhere=tuple(map(readable, captured.elsewhere)) or (() if whole else (UNCOVERED,)),
        unproven=_unproven(every),
    )


def _guard_line(guard: SizeGuard, graph: int = 1) -> GuardLine:
    said = ": ".join(filter(None, (guard.why.operator, _for_people(guard.why.detail))))
    return GuardLine(readable(repr(guard.condition)), said, guard.why.source, graph)


def _beyond(graphs: int, whole: bool) -> str:
    """What serves sizes beyond the first graph."""
    others = "graph 2" if graphs == 2 else f"graphs 2 to {graphs}"
    if graphs == 1:
        return "eager PyTorch"
    return others if whole else f"{others}, else eager PyTorch"


def _graph_line(captured: Captured, plan: Schedule) -> GraphLine:
    serves = " and ".join(readable(repr(branch.condition)) for branch in captured.within) or "all sizes"
    return GraphLine(
        serves,
        len(plan.groups),
        sum(isinstance(step, LibraryStep) for step in plan.steps),
        tuple(dict.fromkeys(branch.source for branch in captured.within if branch.source)),
    )


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


def _call_lines(plan: Schedule, left: Mapping[str, str]) -> tuple[CallLine, ...]:
    library = Counter(
        s.node.op.name for s in plan.steps if isinstance(s, LibraryStep) and not isinstance(s, EagerStep)
    )
    eager = Counter(
        (str(s.node.attributes.get("target", s.node.op.name)), _why_eager(s.node, left))
        for s in plan.steps
        if isinstance(s, EagerStep)
    )
    return (
        *(CallLine(name, "library", count, "left to PyTorch's libraries") for name, count in library.items()),
        *(CallLine(name, "eager", count, why) for (name, why), count in eager.items()),
    )


def _why_eager(node: Node, left: Mapping[str, str]) -> str:
    """Why PyTorch runs a call by name."""
    if node.source in left:
        return left[node.source]
    if "draw" in node.attributes:
        return "random numbers"
    if any(value.dtype.is_complex for value in (*node.inputs, *node.results)):
        return "complex numbers"
    return "the compiler has no rule for it"


def any_rank_signature(source: ModelSource, ranks: Ranks) -> Signature:
    """The signature of a model whose inputs may have any rank: names and types only. Outputs have the first
    input's type where no trace showed another."""
    inputs = tuple(
        TensorSpec(d.name, d.dtype, None if d.shape is None else tuple(_declared(source, s) for s in d.shape))
        for d in source.inputs
    )
    dtypes = ranks.dtypes or (source.inputs[0].dtype,) * len(source.outputs)
    if len(dtypes) != len(source.outputs):
        raise CaptureError(
            f"'{source.name}' declares {len(source.outputs)} outputs, the program gives {len(dtypes)}",
            stage="capture",
        )
    outputs = tuple(TensorSpec(name, dtype, None) for name, dtype in zip(source.outputs, dtypes, strict=True))
    return Signature(inputs, outputs, {name: None for name in source.outputs})


def untraced_signature(source: ModelSource, found: Untraced) -> Signature:
    """The signature of a model that PyTorch runs as it is: what was declared, and the outputs' types."""
    return any_rank_signature(
        replace(source, inputs=found.inputs, outputs=found.outputs), Ranks(found.dtypes, (), ())
    )


def describe_ranks(ranks: Ranks) -> Report:
    """The report of a model whose ranks are compiled one by one, as they are met."""
    taken = f"takes ranks {', '.join(map(str, ranks.taken))} of those tried" if ranks.taken else ""
    return Report("jit", notes=tuple(filter(None, (taken, *ranks.refused))))


def _declared(source: ModelSource, declared: str | int) -> Dim | int:
    if isinstance(declared, int):
        return declared
    low, high = source.dims.get(declared, (0, None))
    return Dim(declared, low, high)
