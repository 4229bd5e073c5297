"""A bare ASGI echo on uvicorn, uvloop, httptools and orjson: what a Python front reaches doing nothing.

Run as `python -m dlcb.loadtest.peers PORT`. It answers an inference request for `identity` with the same
tensor in the same words as the real server, so that both can be held to the same expected values.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
import uvicorn

Message = MutableMapping[str, Any]


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    if body:
        tensor = orjson.loads(body)["inputs"][0]
        output = {
            "name": "y",
            "datatype": tensor["datatype"],
            "shape": tensor["shape"],
            "data": tensor["data"],
        }
        body = orjson.dumps({"model_name": "identity", "outputs": [output]})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        echo,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )
