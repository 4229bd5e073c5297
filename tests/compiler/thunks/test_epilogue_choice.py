"""A fused convolution is planned for shapes that come again, whichever call meets them."""

from __future__ import annotations

import torch

from dlcb.compiler.thunks import convolution


def test_a_shape_is_new_for_its_first_calls_only() -> None:
    place, other = (1 << 60, torch.Size((2, 3))), (1 << 60, torch.Size((2, 4)))
    assert [convolution.is_new(place, 2) for _ in range(4)] == [True, True, False, False]
    assert convolution.is_new(other, 2)


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(convolution, "_MOST_MET", 4)
    monkeypatch.setattr(convolution, "_met", {})
    for size in range(100):
        convolution.is_new((0, torch.Size((size,))), 2)
    assert len(convolution._met) <= 4
