"""A bare ASGI application on uvicorn, uvloop, httptools and orjson: what a Python front reaches at most.

Run as `python raw_asgi.py PORT WEIGHTS`. It speaks just enough of the inference protocol to be held to the
same values as the others, runs the model in its event loop, and checks nothing.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import uvicorn
from networks import networks

Message = MutableMapping[str, Any]
MODELS = networks(Path(sys.argv[2]))
JSON_LENGTH = b"inference-header-content-length"


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    headers = [(b"content-type", b"application/json")]
    if scope["method"] == "POST":
        model = scope["path"].split("/")[3]
        length = dict(scope["headers"]).get(JSON_LENGTH)
        if length is None:
            body = json_answer(model, body)
        else:
            head, body = binary_answer(model, body, int(length))
            headers = [(b"content-type", b"application/octet-stream"), (JSON_LENGTH, b"%d" % head)]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def json_answer(model: str, body: bytes) -> bytes:
    """An identity hands back the numbers as they were parsed: what an echo need not do, it does not."""
    tensor = orjson.loads(body)["inputs"][0]
    shape, data = tensor["shape"], tensor["data"]
    if model != "identity":
        values = MODELS[model](np.asarray(data, np.float32).reshape(shape))
        shape, data = values.shape, values.ravel()
    output = {"name": "y", "datatype": "FP32", "shape": shape, "data": data}
    return orjson.dumps({"model_name": model, "outputs": [output]}, option=orjson.OPT_SERIALIZE_NUMPY)


def binary_answer(model: str, body: bytes, length: int) -> tuple[int, bytes]:
    """The length of the JSON part, and the body."""
    view = memoryview(body)
    tensor = orjson.loads(view[:length])["inputs"][0]
    values = MODELS[model](np.frombuffer(view[length:], np.float32).reshape(tensor["shape"]))
    parameters = {"binary_data_size": values.nbytes}
    output = {"name": "y", "datatype": "FP32", "shape": values.shape, "parameters": parameters}
    head = orjson.dumps({"model_name": model, "outputs": [output]})
    return len(head), b"".join((head, values.data))


if __name__ == "__main__":
    uvicorn.run(
        application,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )
