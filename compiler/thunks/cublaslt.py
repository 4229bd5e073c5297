"""cuBLASLt as PyTorch has loaded it, by ctypes: products of matrices by an algorithm that the caller names,
which no call of PyTorch's lets one do. Matrices are row-major here, and column-major to the library, so that
it sees each one transposed and the two factors exchanged.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import torch

from dlcb.compiler.errors import UnsupportedOperator

MOST_WORKSPACE = 32 << 20  # bytes an algorithm may ask for; what PyTorch grants it on Hopper

# The library's own numbers, from its header.
_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType
_COMPUTE, _COMPUTE_TF32 = 68, 77  # cublasComputeType_t: sums in float32, products of float32 exact or in TF32
_TRANSPOSE_FIRST, _EPILOGUE, _BIAS_POINTER = 3, 7, 8  # cublasLtMatmulDescAttributes_t
_NO_EPILOGUE, _RELU, _BIAS = 1, 2, 4  # cublasLtEpilogue_t; relu and bias add up
_WORKSPACE_BYTES, _REDUCTIONS, _FIRST_ALIGNMENT = 1, 3, 5  # cublasLtMatmulPreferenceAttributes_t
_SUMS_IN_FLOAT32 = 2  # cublasLtReductionScheme_t: parts of a long sum are not rounded to half in between

_ONE, _ZERO = c_float(1), c_float(0)

logger = logging.getLogger("dlcb.compiler.cublaslt")


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t. Only this process may use it, for the kind of product it was found for."""

    _fields_ = (("data", c_uint64 * 8),)


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_SET = (c_void_p, c_int, c_void_p, c_size_t)
_MATRICES = (c_void_p,) * 6  # handle, operation, and the layouts of both factors, of what is added and made
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (*_MATRICES, c_void_p, c_int, POINTER(_Found), POINTER(c_int)),
    "cublasLtMatmulAlgoCheck": (*_MATRICES, POINTER(Algorithm), POINTER(_Found)),
    "cublasLtMatmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library that belongs to this PyTorch; None where there is none, or it lacks what is called here."""
    if torch.version.cuda is None:
        return None
    name = f"libcublasLt.so.{torch.version.cuda.split('.')[0]}"
    try:
        found = ctypes.CDLL(name)
        for function, arguments in _FUNCTIONS.items():
            getattr(found, function).argtypes = arguments
    except (OSError, AttributeError) as error:
        logger.info("products are PyTorch's alone: %s: %s", name, error)
        return None
    return found


class Form(NamedTuple):
    """A kind of product: all that an algorithm depends on but the number of rows. `stored_by_columns` says
    how the second factor lies; `steps` are elements from row to row (or column to column) of the first
    factor, the second, what is added and the result; `alignment` is that of all addresses, in bytes."""

    device: int
    dtype: torch.dtype
    tf32: bool
    inner: int
    columns: int
    stored_by_columns: bool
    steps: tuple[int, int, int, int]
    bias: bool
    added: bool
    relu: bool
    alignment: int


