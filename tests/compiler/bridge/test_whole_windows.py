"""Pooling over an axis whose size is the window's, however the user's code says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_programs import Program, assert_agrees, captured
from torch import Tensor, nn
from torch.nn import functional as F

LINE, PLANE = ("b", 3, "n"), ("b", 3, "h", "w")


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.max_pool1d(x, x.shape[-1]), LINE),
        (lambda x: F.max_pool1d(x / (x > 0), x.shape[-1]), LINE),  # NaN is the greatest
        (lambda x: torch.max_pool1d(x, x.shape[-1]), LINE),
        (lambda x: F.avg_pool1d(x, kernel_size=x.size(2)).squeeze(2), LINE),
        (lambda x: F.avg_pool1d(x, x.shape[2], x.shape[2]), LINE),
        (lambda x: nn.MaxPool1d(x.shape[2])(x), LINE),
        (lambda x: F.max_pool1d(x.relu()[:, :, 2:], x.size(2) - 2), LINE),
        (lambda x: F.max_pool1d(x.transpose(1, 2), x.size(1)), ("b", "n", 3)),
        (lambda x: F.max_pool1d(x, x.shape[1]), (3, "n")),
        (lambda x: F.max_pool2d(x, x.size()[2:]), PLANE),
        (lambda x: F.avg_pool2d(x, x.shape[2:]), PLANE),
        (lambda x: nn.AvgPool2d((x.shape[2], x.shape[3]), stride=1)(x), PLANE),
        (lambda x: F.avg_pool2d(x, (2, x.shape[3])), PLANE),
        (lambda x: F.avg_pool2d(x, (2, x.shape[3]), divisor_override=3), PLANE),
        (lambda x: F.max_pool2d(x, (3, x.shape[3]), padding=(1, 0), dilation=(2, 1)), PLANE),
        (lambda x: F.avg_pool2d(x, (3, x.shape[3]), padding=(1, 0), count_include_pad=False), PLANE),
        (lambda x: F.avg_pool3d(x[:, None], (3, x.shape[2], x.shape[3])), PLANE),
    ],
)
def test_a_window_over_a_whole_axis_follows_its_size(
    function: Callable[[Tensor], Tensor], shape: tuple[str | int, ...]
) -> None:
    program = captured(function, shape)
    assert tuple(verdict.size for verdict in program.verdicts) == shape
    assert not program.others and not program.elsewhere and not program.notes
    for b, n, m in ((1, 5, 1), (2, 9, 4), (0, 3, 3), (3, 11, 5)):
        sizes = iter((b, n, m) if isinstance(shape[0], str) else (n, m))
        x = torch.randn([next(sizes) if isinstance(size, str) else size for size in shape])
        assert_agrees(program, Program(function), {"x0": x})


def test_an_empty_axis_is_refused_as_by_pytorch() -> None:
    size = captured(lambda x: F.max_pool1d(x, x.shape[-1]), LINE).verdicts[2]
    assert (size.low, size.high) == (1, None)


def test_a_window_that_is_a_part_of_an_axis_pins_it() -> None:
    size = captured(lambda x: F.max_pool1d(x, x.shape[-1] // 2), LINE).verdicts[2]
    assert size.low == size.high and "max_pool1d" in size.reason


def test_a_window_that_has_the_size_of_an_axis_by_chance_is_a_number() -> None:
    program = captured(lambda x: F.max_pool1d(x, 11), LINE)
    assert program.verdicts[2].size == "n" and program.verdicts[2].low == 11
    assert_agrees(program, Program(lambda x: F.max_pool1d(x, 11)), {"x0": torch.randn(2, 3, 30)})
