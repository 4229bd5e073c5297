"""Exported programs that cannot be traced again: which literals follow which sizes, also where sizes are
equal by accident."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from captured_programs import assert_agrees, from_one_trace, in_forward
from torch import Tensor, nn

from dlcb.compiler.bridge.capture import export, load_program
from dlcb.compiler.bridge.generalize import generalize
from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.errors import CaptureError, GuardError
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.kernel_cache import open_store

HEADS, WIDTH, LONGEST = 4, 32, 40


class Attention(nn.Module):
    """Positions from a table, heads split off and merged again, a mask made of two ranges."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        x = self.entry(x) + self.positions(torch.arange(length))
        q, k, v = self.projection(x).split(WIDTH, -1)
        q = q.view(batch, length, HEADS, -1).transpose(1, 2)
        k = k.view(batch, length, HEADS, -1).transpose(1, 2)
        v = v.view(batch, length, HEADS, -1).transpose(1, 2)
        mask = (torch.arange(length)[:, None] >= torch.arange(length)).expand(batch, 1, length, length)
        scores = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return scores.transpose(1, 2).reshape(batch, length, WIDTH)


@pytest.mark.parametrize(
    "sample", [*((3, 7), (7, 7), (4, 4), (4, 8), (8, 4), (32, 32), (2, 40)), (1, 7), (3, 1), (1, 1)]
)
def test_equal_sizes_in_the_sample_never_merge(sample: tuple[int, int]) -> None:
    module = Attention().eval()
    program = from_one_trace(module, x=torch.randn(*sample, WIDTH))
    batch, length, width = program.verdicts
    assert (batch.low, batch.high) == (0, None)
    assert (length.low, length.high, width.size) == (0, LONGEST, WIDTH)
    assert batch.size != length.size
    assert batch.certainty == "as far as the graph shows"
    for shape in ((2, 9), (5, 1), (1, 6)):
        assert_agrees(program, module, {"x": torch.randn(*shape, WIDTH)})


@pytest.mark.parametrize(
    "expression",
    [
        "x.view(x.shape[0], 2, -1).flatten(1) + 1",
        "x.reshape(-1).view(x.shape[0], x.shape[1])",
        "torch.zeros(x.shape) + x",
        "x + torch.arange(x.shape[1])",
        "x + torch.eye(x.shape[0], x.shape[1])",
        "(x.view(x.shape[0], 1, -1) + torch.ones(7, 1)).view(x.shape[0], -1)",
        "x + F.interpolate((x * 2)[:, None, ::2], x.shape[1:], mode='linear')[:, 0]",
    ],
)
@pytest.mark.parametrize("sample", [(4, 6), (6, 6), (2, 4), (1, 6), (1, 4)])
def test_small_programs(expression: str, sample: tuple[int, int]) -> None:
    program = from_one_trace(in_forward(expression), x=torch.randn(sample))
    first, second = program.verdicts
    assert isinstance(first.size, str) and isinstance(second.size, str)
    assert_agrees(program, in_forward(expression), {"x": torch.randn(3, 8)})


def test_a_reshape_of_padded_rows_asks_for_the_multiple(tmp_path: Path) -> None:
    """At all sizes but those, the file's own padding would be another."""

    class Padded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.pad(x, (0, 0, 0, 3)).view(x.shape[0], -1, 8, 3).mean(2)

    function = Padded().eval()
    path = tmp_path / "padded.pt2"
    torch.export.save(export(function, {"x": torch.randn(2, 13, 3)}), path)
    declared = (InputDeclaration("x", "float32", ("b", "n", 3)),)
    source = ModelSource("padded", "1", program=str(path), inputs=declared, outputs=("y",))
    program = generalize(source)
    assert list(program.graph.system.solve().verdicts) == ["b", "n"]
    store = open_store(tmp_path / "cache")
    model = load_model(source, compile_model(source, store).artifact_key, store)
    for length in (5, 21):
        x = torch.randn(3, length, 3)
        torch.testing.assert_close(model.call(x)[0], function(x))
    for length in (1, 7, 8, 9):
        with pytest.raises(GuardError, match=rf"\(n \+ 3\) % 8 == 0 must hold .* n = {length}"):
            model.call(torch.randn(3, length, 3))