class Matrices:
    """One product on given memory, for any algorithm: result = relu(first @ second + added + bias), without
    what `form` leaves out. UnsupportedOperator where the library cannot describe it."""

    def __init__(
        self,
        form: Form,
        rows: int,
        first: torch.Tensor,
        second: torch.Tensor,
        result: torch.Tensor,
        bias: torch.Tensor | None,
        added: torch.Tensor | None,
    ) -> None:
        lt = library()
        if lt is None:
            raise UnsupportedOperator("there is no cuBLASLt", stage="run")
        self._find, self._check = lt.cublasLtMatmulAlgoGetHeuristic, lt.cublasLtMatmulAlgoCheck
        self._run = lt.cublasLtMatmul
        self._held = (first, second, result, bias, added)
        kind = _TYPES[form.dtype]
        compute = _COMPUTE_TF32 if form.tf32 else _COMPUTE
        epilogue = _RELU * form.relu + _BIAS * form.bias or _NO_EPILOGUE
        wide, tall = (form.inner, form.columns) if form.stored_by_columns else (form.columns, form.inner)
        from_first, from_second, from_added, from_result = form.steps
        described = (
            _operation(compute, form.stored_by_columns, epilogue, 0 if bias is None else bias.data_ptr()),
            _layout(kind, wide, tall, from_second),
            _layout(kind, form.inner, rows, from_first),
            _layout(kind, form.columns, rows, from_added),
            _layout(kind, form.columns, rows, from_result),
        )
        self._described = (*described, _preference(form.alignment))
        self._kinds = (_handle(form.device), *(made.handle for made in described))
        handle, operation, of_second, of_first, of_added, of_result = self._kinds
        self._arguments = (
            handle,
            operation,
            byref(_ONE),
            second.data_ptr(),
            of_second,
            first.data_ptr(),
            of_first,
            byref(_ZERO if added is None else _ONE),
            (result if added is None else added).data_ptr(),
            of_added,
            result.data_ptr(),
            of_result,
        )

    def find(self) -> Algorithm | None:
        """The algorithm that the library's heuristic takes for the fastest; None where it knows none."""
        offered = self.offered(1)
        return offered[0] if offered else None

    def offered(self, most: int) -> list[Algorithm]:
        """What the library's heuristic offers, at most so many, the fastest by its reckoning first."""
        found, count = (_Found * most)(), c_int()
        if self._find(*self._kinds, self._described[-1].handle, most, found, byref(count)):
            return []
        return [each.algorithm for each in found[: count.value] if each.state == 0]

    def workspace(self, algorithm: Algorithm) -> int | None:
        """Bytes that the algorithm needs for this product; None where it cannot do it."""
        found = _Found()
        if self._check(*self._kinds, byref(algorithm), byref(found)) or found.workspace > MOST_WORKSPACE:
            return None
        return int(found.workspace)

    def run(self, algorithm: Algorithm, workspace: int, nbytes: int, stream: int) -> bool:
        """Enqueue the product; `workspace` is an address. False where the library refuses, and has enqueued
        nothing."""
        return not self._run(*self._arguments, byref(algorithm), workspace, nbytes, stream)


class _Made:
    """An object of the library's, destroyed with this one."""

    def __init__(self, create: str, destroy: str, *arguments: int) -> None:
        lt = library()
        self.handle = c_void_p()
        _expect(create, getattr(lt, create)(byref(self.handle), *arguments))
        self._destroy = getattr(lt, destroy)

    def __del__(self) -> None:
        if self.handle:
            self._destroy(self.handle)


# Equal matrices are described once: equal layers share them, and so do calls at one shape.
@functools.lru_cache(1 << 13)
def _layout(kind: int, rows: int, columns: int, step: int) -> _Made:
    return _Made("cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", kind, rows, columns, step)


@functools.lru_cache(1 << 13)
def _operation(compute: int, transposed: bool, epilogue: int, bias: int) -> _Made:
    made = _Made("cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", compute, _TYPES[torch.float32])
    attributes: list[tuple[int, Any]] = [
        (_TRANSPOSE_FIRST, c_int(transposed)),
        (_EPILOGUE, c_int(epilogue)),
    ]
    _set("cublasLtMatmulDescSetAttribute", made, [*attributes, (_BIAS_POINTER, c_void_p(bias))])
    return made


@functools.cache
def _preference(alignment: int) -> _Made:
    made = _Made("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy")
    attributes: list[tuple[int, Any]] = [
        (_WORKSPACE_BYTES, c_uint64(MOST_WORKSPACE)),
        (_REDUCTIONS, c_uint32(_SUMS_IN_FLOAT32)),
    ]
    attributes += [(_FIRST_ALIGNMENT + number, c_uint32(alignment)) for number in range(4)]
    _set("cublasLtMatmulPreferenceSetAttribute", made, attributes)
    return made


def _set(function: str, made: _Made, attributes: Sequence[tuple[int, Any]]) -> None:
    for attribute, value in attributes:
        status = getattr(library(), function)(made.handle, attribute, byref(value), ctypes.sizeof(value))
        _expect(function, status)


@functools.cache
def _handle(device: int) -> c_void_p:
    """PyTorch's own, on the device that is current: a handle of cuBLAS serves as one of cuBLASLt, and PyTorch
    keeps it as long as the process."""
    return c_void_p(torch.cuda.current_blas_handle())


def _expect(function: str, status: int) -> None:
    if status:
        raise UnsupportedOperator(f"{function} gave status {status}", stage="run")
