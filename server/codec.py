"""Request bytes to tensors and tensors to response bytes, in JSON and in the protocol's binary tensor
extension. What comes out is checked: names, datatypes, shapes and byte lengths agree, or a BadRequest names
the input, axis and rule.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy
import orjson

from dlcb.compiler.signature import Dim, TensorSpec
from dlcb.server.datatypes import BY_DTYPE, DATATYPES, MAX_RANK, Datatype
from dlcb.server.errors import BadRequest, TooLarge
from dlcb.server.types import Buffer, InferRequest, Parts, RequestedOutput, Tensor

MAX_ELEMENTS = 2**31  # axes of 0 counted as 1: what a model makes of an empty input must be addressable
# The same of an input that holds nothing: a mean over its axes of 0 fills what the others have. As many as a
# body of 64 MiB brings in FP32, so that a few bytes ask for no more than many do.
MAX_EMPTY_ELEMENTS = 2**24
LARGEST_PLAIN = 4096  # elements; a packer for each size and datatype is kept up to here
NO_NAN = "JSON has no NaN and no Infinity, send tensors that hold them as binary data"
_NOT_A_NUMBER = re.compile(rb"[\[,:\s-](NaN|Infinity)\b")
_INTEGER = frozenset({int})
_FIRST_WORD = b'{"inputs"'
_INPUT = '{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.5]}'
_STATELESS = ("sequence_id", "sequence_start", "sequence_end")
_ENCODINGS = {"gzip": 31, "deflate": 15}  # zlib's window bits, which choose the container


def header_length(value: bytes, body_size: int) -> int:
    """The checked value of Inference-Header-Content-Length: the length of the JSON part."""
    text = value.strip()
    if not text.isdigit() or len(text) > 10 or int(text) > 2**31 - 1:
        raise BadRequest(
            f"Inference-Header-Content-Length is {_quoted(value.decode('latin-1'))}, expected a byte count"
        )
    if int(text) > body_size:
        raise BadRequest(
            f"Inference-Header-Content-Length is {int(text)}, but the body holds {body_size} bytes"
        )
    return int(text)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body a client compressed. `limit` bounds what comes out, so a small body cannot unpack to fill the
    memory."""
    if encoding not in _ENCODINGS:
        raise BadRequest(f"Content-Encoding {_quoted(encoding)} is not known; gzip, deflate or identity is")
    unpacked = bytearray()
    rest = body
    try:
        while True:  # a gzip body may hold several members
            stream = zlib.decompressobj(_ENCODINGS[encoding])
            unpacked += stream.decompress(rest, limit + 1 - len(unpacked))
            if len(unpacked) > limit:
                raise TooLarge(f"the body unpacks to more than {limit} bytes")
            if not stream.eof:
                raise BadRequest(f"the {encoding} body ends before its stream does")
            rest = stream.unused_data
            if not rest:
                return bytes(unpacked)
    except zlib.error as error:
        raise BadRequest(f"the body is not {encoding}: {error}") from error


def compress(body: bytes, encoding: str) -> bytes:
    """The inverse of `decompress`, at the fastest level: answers are numbers and pack badly."""
    stream = zlib.compressobj(1, wbits=_ENCODINGS[encoding])
    return stream.compress(body) + stream.flush()


