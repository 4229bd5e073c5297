"""Products by a weight at numbers of rows that were not met before: an algorithm that cuBLASLt found for
another number of rows serves this one. Its heuristic costs 0.3 ms a product and the kernel it picks, where
that was not used before, 3 to 4 ms of loading; a known algorithm takes up to 20 % longer on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Generic, TypeVar

import torch

from dlcb.compiler.errors import UnsupportedOperator
from dlcb.compiler.thunks import cublaslt
from dlcb.compiler.thunks.cublaslt import Algorithm, Form, Matrices

REACH = 8  # an algorithm serves up to so many times the rows it was found for, and as many times fewer
_MOST_SERVED = 1 << 14  # products remembered
_MOST_ALIGNMENT = 16  # bytes; told of more, the heuristic picks the same
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})

# rows [m, k], columns [k, n], perhaps a bias [n], memory for the result [m, n], whether relu follows
Multiply = Callable[
    [torch.Tensor, torch.Tensor, Sequence[torch.Tensor], torch.Tensor, bool], Callable[[], torch.Tensor]
]

Kind = TypeVar("Kind", bound=Hashable)
Known = TypeVar("Known")


class Algorithms(Generic[Kind, Known]):
    """Which algorithm serves which kind and number of rows, with the bytes of workspace it takes there."""

    def __init__(self, reach: int = REACH, most: int = _MOST_SERVED) -> None:
        self._reach, self._most = reach, most
        self._found: dict[Kind, dict[int, Known]] = {}  # by the rows that the heuristic was asked about
        self._served: dict[tuple[Kind, int], tuple[Known, int] | None] = {}
        self._refused: set[Kind] = set()
        self._lock = Lock()  # models may run on threads of their own

    def serve(
        self,
        kind: Kind,
        rows: int,
        find: Callable[[], Known | None],
        workspace: Callable[[Known], int | None],
    ) -> tuple[Known, int] | None:
        """The algorithm found for the nearest number of rows, if that is within reach and `workspace` says
        that it can; else what `find` gives. None where nothing can; of a kind for which nothing was ever
        found it is not asked again."""
        place = kind, rows
        with self._lock:
            if kind in self._refused:
                return None
            if place not in self._served:
                if len(self._served) >= self._most:  # clients choose sizes; what is in use is soon back
                    self._served.clear()
                    self._found.clear()
                    self._refused.clear()
                self._served[place] = self._choose(kind, rows, find, workspace)
            return self._served[place]

    def _choose(
        self,
        kind: Kind,
        rows: int,
        find: Callable[[], Known | None],
        workspace: Callable[[Known], int | None],
    ) -> tuple[Known, int] | None:
        known = self._found.setdefault(kind, {})
        nearest = min(known, key=lambda met: max(met, rows) / min(met, rows), default=0)
        if nearest and max(nearest, rows) <= self._reach * min(nearest, rows):
            nbytes = workspace(known[nearest])
            if nbytes is not None:
                return known[nearest], nbytes
        found = find()
        if found is None:
            if not known:
                self._refused.add(kind)
            return None
        known[rows] = found
        nbytes = workspace(found)
        return None if nbytes is None else (found, nbytes)


_algorithms: Algorithms[Form, Algorithm] = Algorithms()


class Product:
    """A prepared product. `run` enqueues it on the current stream, and is False where that has to be left to
    PyTorch: float32 is rounded to TF32, or not, as PyTorch's switch said when it was prepared."""

    def __init__(self, form: Form, matrices: Matrices, algorithm: Algorithm, nbytes: int) -> None:
        self._form, self._matrices, self._algorithm, self._bytes = form, matrices, algorithm, nbytes

    def run(self) -> bool:
        form, workspace = self._form, 0
        if form.dtype == torch.float32 and form.tf32 != _rounds_to_tf32():
            return False
        if self._bytes:  # given back at once: what comes after on this stream may have it
            space = torch.empty(self._bytes, dtype=torch.uint8, device=f"cuda:{form.device}")
            workspace = space.data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(form.device)
        return self._matrices.run(self._algorithm, workspace, self._bytes, stream)


def prepare(
    first: torch.Tensor,
    second: torch.Tensor,
    result: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
    relu: bool = False,
) -> Product | None:
    """The product that `describe` describes, by an algorithm known from other numbers of rows; None where
    cuBLASLt cannot."""
    described = describe(first, second, result, bias=bias, added=added, relu=relu)
    if described is None:
        return None
    form, matrices = described
    served = _algorithms.serve(form, len(first), matrices.find, matrices.workspace)
    return None if served is None else Product(form, matrices, *served)


def describe(
    first: torch.Tensor,
    second: torch.Tensor,
    result: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
    relu: bool = False,
) -> tuple[Form, Matrices] | None:
    """relu(first [m, k] @ second [k, n] + bias [n] + added [m, n]) into result [m, n], all on one GPU, added
    up in float32 and rounded once. None where cuBLASLt cannot: another type or device, rows with gaps
    between their elements, nothing to multiply."""
    if not first.is_cuda or first.dtype not in _DTYPES or cublaslt.library() is None:
        return None
    given = [tensor for tensor in (first, second, result, bias, added) if tensor is not None]
    device = first.device
    if any(tensor.dtype != first.dtype or tensor.device != device or not tensor.numel() for tensor in given):
        return None
    if device.index != torch.cuda.current_device() or (bias is not None and not bias.is_contiguous()):
        return None
    (inner, columns), (down, along) = second.shape, second.stride()
    over_second = _step((inner, columns), (down, along))
    by_columns = over_second is None
    if by_columns:
        over_second = _step((columns, inner), (along, down))
    over_first, over_result = _step(first.shape, first.stride()), _step(result.shape, result.stride())
    over_added = over_result if added is None else _step(added.shape, added.stride())
    if over_first is None or over_second is None or over_added is None or over_result is None:
        return None
    address = 0
    for tensor in given:
        address |= tensor.data_ptr()
    form = Form(
        device.index,
        first.dtype,
        first.dtype == torch.float32 and _rounds_to_tf32(),
        inner,
        columns,
        by_columns,
        (over_first, over_second, over_added, over_result),
        bias is not None,
        added is not None,
        relu,
        min(address & -address, _MOST_ALIGNMENT),
    )
    try:
        return form, Matrices(form, len(first), first, second, result, bias, added)
    except UnsupportedOperator:
        return None


def _step(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Elements from one row to the next of a matrix whose rows lie whole, one after the other; None for
    others."""
    (rows, columns), (down, along) = shape, strides
    if columns > 1 and along != 1:
        return None
    if rows == 1:
        return columns
    return down if down >= columns else None


def _rounds_to_tf32() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
