"""How long an idle connection stays open: from its last answer on, whatever came before; and how long one of
which nothing more comes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from dlcb.server.protocol import TensorProtocol
from dlcb.server.tensors import JSON, failure

KEEP_ALIVE = 0.4  # seconds


class NoTensors:
    """Routes of a server without models: each request goes uvicorn's way."""

    def match_url(self, url: bytes) -> None:
        return None


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def connected(
    routes: object, receive_seconds: float = 30.0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of these routes."""
    config = uvicorn.Config(answer, log_config=None, lifespan="off", timeout_keep_alive=KEEP_ALIVE)  # type: ignore[arg-type]
    config.load()
    protocol = TensorProtocol.for_routes(routes)  # type: ignore[arg-type]
    protocol.receive_seconds = receive_seconds
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config, ServerState(), {}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        await server.wait_closed()


def test_an_idle_connection_ends_counted_from_its_last_answer() -> None:
    async def go() -> tuple[int, float]:
        async with connected(NoTensors()) as (reader, writer):
            answered, began = 0, time.monotonic()
            while time.monotonic() - began < 2 * KEEP_ALIVE:  # longer than an idle one may last
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b"ok")
                answered, last = answered + 1, time.monotonic()
                await asyncio.sleep(KEEP_ALIVE / 8)
            assert await reader.read() == b""
            return answered, time.monotonic() - last

    answered, idle = asyncio.run(asyncio.wait_for(go(), 30))
    assert answered > 2 and idle >= KEEP_ALIVE * 0.95


class Tensors(NoTensors):
    """Routes of a server with a model, which gives what it gets."""

    def match_url(self, url: bytes) -> tuple[str, None]:  # type: ignore[override]
        return "model", None

    def admit(self, headers: dict[bytes, bytes], name: str, version: None) -> tuple[object, int]:
        return object(), 1 << 20

    def submit(self, model: object, headers: object, body: bytes, deliver: Any) -> None:
        deliver(([bytes(body)], None), None)

    def success(self, name: str, headers: object, answer: Any, pending: None) -> Any:
        return 200, [JSON], answer[0]

    def failure(self, name: str, error: Exception, pending: object) -> Any:
        return failure(error)

    class dataplane:
        batcher = SimpleNamespace(inflight_bytes=0, room=lambda model, size: None)


HEAD = b"POST /v1/models/model/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("routes", "sent", "statuses"),
    [
        (NoTensors, b"", []),
        (NoTensors, HEAD[:40], [408]),
        (NoTensors, HEAD % 9 + b"{", [200]),  # which was given without the body
        (Tensors, HEAD % 9 + b"{", [408]),
        (Tensors, HEAD % 200_000 + b"{", [408]),
        (Tensors, HEAD % 2 + b"{}" + HEAD[:20], [200, 408]),
    ],
    ids=["nothing", "half a head", "half of another body", "half a body", "half a large body", "the next"],
)
def test_a_connection_of_which_nothing_more_comes_ends(
    routes: type[NoTensors], sent: bytes, statuses: list[int]
) -> None:
    async def go() -> bytes:
        async with connected(routes(), receive_seconds=0.1) as (reader, writer):
            writer.write(sent)
            return await reader.read()

    got = asyncio.run(asyncio.wait_for(go(), 30))
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", got)] == statuses
    told = b'{"error":"the request did not come whole: nothing more of it came for 0.1 s"}' in got
    assert told == (408 in statuses)


def test_a_body_that_comes_slowly_is_waited_for() -> None:
    async def go() -> bytes:
        async with connected(Tensors(), receive_seconds=0.4) as (reader, writer):
            writer.write(HEAD % 12)
            for _ in range(12):
                writer.write(b"x")
                await asyncio.sleep(0.05)
            return await reader.readuntil(b"x" * 12)

    assert asyncio.run(asyncio.wait_for(go(), 30)).startswith(b"HTTP/1.1 200 ")
