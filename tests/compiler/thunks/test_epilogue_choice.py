"""A fused convolution is planned for shapes that come again, whichever call meets them."""

from __future__ import annotations

import torch

from dlcb.compiler.thunks import convolution


def test_a_shape_was_met_after_its_first_calls() -> None:
    place, other = (1 << 60, torch.Size((2, 3))), (1 << 60, torch.Size((2, 4)))
    assert [convolution.was_met(place, 2) for _ in range(4)] == [False, False, True, True]
    assert not convolution.was_met(other, 2)


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(convolution, "_MOST_MET", 4)
    monkeypatch.setattr(convolution, "_met", {})
    for size in range(100):
        convolution.was_met((0, torch.Size((size,))), 2)
    assert len(convolution._met) <= 4
