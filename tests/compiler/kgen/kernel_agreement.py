"""The rows of `kernel_rows` as units of kernels, and how a run of one is held against the oracle."""

import os

import numpy as np
import pytest
from kernel_rows import ROWS, Row
from kernel_runs import Case, Unit, from_storage, to_storage

from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.kgen import split, windows
from dlcb.compiler.options import Target

SEED = int(os.environ.get("SEED", "0")) or int.from_bytes(os.urandom(4), "little")


def cpp_unit(held: bool) -> Unit:
    target = Target.cpp()
    return Unit({name: Case(row.graph(name), target) for name, row in ROWS.items()}, target, held)


def cuda_unit() -> Unit:
    """With the variants that are meant for large sizes at small ones as well."""
    target = Target.cuda()
    unit = Unit({name: Case(row.graph(name), target) for name, row in ROWS.items()}, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "ENOUGH_THREADS", 1)
        patch.setattr(split, "ROWS", split.Limits(results=256, length=64, part=32, parts=8))
        patch.setattr(split, "COLUMNS", split.Limits(results=1 << 16, length=16, part=8, parts=64))
        assert unit.text
    return unit


def drawn(row: Row, graph: Graph, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Inputs as the kernels will see them: already rounded to their types."""
    arrays = row.inputs(graph, sizes, np.random.default_rng(SEED))
    return {v.name: from_storage(to_storage(arrays[v.name], v.dtype), v.dtype) for v in graph.inputs}


def agree(row: Row, got: list[np.ndarray], want: list[np.ndarray], sizes: dict[str, int]) -> None:
    for mine, expected in zip(got, want, strict=True):
        assert mine.shape == expected.shape
        exact = expected.astype(np.float64)
        finite = np.abs(exact[np.isfinite(exact)])
        scale = max(1.0, float(finite.max(initial=0.0)))
        message = f"sizes {sizes}, seed {SEED}"
        np.testing.assert_allclose(
            mine.astype(np.float64), exact, row.tolerance, row.tolerance * scale, err_msg=message
        )
