"""The datatypes of the Open Inference Protocol: one row each, with its size and its spelling in numpy and in
`struct`. Everything that must know about a datatype asks this table.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_RANK = 32  # axes of a tensor


@dataclass(frozen=True)
class Datatype:
    """`dtype` is the signature's spelling, `array` numpy's little-endian one (bfloat16 travels as uint16),
    `code` that of `struct`; `json_types` are the Python types a JSON element may have, none where JSON cannot
    express the type."""

    name: str
    dtype: str
    array: str
    code: str
    size: int
    json_types: frozenset[type]


_INTEGER = frozenset({int})
_REAL = frozenset({int, float})
_NONE: frozenset[type] = frozenset()

DATATYPES = {
    row.name: row
    for row in (
        Datatype("BOOL", "bool", "|b1", "?", 1, frozenset({bool})),
        Datatype("UINT8", "uint8", "|u1", "B", 1, _INTEGER),
        Datatype("UINT16", "uint16", "<u2", "H", 2, _INTEGER),
        Datatype("UINT32", "uint32", "<u4", "I", 4, _INTEGER),
        Datatype("UINT64", "uint64", "<u8", "Q", 8, _INTEGER),
        Datatype("INT8", "int8", "|i1", "b", 1, _INTEGER),
        Datatype("INT16", "int16", "<i2", "h", 2, _INTEGER),
        Datatype("INT32", "int32", "<i4", "i", 4, _INTEGER),
        Datatype("INT64", "int64", "<i8", "q", 8, _INTEGER),
        Datatype("FP16", "float16", "<f2", "e", 2, _NONE),
        Datatype("BF16", "bfloat16", "<u2", "H", 2, _NONE),
        Datatype("FP32", "float32", "<f4", "f", 4, _REAL),
        Datatype("FP64", "float64", "<f8", "d", 8, _REAL),
    )
}
BY_DTYPE = {row.dtype: row for row in DATATYPES.values()}
