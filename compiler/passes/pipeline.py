"""The passes in order. The list is data: a pass can be inserted, removed, or be the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlcb.compiler.ir.graph import Graph, Node, Value
from dlcb.compiler.passes.algebra import evaluate_coordinates, fold_batch_norms, merge_linears
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.fuse import fuse, fusable
from dlcb.compiler.passes.layout import declared_layout
from dlcb.compiler.passes.steps import Layout, Schedule, Step, ViewStep
from dlcb.compiler.passes.views import Views

# what PyTorch's libraries run as one call; every other composite is expanded
LIBRARY = frozenset({"attention", "linear", "matmul", "convolution"})


@dataclass(frozen=True)
class Pass:
    """A named rewrite of the whole graph."""

    name: str
    run: Callable[[Graph], Graph]


PASSES: tuple[Pass, ...] = (
    Pass("fold_batch_norms", fold_batch_norms),
    Pass("merge_linears", merge_linears),
    Pass("decompose", lambda graph: decompose(graph, keep=LIBRARY)),
    Pass("evaluate_coordinates", evaluate_coordinates),
)


def run_passes(graph: Graph, passes: Sequence[Pass] = PASSES, stop_after: str | None = None) -> Graph:
    """`graph` after `passes`, or after the one named `stop_after`."""
    for step in passes:
        graph = step.run(graph)
        if step.name == stop_after:
            break
    return graph


def schedule(graph: Graph) -> Schedule:
    """Fuse `graph` into steps; what depends on parameters alone becomes the prologue."""
    folded, rest = _split(graph)
    rest_reads = {value for node in rest for value in node.inputs}
    kept = [r for node in folded for r in node.results if r in rest_reads or r in graph.outputs]
    prologue = fuse(graph, folded, kept, prefix="once")
    steps = fuse(graph, rest, graph.outputs)
    return Schedule(graph, tuple(prologue), tuple(steps), _layouts(graph, (*prologue, *steps)))


def _split(graph: Graph) -> tuple[list[Node], list[Node]]:
    """(nodes worth evaluating once at load, the rest). Views of parameters cost nothing and stay where they are read."""
    constant: set[Value] = set(graph.parameters)
    folded: list[Node] = []
    views = Views(graph.system)
    for node in graph.nodes:
        depends = node.inputs and node.op.kind not in ("create", "opaque") and all(v in constant for v in node.inputs)
        if not depends or not all(size.is_const for result in node.results for size in result.shape):
            continue
        constant.update(node.results)
        base = views.of(node.result)
        if base is None or base[0].producer is not None:
            folded.append(node)
    once = set(folded)
    return folded, [node for node in graph.nodes if node not in once]


def _layouts(graph: Graph, steps: Sequence[Step]) -> dict[Value, tuple[Value, Layout]]:
    layouts = {value: (value, declared_layout(value)) for value in (*graph.inputs, *graph.parameters)}
    for step in steps:
        if isinstance(step, ViewStep):
            layouts[step.value] = (step.base, step.layout)
        else:
            layouts.update((value, (value, declared_layout(value))) for value in step.outputs)
    return layouts