def decode(
    body: Buffer, json_length: int | None, loads: Callable[[Buffer], Any] = orjson.loads
) -> InferRequest:
    """A request from its body. `json_length` is the length of the JSON part when binary tensors follow it.

    `loads` may return an array with numpy's interface for the `data` of an input (see `large_json`).
    """
    view = memoryview(body)
    try:
        document = loads(body if json_length is None else view[:json_length])
    except ValueError as error:
        hint = f": {NO_NAN}" if _NOT_A_NUMBER.search(view[:json_length]) else ""
        raise BadRequest(f"the body is not JSON: {error}{hint}") from error
    if type(document) is not dict:
        raise BadRequest(f"the body is {_kind(document)}, expected a JSON object with 'inputs'")
    request = InferRequest(inputs={})
    if "id" in document:
        request.id = _typed(document["id"], str, "'id'", "a string")
    if "parameters" in document:
        _read_parameters(request, document["parameters"])
    entries = document.get("inputs")
    if type(entries) is not list or not entries:
        found = "is missing" if entries is None else f"is {_kind(entries)}" if entries != [] else "is empty"
        raise BadRequest(f"'inputs' {found}, expected a list of tensors")
    offset = len(body) if json_length is None else json_length
    numbers = _holds_no_boolean(body)
    for index, entry in enumerate(entries):
        tensor = _decode_plain(entry, numbers)
        if tensor is None:
            tensor, offset = _decode_input(index, entry, view, offset, json_length is not None)
        if tensor.name in request.inputs:
            raise BadRequest(f"input '{tensor.name}' is given twice")
        request.inputs[tensor.name] = tensor
    if offset != len(body):
        raise BadRequest(
            f"{len(body) - offset} bytes follow the last binary input; the inputs' binary_data_size and the "
            f"body's length of {len(body)} bytes disagree"
        )
    if "outputs" in document:
        request.outputs = _decode_outputs(document["outputs"])
    return request


def decode_raw(body: Buffer, specs: Sequence[TensorSpec]) -> InferRequest:
    """A body that is one tensor and nothing else: allowed for a model with one input, whose sizes follow from
    the length when at most one dim beside the batch is free. It is one row; all outputs come back binary."""
    if len(specs) != 1:
        raise BadRequest(f"a raw binary body needs a model with one input, this one has {len(specs)}")
    spec = specs[0]
    datatype = BY_DTYPE[spec.dtype]
    if spec.dims is None:
        raise BadRequest(f"input '{spec.name}' has no fixed rank; a raw binary body cannot say its shape")
    if len(body) % datatype.size:
        raise BadRequest(
            f"input '{spec.name}': {len(body)} bytes are not a whole number of {datatype.name} elements of "
            f"{datatype.size} bytes"
        )
    count = len(body) // datatype.size
    free = [axis for axis, dim in enumerate(spec.dims) if isinstance(dim, Dim)]
    if len(free) > 1 and free[0] == 0:
        free = free[1:]  # the first free dim is the batch, which is 1 here
    if len(free) > 1:
        raise BadRequest(
            f"input '{spec.name}' has {len(free)} free dims beside the batch; a raw binary body allows one"
        )
    shape = [1 if isinstance(dim, Dim) else dim for dim in spec.dims]
    fixed = math.prod(shape)
    if free and fixed and count % fixed == 0:
        shape[free[0]] = count // fixed
    elif count != fixed:
        raise BadRequest(
            f"input '{spec.name}': {count} elements do not fill a shape with {fixed} elements a row"
        )
    tensor = Tensor(spec.name, datatype, tuple(shape), body)
    return InferRequest(inputs={spec.name: tensor}, binary_output=True)


def encode(
    model: str, version: str, identity: str | None, outputs: Sequence[tuple[Tensor, bool]]
) -> tuple[Parts, int | None]:
    """The body of an answer: outputs, each with whether it goes out as binary, which is not copied; and the
    length of its JSON part, None when it is JSON alone."""
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if identity is not None:
        document["id"] = identity
    entries: list[dict[str, Any]] = []
    tail: Parts = []
    for tensor, binary in outputs:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}
        if binary:
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
            tail.append(tensor.data)
        else:
            entry["data"] = numpy.frombuffer(tensor.data, tensor.datatype.array)
        entries.append(entry)
    document["outputs"] = entries
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return [head, *tail], len(head) if tail else None


def choose_outputs(request: InferRequest, specs: Sequence[TensorSpec]) -> list[tuple[str, bool]]:
    """Names of the outputs to return and whether each goes out as binary."""
    known = {spec.name: spec for spec in specs}
    if request.outputs is None:
        chosen = [(name, request.binary_output) for name in known]
    else:
        for output in request.outputs:
            if output.name not in known:
                raise BadRequest(
                    f"output '{output.name}' is unknown; the model returns {', '.join(map(repr, known))}"
                )
        chosen = [
            (output.name, request.binary_output if output.binary is None else output.binary)
            for output in request.outputs
        ]
    for name, binary in chosen:
        datatype = BY_DTYPE[known[name].dtype]
        if not binary and not datatype.json_types:
            raise BadRequest(
                f"output '{name}' is {datatype.name}, which JSON cannot hold: ask for it with binary_data or "
                "binary_data_output true"
            )
    return chosen


