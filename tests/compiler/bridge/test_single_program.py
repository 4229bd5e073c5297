"""Exported programs that cannot be traced again: which literals follow which sizes, also where sizes are
equal by accident."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from captured_programs import Program, assert_agrees, in_forward
from torch import Tensor, nn
from torch.export import Dim

from dlcb.compiler.bridge.capture import export, load_program
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.driver import compile_model, load_model
from dlcb.compiler.errors import CaptureError, ContractError, DeclarationError, GuardError, ShapeError
from dlcb.compiler.options import CompileOptions
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


def from_one_trace(module: nn.Module, **inputs: Tensor) -> Captured:
    return generalize(ModelSource("lone", "1", program="lone.pt2"), export(module, inputs))


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


# Numbers that sizes have made, so that their lines do not settle them; what is said of them
MADE = {
    "x[:, n // 2 :]": "start 4",
    "x[:, : n // 2]": "end 4",
    "x[:, -(n // 2) :]": "start -4",
    "x[:, n // 2]": "index 4",
    "x.narrow(1, 1, n // 3)": "length 3",
    "x.repeat(1, n // 3)": "repeats 3",
    "x.repeat(n // 2, 1)": "repeats 4",
    "x.repeat_interleave(n // 3, 1)": "repeats 3",
    "torch.roll(x, n // 2, 1)": "shifts 4",
    "x.tril(n - 11)": "diagonal -2",
    "F.pad(x, (0, -n % 8))": "pad 7",
    "x.topk(n // 2).values": "k 4",
    "x.split(n // 3, 1)[0]": "split_size 3",
    "x.unfold(1, n // 2, 1)": "size 4",
    "F.avg_pool1d(x, n // 2)": "kernel_size 4",
    "F.interpolate(x[None], scale_factor=float(n // 3))": "scale_factors 3",
    "x.sum(1) / (n - 1)": "other 8",
    "x * n ** -0.5": "other 0.333333",
    "x * math.log(n + 7)": "other 2.77259",
    "x.sum() / x.numel()": "other 18",
    "x.clamp(max=n / 4)": "max 2.25",
    "x + torch.full((3, 1, 1), n + 2)": "fill_value 11",
    "F.one_hot(x.long() % 2, n + 2).float()": "num_classes 11",
    "torch.cat([x, torch.zeros(x.shape[0], n // 2)], 1)": "size 4",
    "x[:, [0, n // 2]]": "data 4",
}


@pytest.mark.parametrize(("expression", "said"), MADE.items())
def test_a_number_that_a_size_may_have_made_holds_it(expression: str, said: str) -> None:
    program = from_one_trace(in_forward(expression, "n = x.shape[1]"), x=torch.randn(2, 9))
    assert [verdict.size for verdict in program.verdicts] == [2, 9]
    for verdict in program.verdicts:
        assert re.search(rf": {said}, [^:]* may be made of any size: export it with dynamic", verdict.reason)


@pytest.mark.parametrize(
    "sample", [(2, 2), (3, 2), (1, 1), (4, 4), (2, 16)], ids=lambda shape: "x".join(map(str, shape))
)
@pytest.mark.parametrize(
    "expression",
    [
        "torch.roll(x, x.shape[1] // 2, 1)",
        "x[:, x.shape[1] // 2]",
        "x.repeat(x.shape[1] // 2 + 1, 1)",
        "x / (x.shape[1] / 2)",
        "x * x.shape[1] ** -0.5",
        "x + (x.shape[1] - 1)",
        "F.pad(x, (0, -x.shape[1] % 8))",
        "torch.ones(x.shape[0], x.shape[1] + 1)[:, 1:] * x",
        "x.view(x.shape[0], 2, -1).sum(2) if x.shape[1] % 2 == 0 else x",
    ],
)
def test_small_and_equal_sizes_in_the_sample_are_no_excuse(expression: str, sample: tuple[int, int]) -> None:
    module = in_forward(expression)
    program = from_one_trace(module, x=torch.randn(sample))
    pinned = [verdict.size if isinstance(verdict.size, int) else None for verdict in program.verdicts]
    for shape in ((2, 6), (3, 4), (1, 8)):
        if all(size in (None, real) for size, real in zip(pinned, shape, strict=True)):
            if "view" in expression and sample[1] % 2:
                continue  # the other side of the program's branch
            assert_agrees(program, module, {"x": torch.randn(shape)})


# What a function that forward calls makes of a size, which may be 0, 1, a half or a default as well as any
# number, or an axis's size by chance
UNSEEN = [
    "x[:, k:-1]",
    "x[:, k]",
    "x.narrow(1, 0, k + 1)",
    "torch.roll(x, k, 1)",
    "torch.roll(x.sum() * torch.arange(8), k, 0)",
    "F.pad(x, (0, k))",
    "x.sum() + torch.arange(k + 1)",
    "x[:, :1] + torch.arange(k, k + 4)",
    "x + torch.arange(k, k + x.shape[1])",
    "x.sum(1, keepdim=True).expand(-1, k + 1)",
    "x.reshape(k + 1, -1)",
    "x.view(x.shape[0], k + 1, -1)",
    "(x.sum() * torch.arange(8)).view(k + 1, -1)",
    "x * k",
    "x / (k + 1)",
    "x.sum(1) * (1 / (k + 1))",
    "x.abs() ** k",
    "x.clamp(max=k)",
    "torch.where(x > k, x, 0.5)",
    "F.avg_pool1d(x, 1, k + 1)",
    "x.split(k + 1, 1)[0]",
    "x.tril(k)",
    "x.repeat(1, k + 1)",
    "x.repeat_interleave(k + 1, 0)",
    "x.topk(k + 1).values",
    "torch.cat([x, torch.zeros(x.shape[0], k)], 1)",
    "F.elu(x, k + 1)",
    "x.var(1, correction=k)",
    "x[:, [0, k]]",
    "x * torch.tensor(k)",
]
OF_N = {"n // 2": 2, "n // 4": 8, "n - 7": 8, "n % 2": 4, "min(n, 3)": 8, "n - 1": 4}  # at which size


@pytest.mark.parametrize("expression", UNSEEN)
def test_what_no_line_shows_is_never_taken_for_a_constant(expression: str) -> None:
    for made, width in OF_N.items():
        code = f"lambda x: (lambda n: (lambda k: {expression})({made}))(x.shape[1])"
        module = Program(eval(code, {"torch": torch, "F": nn.functional})).eval()
        sample = torch.randn(3, width)
        try:
            module(sample)
        except (RuntimeError, IndexError):
            continue  # the program itself takes no such size
        program = from_one_trace(module, x=sample)
        assert [verdict.size for verdict in program.verdicts] == [3, width], made
        assert "in a function that forward calls there" in program.verdicts[1].reason


# Numbers that have a size's value by chance, and where: (expression, sample, what is held)
BY_CHANCE = [
    ("x.view(self.two, -1) + 1", (2, 12), (None, None)),
    ("x.t().reshape(self.eight, -1)", (1, 8), (None, None)),
    ("x.reshape(x.size(1) // 4, -1).sum(1)", (2, 8), (None, None)),
    ("torch.linspace(0, 1, 4) * x.sum()", (4, 4), (None, None)),
    ("x.t().topk(4, 0).values", (3, 4), (None, None)),
    ("torch.fft.rfft(x, dim=1).abs() + 1", (3, 8), (None, None)),
    ("torch.fft.rfft(x, dim=1).abs() + 1", (5, 8), (None, None)),
    ("x.t().reshape(max(n // 4, 1), -1)", (1, 1), (1, 1)),
    ("x.reshape(n // b, -1).sum(1)", (1, 4), (1, 4)),
    ("x.view(b, x.shape[0], n // x.shape[0]).transpose(1, 2).reshape(b, n)", (4, 4), (4, 4)),
    ("x.view(b, k, -1).sum(1)", (2, 2), (2, 2)),
    ("x.unflatten(1, (k, -1)).sum(1)", (1, 4), (1, 4)),
    ("x.reshape(-1).view(-1, b)", (1, 4), (1, 4)),
    ("x.reshape(-1).view(-1, n)", (8, 8), (None, None)),
    ("x.reshape(-1, n // 4 if k else k)", (3, 12), (3, 12)),
    ("x.reshape(-1, k)", (4, 12), (4, 12)),
    ("(x * b) * 2", (2, 12), (2, 12)),
    ("x[x.size(1) // 4 :] * 2", (1, 8), (None, None)),
    ("x[:, :: x.size(1) // 4] * 2", (4, 8), (None, None)),
]


@pytest.mark.parametrize(("expression", "sample", "held"), BY_CHANCE)
def test_a_number_with_a_sizes_value_is_not_taken_for_it(
    expression: str, sample: tuple[int, int], held: tuple[int | None, int | None]
) -> None:
    module = in_forward(expression, "b, n = x.shape", "k = min(n, 4)", two=2, eight=8)
    program = from_one_trace(module, x=torch.randn(sample))
    sizes = [verdict.size if isinstance(verdict.size, int) else None for verdict in program.verdicts]
    assert tuple(sizes) == held
    for shape in ((4, 12), (2, 16), (3, 8), sample):
        if all(size in (None, real) for size, real in zip(sizes, shape, strict=True)):
            assert_agrees(program, module, {"x": torch.randn(shape)})


@pytest.mark.parametrize(
    "expression", ["x * self.made", "x.view(self.made, -1)", "torch.roll(x, self.made, 1)"]
)
def test_an_attribute_that_forward_sets_is_no_constant(expression: str) -> None:
    module = in_forward(expression, "self.made = x.shape[1] // 2", "self.other = 3")
    assert [each.size for each in from_one_trace(module, x=torch.randn(4, 8)).verdicts] == [4, 8]
    given = in_forward(expression, "self.other = x.shape[1] // 2", made=4)
    program = from_one_trace(given, x=torch.randn(4, 8))
    assert all(isinstance(each.size, str) for each in program.verdicts)
    for shape in ((8, 4), (2, 6)):
        assert_agrees(program, given, {"x": torch.randn(shape)})


FREE = [
    "x[:, 1:]",
    "x[:, :-1]",
    "x[:, 0] + x[:, -1]",
    "x[:, 1::2]",
    "x[:, :4] * 2",
    "x.repeat(1, x.shape[1])",
    "x[:, None].repeat(1, x.shape[1], 1)",
    "x.repeat(1, 3)",
    "x.repeat_interleave(x.shape[1], 0)",
    "x.cumsum(1) / torch.arange(1, x.shape[1] + 1)",
    "x + torch.arange(2, x.shape[1] + 2)",
    "(x[..., None] * torch.arange(8))[..., 6:7]",
    "torch.roll(x, 2, 1)",
    "torch.roll(x, self.shift, 1) * self.scale",
    "F.pad(x, (self.shift, 1)).tril(1)",
    "0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))",
    "x * F.relu6(x + 3) / 6",
    "x.topk(1).values",
    "torch.cat([x, torch.zeros(x.shape[0], 3)], 1)",
    "x + torch.tensor([4.0])",
    "F.max_pool1d(F.pad(x, (1, 1)), 2, 2)",
    "x * torch.linspace(0, 1, x.shape[1])",
]


@pytest.mark.parametrize("expression", FREE)
@pytest.mark.parametrize("sample", [(3, 4), (1, 4), (3, 9)])
def test_numbers_that_are_explained_or_written_hold_nothing(expression: str, sample: tuple[int, int]) -> None:
    module = in_forward(expression, shift=2, scale=0.25)
    program = from_one_trace(module, x=torch.randn(sample))
    assert all(isinstance(verdict.size, str) for verdict in program.verdicts)
    for shape in ((2, 7), (4, 4)):
        assert_agrees(program, module, {"x": torch.randn(shape)})


@pytest.mark.parametrize("length", [7, 9])
@pytest.mark.parametrize(
    "expression",
    [
        "x.sum(1) / x.shape[1]",
        "x + x.size(-1)",
        "x * len(x)",
        "torch.roll(x, x.shape[1] // 2, 1)",
        "x[:, x.size(1) // 2 :].tril(x.shape[1] - 3)",
        "F.pad(x, (x.shape[-1] // 2, -x.shape[1] % 8))",
        "x.repeat(x.shape[1] // 3 + 1, 1)",
        "torch.cat([x, torch.zeros(x.shape[0], 2 * x.shape[1])], 1)",
    ],
)
def test_a_size_that_the_line_takes_is_that_size(expression: str, length: int) -> None:
    program = from_one_trace(in_forward(expression), x=torch.randn(4, length))
    assert all(isinstance(verdict.size, str) for verdict in program.verdicts)
    for shape in ((3, 5), (2, 8)):
        assert_agrees(program, in_forward(expression), {"x": torch.randn(shape)})


def test_the_root_of_a_weights_width_is_a_constant() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(6, 16)

        def forward(self, x: Tensor) -> Tensor:
            q = self.linear(x)
            return (q @ q.mT / math.sqrt(q.shape[-1])).softmax(-1) @ q

    for length, free in (
        (8, True),
        (32, True),
        (16, False),
    ):  # of a length of 16 it might be the root as well
        program = from_one_trace(Heads().eval(), x=torch.randn(2, length, 6))
        assert isinstance(program.verdicts[1].size, str) is free
        assert isinstance(program.verdicts[0].size, str)
        if free:
            assert_agrees(program, Heads().eval(), {"x": torch.randn(3, 5, 6)})


def test_a_width_that_meets_a_weight_of_its_size_is_that() -> None:
    module = in_forward("x * self.weight", weight=nn.Parameter(torch.ones(6)))
    rows, width = from_one_trace(module, x=torch.randn(2, 6)).verdicts
    assert (width.size, rows.high) == (6, None)


def test_a_batch_of_one_in_the_sample_stays_free() -> None:
    program = from_one_trace(in_forward("(x * 2).relu().sum(-1)"), x=torch.randn(1, 6))
    assert [verdict.high for verdict in program.verdicts] == [None, None]
    assert all(isinstance(verdict.size, str) for verdict in program.verdicts)


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


def test_names_from_the_declaration_tie_dims_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(
        export(Program(lambda x, y: x + y).eval(), {"x": torch.randn(3, 5), "y": torch.randn(3, 5)}), path
    )
    declared = tuple(InputDeclaration(name, "float32", ("n", "m")) for name in ("x", "y"))
    program = generalize(ModelSource("file", "1", program=str(path), inputs=declared, dims={"n": (1, 8)}))
    assert [verdict.size for verdict in program.verdicts] == ["n", "m", "n", "m"]
    assert program.verdicts[0].high == 8
    with pytest.raises(ShapeError, match="declared"):
        generalize(
            ModelSource(
                "file",
                "1",
                program=str(path),
                inputs=(InputDeclaration("x", "float32", (4, "m")), declared[1]),
            )
        )


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    path.write_bytes(b"not a program")
    with pytest.raises(CaptureError, match=r"not a file that torch.export.save wrote"):
        load_program(str(path))


class Pooled(nn.Module):
    """Windows that need rows and columns, so that the least sizes are refused."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, image: Tensor) -> Tensor:
        return self.second(nn.functional.max_pool2d(self.first(image).relu(), 2))


def saved(module: nn.Module, path: Path, dynamic: bool) -> ModelSource:
    """The source of a file that was exported for one size, or with free sizes."""
    free = {0: Dim("batch"), 2: Dim.AUTO, 3: Dim.AUTO}
    sample = (torch.randn(4, 3, 32, 32),)
    torch.export.save(torch.export.export(module, sample, dynamic_shapes=(free,) if dynamic else None), path)
    shape = ("batch", 3, "height", "width")
    return ModelSource("file", "1", program=str(path), inputs=(InputDeclaration("image", "float32", shape),))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_file_of_one_size_refuses_what_its_graph_does_not_allow(tmp_path: Path, dynamic: bool) -> None:
    module = Pooled().eval()
    program = generalize(saved(module, tmp_path / "pooled.pt2", dynamic))
    beyond = [verdict.beyond for verdict in program.verdicts if isinstance(verdict.size, str)]
    assert beyond == ["refused"] * 3  # a file of free sizes has found their least sizes itself
    assert [verdict.low for verdict in program.verdicts] == [0, 3, 8, 8]
    assert any("height = 32" in note for note in program.notes) is not dynamic
    assert_agrees(program, module, {"image": torch.randn(2, 3, 11, 40)})


def test_a_file_that_pins_a_named_dim_is_refused_with_the_line(tmp_path: Path) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 5)

        def forward(self, image: Tensor) -> Tensor:
            return self.linear(image)

    with pytest.raises(ShapeError, match=r"'width' \(axis 3 of 'image'\) is declared free") as refused:
        generalize(saved(Rows().eval(), tmp_path / "rows.pt2", False))
    assert "test_single_program.py" in refused.value.source_line


