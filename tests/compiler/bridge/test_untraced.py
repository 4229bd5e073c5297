"""Programs that change what outlives a call: PyTorch runs those whose answers are the same all the same, and
the others are refused. None is compiled without its changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.bridge.untraced import untraced
from dlcb.compiler.errors import CaptureError

KEPT = torch.zeros(4)
SOURCE = ModelSource("m", "1", factory="tests:none", inputs=(InputDeclaration("x", "float32", ("n", 4)),))


class Changing(nn.Module):
    """Does `change` to itself before it answers."""

    shared = torch.zeros(4)

    def __init__(self, change: Callable[[Changing, Tensor], object]) -> None:
        super().__init__()
        self.register_buffer("held", torch.tensor([0.5, 2.0, -3.0, 4.0]))
        self.table = nn.Embedding(5, 4, max_norm=0.5).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.plain, self.listed = torch.zeros(4), [torch.zeros(4)]
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        found = self.change(self, x)
        return x * self.held + (found if isinstance(found, Tensor) and found.dim() == 0 else 0)


def replaced(module: Changing, tensor: Tensor) -> None:
    module.held.data = tensor


def filled(module: Changing, x: Tensor) -> None:
    module.held.untyped_storage().fill_(0)


STEADY: dict[str, Callable[[Changing, Tensor], object]] = {
    "clipped": lambda self, x: self.held.clamp_(-1, 1),
    "its data clipped": lambda self, x: self.held.data.clamp_(-1, 1),
    "its data replaced": lambda self, x: replaced(self, self.held.data.clamp(-1, 1)),
    "in a view without gradients": lambda self, x: self.held.detach()[1:].zero_(),
    "from the input": lambda self, x: self.held.copy_(x.sum(0)),
    "as a result": lambda self, x: torch.sum(x, 0, out=self.held),
    "by an embedding": lambda self, x: self.table(torch.arange(2)).sum(),
    "a plain attribute, from the input": lambda self, x: self.plain.copy_(x.sum(0)).sum(),
    "statistics": lambda self, x: self.norm.train()(torch.cat([x, x + 1])).sum(),
}
UNSTEADY: dict[str, Callable[[Changing, Tensor], object]] = {
    "counted": lambda self, x: self.held.add_(1),
    "its data counted": lambda self, x: self.held.data.add_(1),
    "its data replaced": lambda self, x: replaced(self, self.held.data + 1),
    "averaged": lambda self, x: self.held.lerp_(x.sum(0), 0.5),
    "a plain attribute": lambda self, x: self.plain.add_(1).sum(),
    "a part of one": lambda self, x: self.plain[1:].add_(x.sum()).sum(),
    "a list's": lambda self, x: self.listed[0].add_(1).sum(),
    "its class's": lambda self, x: self.shared.add_(1).sum(),
    "its file's": lambda self, x: KEPT.add_(1).sum(),
    "averaged data": lambda self, x: replaced(self, self.held * 0.9 + x.sum(0)),
}


def failure(module: nn.Module) -> CaptureError:
    with pytest.raises(CaptureError) as raised:
        generalize(SOURCE, module, CompileOptions())
    return raised.value


@pytest.mark.parametrize("change", STEADY.values(), ids=STEADY)
def test_a_change_that_no_answer_depends_on_leaves_the_model_to_pytorch(
    change: Callable[[Changing, Tensor], object],
) -> None:
    module = Changing(change).eval()
    found = untraced(SOURCE, module, failure(module))
    assert found.inputs[0].shape == ("n", 4) and found.dtypes == ("float32",)
    assert "changes" in found.why or "replaced" in found.why


@pytest.mark.parametrize("change", UNSTEADY.values(), ids=UNSTEADY)
def test_answers_that_depend_on_those_before_are_refused(
    change: Callable[[Changing, Tensor], object],
) -> None:
    module = Changing(change).eval()
    with pytest.raises(CaptureError, match="its answers depend on those before"):
        untraced(SOURCE, module, failure(module))


def test_memory_that_is_given_away_is_said() -> None:
    module = Changing(filled).eval()
    assert untraced(SOURCE, module, failure(module)).why


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(4).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.edges, x.t()).t()


def test_a_module_with_a_sparse_tensor_is_pytorchs() -> None:
    module = Sparse().eval()
    with pytest.raises(
        CaptureError, match="the constant 'edges' is no dense tensor but sparse_coo"
    ) as refused:
        generalize(SOURCE, module)
    assert untraced(SOURCE, module, refused.value).dtypes == ("float32",)
