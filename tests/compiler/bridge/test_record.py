"""The recorder against torch.export: the same calls at the same sizes, and honest where it cannot follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_programs import Program
from torch import Tensor, nn
from torch.fx import Node

from dlcb.compiler.bridge import aten, capture
from dlcb.compiler.bridge.record import Trace, Unrecordable, record


class Block(nn.Module):
    """Two equal layers, so that the second one's calls are known from the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.register_buffer("shift", torch.ones(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            attended, _ = layer.self_attn(x, x, x, need_weights=False)
            x = layer.norm1(x + attended)
            x = layer.norm2(x + layer.linear2(torch.relu(layer.linear1(x))))
        return x + self.shift


_IDENTITIES = aten.ASSERTIONS | {
    "aten.contiguous.default"
}  # torch.export leaves out those that change nothing


def calls(trace: Trace) -> list[tuple[str, tuple[int, ...] | None]]:
    found = []
    for node in trace.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and str(node.target) not in _IDENTITIES:
            value = node.meta["val"]
            found.append((str(node.target), tuple(value.shape) if hasattr(value, "shape") else None))
    return found


@pytest.mark.parametrize(
    "module",
    [
        Block(),
        nn.Sequential(nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(1)),
        Program(lambda x: torch.arange(x.shape[2]).view(1, -1) + x.split(2, 1)[0]),
        Program(lambda x: (x.transpose(1, 2).contiguous() + x.shape[0]).max(-1)[0]),
    ],
    ids=["attention", "convolution", "arange", "parts"],
)
def test_same_calls_as_torch_export(module: nn.Module) -> None:
    module = module.eval().requires_grad_(False)
    inputs = {"x": torch.zeros(3, 5, 8) if not isinstance(module, nn.Sequential) else torch.zeros(2, 5, 9, 7)}
    recorded = record(module, tuple(inputs.values()), {}, ("x",))
    exported = Trace.of(capture.export(module, inputs))
    assert calls(recorded) == calls(exported)
    assert recorded.user_inputs == ("x",)
    for name, tensor in recorded.parameters.tensors.items():
        assert tensor.data_ptr() == dict(module.state_dict(keep_vars=True), shift=tensor)[name].data_ptr()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0],
        lambda x: x * x.sum().item(),
        lambda x: x.clone().unsqueeze_(0),
    ],
    ids=["size known at run time", "value", "shape changed in place"],
)
def test_what_it_cannot_follow(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Unrecordable), torch.no_grad():
        record(Program(function).eval(), (torch.ones(3, 4),), {}, ("x",))


def test_constants_are_values() -> None:
    trace = record(Program(lambda x: x + torch.tensor([1.0, 2.0])).eval(), (torch.zeros(3, 2),), {}, ("x",))
    assert [tensor.tolist() for tensor in trace.parameters.tensors.values()] == [[1.0, 2.0]]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).add_(x).relu_() + 1,
        lambda x: (y := x * 2).add_(x).relu_() + y,
        lambda x: (y := (x * 2).add_(x)).relu_() + y,
    ],
    ids=["chain", "first is read again", "second is read again"],
)
def test_changes_in_place_on_fresh_results(function: Callable[[Tensor], Tensor], only_recorded: None) -> None:
    trace = capture.trace(Program(function).eval(), {"x": torch.ones(3, 4)})
    *_, written, total, _ = trace.nodes
    assert str(written.target) == "aten.relu_.default"
    assert {node for node in total.args if isinstance(node, Node)} == {written}  # what was read is the last


def test_changes_through_views_take_another_way(only_recorded: None) -> None:
    with pytest.raises(AssertionError, match=r"torch\.export"):
        capture.trace(
            Program(lambda x: ((y := x * 2).reshape(-1).add_(1), y)).eval(), {"x": torch.ones(3, 4)}
        )


@pytest.fixture
def only_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a trace is torch.export's."""

    def export(module: nn.Module, inputs: dict[str, Tensor]) -> None:
        raise AssertionError("traced by torch.export")

    monkeypatch.setattr(capture, "_exported", export)


@pytest.mark.parametrize("names", ["abc", "acb", "bca", "cba"])
def test_inputs_go_by_name_in_whatever_order_they_are_declared(names: str) -> None:
    class Difference(nn.Module):
        def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            return (a - b) / c

    trace = capture.trace(Difference().eval(), {name: torch.ones(3) for name in names})
    difference, quotient = (node for node in trace.nodes if node.op == "call_function")
    assert [node.name for node in difference.all_input_nodes] == ["a", "b"]
    assert quotient.all_input_nodes[1].name == "c"
    assert sorted(trace.user_inputs) == ["a", "b", "c"]
