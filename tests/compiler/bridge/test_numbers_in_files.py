"""Numbers of a file that was exported at one size: which of them sizes may have made, so that these hold, and
which are told apart by the lines of their calls."""

from __future__ import annotations

import linecache
import math
import re
from pathlib import Path

import hostile_files
import pytest
import torch
from captured_programs import Program, assert_agrees, from_one_trace, in_forward
from torch import Tensor, nn

from dlcb.compiler.bridge.capture import export
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.bridge.verdicts import DimVerdict
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.source import ModelSource

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
    ("x.view(b, k, -1).sum(1)", (2, 2), (2, 2)),
    ("x.unflatten(1, (k, -1)).sum(1)", (1, 4), (1, 4)),
    ("x.reshape(-1).view(-1, b)", (1, 4), (None, None)),
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


# Slices that cut nothing at the size of the file: (expression, sample, what is held)
UNCUT = [
    ("x[:, :8] * 2", (2, 4), (None, None)),
    ("x[:, -8:] * 2", (2, 4), (None, None)),
    ("x[:, : x.shape[1]] * 2", (2, 4), (None, None)),
    ("x[..., 0:] * 2", (2, 4), (None, None)),
    ("x[None, :, :8][0, :5] * 2", (3, 4), (None, None)),
    ("x[:, :8] + x[:, -8:].flip(1)[:, :8]", (3, 4), (None, None)),
    ("x[:, : self.eight] * 2", (2, 4), (None, "0 to 4")),
    ("x[:, : self.set] * 2", (2, 4), (2, 4)),
    ("x[:, : min(n, 4)] * 2", (2, 4), (2, 4)),
    ("x[:, :k] * 2", (2, 4), (2, 4)),
    ("x[:, n - 4 :] * 2", (2, 4), (2, 4)),
    ("x[:, ::b] * 2", (1, 4), (1, 4)),
    ("x[0, :k] * 2", (1, 4), (1, 4)),
    ("(lambda y: y[:, : y.shape[0] + 2])(x) * 2", (2, 4), (2, 4)),
]


@pytest.mark.parametrize(("expression", "sample", "held"), UNCUT)
def test_a_slice_that_the_file_does_not_hold(
    expression: str, sample: tuple[int, int], held: tuple[int | str | None, ...]
) -> None:
    module = in_forward(expression, "b, n = x.shape", "k = min(n, 4)", "self.set = n", eight=8)
    program = from_one_trace(module, x=torch.randn(sample))
    assert [_held(verdict) for verdict in program.verdicts] == list(held)
    for shape in ((3, 12), (1, 4), (2, 3), (5, 1), (2, 4)):
        _assert_agrees_where_allowed(program, module, shape)


@pytest.mark.parametrize(
    "statement", ["v[:, :8] = 3.0", "v[:, :8] += 1", "v[:, : n // 2 + 1] = x[:, :1] * 2"]
)
@pytest.mark.parametrize("sample", [(2, 4), (2, 1), (2, 9)])
def test_a_write_into_a_slice_that_cuts_nothing(
    statement: str, sample: tuple[int, int], tmp_path: Path
) -> None:
    module = in_forward("v * 2", "n = x.shape[1]; v = x.clone()", statement)
    path = tmp_path / "written.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(sample),)), path)
    program = generalize(ModelSource("file", "1", program=str(path)))
    for shape in ((3, 12), (1, 4), (2, 3), (5, 1), (2, 9)):
        _assert_agrees_where_allowed(program, module, shape)


def test_one_number_of_a_line_is_not_taken_for_another() -> None:
    module = in_forward("(x * b) * self.d", "b = len(x) // 2", d=2)
    program = from_one_trace(module, x=torch.randn(2, 6))
    assert [verdict.size for verdict in program.verdicts] == [2, 6]
    scaled = in_forward("(x * self.d) * y", "y = x + 1", d=2)
    assert [_held(each) for each in from_one_trace(scaled, x=torch.randn(2, 6)).verdicts] == [None, None]


@pytest.mark.parametrize("expression", ["x.reshape(k, -1).sum(1)", "x.view(k, -1) + 1"])
def test_a_name_whose_source_is_not_at_hand_is_none_of_two_equal_sizes(expression: str) -> None:
    module = in_forward(expression, "b, n = x.shape", "k = b")
    program = export(module, {"x": torch.randn(4, 4)})
    linecache.cache.clear()
    sizes = [each.size for each in generalize(ModelSource("lone", "1", program="lone.pt2"), program).verdicts]
    assert sizes == [4, 4]


@pytest.mark.parametrize("seed", [*range(60), 751, 919, 1347, 5248, 5617, 6366, 7268])
def test_hostile_files_are_right_wherever_they_answer(seed: int) -> None:
    case = hostile_files.case(seed)
    try:
        case.module()(torch.randn(case.sample))
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return  # PyTorch refuses it at the size of the export
    program = from_one_trace(case.module(), x=torch.randn(case.sample))
    for shape in ((2, 8), (3, 6), (4, 12), (6, 4), (1, 1), (3, 3), (2, 2), (4, 20)):
        _assert_agrees_where_allowed(program, case.module(), shape)


def _held(verdict: DimVerdict) -> int | str | None:
    """The size that a dim is pinned to, or the range that it is limited to."""
    if isinstance(verdict.size, int):
        return verdict.size
    return None if verdict.high is None else f"{verdict.low} to {verdict.high}"


def _assert_agrees_where_allowed(program: Captured, module: nn.Module, shape: tuple[int, int]) -> None:
    """At shapes that the program and PyTorch take."""
    sizes = {"s0": shape[0], "s1": shape[1]}
    pinned = [each.size for each in program.verdicts]
    allowed = all(isinstance(size, str) or size == real for size, real in zip(pinned, shape, strict=True))
    x = torch.randn(shape)
    try:
        module(x)
        guards = program.graph.system.solve().guards
        allowed = allowed and all(evaluate(guard.condition, sizes) for guard in guards)
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return
    if allowed:
        assert_agrees(program, module, {"x": x}, 1e-4)
