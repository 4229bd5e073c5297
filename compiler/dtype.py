"""Element types: one row each, with its size, its spelling in C++ and CUDA,
and the type its sums are kept in.

Everything that needs to know about an element type asks this table; nothing else lists types."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type. `kind` is one of "bool", "int", "uint", "float", "complex"; `bits` is the storage
    width. Of complex ones no kernel computes: calls of PyTorch's hand them to each other."""

    name: str
    kind: str
    bits: int
    cpp: str
    cuda: str
    accumulator_name: str

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in memory."""
        return self.bits // 8

    @property
    def accumulator(self) -> DType:
        """The type sums are kept in and arithmetic is done in (fp32 for the half types)."""
        return DTYPES[self.accumulator_name]

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    def held(self, number: float) -> float:
        """What an element holds where `number` is stored in it: the nearest float, by way of float32 for the
        half types, as PyTorch has it; an integer modulo 2 to the number of bits."""
        if self.kind == "bool":
            return bool(number)
        if not self.is_float:
            lowest = -(1 << self.bits - 1) if self.kind == "int" else 0
            return (int(number) - lowest) % (1 << self.bits) + lowest
        number = float(number)
        if self.bits < 64:
            number = _packed("f", number)
        if self.name == "float16":
            number = _packed("e", number)
        elif self.name == "bfloat16" and math.isfinite(number):
            (bits,) = struct.unpack("<I", struct.pack("<f", number))
            even = bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16  # to nearest, ties to even
            (number,) = struct.unpack("<f", struct.pack("<I", even))
        return number

    def __repr__(self) -> str:
        return self.name


def _packed(code: str, number: float) -> float:
    """A float as C stores it; beyond its range is infinity."""
    try:
        (number,) = struct.unpack(code, struct.pack(code, number))
    except OverflowError:
        return math.copysign(math.inf, number)
    return float(number)


_ROWS = (
    #      name        kind    bits C++         CUDA             accumulator
    DType("bool", "bool", 8, "bool", "bool", "bool"),
    DType("uint8", "uint", 8, "uint8_t", "unsigned char", "int64"),
    DType("int8", "int", 8, "int8_t", "signed char", "int64"),
    DType("int16", "int", 16, "int16_t", "short", "int64"),
    DType("int32", "int", 32, "int32_t", "int", "int64"),
    DType("int64", "int", 64, "int64_t", "long long", "int64"),
    DType("float16", "float", 16, "half_t", "half_t", "float32"),
    DType("bfloat16", "float", 16, "bfloat_t", "bfloat_t", "float32"),
    DType("float32", "float", 32, "float", "float", "float32"),
    DType("float64", "float", 64, "double", "double", "float64"),
    DType("complex64", "complex", 64, "", "", "complex64"),
    DType("complex128", "complex", 128, "", "", "complex128"),
)
DTYPES = {row.name: row for row in _ROWS}

BOOL, UINT8, INT8, INT16, INT32, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, COMPLEX64, COMPLEX128 = _ROWS
INDEX = INT64  # sizes, strides and coordinates

_KIND_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def dtype(name: str) -> DType:
    """The type called `name`; KeyError names what exists."""
    try:
        return DTYPES[name]
    except KeyError:
        raise KeyError(f"unknown element type {name!r}: expected one of {', '.join(DTYPES)}") from None


def promote(a: DType, b: DType) -> DType:
    """The type of `a op b` for two tensors, as PyTorch promotes them."""
    if a is b:
        return a
    if a.is_float and b.is_float:
        if a.bits == b.bits == 16:
            return FLOAT32  # float16 with bfloat16
        return a if a.bits > b.bits else b
    if _KIND_RANK[a.kind] != _KIND_RANK[b.kind]:
        return a if _KIND_RANK[a.kind] > _KIND_RANK[b.kind] else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    return signed if signed.bits > unsigned.bits else INT16  # uint8 with int8