def test_as_many_outputs_are_declared_as_there_are() -> None:
    program = export(Program(lambda x: (x + 1, x * 2, x.sum())).eval(), {"x": torch.randn(3, 5)})
    for names in (("a",), ("a", "b", "c", "d")):
        with pytest.raises(CaptureError, match=f"{len(names)} outputs declared, the program gives 3 tensors"):
            generalize(ModelSource("three", "1", outputs=names), program)
    assert generalize(ModelSource("three", "1", outputs=("a", "b", "c")), program).outputs == ("a", "b", "c")


class Sums(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(1), y * 2


XY = (InputDeclaration("x", "float32", ("rows", "m")), InputDeclaration("y", "float32", ("rows", "k")))


def exported(path: Path, x: dict, y: dict, **declared: object) -> ModelSource:
    sample = (torch.randn(4, 6), torch.randn(4, 12))
    torch.export.save(torch.export.export(Sums(), sample, dynamic_shapes=(x, y)), path)
    return ModelSource("file", "1", program=str(path), **declared)


ROWS, WIDE = Dim("rows", min=1, max=8), Dim("wide", min=3, max=50)


@pytest.mark.parametrize("inputs", [XY, ()], ids=["declared", "undeclared"])
def test_ranges_of_a_file_are_declared(inputs: tuple[InputDeclaration, ...], tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS, 1: 2 * WIDE}, {0: ROWS, 1: Dim.AUTO}, inputs=inputs)
    rows, m, same, k = generalize(source).verdicts
    assert (rows.low, rows.high, rows.size) == (1, 8, same.size)
    assert (m.low, m.high, m.multiple) == (6, 100, 2)
    assert (k.low, k.high, k.multiple) == (0, None, 1)  # the 2 that PyTorch notes there was not declared
    assert {rows.beyond, m.beyond, k.beyond} == {"refused"}
    assert "axis 1 of 'x' in the file" in m.reason
    assert rows.reason == f"exported: the range of '{rows.size}'"


def test_sizes_of_a_file_that_follow_from_others(tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS, 1: WIDE}, {0: ROWS, 1: 2 * WIDE + 1 - 1}, inputs=XY)
    guards = [repr(guard.condition) for guard in generalize(source).graph.system.solve().guards]
    assert "m * 2 == k" in guards
    other_names = (XY[0], InputDeclaration("y", "float32", ("others", "k")))
    equal = generalize(replace(source, inputs=other_names)).graph.system.solve()
    said = [repr(guard.condition) for guard in equal.guards]
    assert "rows == others" in said or "others == rows" in said, said


def test_a_range_in_the_configuration_counts(tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS}, {0: ROWS}, inputs=XY, dims={"rows": (2, 5)})
    rows = generalize(source).verdicts[0]
    assert (rows.low, rows.high, rows.reason) == (2, 5, "declared: the range of 'rows'")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_file_is_stacked_where_its_rows_are_independent(tmp_path: Path, dynamic: bool) -> None:
    source = saved(Pooled().eval(), tmp_path / "pooled.pt2", dynamic)
    source = replace(source, outputs=("y",))
    store = open_store(tmp_path / "cache")
    signature = compile_model(source, store, CompileOptions(check_shapes=2)).signature
    assert signature.batch is not None and signature.batch.symbol == "batch"


