"""Weights in half types: each is the nearest value or the one on its other side, and rows err by next to
nothing in sum."""

from __future__ import annotations

import pytest
import torch

from dlcb.compiler.thunks.rounding import cast_evenly

HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@HALF
@pytest.mark.parametrize("shape", [(8, 64, 3, 3), (5, 1, 3, 3), (3, 1), (4, 0), (0, 3)])
def test_sums_of_rows(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made, nearest = cast_evenly(x, dtype), x.to(dtype)
    assert made.dtype == dtype and made.shape == x.shape
    error = (made.float() - x).flatten(1).sum(1).abs()
    # never farther than rounding to nearest; with elements to choose from, nearer by much
    assert (error <= (nearest.float() - x).flatten(1).sum(1).abs() + 1e-7).all()
    if x[:1].numel() > 100:
        assert error.max() < 0.1 * (nearest.float() - x).flatten(1).sum(1).abs().max()


@HALF
def test_each_element_is_a_neighbour_of_the_exact_value(dtype: torch.dtype) -> None:
    x = torch.randn(6, 200, generator=torch.Generator().manual_seed(1)) * torch.logspace(-9, 4, 200)
    made, nearest = cast_evenly(x, dtype), x.to(dtype)
    moved = made != nearest
    assert moved.any()
    between = (made.double() - x.double()) * (nearest.double() - x.double())
    assert (between[moved] < 0).all()  # on the two sides of the exact value,
    bits = made.view(torch.int16).int() - nearest.view(torch.int16).int()
    assert (bits[moved].abs() == 1).all()  # and next to each other


@HALF
def test_what_stays(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0], [0.5, 2.0, -4.0, 0.0, 0.75, 8.0]])
    made = cast_evenly(x, dtype)
    torch.testing.assert_close(made, x.to(dtype), rtol=0, atol=0, equal_nan=True)
    assert torch.signbit(made[0, 1])