@dataclass(frozen=True, slots=True)
class _Layout:
    """Name, datatype and shape of an input that have been checked: clients send the same few again and
    again."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    count: int
    pack: Callable[..., bytes]


@lru_cache(maxsize=4096)
def _layout(name: str, datatype: str, *shape: int) -> _Layout:
    if type(name) is not str:
        raise BadRequest(f"'name' is {_kind(name)}, expected a string")
    checked = shape_of(name, list(shape))
    row = _datatype(name, datatype)
    count = math.prod(checked)
    return _Layout(name, row, checked, count, struct.Struct(f"<{count}{row.code}").pack)


def _holds_no_boolean(body: Buffer) -> bool:
    """Whether that shows at a glance: `true` has a u and `false` an l, and past its first word a request of
    numbers has neither. It is a tenth of the time that it takes to look at each element's type."""
    if type(body) is not bytes or not body.startswith(_FIRST_WORD):
        return False
    return body.find(b"u", len(_FIRST_WORD)) < 0 and body.find(b"l", len(_FIRST_WORD)) < 0


def _decode_plain(entry: Any, numbers: bool) -> Tensor | None:
    """The common input, flat JSON data and nothing unusual; None sends any other to `_decode_input`, which
    also words what is wrong. `numbers`: no element is a boolean, and what else is no number cannot be
    packed."""
    try:
        data = entry["data"]
        shape = entry["shape"]
        if len(entry) != 4 or len(data) > LARGEST_PLAIN or not _INTEGER.issuperset(map(type, shape)):
            return None
        layout = _layout(entry["name"], entry["datatype"], *shape)
        if len(data) != layout.count:
            return None
        kinds = layout.datatype.json_types
        if not (numbers and int in kinds) and not kinds.issuperset(map(type, data)):
            return None
        return Tensor(layout.name, layout.datatype, layout.shape, layout.pack(*data))
    except (KeyError, TypeError, BadRequest, struct.error, OverflowError):
        return None


def _decode_input(index: int, entry: Any, body: memoryview, offset: int, binary: bool) -> tuple[Tensor, int]:
    """One input, and where the next binary tensor starts."""
    if type(entry) is not dict:
        raise BadRequest(f"inputs[{index}] is {_kind(entry)}, expected an object")
    name = entry.get("name")
    if type(name) is not str:
        raise BadRequest(f"inputs[{index}]: 'name' is {_kind(name)}, expected a string{_example(name)}")
    datatype = _datatype(name, entry.get("datatype"))
    shape = shape_of(name, entry.get("shape"))
    parameters = entry.get("parameters")
    size = None
    if parameters is not None:
        if type(parameters) is not dict:
            raise BadRequest(f"input '{name}': 'parameters' is {_kind(parameters)}, expected an object")
        if "shared_memory_region" in parameters:
            raise BadRequest(
                f"input '{name}': shared memory regions are not offered; send the tensor in the body"
            )
        size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in entry:
            raise BadRequest(f"input '{name}' has neither 'data' nor the parameter binary_data_size")
        return Tensor(name, datatype, shape, _pack(name, datatype, shape, entry["data"])), offset
    if "data" in entry:
        raise BadRequest(f"input '{name}' has both 'data' and binary_data_size; one of them holds the tensor")
    if type(size) is not int or size < 0:
        raise BadRequest(f"input '{name}': binary_data_size is {_quoted(size)}, expected a byte count")
    if not binary:
        raise BadRequest(
            f"input '{name}' is binary, but the header Inference-Header-Content-Length is missing"
        )
    expected = math.prod(shape) * datatype.size
    if size != expected:
        raise BadRequest(
            f"input '{name}' of shape {list(shape)} and datatype {datatype.name} needs {expected} bytes, "
            f"binary_data_size is {size}"
        )
    if offset + size > len(body):
        raise BadRequest(f"input '{name}' needs {size} bytes, and the body holds {len(body) - offset} more")
    data = body[offset : offset + size]
    if datatype.name == "BOOL" and size and max(data) > 1:
        raise BadRequest(f"input '{name}': a BOOL byte is {max(data)}, expected 0 or 1")
    return Tensor(name, datatype, shape, data), offset + size


