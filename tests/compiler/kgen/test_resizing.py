"""Interpolation copies along an axis that keeps its size, whatever the scale, and reads no neighbour."""

import numpy as np
import pytest
import torch
from kernel_programs import Program
from kernel_runs import Case, CppRun, Unit
from torch.nn.functional import interpolate

from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.options import Target

SCALES = (1.1, 1.3, None)
CASES = [(mode, scale) for mode in ("nearest", "bilinear") for scale in SCALES]


def graph(mode: str, scale: float | None) -> Graph:
    p = Program(mode)
    x, like = p.tensor("x", "n 1 h w"), p.tensor("like", "a b")
    attributes = {} if mode == "nearest" else {"align_corners": False}
    scales = None if scale is None else (scale, scale)
    resized = getattr(p, f"upsample_{mode}")(x, output=(p.dim("a"), p.dim("b")), scales=scales, **attributes)
    return p.builder.build(resized, p.neg(like))  # which gives the output's sizes


@pytest.fixture(scope="module")
def unit() -> Unit:
    target = Target.cpp()
    return Unit({f"{mode} {scale}": Case(graph(mode, scale), target) for mode, scale in CASES}, target)


@pytest.mark.parametrize("height, width", [(4, 4), (3, 5), (9, 2), (10, 12)])
@pytest.mark.parametrize("mode, scale", CASES)
def test_resizing_is_pytorch_s(mode: str, scale: float | None, height: int, width: int, unit: Unit) -> None:
    x = np.random.default_rng(0).standard_normal((2, 1, height, width)).astype(np.float32)
    x[1, 0, 1, 1] = np.nan
    for size in (height, width), (2 * height, width), (height, width + 3):
        chosen = {"size": size} if scale is None else {"scale_factor": (scale, scale)}
        want = interpolate(torch.from_numpy(x), mode=mode, **chosen)
        got, _ = CppRun(unit, f"{mode} {scale}")({"x": x, "like": np.zeros(want.shape[2:], np.float32)})
        np.testing.assert_allclose(got, want.numpy(), 1e-5, 1e-5)
