"""The kernels of whole models, the quickstart's and one that pads to windows: nothing is computed twice where
it can be seen, and nothing is divided by a free size."""

from collections.abc import Callable

import pytest
import torch
from test_structure import TARGETS, divisions, repetitions

from dlcb.compiler import InputDeclaration, ModelSource
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.kgen import generate
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.pipeline import run_passes, schedule
from dlcb.compiler.quickstart import ProposalNetwork, SentenceEncoder, Standardize


class Windows(torch.nn.Module):
    """Sums over windows of a length that is padded to whole ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, 0, 0, (7 - x.shape[1] % 7) % 7))
        windows = padded.view(x.shape[0], -1, 7, x.shape[2])
        return (windows - windows.mean(2, keepdim=True)).reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]


def encoder() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(**sizes, vocab_size=100, attn_implementation="sdpa")
    return SentenceEncoder(transformers.BertModel(config, add_pooling_layer=False))


IDS = ("int64", ("b", "s"), (0, 2))
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], dict]] = {
    "pnet": (ProposalNetwork, {"image": ("float32", ("b", 3, "h", "w"), None)}),
    "standardize": (Standardize, {"x": ("float32", ("a", "b", "c"), None)}),
    "windows": (Windows, {"x": ("float32", ("b", "n", "c"), None)}),
    "minilm": (encoder, {"input_ids": IDS, "attention_mask": IDS}),
}


@pytest.fixture(scope="module", params=MODELS)
def graphs(request: pytest.FixtureRequest) -> list:
    factory, inputs = MODELS[request.param]
    declared = tuple(InputDeclaration(name, *of) for name, of in inputs.items())
    source = ModelSource(request.param, "1", factory="here:model", inputs=declared)
    captured = generalize(source, factory().eval(), CompileOptions())
    return [each.graph for each in (captured, *captured.others)]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_twice_and_no_division_by_a_free_size(graphs: list, target: str) -> None:
    made = 0
    for graph in graphs:
        plan = schedule(run_passes(graph, TARGETS[target].kind))
        for group in plan.groups:
            for kernel in generate(group, plan.layouts, plan.graph.system, TARGETS[target]).kernels:
                assert not repetitions(kernel)
                assert not divisions(kernel)
                made += 1
    assert made
