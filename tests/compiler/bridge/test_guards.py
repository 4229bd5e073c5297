"""Branches of the user's code, found by a symbolic forward; PyTorch's own questions are not among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from captured_programs import Program, assert_agrees, captured
from torch import Tensor, nn

from dlcb.compiler.bridge.branches import Branches
from dlcb.compiler.bridge.guards import collect
from dlcb.compiler.expr.node import evaluate, size

N = size("n")


def branches(function: Callable[[Tensor], Tensor], length: int = 6, seconds: float = 20.0) -> Branches:
    return collect(Program(function).eval(), {"x": torch.zeros(length, 4)}, {"x": [N, 4]}, seconds)


@pytest.mark.parametrize(
    ("function", "inside", "outside"),
    [
        (lambda x: x if x.shape[0] < 10 else -x, (2, 9), (10, 50)),
        (lambda x: x if x.shape[0] % 2 == 0 else -x, (2, 8), (3, 7)),
        (lambda x: x if x.shape[0] != 1 else -x, (2, 3), (1,)),
        (lambda x: x if x.shape[0] else x.new_ones(3), (1, 2, 9), (0,)),
        (lambda x: x.new_ones(3) if x.numel() == 0 else x, (1, 2, 9), (0,)),
        (lambda x: x.new_ones(3) if x.squeeze().dim() == 1 else x, (0, 2, 9), (1,)),
        (lambda x: x.new_ones(3) if x.t().is_contiguous() else x, (2, 9), (0, 1)),
        (lambda x: x * (5 // (x.shape[0] - 13)), (2, 9), (13,)),
        (lambda x: x * (5 / (x.shape[0] - 13)), (2, 9), (13,)),
        (lambda x: x * (5 % (x.shape[0] - 13)), (2, 9), (13,)),
        (lambda x: x * sum(range(x.shape[0])), (6,), (5, 7)),
        (lambda x: x if 3 < x.shape[0] * 2 // 3 <= 4 else -x, (6, 7), (5, 8)),
    ],
)
def test_the_condition_of_the_path_taken(
    function: Callable[[Tensor], Tensor], inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    found = branches(function)
    assert not found.missing

    def passes(length: int) -> bool:
        return all(evaluate(branch.condition, {"n": length}) for branch in found.found)

    assert all(passes(length) for length in inside)
    assert not any(passes(length) for length in outside)
    assert all(
        "captured_programs.py" in branch.source or "test_guards.py" in branch.source for branch in found.found
    )


def test_questions_of_operators_are_not_branches() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cat([x, x]).view(-1, 2, 4).softmax(-1).transpose(0, 1).contiguous().flatten()

    assert branches(function) == Branches(())


def test_a_size_used_as_a_value_is_no_branch() -> None:
    assert branches(lambda x: x / x.shape[0]).found == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0] * 2,
        lambda x: torch.nn.functional.linear(x[x[:, 0] > 0], x.new_ones(3, 4)),
        lambda x: x.nonzero().float().sum(0),
    ],
)
def test_a_size_that_only_run_time_knows_is_followed(function: Callable[[Tensor], Tensor]) -> None:
    assert branches(function) == Branches(())


def test_a_number_that_only_run_time_knows_is_said() -> None:
    assert "has no counterpart" in branches(lambda x: x * x.nonzero().shape[0]).missing


def test_a_time_limit_is_said() -> None:
    assert "more than 0 s" in branches(lambda x: x.view(-1) + 1, seconds=0.0).missing


def test_a_forward_that_needs_values_is_said() -> None:
    found = branches(lambda x: x if x.sum() > 0 else -x)
    assert "the symbolic forward" in found.missing


def caught(x: Tensor) -> Tensor:
    try:
        return x * {13: 2.0}[x.shape[0]]
    except Exception:
        return x


def refused(x: Tensor) -> Tensor:
    try:
        return x.view(13, 4) * 2
    except RuntimeError:
        return x


def beyond_the_end(x: Tensor) -> Tensor:
    try:
        return x + x[20]
    except IndexError:
        return x


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x * {13: 2.0}.get(x.shape[0], 1.0), "looked up"),
        (lambda x: x if x.shape[0] in {7, 129} else -x, "looked up"),
        (lambda x: x if x.shape in {(7, 4)} else -x, "looked up"),
        (lambda x: x if hash(x.shape[0]) % 5 == 3 else -x, "looked up"),
        (caught, "looked up"),
        (lambda x: x if str(x.shape[0]).endswith("7") else -x, "text"),
        (lambda x: x if f"{x.shape[0] / 2:.1f}" == "6.5" else -x, "text"),
        (lambda x: x if "13" in repr(x.shape) else -x, "text"),
        (refused, "refuses is caught"),
        (beyond_the_end, "refuses is caught"),
        (lambda x: x if len(list(zip(x, range(14), strict=False))) == 13 else -x, "as many tensors"),
    ],
    ids=["dict", "set", "shapes", "hash", "caught", "str", "format", "repr", "refused", "index", "rows"],
)
def test_what_leaves_no_condition_is_said(function: Callable[[Tensor], Tensor], said: str) -> None:
    missing = branches(function).missing
    assert said in missing and "test_guards.py" in missing


def test_text_is_that_of_the_sample() -> None:
    (branch,) = branches(lambda x: x if x.shape[0] < int(f"1{x.shape[0]:d}") else -x).found
    assert [evaluate(branch.condition, {"n": n}) for n in (15, 16)] == [True, False]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if bool(torch.tensor(x.shape[0]) < 10) else -x,
        lambda x: x if bool(torch.as_tensor([x.shape[0], 3]).max() < 10) else -x,
        lambda x: x * [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0][x.shape[0]],
        lambda x: nn.Sequential(*[nn.Identity()] * 9)[x.shape[0]](x),
        lambda x: nn.ModuleList([nn.Identity()] * 9)[: x.shape[0] + 1][-1](x),
    ],
    ids=["tensor", "as_tensor", "list", "module", "modules"],
)
def test_a_size_that_becomes_a_number_is_held(function: Callable[[Tensor], Tensor]) -> None:
    conditions = [branch.condition for branch in branches(function).found]
    assert any(not evaluate(condition, {"n": 7}) for condition in conditions)


@pytest.mark.parametrize(
    ("function", "holds"),  # n at the sample is 7
    [
        (lambda x: x if len(x) < 10 else -x, {0, 1, 2, 5, 6, 7}),
        (lambda x: x if len(x.split(5)) == 2 else -x, {6, 7, 10}),
        (lambda x: x if len(x.split(64)) == 1 else -x, {0, 1, 2, 5, 6, 7, 10, 64}),
        (lambda x: x.chunk(2)[-1], {2, 5, 6, 7, 10, 64, 65}),
        (lambda x: x.split([2, x.shape[0] - 2])[1], {0, 1, 2, 5, 6, 7, 10, 64, 65}),
        (lambda x: x.chunk(2, 1)[-1], {0, 1, 2, 5, 6, 7, 10, 64, 65}),
    ],
    ids=["len", "two", "one", "halves", "sizes", "columns"],
)
def test_the_number_of_pieces_bounds_a_size(function: Callable[[Tensor], Tensor], holds: set[int]) -> None:
    found = branches(function)
    conditions = [branch.condition for branch in found.found]
    served = {n for n in (0, 1, 2, 5, 6, 7, 10, 64, 65) if all(evaluate(c, {"n": n}) for c in conditions)}
    assert (served, found.missing) == (holds, "")


DATA: dict[str, Callable[[Tensor], Tensor]] = {
    "number": lambda x: torch.tensor(x.shape[0]) * x,
    "numbers": lambda x: torch.tensor([[x.shape[0], 2], [3, x.shape[0] // 2]], dtype=torch.float32).sum() * x,
    "inverse": lambda x: torch.tensor((1.0 / (x.shape[0] + 1), 2.0)).sum() * x,
    "shape": lambda x: x + torch.as_tensor(x.shape[:1]),
    "of a tensor's type": lambda x: x + x.new_tensor([x.shape[0] / 4]),
    "places": lambda x: torch.linspace(-1, 1, x.shape[0]) * x,
    "centres": lambda x: torch.linspace(0.5, x.shape[0] - 0.5, steps=x.shape[0]).double() * x,
    "places from high to low": lambda x: (
        torch.linspace(7.25, -3, 2 * x.shape[0], dtype=torch.float64)[::2] + x
    ),
    "written to": lambda x: torch.tensor(3).add_(x.shape[0]) * x,
    "what is not a number": lambda x: torch.where(x > 0, x, torch.tensor(torch.nan)),
    "more than a few": lambda x: torch.tensor([torch.nan] * 20).nansum() + x,
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_sizes_make_follow_them(name: str) -> None:
    program = captured(DATA[name], ("n",))
    (verdict,) = program.verdicts
    assert (verdict.size, verdict.low, verdict.certainty) == ("n", 0, "proven")
    for n in (0, 1, 2, 3, 17, 64):
        assert_agrees(program, Program(DATA[name]), {"x0": torch.randn(n)}, 1e-6)


def marked(x: Tensor) -> Tensor:
    y = x * 2
    y[:, x.shape[1] // 2] = 1
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, x.shape[1] // 2],
        lambda x: x[..., x.shape[1] - 1, :],
        lambda x: (x[-1, x.size(1) - 1], x[1:, x.shape[1] // 3, :2]),
        marked,
    ],
    ids=["middle", "last", "one of each", "written"],
)
def test_a_size_that_is_a_place_in_a_tensor_is_free(function: Callable[[Tensor], Tensor]) -> None:
    program = captured(function, ("b", "n", 3))
    assert [(v.size, v.certainty) for v in program.verdicts[:2]] == [("b", "proven"), ("n", "proven")]
    assert program.verdicts[1].low == 1
    for b, n in ((1, 1), (2, 2), (3, 7), (2, 64)):
        assert_agrees(program, Program(function), {"x0": torch.randn(b, n, 3)})


def test_quotient_and_remainder_at_once() -> None:
    found = branches(lambda x: x * divmod(x.shape[0], 4)[0] + divmod(100, x.shape[0])[1])
    assert ([repr(branch.condition) for branch in found.found], found.missing) == (["n != 0"], "")


def test_neighbours_of_pytorch_are_the_user() -> None:
    text = "def function(x):\n    return x if x.shape[0] < 10 else -x"
    scope: dict[str, Callable[[Tensor], Tensor]] = {}
    exec(compile(text, f"{Path(torch.__file__).parent}vision/model.py", "exec"), scope)
    (branch,) = branches(scope["function"]).found
    assert branch.source.endswith("torchvision/model.py:2")


def test_sizes_are_pytorchs_own_again() -> None:
    before = {kind: dict(vars(kind)) for kind in (torch.SymInt, torch.SymFloat)}
    branches(lambda x: x if str(x.shape[0]) == "7" else -x)
    assert {kind: dict(vars(kind)) for kind in before} == before