def test_a_number_of_classes_follows_a_size_or_is_what_the_graph_needs() -> None:
    for expression in (
        "F.one_hot(x % 2, x.shape[0]).float() * 2",
        "F.one_hot(x % 2, 5).float() @ torch.linspace(0, 1, 15).view(5, 3)",
    ):
        program = from_one_trace(in_forward(expression), x=torch.zeros(5, dtype=torch.long))
        assert isinstance(program.verdicts[0].size, str)
        assert_agrees(program, in_forward(expression), {"x": torch.arange(7)})


class Heads(nn.Module):
    """Heads merged into the batch, as in older transformers."""

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        y = x.view(b, s, 4, 2).transpose(1, 2).reshape(b * 4, s, 2).softmax(-1)
        return y.view(b, 4, s, 2).sum(1)


class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        mask = torch.ones(s, s, dtype=torch.bool).tril()[None, None].expand(b, 1, s, s)
        q = x.view(b, s, 2, 4).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).flatten(2)


class Classified(nn.Module):
    """As networks of convolutions end."""

    def forward(self, x: Tensor) -> Tensor:
        flat = (x * 2).view(x.shape[0], -1)
        return flat[:, :8] @ torch.linspace(0, 1, 24).view(8, 3)


@pytest.mark.parametrize("module", [Heads(), Masked(), Classified()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("sample", [(1, 5), (5, 1), (1, 1), (1, 8)])
def test_a_batch_or_a_length_of_one_is_told_from_other_ones(
    module: nn.Module, sample: tuple[int, int]
) -> None:
    program = from_one_trace(module.eval(), x=torch.randn(*sample, 8))
    assert all(isinstance(verdict.size, str) for verdict in program.verdicts[:2])
    for shape in ((3, 6), (1, 2), (2, 1)):
        assert_agrees(program, module, {"x": torch.randn(*shape, 8)})


@pytest.mark.parametrize("sample", [(1, 16), (1, 1), (2, 8), (2, 2), (3, 1)])
def test_attention_of_pytorchs_modules_leaves_batch_and_length_free(sample: tuple[int, int]) -> None:
    """Heads are merged with the batch behind the positions, and parted again."""
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True).eval()
    program = from_one_trace(module, src=torch.randn(*sample, 16))
    assert all(isinstance(verdict.size, str) for verdict in program.verdicts[:2])
    for shape in ((3, 5), (1, 12)):
        assert_agrees(program, module, {"src": torch.randn(*shape, 16)}, 1e-4)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


@pytest.mark.parametrize("sample", [(2, 5), (1, 1), (8, 8), (8, 2)])
def test_first_states_of_a_recurrence_follow_its_input_alone(sample: tuple[int, int]) -> None:
    program = from_one_trace(Recurrent().eval(), x=torch.randn(*sample, 6))
    assert [repr(size) for size in program.graph.outputs[0].shape] == ["s0", "s1", "8"]
    assert_agrees(program, Recurrent().eval(), {"x": torch.randn(3, 4, 6)})


def test_what_nothing_tells_apart_must_be_equal() -> None:
    class Ones(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.ones(x.shape[0]) * 2 + y.sum() + x.sum()

    program = from_one_trace(Ones().eval(), x=torch.randn(5), y=torch.randn(5))
    guards = [repr(guard.condition) for guard in program.graph.system.solve().guards]
    assert guards == ["s0 == s1"]


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    path.write_bytes(b"not a program")
    with pytest.raises(CaptureError, match=r"not a file that torch.export.save wrote"):
        load_program(str(path))


def test_an_image_that_resizing_would_leave_nothing_of_is_refused() -> None:
    """As PyTorch refuses it, on both axes."""
    module = in_forward("F.interpolate(x, scale_factor=0.5)")
    program = from_one_trace(module, x=torch.randn(2, 3, 32, 40))
    assert [(verdict.low, verdict.high) for verdict in program.verdicts] == [(0, None)] * 2 + [(2, None)] * 2
    assert_agrees(program, module, {"x": torch.randn(1, 3, 2, 9)})
