"""The client's side of the inference protocol: named arrays to a request, a response to named arrays.

JSON tensors are flat lists; binary tensors follow the JSON part, whose length stands in a header. What the
server sends is checked: an answer whose shape and data disagree raises WireError.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson

Encoding = Literal["json", "binary"]
JSON_LENGTH = "Inference-Header-Content-Length"

DATATYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
NAMES = {dtype: name for name, dtype in DATATYPES.items()}


class WireError(ValueError):
    """An answer that the protocol does not allow."""


def encode(
    inputs: Mapping[str, np.ndarray], encoding: Encoding, timeout: float | None = None
) -> tuple[dict[str, str], bytes]:
    """Headers and body of an inference request, `timeout` in seconds."""
    parameters: dict[str, Any] = {} if timeout is None else {"timeout": round(timeout * 1e6)}
    if encoding == "json":
        tensors = [_tensor(name, array) | {"data": array.ravel().tolist()} for name, array in inputs.items()]
        document = {"inputs": tensors, "parameters": parameters} if parameters else {"inputs": tensors}
        return {"Content-Type": "application/json"}, orjson.dumps(document)
    payloads = [np.ascontiguousarray(array).tobytes() for array in inputs.values()]
    tensors = [
        _tensor(name, array) | {"parameters": {"binary_data_size": len(payload)}}
        for (name, array), payload in zip(inputs.items(), payloads, strict=True)
    ]
    head = orjson.dumps({"inputs": tensors, "parameters": {"binary_data_output": True} | parameters})
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(head))}
    return headers, b"".join([head, *payloads])


def _tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    return {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape)}


def decode(headers: Mapping[str, str], body: bytes) -> dict[str, np.ndarray]:
    """Outputs by name; `headers` have lower-case names."""
    head_length = int(headers.get(JSON_LENGTH.lower(), len(body)))
    head = orjson.loads(body[:head_length])
    outputs, at = {}, head_length
    for tensor in head["outputs"]:
        dtype, shape = DATATYPES[tensor["datatype"]], tensor["shape"]
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            flat = np.asarray(tensor["data"], dtype).ravel()
        else:
            flat = np.frombuffer(body[at : at + size], dtype)
            at += size
        if flat.size != np.prod(shape, dtype=np.int64):
            raise WireError(f"output {tensor['name']!r} says shape {shape} and holds {flat.size} elements")
        outputs[tensor["name"]] = flat.reshape(shape)
    if at != len(body):
        raise WireError(f"the answer has {len(body)} bytes, its outputs end at byte {at}")
    return outputs