def test_beyond_the_range_of_a_file_nothing_is_asked_of_pytorch(tmp_path: Path) -> None:
    source = exported(tmp_path / "x.pt2", {0: ROWS, 1: 2 * WIDE}, {0: ROWS}, inputs=XY, outputs=("p", "q"))
    signature = compile_model(source, open_store(tmp_path / "cache")).signature
    kinds = {"x": "float32", "y": "float32"}
    signature.check({"x": (8, 6), "y": (8, 12)}, kinds)
    for x, rule in (((9, 6), "must be 1 to 8"), ((3, 7), "must be 6 to 100, a multiple of 2")):
        with pytest.raises(ContractError, match=rule):
            signature.check({"x": x, "y": (x[0], 12)}, kinds)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            (("x", "float32", (3, "n")),),
            r"'x' is declared with rank 2, shape \[3, n\]; the file takes rank 3",
        ),
        ((("x", "float16", ("b", 3, "n")),), "'x' is declared as float16, the file takes float32"),
        (
            (("x", "float32", ("b", 3, "n")), ("y", "float32", (1,))),
            r"2 inputs are declared \('x', 'y'\), the file takes 1: ",
        ),
    ],
)
def test_inputs_that_the_file_does_not_have_are_said(
    declared: tuple[tuple[str, str, tuple[int | str, ...]], ...], words: str
) -> None:
    inputs = tuple(InputDeclaration(*each) for each in declared)
    program = export(Program(lambda x: x * 2), {"x": torch.randn(2, 3, 5)})
    with pytest.raises(DeclarationError, match=words) as caught:
        generalize(ModelSource("lone", "1", program="lone.pt2", inputs=inputs), program)
    assert caught.value.key == "inputs"


def test_an_image_that_resizing_would_leave_nothing_of_is_refused() -> None:
    """As PyTorch refuses it, on both axes."""
    module = in_forward("F.interpolate(x, scale_factor=0.5)")
    program = from_one_trace(module, x=torch.randn(2, 3, 32, 40))
    assert [(verdict.low, verdict.high) for verdict in program.verdicts] == [(0, None)] * 2 + [(2, None)] * 2
    assert_agrees(program, module, {"x": torch.randn(1, 3, 2, 9)})