def _datatype(name: str, value: Any) -> Datatype:
    datatype = DATATYPES.get(value) if type(value) is str else None
    if datatype is None:
        if value == "BYTES":
            raise BadRequest(f"input '{name}': datatype BYTES is not served by any model here")
        raise BadRequest(
            f"input '{name}': 'datatype' is {_quoted(value)}, expected one of {', '.join(DATATYPES)}"
            f"{_example(value)}"
        )
    return datatype


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """A shape as a client gives it, of a request or of `plan`. BadRequest where it is none, or where what a
    model would make of it could not be addressed."""
    if type(value) is not list:
        found = _kind(value)
        raise BadRequest(f"input '{name}': 'shape' is {found}, expected a list of sizes{_example(value)}")
    if len(value) > MAX_RANK:
        raise BadRequest(f"input '{name}': 'shape' has {len(value)} axes, at most {MAX_RANK} are allowed")
    elements = 1
    for axis, size in enumerate(value):
        if type(size) is not int or size < 0:
            raise BadRequest(
                f"input '{name}', axis {axis}: size is {_quoted(size)}, expected a non-negative integer"
            )
        elements *= size or 1
        if elements > MAX_ELEMENTS:
            raise BadRequest(
                f"input '{name}', axis {axis}: size {size} makes more elements than can be addressed"
            )
    if 0 in value and elements > MAX_EMPTY_ELEMENTS:
        raise BadRequest(
            f"input '{name}' of shape {value} holds nothing, and its other axes make {elements} elements: "
            f"at most {MAX_EMPTY_ELEMENTS} are allowed"
        )
    return tuple(value)


def _example(value: Any) -> str:
    """What an input looks like, for whoever left out a part of it."""
    return f", as in {_INPUT}" if value is None else ""


def _pack(name: str, datatype: Datatype, shape: tuple[int, ...], data: Any) -> Buffer:
    """JSON data, flat or nested as `shape`, as little-endian bytes."""
    if isinstance(data, numpy.ndarray):
        return _cast(name, datatype, shape, data)
    if type(data) is not list:
        raise BadRequest(f"input '{name}': 'data' is {_kind(data)}, expected a list")
    if not datatype.json_types:
        raise BadRequest(
            f"input '{name}' is {datatype.name}, which JSON cannot hold: send it as a binary tensor"
        )
    kinds = set(map(type, data))
    if list in kinds:
        data = _flatten(name, shape, data)
        kinds = set(map(type, data))
    count = math.prod(shape)
    if len(data) != count:
        raise BadRequest(
            f"input '{name}' of shape {list(shape)} needs {count} elements, 'data' holds {len(data)}"
        )
    if not kinds <= datatype.json_types:
        position = next(index for index, value in enumerate(data) if type(value) not in datatype.json_types)
        raise BadRequest(
            f"input '{name}', element {position}: {_quoted(data[position])} is not a value of datatype "
            f"{datatype.name}"
        )
    try:
        return struct.pack(f"<{count}{datatype.code}", *data)
    except (struct.error, OverflowError) as error:
        raise BadRequest(f"input '{name}': a value does not fit datatype {datatype.name}: {error}") from error


def _flatten(name: str, shape: tuple[int, ...], data: list[Any]) -> list[Any]:
    """Nested lists to a flat one; every level must have the sizes `shape` says."""
    if len(data) != (shape[0] if shape else 0):
        raise BadRequest(
            f"input '{name}', axis 0: 'data' has {len(data)} entries, 'shape' says {list(shape)}"
        )
    for axis, size in enumerate(shape[1:], start=1):
        for entry in data:
            if type(entry) is not list or len(entry) != size:
                found = f"a list of {len(entry)}" if type(entry) is list else _kind(entry)
                raise BadRequest(f"input '{name}', axis {axis}: 'data' holds {found}, 'shape' says {size}")
        data = list(chain.from_iterable(data))
    return data


