"""The passes in order. The list is data: a pass can be inserted, removed, or be the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.ir.graph import Graph, Node, Value, live
from dlcb.compiler.passes.algebra import (
    additive_masks,
    evaluate_coordinates,
    fold_batch_norms,
    merge_linears,
)
from dlcb.compiler.passes.channels_last import channels_last, exact_images
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.epilogues import clip_in_place, fuse_epilogues, split_biases
from dlcb.compiler.passes.fuse import fuse
from dlcb.compiler.passes.layout import declared_layout
from dlcb.compiler.passes.products import dense_images, products
from dlcb.compiler.passes.sink import sink_row_movements
from dlcb.compiler.passes.steps import Layout, Schedule, Step, ViewStep
from dlcb.compiler.passes.views import Views

# what PyTorch's libraries run as one call; every other composite is expanded
LIBRARY = frozenset({"attention", "linear", "matmul", "convolution", "convolution_nhwc", "convolution_relu"})


@dataclass(frozen=True)
class Pass:
    """A named rewrite of the whole graph. `targets` are the kinds of target it pays on; `tf32` where it pays
    only if libraries may round float32 so, or only if they may not."""

    name: str
    run: Callable[[Graph], Graph]
    targets: frozenset[str] = frozenset({"cpp", "cuda"})
    tf32: bool | None = None


_CPP, _CUDA = frozenset({"cpp"}), frozenset({"cuda"})

_MASK_ROWS = 8  # elements; what PyTorch's fused attention on CUDA asks of a mask's strides

PASSES: tuple[Pass, ...] = (
    Pass("fold_batch_norms", fold_batch_norms),
    Pass("merge_linears", merge_linears),
    Pass("sink_row_movements", sink_row_movements),
    Pass("decompose", lambda graph: decompose(graph, keep=LIBRARY)),
    Pass("evaluate_coordinates", evaluate_coordinates),
    Pass("additive_masks", additive_masks, _CPP),
    Pass("additive_masks", partial(additive_masks, row_multiple=_MASK_ROWS), _CUDA),
    Pass("channels_last", partial(channels_last, depthwise_kernels=True), _CUDA, tf32=True),
    Pass("channels_last", exact_images, _CUDA, tf32=False),
    Pass("channels_last", channels_last, _CPP),
    Pass("fuse_epilogues", fuse_epilogues, _CUDA),
    Pass("clip_in_place", clip_in_place, _CPP),
    Pass("products", products, _CUDA),
    Pass("split_biases", split_biases, _CUDA),
    Pass("dense_images", dense_images),
)


def run_passes(
    graph: Graph,
    target: str = "cpp",
    passes: Sequence[Pass] = PASSES,
    stop_after: str | None = None,
    tf32: bool = True,
) -> Graph:
    """`graph` after those of `passes` that pay on the kind of target, up to the one named `stop_after`.
    `tf32`: cuDNN may round the operands of float32 convolutions to TF32."""
    for step in passes:
        if target in step.targets and step.tf32 in (None, tf32):
            graph = step.run(graph)
        if step.name == stop_after:
            break
    return graph


def schedule(graph: Graph) -> Schedule:
    """Fuse `graph` into steps; what depends on parameters alone becomes the prologue."""
    folded, rest = _split(graph)
    rest_reads = {value for node in rest for value in node.inputs}
    # a view of what a movement at load gives may be one of what is moved
    moved = {r for node in folded if node.op.kind == "move" for r in node.results}
    views = Views(graph.system)
    bases = [views.of(r) for node in rest if moved.intersection(node.inputs) for r in node.results]
    rest_reads |= {base[0] for base in bases if base is not None}
    kept = [
        r for node in folded if node.inputs for r in node.results if r in rest_reads or r in graph.outputs
    ]
    prologue = fuse(graph, folded, kept, prefix="once")
    steps = fuse(graph, rest, graph.outputs)
    return Schedule(graph, tuple(prologue), tuple(steps), _layouts(graph, (*prologue, *steps)))


def _split(graph: Graph) -> tuple[list[Node], list[Node]]:
    """(nodes worth evaluating once at load, the rest). Fills that both need stand in both.

    Views and casts of parameters cost nothing where they are read, and stay there."""
    constant: set[Value] = set(graph.parameters)
    candidates: list[Node] = []
    for node in graph.nodes:
        if (
            (node.op.kind != "opaque" or _is_settled(node))
            and _sizes_known(node)
            and all(value in constant for value in node.inputs)
        ):
            constant.update(node.results)
            candidates.append(node)
    once = _worthwhile(graph, candidates)
    needed = set(live(candidates, [result for node in once for result in node.results]))
    rest = live([node for node in graph.nodes if node not in once], graph.outputs)
    return [node for node in candidates if node in needed], rest


def _is_settled(node: Node) -> bool:
    """Whether a call of PyTorch's gives the same for the same operands."""
    return bool(node.inputs) and "draw" not in node.attributes


def _sizes_known(node: Node) -> bool:
    """Does neither its shape nor what it computes depend on the inputs' sizes?"""
    stack: list[Any] = [*node.attributes.values(), *(result.shape for result in node.results)]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack.extend(value)
        elif isinstance(value, Expr) and value.free:
            return False
    return True


def _worthwhile(graph: Graph, candidates: list[Node]) -> set[Node]:
    """Those of `candidates` that are not free where they are read:
    fills, views and casts of what is there anyway."""
    views, once = Views(graph.system), set[Node]()
    for node in candidates:
        if not node.inputs or not any(_from_parameter(value) for value in node.inputs):
            continue
        base = views.of(node.result)
        viewed = base is not None and (base[0].producer is None or base[0].producer in once)
        if not viewed and not (node.op.name == "cast" and node.inputs[0].kind == "parameter"):
            once.add(node)
    return once


def _from_parameter(value: Value) -> bool:
    """Does `value` depend on a parameter, rather than on fills alone?"""
    stack = [value]
    while stack:
        value = stack.pop()
        if value.kind == "parameter":
            return True
        if value.producer is not None:
            stack.extend(value.producer.inputs)
    return False


def _layouts(graph: Graph, steps: Sequence[Step]) -> dict[Value, tuple[Value, Layout]]:
    layouts = {value: (value, declared_layout(value)) for value in (*graph.inputs, *graph.parameters)}
    for step in steps:
        if isinstance(step, ViewStep):
            layouts[step.value] = (step.base, step.layout)
        else:
            layouts.update((value, (value, declared_layout(value))) for value in step.outputs)
    return layouts
