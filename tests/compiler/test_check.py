"""What the load check asks of PyTorch, also of modules of which PyTorch makes no second one in float64."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dlcb.compiler import CompileOptions, compile_model, load_model
from dlcb.compiler.check import prepared
from dlcb.compiler.errors import GuardError
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

SOURCE = ModelSource("counting", "1", inputs=(InputDeclaration("x", "float16", ("n", 3)),))


class Counting(nn.Module):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        MET.append((x.dtype, tuple(x.shape)))
        if len(x) > self.most:
            raise ValueError("too long")
        return x


MET: list[tuple[torch.dtype, tuple[int, ...]]] = []


def test_pytorch_is_asked_once_in_each_precision_before_its_answers_are_needed() -> None:
    MET.clear()
    prepared(SOURCE, Counting(most=5), "cpu")
    assert not MET
    prepared(SOURCE, Counting(most=5), "cpu", {"x": (5, 3)})
    assert [(torch.float16, (5, 3)), (torch.float64, (5, 3))] == MET


def test_what_it_refuses_then_is_asked_again_later() -> None:
    reference = prepared(SOURCE, Counting(most=5), "cpu", {"x": (6, 3)})
    x = torch.ones(2, 3, dtype=torch.float16)
    assert torch.equal(reference.eager([x])[0], x)


class Watched(nn.Module):
    """Gives what a hook has kept of a part, as feature extractors do: a copy's hook keeps it elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.part, self.kept = nn.Linear(3, 4), dict[str, torch.Tensor]()
        self.part.register_forward_hook(lambda part, inputs, output: self.kept.update(feature=output))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part(x)
        return self.kept["feature"] * 2


def normed() -> nn.Module:
    """Its weights are made of others, with gradients."""
    torch.manual_seed(0)
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.ReLU())


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("factory", ["Watched", "normed"])
def test_a_module_that_cannot_be_copied_is_compiled(factory: str, tmp_path: Path) -> None:
    inputs = (InputDeclaration("x", "float32", ("n", 3)),)
    source = ModelSource(factory, "1", factory=f"{__name__}:{factory}", inputs=inputs)
    store = open_store(tmp_path)
    made = compile_model(source, store, CompileOptions(optimisation="-O0"))
    assert made.report.tier == "dynamic" and not made.report.quarantined
    model, module = load_model(source, made.artifact_key, store), globals()[factory]()
    for rows in (0, 1, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(model.call(x)[0], module(x).detach())


def pieces() -> nn.Module:
    class Pieces(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [piece * 2 for piece in x.chunk(3)]

    return Pieces()


def test_sizes_with_fewer_outputs_are_refused_in_words(tmp_path: Path) -> None:
    inputs = (InputDeclaration("x", "float32", ("n",)),)
    source = ModelSource("pieces", "1", factory=f"{__name__}:pieces", inputs=inputs)
    store = open_store(tmp_path)
    made = compile_model(source, store, CompileOptions(optimisation="-O0"))
    model = load_model(source, made.artifact_key, store)
    assert len(model.call(torch.randn(7))) == 3
    for n in (1, 2, 4):
        with pytest.raises(GuardError, match=f"n = {n} .*PyTorch gives [12] outputs here, elsewhere 3"):
            model.call(torch.randn(n))
