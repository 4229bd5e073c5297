"""One keep-alive HTTP connection: request bytes go in, status, headers and body bytes come out.

A few dozen lines over asyncio and httptools instead of a client library: the load generator shares its
cores with the server under test and must not be what is measured. One request at a time; a connection that
failed is closed and says so in a ConnectionError.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Self

import httptools


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Connection(asyncio.Protocol):
    """Use `await Connection.open(host, port)`; then `await connection.request(...)`, one at a time."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(f"{host}:{port}"), host, port)
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Response:
        if self._transport is None or not self.is_open:
            raise ConnectionError(f"the connection to {self.host} is closed")
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._response = Response()
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"{self.host} sent what is not HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(ConnectionError(f"{self.host} closed the connection: {exc or 'no reason given'}"))

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        self._response.body = b"".join(self._body)
        keeps_alive = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._response)
        if not keeps_alive:
            self.close()
