"""Products at shapes that are hot: of PyTorch's call and the algorithms that cuBLASLt offers, the one that
takes the least time on this GPU. It is measured while nothing waits to run, once for each kind of product
and number of rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import torch

from dlcb.compiler.runtime.effort import Effort
from dlcb.compiler.thunks import products
from dlcb.compiler.thunks.cublaslt import Algorithm, Form, Matrices
from dlcb.compiler.thunks.products import Multiply

_OFFERED = 8  # algorithms; those behind them were never the fastest
_SHORT = 8e-6  # seconds; of so short a product another algorithm saves less than it can be told apart by
_FASTER = 0.95  # of PyTorch's time: what takes longer is not worth another order of summation
_REPEATS, _ROUNDS = 8, 2
_LONG = 1e-3  # seconds that the repeats may take together
_ENQUEUED_IN = 500_000  # cycles, 0.3 ms: by then the host has enqueued what is measured
_MOST_MEASURED = 1 << 12  # products remembered
_ERROR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # of the largest value

Place = tuple[Form, int]

_measured: dict[Place, tuple[Algorithm, int] | None] = {}  # None: PyTorch's call
_lock = Lock()  # models may run on threads of their own

logger = logging.getLogger(__name__)


def multiply(
    effort: Effort,
    planned: Multiply,
    rows: torch.Tensor,
    columns: torch.Tensor,
    bias: Sequence[torch.Tensor],
    out: torch.Tensor,
    relu: bool,
) -> Callable[[], torch.Tensor]:
    """What `planned` binds, or something faster where that is known, or `effort` allows to measure it now,
    which overwrites `out`."""
    call = planned(rows, columns, bias, out, relu)
    described = products.describe(rows, columns, out, bias=bias[0] if bias else None, relu=relu)
    if described is None:
        return call
    form, matrices = described
    place = form, len(rows)
    with _lock:
        if place not in _measured:
            if effort.seconds <= 0:
                effort.postponed = True
                return call
            if len(_measured) >= _MOST_MEASURED:  # clients choose sizes; what is in use is soon back
                _measured.clear()
            began = time.perf_counter()
            _measured[place] = _fastest(call, matrices, form, out)
            effort.seconds -= time.perf_counter() - began
        algorithm = _measured[place]
    if algorithm is None:
        return call
    effort.gained = True
    return partial(_run, products.Product(form, matrices, *algorithm), call, out)


def _run(product: products.Product, call: Callable[[], torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    return out if product.run() else call()


def _fastest(
    call: Callable[[], torch.Tensor], matrices: Matrices, form: Form, out: torch.Tensor
) -> tuple[Algorithm, int] | None:
    """The algorithm that beats PyTorch's call, with its bytes of workspace; None where none does."""
    wanted = call().clone()
    planned = _seconds(call, 1)
    if planned < _SHORT:
        return None
    repeats = max(1, min(_REPEATS, int(_LONG / planned)))
    planned = _least(call, repeats)
    best, least = None, _FASTER * planned
    for algorithm in matrices.offered(_OFFERED):
        nbytes = matrices.workspace(algorithm)
        if nbytes is None:
            continue
        run = products.Product(form, matrices, algorithm, nbytes).run
        if not run():
            continue
        if not _agree(out, wanted):
            logger.warning("an algorithm of cuBLASLt's is not PyTorch's product, and is not used: %s", form)
            continue
        seconds = _least(run, repeats)
        if seconds < least:
            best, least = (algorithm, nbytes), seconds
    return best


def _least(run: Callable[[], object], repeats: int) -> float:
    return min(_seconds(run, repeats) for _ in range(_ROUNDS))


def _seconds(run: Callable[[], object], repeats: int) -> float:
    """Of one run on the GPU alone, which sleeps until the host has enqueued all of them."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_ENQUEUED_IN)
    began.record()
    for _ in range(repeats):
        run()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3 / repeats


def _agree(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    allowed = _ERROR[wanted.dtype] * float(wanted.abs().amax().nan_to_num(1.0))
    return torch.allclose(found, wanted, rtol=0.0, atol=allowed, equal_nan=True)
