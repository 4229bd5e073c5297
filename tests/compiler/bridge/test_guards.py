"""Branches of the user's code, found by a symbolic forward; PyTorch's own questions are not among them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_programs import Program
from torch import Tensor

from dlcb.compiler.bridge.guards import Branches, collect
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


def test_a_time_limit_is_said() -> None:
    assert "more than 0 s" in branches(lambda x: x.view(-1) + 1, seconds=0.0).missing


def test_a_forward_that_needs_values_is_said() -> None:
    found = branches(lambda x: x if x.sum() > 0 else -x)
    assert "the symbolic forward" in found.missing
