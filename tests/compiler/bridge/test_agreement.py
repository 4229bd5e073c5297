"""The shapes at which a compiled model is compared with eager PyTorch."""

from __future__ import annotations

import math

from dlcb.compiler import Dim, Signature, TensorSpec
from dlcb.compiler.bridge.agreement import draw_sizes, shapes_of


def signature(*dims: Dim | int) -> Signature:
    return Signature((TensorSpec("x", "float32", dims),), ())


def test_edges_of_each_dim_are_among_them() -> None:
    drawn = draw_sizes(signature(Dim("n", 0, None), Dim("m", 3, 9, multiple=3)), 20, seed=0)
    assert {0, 1, 2} <= {sizes["n"] for sizes in drawn} and {3, 9} <= {sizes["m"] for sizes in drawn}


def test_inputs_of_many_axes_stay_small() -> None:
    for rank in (4, 7, 30):
        given = signature(*(Dim(f"d{axis}", 0, None) for axis in range(rank)))
        drawn = draw_sizes(given, 6, seed=0)
        assert all(math.prod(shapes_of(given, sizes)["x"]) <= 1 << 22 for sizes in drawn)
        assert any(math.prod(shapes_of(given, sizes)["x"]) > 1 << 10 for sizes in drawn)


def test_sizes_that_cannot_be_smaller_are_kept() -> None:
    given = signature(Dim("n", 0, None), Dim("m", 1 << 14, None), 1 << 10)
    assert all(sizes["m"] >= 1 << 14 for sizes in draw_sizes(given, 6, seed=0))
