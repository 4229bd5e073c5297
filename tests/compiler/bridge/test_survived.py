"""Calls that end PyTorch's process are refused before; a model in which they may be made loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlcb.compiler import CompileOptions, InputDeclaration, ModelSource, compile_model, load_model
from dlcb.compiler.bridge.survived import surviving, surviving_call
from dlcb.compiler.errors import CompilerError, IndexRangeError
from dlcb.kernel_cache import open_store


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = nn.EmbeddingBag(20, 8, mode=mode)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.bags(ids, offsets) * 2


class Called(Bags):
    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return F.embedding_bag(ids, self.bags.weight, offsets, mode=self.bags.mode) * 2


def made(mode: str, called: bool) -> nn.Module:
    return (Called if called else Bags)(mode).eval()


IDS, NONE = torch.arange(5), torch.zeros(0, dtype=torch.int64)


@pytest.mark.parametrize("kind", ["module", "called"])
@pytest.mark.parametrize(
    ("mode", "dtype"), [("max", torch.float32), ("sum", torch.float64), ("mean", torch.float64)]
)
def test_indices_in_no_bags_are_refused_where_pytorch_ends(kind: str, mode: str, dtype: torch.dtype) -> None:
    module = made(mode, kind == "called").to(dtype)
    with surviving(module):
        assert module(IDS, torch.tensor([0, 2])).shape == (2, 8)
        assert module(IDS[:0], NONE).shape == (0, 8)
        with pytest.raises(RuntimeError, match=r"of 5 indices in 0 bags as torch.float\d\d, which PyTorch"):
            module(IDS, NONE)
    call = surviving_call(torch.ops.aten.embedding_bag.default)
    with pytest.raises(RuntimeError, match="5 indices in 0 bags"):
        call(torch.zeros(20, 8, dtype=dtype), IDS, NONE, False, {"sum": 0, "mean": 1, "max": 2}[mode])


@pytest.mark.parametrize("bad", [6, -1, 1 << 40])
def test_bags_that_begin_outside_the_indices_are_refused(bad: int, tmp_path: Path) -> None:
    offsets = torch.tensor([0, bad, 5])
    module = made("sum", False)
    with (
        surviving(module),
        pytest.raises(RuntimeError, match=f"in 0 to 5, the number of indices, found {bad}"),
    ):
        module(IDS, offsets)
    inputs = (
        InputDeclaration("ids", "int64", ("n",), values=(0, 20)),
        InputDeclaration("offsets", "int64", ("bags",)),
    )
    arguments = {"mode": "sum", "called": False}
    source = ModelSource("bags", "1", f"{__name__}:made", arguments=arguments, inputs=inputs)
    store = open_store(tmp_path)
    key = compile_model(source, store, CompileOptions(optimisation="-O0")).artifact_key
    model = load_model(source, key, store)
    ends = torch.tensor([0, 5, 5])  # the last two bags are empty
    torch.testing.assert_close(model.call(IDS, ends)[0], module(IDS, ends))
    with pytest.raises(CompilerError, match=str(bad)) as found:
        model.call(IDS, offsets)
    if not model.report.quarantined:
        assert isinstance(found.value, IndexRangeError) and found.value.input == "offsets"


def test_quick_sums_are_left_alone() -> None:
    with surviving(made("sum", False)) as watched:
        assert made("sum", False)(IDS, NONE).shape == (0, 8)
    assert watched is not None
    assert surviving_call(torch.ops.aten.mm.default) is torch.ops.aten.mm.default
    with surviving(nn.Linear(2, 2)) as nothing:
        assert nothing is None


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_model_with_bags_loads_and_answers(mode: str, tmp_path: Path) -> None:
    inputs = (
        InputDeclaration("ids", "int64", ("n",), values=(0, 20)),
        InputDeclaration("offsets", "int64", ("bags",), values=(0, 1)),
    )
    arguments = {"mode": mode, "called": False}
    source = ModelSource("bags", "1", f"{__name__}:made", arguments=arguments, inputs=inputs)
    store = open_store(tmp_path)
    key = compile_model(source, store, CompileOptions(optimisation="-O0")).artifact_key
    model = load_model(source, key, store)
    assert not model.report.quarantined
    offsets = torch.zeros(1, dtype=torch.int64)
    torch.testing.assert_close(model.call(IDS, offsets)[0], made(mode, False)(IDS, offsets))
    if mode == "max":
        with pytest.raises(CompilerError):
            model.call(IDS, NONE)
    else:
        assert model.call(IDS, NONE)[0].shape == (0, 8)


class Recurrent(nn.Module):
    """In autocast PyTorch makes a call of oneDNN's of it, where there is something to do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.recurrent(x)[0]


def recurrent() -> nn.Module:
    return Recurrent().eval()


@pytest.mark.parametrize("sizes", [(0, 0), (3, 0), (0, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_recurrence_over_nothing_is_refused(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    call = surviving_call(torch.ops.aten.mkldnn_rnn_layer.default)
    x, state = torch.ones(*sizes, 8, dtype=dtype), torch.ones(1, sizes[1], 8, dtype=dtype)
    weight, bias = torch.ones(32, 8, dtype=dtype), torch.ones(32, dtype=dtype)
    fixed = (False, [], 2, 8, 1, True, False, False, False)
    with pytest.raises(RuntimeError, match=rf"{sizes[0]} steps of {sizes[1]} sequences as {dtype}"):
        call(x, weight, weight, bias, bias, state, state, *fixed)


def test_a_recurrence_in_autocast_loads_and_answers_empty_requests(tmp_path: Path) -> None:
    inputs = (InputDeclaration("x", "float32", ("n", "m", 8)),)
    source = ModelSource("recurrent", "1", f"{__name__}:recurrent", inputs=inputs)
    store = open_store(tmp_path)
    key = compile_model(source, store, CompileOptions(optimisation="-O0")).artifact_key
    model = load_model(source, key, store)
    assert not model.report.quarantined
    for sizes in ((2, 5), (0, 3), (1, 1)):
        x = torch.randn(*sizes, 8)
        with torch.no_grad():
            wanted = recurrent()(x)
        torch.testing.assert_close(model.call(x)[0], wanted, atol=2e-2, rtol=2e-2, check_dtype=sizes[0] > 0)
    with pytest.raises(CompilerError):
        model.call(torch.zeros(0, 0, 8))
