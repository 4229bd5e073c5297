"""How long an idle connection stays open: from its last answer on, whatever came before."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from dlcb.server.protocol import TensorProtocol

KEEP_ALIVE = 0.4  # seconds


class NoTensors:
    """Routes of a server without models: each request goes uvicorn's way."""

    def match_url(self, url: bytes) -> None:
        return None


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def test_an_idle_connection_ends_counted_from_its_last_answer() -> None:
    async def go() -> tuple[int, float]:
        config = uvicorn.Config(answer, log_config=None, lifespan="off", timeout_keep_alive=KEEP_ALIVE)  # type: ignore[arg-type]
        config.load()
        protocol = TensorProtocol.for_routes(NoTensors())  # type: ignore[arg-type]
        server = await asyncio.get_running_loop().create_server(
            lambda: protocol(config, ServerState(), {}), "127.0.0.1", 0
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        answered, began = 0, time.monotonic()
        while time.monotonic() - began < 2 * KEEP_ALIVE:  # longer than an idle one may last
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ok")
            answered, last = answered + 1, time.monotonic()
            await asyncio.sleep(KEEP_ALIVE / 8)
        assert await reader.read() == b""
        idle = time.monotonic() - last
        writer.close()
        server.close()
        await server.wait_closed()
        return answered, idle

    answered, idle = asyncio.run(asyncio.wait_for(go(), 30))
    assert answered > 2 and idle >= KEEP_ALIVE * 0.95
