"""JSON bodies whose tensors hold many elements, parsed without one Python object an element. Runs in the
worker, so that the front's event loop never waits for it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import orjson
import simdjson

from dlcb.server.types import Buffer

MOST_BYTES = 1 << 62
LARGEST_KEPT = 8 << 20  # bytes of a body up to which the parser's own memory, three times that, is kept

_parser = simdjson.Parser()


def loads(body: Buffer) -> Any:
    """Like `orjson.loads`, but `data` of each entry of `inputs` is an array (float64, int64 or uint64) where
    it is numeric and regular. Whatever this cannot read that way is left to orjson, so that a body means the
    same, and is refused in the same words, as a small one. For one thread."""
    try:
        root = (_parser if len(body) <= LARGEST_KEPT else simdjson.Parser()).parse(body)
    except (ValueError, RuntimeError):  # not JSON, or an integer that 64 bits do not hold
        return orjson.loads(body)
    entries = root.get("inputs") if isinstance(root, simdjson.Object) else None
    if not isinstance(root, simdjson.Object) or not isinstance(entries, simdjson.Array):
        return orjson.loads(body)
    inputs: list[dict[str, Any]] = []
    lists = 0  # that arrays stand for
    for entry in entries:
        if not isinstance(entry, simdjson.Object):
            return orjson.loads(body)
        fields = _fields(entry, "data")
        if "data" in entry:
            fields["data"], nested = _numbers(entry["data"], fields.get("shape"), fields.get("datatype"))
            lists += nested
        inputs.append(fields)
    found = {**_fields(root, "inputs"), "inputs": inputs}
    # Where lists lie among an array's numbers nobody has seen them; nobody has of a key that is given twice.
    written = numpy.count_nonzero(numpy.frombuffer(body, "u1") == ord("["))
    return found if written == lists + _lists(found) else orjson.loads(body)


def _fields(found: simdjson.Object, without: str) -> dict[str, Any]:
    """The other fields. By key, since `items` makes Python objects of every value, the long lists too."""
    return {key: _plain(found[key]) for key in found if key != without}


def _lists(found: Any) -> int:
    """How many lists are in what was found, beside its arrays. Text is expected to hold no bracket: more than
    a body can have where it does, since an escaped one is not seen."""
    count, values = 0, [found]
    while values:
        value = values.pop()
        if isinstance(value, str):
            count += MOST_BYTES if "[" in value else 0
        elif isinstance(value, list):
            count += 1
            values += value
        elif isinstance(value, dict):
            values += [*value, *value.values()]
    return count


def _numbers(data: Any, shape: Any, datatype: Any) -> tuple[Any, int]:
    """The data, and for how many lists it stands where it is an array."""
    if not isinstance(data, simdjson.Array):
        return _plain(data), 0
    try:
        if str(datatype).startswith("FP"):
            values = numpy.frombuffer(data.as_buffer(of_type="d"), "<f8")
        elif datatype == "UINT64":
            values = numpy.frombuffer(data.as_buffer(of_type="u"), "<u8")
        else:
            values = numpy.frombuffer(data.as_buffer(of_type="i"), "<i8")
    except (TypeError, ValueError):
        # text, booleans, nulls or integers too large: the slow path words the error
        return _plain(data), 0
    if values.size == len(data):
        return values, 1
    if not _regular(data, shape):
        return _plain(data), 0
    return values, 1 + sum(math.prod(shape[:axis]) for axis in range(1, len(shape)))


def _regular(data: simdjson.Array, shape: Any) -> bool:
    """Whether nested lists have the sizes that `shape` says, looking at rows and never at elements."""
    if type(shape) is not list or not shape or len(data) != shape[0]:
        return False
    if len(shape) == 1:
        return True
    return all(isinstance(row, simdjson.Array) and _regular(row, shape[1:]) for row in data)


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Array):
        return value.as_list()
    return value.as_dict() if isinstance(value, simdjson.Object) else value