def _cast(name: str, datatype: Datatype, shape: tuple[int, ...], values: numpy.ndarray) -> Buffer:
    """An array that a parser made (float64, int64 or uint64) as the declared datatype."""
    count = math.prod(shape)
    if values.size != count:
        raise BadRequest(
            f"input '{name}' of shape {list(shape)} needs {count} elements, 'data' holds {values.size}"
        )
    if int in datatype.json_types and float not in datatype.json_types:
        limits = numpy.iinfo(datatype.array)
        if values.dtype.kind == "f" or (
            values.size and (values.min() < limits.min or values.max() > limits.max)
        ):
            raise BadRequest(f"input '{name}': a value does not fit datatype {datatype.name}")
    with numpy.errstate(over="ignore"):
        cast = values.astype(datatype.array, copy=False)
    if values.dtype.kind == "f" and not numpy.isfinite(cast).all():
        raise BadRequest(f"input '{name}': a value does not fit datatype {datatype.name}")
    return cast.data.cast("B") if cast.size else b""


def _read_parameters(request: InferRequest, parameters: Any) -> None:
    if type(parameters) is not dict:
        raise BadRequest(f"'parameters' is {_kind(parameters)}, expected an object")
    for key, value in parameters.items():
        if type(value) not in (str, int, float, bool):
            raise BadRequest(f"parameter '{key}' is {_kind(value)}, expected a string, number or boolean")
        if key == "binary_data_output":
            request.binary_output = _typed(value, bool, "parameter 'binary_data_output'", "a boolean")
        elif key == "priority":
            request.priority = _count(
                value, "parameter 'priority'", "1 (highest) and up, or 0 for the default"
            )
        elif key == "timeout":
            microseconds = _count(value, "parameter 'timeout'", "microseconds")
            request.timeout = microseconds * 1e-6 if microseconds else None
        elif key in _STATELESS and value:
            raise BadRequest(f"parameter '{key}': models here keep no state between requests")


def _decode_outputs(entries: Any) -> list[RequestedOutput] | None:
    if type(entries) is not list:
        raise BadRequest(f"'outputs' is {_kind(entries)}, expected a list")
    outputs: dict[str, RequestedOutput] = {}
    for index, entry in enumerate(entries):
        if type(entry) is not dict:
            raise BadRequest(f"outputs[{index}] is {_kind(entry)}, expected an object")
        name = _typed(entry.get("name"), str, f"outputs[{index}]: 'name'", "a string")
        if name in outputs:
            raise BadRequest(f"output '{name}' is asked for twice")
        parameters = entry.get("parameters", {})
        if type(parameters) is not dict:
            raise BadRequest(f"output '{name}': 'parameters' is {_kind(parameters)}, expected an object")
        for refused in ("classification", "shared_memory_region"):
            if parameters.get(refused):
                raise BadRequest(f"output '{name}': '{refused}' is not offered")
        binary = parameters.get("binary_data")
        if binary is not None:
            binary = _typed(binary, bool, f"output '{name}': 'binary_data'", "a boolean")
        outputs[name] = RequestedOutput(name, binary)
    return list(outputs.values()) or None


def _typed(value: Any, kind: type, what: str, expected: str) -> Any:
    if type(value) is not kind:
        raise BadRequest(f"{what} is {_kind(value)}, expected {expected}")
    return value


def _count(value: Any, what: str, expected: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadRequest(f"{what} is {_quoted(value)}, expected {expected}")
    return value


_KINDS: Mapping[type, str] = {
    type(None): "missing or null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _quoted(value: Any) -> str:
    """A client's value in a message: as JSON, and cut so that an answer never repeats a large body."""
    if value is None:
        return "missing or null"
    text = orjson.dumps(value).decode() if not isinstance(value, numpy.ndarray) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
