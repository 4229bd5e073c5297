"""Convolution networks:
channels-last between convolutions, epilogues in the library call, the same values."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pass_programs import Program

from dlcb.compiler.ir.graph import Graph, Value
from dlcb.compiler.ir.reference import evaluate
from dlcb.compiler.passes import text
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import batch_axes
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.passes.steps import KernelStep, LibraryStep

PLAIN = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


class Network(Program):
    """A program over images with convolutions and norms by name."""

    def image(self, channels: int) -> Value:
        return self.input("x", self.size("batch"), channels, self.size("height", 8), self.size("width", 8))

    def normed(self, x: Value, name: str, wide: int, narrow: int, window: int = 3, **geometry) -> Value:
        geometry = {**PLAIN, **geometry}
        x = self.convolution(x, self.parameter(f"{name}.weight", wide, narrow, window, window), **geometry)
        statistics = [
            self.parameter(f"{name}.{part}", wide) for part in ("mean", "variance", "gamma", "beta")
        ]
        return self.batch_norm(x, *statistics, eps=1e-5)


def residual_network() -> Graph:
    """A stem with pooling, a block that keeps its size and one that halves it, a classifier."""
    p = Network("residual_network")
    x = p.relu(p.normed(p.image(3), "stem", 8, 3, 7, stride=(2, 2), padding=(3, 3)))
    x = p.max_pool(x, window=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(1, 1), ceil_mode=False)
    y = p.relu(p.normed(x, "a1", 8, 8))
    x = p.relu(p.add(p.normed(y, "a2", 8, 8), x))
    y = p.relu(p.normed(x, "b1", 16, 8, stride=(2, 2)))
    down = p.normed(x, "down", 16, 8, 1, stride=(2, 2), padding=(0, 0))
    x = p.relu(p.add(p.normed(y, "b2", 16, 16), down))
    pooled = p.mean(x, axes=(2, 3), keepdim=False)
    return p.graph(p.linear(pooled, p.parameter("w", 5, 16), p.parameter("b", 5)))


def branching_network() -> Graph:
    """Depthwise convolution, an activation that no library fuses, a bias alone,
    concatenation of two branches."""
    p = Network("branching_network")
    x = p.image(4)
    left = p.silu(p.normed(x, "depthwise", 4, 1, groups=4))
    right = p.sigmoid(p.convolution(x, p.parameter("point.weight", 6, 4, 1, 1), p.parameter("point.bias", 6),
                                    **{**PLAIN, "padding": (0, 0)}))  # fmt: skip
    slope = p.parameter("slope", 10, 1, 1)
    both = p.concat(left, right, axis=1)
    return p.graph(p.where(p.gt(both, p.constant(0.1)), both, p.mul(both, slope)))


def values(graph: Graph, sizes: dict[str, int]) -> np.ndarray:
    draw = np.random.default_rng(0)

    def array(value: Value) -> np.ndarray:
        shape = tuple(s.value if s.is_const else sizes[s.value] for s in value.shape)
        return (
            np.abs(draw.standard_normal(shape)) + 0.1
            if "variance" in value.name
            else draw.standard_normal(shape)
        )

    inputs = {value.name: array(value) for value in graph.inputs}
    return evaluate(graph, inputs, {value.name: array(value) for value in graph.parameters})[0]


@pytest.mark.parametrize("target", ["cpp", "cuda"])
@pytest.mark.parametrize("network", [residual_network, branching_network])
@pytest.mark.parametrize(
    "sizes", [{"batch": 2, "height": 16, "width": 19}, {"batch": 1, "height": 8, "width": 8}]
)
def test_the_values_stay(network, sizes: dict[str, int], target: str) -> None:
    graph = network()
    np.testing.assert_allclose(
        values(run_passes(graph, target), sizes), values(graph, sizes), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("network", [residual_network, branching_network])
def test_the_values_stay_without_tf32(network) -> None:
    graph, sizes = network(), {"batch": 2, "height": 16, "width": 19}
    exact = run_passes(graph, "cuda", tf32=False)
    np.testing.assert_allclose(values(exact, sizes), values(graph, sizes), rtol=1e-9, atol=1e-12)


def test_without_tf32_float32_images_stay_channels_first() -> None:
    plan = schedule(run_passes(residual_network(), "cuda", tf32=False))
    calls = Counter(step.node.op.name for step in plan.steps if isinstance(step, LibraryStep))
    assert calls == {"convolution_relu": 5, "convolution": 1, "linear": 1}
    kernels = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert len(kernels) == 2, "the pooling and the mean"
    assert "convolution_nhwc" in [
        node.op.name for node in run_passes(branching_network(), "cuda", tf32=False).nodes
    ]


def test_a_residual_network_is_library_calls_and_three_kernels(golden) -> None:
    plan = schedule(run_passes(residual_network(), "cuda"))
    kernels = sum(isinstance(step, KernelStep) for step in plan.steps)
    assert kernels == 3, "the image's layout, the pooling and the mean"
    golden("passes/residual_network.txt", text.show(plan))


def test_no_image_is_transposed_between_convolutions() -> None:
    plan = schedule(run_passes(branching_network(), "cuda"))
    kernels = [
        {node.op.kind for node in step.group.nodes} for step in plan.steps if isinstance(step, KernelStep)
    ]
    assert kernels and {"move"} not in kernels


def test_a_depthwise_convolution_is_a_kernel_that_repeats_no_activation() -> None:
    p = Network("separable_network")
    x = p.silu(p.normed(p.image(3), "stem", 8, 3))
    x = p.silu(p.normed(x, "depthwise", 8, 1, groups=8))
    plan = schedule(run_passes(p.graph(p.normed(x, "point", 4, 8, 1, padding=(0, 0))), "cuda"))
    fused = [[n.op.name for n in s.group.nodes] for s in plan.steps if isinstance(s, KernelStep)]
    assert fused == [
        ["permute", "contiguous"], ["add", "silu"], ["depthwise_nhwc", "add", "silu"], ["add", "permute"],
    ]  # fmt: skip


def test_batch_rows_stay_independent() -> None:
    graph = run_passes(residual_network(), "cuda")
    assert batch_axes(decompose(graph, keep=frozenset())).symbol == "batch"


def test_a_cpu_does_the_bias_and_the_residual_in_the_call() -> None:
    plan = schedule(run_passes(residual_network(), "cpp"))
    calls = [step.node for step in plan.steps if isinstance(step, LibraryStep)]
    images = [node for node in calls if node.op.name == "convolution_nhwc"]
    assert all(len(node.inputs) == 3 + bool(node.attributes.get("residual")) for node in images)
    assert sum(bool(node.attributes.get("residual")) for node in images) == 2


def test_on_a_cpu_a_depthwise_convolution_and_a_ceiling_are_the_library_s() -> None:
    p = Network("clipped_network")
    six, zero = p.constant(6.0), p.constant(0.0)
    x = p.minimum(p.maximum(p.normed(p.image(3), "stem", 8, 3), zero), six)
    x = p.minimum(p.maximum(p.normed(x, "depthwise", 8, 1, groups=8), zero), six)
    graph = p.graph(p.normed(x, "point", 4, 8, 1, padding=(0, 0)))
    plan = schedule(run_passes(graph, "cpp"))
    calls = [step.node for step in plan.steps if isinstance(step, LibraryStep)]
    assert [node.attributes["groups"] for node in calls] == [1, 8, 1]
    assert [node.attributes.get("ceiling") for node in calls] == [6.0, 6.0, None]
    sizes = {"batch": 2, "height": 9, "width": 8}
    np.testing.assert_allclose(
        values(run_passes(graph, "cpp"), sizes), values(graph, sizes), rtol=1e-9, atol=1e-12
    )


def test_a_ceiling_is_not_taken_from_a_value_that_others_read() -> None:
    p = Network("shared_network")
    x = p.relu(p.normed(p.image(3), "stem", 8, 3))
    graph = p.graph(p.minimum(x, p.constant(6.0)), x)
    calls = [n for n in run_passes(graph, "cpp").nodes if n.op.name == "convolution_nhwc"]
    assert [n.attributes.get("ceiling") for n in calls] == [None]
