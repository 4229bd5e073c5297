"""JSON bodies whose tensors hold many elements, parsed without one Python object an element. Runs in the
worker, so that the front's event loop never waits for it.
"""

from __future__ import annotations

from typing import Any

import numpy
import orjson
import simdjson

from dlcb.server.types import Buffer

LARGEST_KEPT = 8 << 20  # bytes of a body up to which the parser's own memory, three times that, is kept

_parser = simdjson.Parser()


def loads(body: Buffer) -> Any:
    """Like `orjson.loads`, but `data` of each entry of `inputs` is an array (float64, int64 or uint64) where
    it is numeric and regular. Whatever this cannot read that way is left to orjson, whose error messages are
    the same. For one thread."""
    root = (_parser if len(body) <= LARGEST_KEPT else simdjson.Parser()).parse(body)
    entries = root.get("inputs") if isinstance(root, simdjson.Object) else None
    if not isinstance(root, simdjson.Object) or not isinstance(entries, simdjson.Array):
        return orjson.loads(body)
    inputs = []
    for entry in entries:
        if not isinstance(entry, simdjson.Object):
            return orjson.loads(body)
        fields = _fields(entry, "data")
        if "data" in entry:
            fields["data"] = _numbers(entry["data"], fields.get("shape"), fields.get("datatype"))
        inputs.append(fields)
    return {**_fields(root, "inputs"), "inputs": inputs}


def _fields(found: simdjson.Object, without: str) -> dict[str, Any]:
    """The other fields. By key, since `items` makes Python objects of every value, the long lists too."""
    return {key: _plain(found[key]) for key in found if key != without}


def _numbers(data: Any, shape: Any, datatype: Any) -> Any:
    if not isinstance(data, simdjson.Array):
        return _plain(data)
    try:
        if str(datatype).startswith("FP"):
            values = numpy.frombuffer(data.as_buffer(of_type="d"), "<f8")
        elif datatype == "UINT64":
            values = numpy.frombuffer(data.as_buffer(of_type="u"), "<u8")
        else:
            values = numpy.frombuffer(data.as_buffer(of_type="i"), "<i8")
    except (TypeError, ValueError):
        # text, booleans, nulls or integers too large: the slow path words the error
        return _plain(data)
    nested = values.size != len(data)
    return _plain(data) if nested and not _regular(data, shape) else values


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
