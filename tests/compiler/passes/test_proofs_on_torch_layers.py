"""PyTorch's own layers, captured: which of them are proven to keep rows apart and to bear padding, which are
refused, and that eager PyTorch computes what the proofs say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from proof_programs import obstacles, proof
from torch import Tensor, nn

from dlcb.compiler.bridge.captured import Captured
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.signature import BatchAxes
from dlcb.compiler.source import InputDeclaration, ModelSource

WIDTH, HEADS = 16, 4
X = InputDeclaration("x", "float32", ("batch", "length", WIDTH))
X_SECOND = InputDeclaration("x", "float32", ("length", "batch", WIDTH))
MASK = InputDeclaration("mask", "bool", ("batch", "length"))
IDS = InputDeclaration("x", "int64", ("batch", "length"), (0, 20))
LENGTHS = InputDeclaration("lengths", "int64", ("batch",), (1, 5))

Forward = Callable[..., Tensor]


class Using(nn.Module):
    """A forward pass of one's own over PyTorch's layers."""

    def __init__(self, forward: Forward, **layers: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def layer(batch_first: bool = True) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=batch_first)


def attention(batch_first: bool = True) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False)


def later(length: int) -> Tensor:
    return torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)


def behind(length: int) -> Tensor:
    places = torch.arange(length)
    return places[None, :] > places[:, None]


def square(length: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


def rolled(self: nn.Module, x: Tensor) -> Tensor:
    """Attention whose rows and heads, merged, are put in another order."""
    batch, length, _ = x.shape
    heads = x.transpose(0, 1).reshape(length, batch * HEADS, -1).transpose(0, 1)
    heads = (heads @ heads.transpose(1, 2)).softmax(-1) @ heads
    return heads.roll(1, 0).transpose(0, 1).reshape(length, batch, WIDTH).transpose(0, 1)


def from_the_end(self: nn.Module, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1]).flip(0)
    return self.m(x + self.places(places), src_mask=later(x.shape[1]))


Row = tuple[Callable[[], nn.Module], tuple[InputDeclaration, ...]]

STACKED_AND_PADDED: dict[str, Row] = {
    "encoder behind a mask": (
        lambda: Using(lambda s, x, mask: s.m(x, src_key_padding_mask=mask), m=encoder()), (X, MASK),
    ),
    "layer, positions first, behind a mask": (
        lambda: Using(lambda s, x, mask: s.m(x, src_key_padding_mask=mask), m=layer(False)), (X_SECOND, MASK),
    ),
    "layer told that it is causal": (
        lambda: Using(lambda s, x: s.m(x, src_mask=square(x.shape[1]), is_causal=True), m=layer()), (X,),
    ),
    "layer, positions first, under a triangle": (
        lambda: Using(lambda s, x: s.m(x, src_mask=later(x.shape[0])), m=layer(False)), (X_SECOND,),
    ),
    "layer with places compared, behind a mask": (
        lambda: Using(
            lambda s, x, mask: s.m(x, src_mask=behind(x.shape[1]), src_key_padding_mask=mask), m=layer()
        ),
        (X, MASK),
    ),
    "attention with its weights, behind a mask": (
        lambda: Using(lambda s, x, mask: s.m(x, x, x, key_padding_mask=mask)[0], m=attention()), (X, MASK),
    ),
    "a recurrence in time": (
        lambda: Using(
            lambda s, x: s.l(s.m(x)[0]), m=nn.LSTM(WIDTH, 8, batch_first=True), l=nn.Linear(8, 3)
        ),
        (X,),
    ),
    "a recurrence in time, positions first": (
        lambda: Using(lambda s, x: s.m(x)[0].cumprod(0), m=nn.RNN(WIDTH, 8)), (X_SECOND,)
    ),
    "ids of 0 are hidden": (
        lambda: Using(
            lambda s, ids: s.m(s.e(ids), src_key_padding_mask=ids == 0), m=layer(), e=nn.Embedding(20, WIDTH)
        ),
        (IDS,),
    ),
}  # fmt: skip
STACKED: dict[str, Row] = {
    "layer": (layer, (X,)),
    "mask from the end": (
        lambda: Using(
            lambda s, x, mask: s.m(x, src_key_padding_mask=mask.flip(1)), m=layer()
        ),
        (X, MASK),
    ),
    "one key too far": (
        lambda: Using(
            lambda s, x: s.m(x, src_mask=torch.triu(torch.ones(x.shape[1], x.shape[1]).bool(), 2)), m=layer()
        ),
        (X,),
    ),
    "places from the end": (lambda: Using(from_the_end, m=layer(), places=nn.Embedding(64, WIDTH)), (X,)),
    "lengths from outside": (
        lambda: Using(
            lambda s, x, n: s.m(x, src_key_padding_mask=torch.arange(x.shape[1])[None] >= n[:, None]),
            m=layer(),
        ),
        (X, LENGTHS),
    ),
}  # fmt: skip
ALONE: dict[str, Row] = {
    "mean over the batch": (lambda: Using(lambda s, x: x - x.mean(0), m=layer()), (X,)),
    "heads rolled": (lambda: Using(rolled), (X,)),
    "statistics of the batch": (
        lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
        (InputDeclaration("x", "float32", ("batch", WIDTH)),),
    ),
    "sampled at places of other rows": (lambda: Using(sampled_in_turn), (X,)),
    "stably sorted over the batch": (lambda: Using(lambda s, x: x.sort(dim=0, stable=True)[0]), (X,)),
    "summed over the batch at once": (
        lambda: Using(
            lambda s, x: torch.einsum("bth,hk,csk->bts", x, s.m.weight, x), m=nn.Linear(WIDTH, WIDTH)
        ),
        (X,),
    ),
    "attention between rows": (lambda: layer(False), (X,)),
    "rows in turn": (lambda: Using(lambda s, x: s.m(x)[0], m=nn.GRU(WIDTH, 8)), (X,)),
    "sorted over the batch": (lambda: Using(lambda s, x: x.sort(0)[0]), (X,)),
    "products over the batch": (lambda: Using(lambda s, x: x.cumprod(0)), (X,)),
    "between bounds from all rows": (
        lambda: Using(lambda s, x: torch.bucketize(x, x[:, 0, 0]).float()), (X,)
    ),
    "medians of the batch": (lambda: Using(lambda s, x: x.median(0, keepdim=True)[0] + x), (X,)),
    "put in other rows": (
        lambda: Using(lambda s, x: x.scatter(0, torch.zeros_like(x).long(), x)), (X,)
    ),
    "first states that count rows": (
        lambda: Using(
            lambda s, x: s.m(x, torch.arange(x.shape[0]).to(x.dtype)[None, :, None].expand(1, -1, 8))[0],
            m=nn.GRU(WIDTH, 8, batch_first=True),
        ),
        (X,),
    ),
}  # fmt: skip


def resized(self: nn.Module, x: Tensor) -> Tensor:
    return F.interpolate(x[:, None], size=(9, 5), mode="bicubic")


def sampled(self: nn.Module, x: Tensor) -> Tensor:
    return F.grid_sample(x[:, None], x[:, None, :, :2].tanh(), align_corners=True)


def sampled_by_head(self: nn.Module, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    heads = x.view(batch, length, HEADS, -1).transpose(1, 2).reshape(batch * HEADS, 1, length, -1)
    return F.grid_sample(heads, heads[:, 0, :, None, :2].tanh(), align_corners=True).view(batch, -1)


def sampled_in_turn(self: nn.Module, x: Tensor) -> Tensor:
    """Each row at places of others: its heads are counted within rows, those of the places across them."""
    batch, length, _ = x.shape
    heads = x.view(batch, length, HEADS, -1).transpose(1, 2)
    places = heads.transpose(0, 1).reshape(batch * HEADS, length, 1, -1)[..., :2].tanh()
    images = heads.reshape(batch * HEADS, 1, length, -1)
    return F.grid_sample(images, places, align_corners=True).view(batch, -1)


def unpooled(self: nn.Module, x: Tensor) -> Tensor:
    most, places = F.max_pool2d(x[:, None], 2, return_indices=True)
    return F.max_unpool2d(most * 2, places, 2, output_size=x.shape[1:])


# PyTorch runs these by name: what is proven of them stands in `eager_rows`
CALLED: dict[str, Callable[[], nn.Module]] = {
    "both ways of a recurrence": lambda: Using(
        lambda s, x: s.m(x)[0], m=nn.LSTM(WIDTH, 8, 2, batch_first=True, bidirectional=True)
    ),
    "the last states of a recurrence": lambda: Using(
        lambda s, x: s.m(x)[1].transpose(0, 1), m=nn.GRU(WIDTH, 8, batch_first=True)
    ),
    "one step": lambda: Using(lambda s, x: s.m(x[:, 0], x[:, -1, :8]), m=nn.GRUCell(WIDTH, 8)),
    "transposed convolution": lambda: Using(lambda s, x: s.m(x[:, None]), m=nn.ConvTranspose2d(1, 2, 3, 2)),
    "over places": lambda: Using(lambda s, x: s.m(x.mT), m=nn.ConvTranspose1d(WIDTH, 2, 3)),
    "windows and their sums": lambda: Using(
        lambda s, x: F.fold(F.unfold(x[:, None], 3, padding=1), x.shape[1:], 3, padding=1)
    ),
    "resized": lambda: Using(resized),
    "sampled": lambda: Using(sampled),
    "put in place": lambda: Using(lambda s, x: x.scatter_add(1, x.argsort(1), x * 2)),
    "sampled in each head": lambda: Using(sampled_by_head),
    "largest of rows and places merged": lambda: Using(
        lambda s, x: x.reshape(-1, WIDTH).topk(3)[0].view(*x.shape[:2], 3)
    ),
    "stably sorted": lambda: Using(
        lambda s, x: x.sort(dim=1, stable=True)[0] + x.argsort(stable=True).sort(dim=2, stable=True)[0]
    ),
    "put back where they were": lambda: Using(unpooled),
    "two and a weight at once": lambda: Using(
        lambda s, x: torch.einsum("bth,hk,bsk->bts", x, s.m.weight, x), m=nn.Linear(WIDTH, WIDTH)
    ),
    "largest": lambda: Using(lambda s, x: x.topk(3)[0] + x.sort(1)[0][:, :, :1]),
    "three at once": lambda: Using(lambda s, x: torch.einsum("bth,bsh,bsd->btd", x, x, x)),
    "medians": lambda: Using(lambda s, x: x.median(2)[0] + x.kthvalue(2, 2, True)[0][..., 0]),
    "elements, some broadcast": lambda: Using(
        lambda s, x: torch.hypot(x, x[:, :1]) + F.softshrink(x.tanh().erfinv())
    ),
    "between bounds": lambda: Using(lambda s, x: torch.bucketize(x, torch.tensor([0.0, 1.0])).float()),
    "distances": lambda: Using(lambda s, x: torch.cdist(x, x)),
    "frequencies": lambda: Using(lambda s, x: (torch.fft.rfft(x, dim=1) * 1j)[..., 1:].select(2, 0).abs()),
    "of both axes": lambda: Using(lambda s, x: torch.fft.irfftn(torch.fft.fft2(x), dim=(2,))),
    "frequencies of each row": lambda: Using(lambda s, x: torch.fft.fft(x).transpose(0, 1).angle().mT),
}


BEAR_PADDING = {"medians", "elements, some broadcast", "between bounds", "frequencies of each row"}


def captured(row: Row) -> tuple[nn.Module, Captured]:
    torch.manual_seed(0)
    build, inputs = row
    module = build().eval().requires_grad_(False)
    source = ModelSource("model", "1", factory="tests:none", inputs=inputs)
    return module, generalize(source, module, CompileOptions(probes=2))


def drawn(inputs: tuple[InputDeclaration, ...], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    tensors = {}
    for given in inputs:
        shape = [sizes.get(dim, dim) for dim in given.shape]
        if given.dtype == "bool":
            tensors[given.name] = torch.rand(shape) < 0.5
            tensors[given.name][:, 0] = False  # a row that sees nothing is no number in PyTorch
        elif given.values is not None:
            tensors[given.name] = torch.randint(*map(int, given.values), shape)
        else:
            tensors[given.name] = torch.randn(shape, dtype=torch.float64)
    return tensors


def agree_when_stacked(module: nn.Module, inputs: tuple[InputDeclaration, ...], axes: BatchAxes) -> None:
    together = drawn(inputs, {"batch": 5, "length": 4})
    alone = {name: t.narrow(axes.input_axes[name], 1, 2) for name, t in together.items()}
    got, expected = module.double()(*together.values()), module(*alone.values())
    torch.testing.assert_close(got.narrow(axes.output_axes["0"], 1, 2), expected, rtol=1e-9, atol=1e-12)


def agree_when_padded(
    module: nn.Module, inputs: tuple[InputDeclaration, ...], fill: Mapping[str, float]
) -> None:
    alone = drawn(inputs, {"batch": 3, "length": 4})
    longer = drawn(inputs, {"batch": 3, "length": 7})
    for name, own in alone.items():
        longer[name].fill_(fill[name])
        longer[name][tuple(map(slice, own.shape))] = own
    expected, got = module.double()(*alone.values()), module(*longer.values())
    kept = got[tuple(map(slice, expected.shape))]
    torch.testing.assert_close(kept, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", STACKED_AND_PADDED)
def test_rows_are_apart_and_padding_is_hidden(name: str) -> None:
    row = STACKED_AND_PADDED[name]
    module, program = captured(row)
    axes = proof(program.graph)
    assert axes is not None and axes.symbol == "batch" and set(axes.input_axes) == {e.name for e in row[1]}
    fill = {"x": 0, "mask": 1}
    assert obstacles(program.graph, fill)["length"] == ""
    agree_when_stacked(module, row[1], axes)
    agree_when_padded(module, row[1], fill)


@pytest.mark.slow  # look-alikes by hand are refused in test_padding_proof
@pytest.mark.parametrize("name", STACKED)
def test_rows_are_apart_and_padding_shows(name: str) -> None:
    row = STACKED[name]
    module, program = captured(row)
    axes = proof(program.graph)
    assert axes is not None and axes.symbol == "batch"
    for hidden in (0, 1):
        assert "uses it" in obstacles(program.graph, {"x": 0, "mask": hidden, "lengths": 1})["length"]
    agree_when_stacked(module, row[1], axes)


@pytest.mark.parametrize("name", CALLED)
def test_calls_by_name_keep_rows_apart(name: str) -> None:
    module, program = captured((CALLED[name], (X,)))
    assert any(node.op.name == "eager" for node in program.graph.nodes)
    axes = proof(program.graph)
    assert axes is not None and axes.symbol == "batch"
    agree_when_stacked(module, (X,), axes)
    obstacle = obstacles(program.graph, {"x": 0})["length"]
    assert ("uses it" in obstacle) == (name not in BEAR_PADDING)
    if not obstacle:
        agree_when_padded(module, (X,), {"x": 0})


@pytest.mark.parametrize("name", ALONE)
def test_rows_that_see_each_other_are_not_stacked(name: str) -> None:
    _module, program = captured(ALONE[name])
    axes = proof(program.graph)
    assert axes is None or axes.symbol != "batch"
