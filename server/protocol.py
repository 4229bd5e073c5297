"""The short way of an inference request through HTTP: uvicorn's connection, which for these requests neither
starts a task nor builds a scope. Bytes in, one write out; every other request, and whatever is unusual about
one of ours, goes uvicorn's own way to the ASGI application.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dlcb.server.batcher import Receiving
from dlcb.server.errors import QueueFull, ServerError, TooLarge
from dlcb.server.tensors import JSON

if TYPE_CHECKING:
    from dlcb.server.dataplane import Answer
    from dlcb.server.model import ServedModel
    from dlcb.server.tensors import Headers, Response, TensorRoutes
    from dlcb.server.waiting import Pending

COPIED = 1 << 16  # bytes of a body up to which it is small: head and body of an answer go in one write

_OK_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Exchange:
    """One inference request on a connection, from its headers to its answer. It stands
    where uvicorn keeps the request it is serving, so `response_complete`, `disconnected`
    and `keep_alive` mean what they mean there."""

    __slots__ = (
        "_connection", "_headers", "_limit", "_model", "_name", "_parts", "_pending", "_receiving", "_size",
        "disconnected", "keep_alive", "response_complete",
    )  # fmt: skip

    def __init__(self, connection: TensorProtocol, name: str, headers: Headers, keep_alive: bool) -> None:
        self._connection = connection
        self._name = name
        self._headers = headers
        self.keep_alive = keep_alive
        self.response_complete = False
        self.disconnected = False
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = 0
        self._model: ServedModel | None = None
        self._pending: Pending | None = None
        self._receiving: Receiving | None = None

    def open(self, version: str | None) -> None:
        """The headers are there: refuse the request now, or wait for its body."""
        try:
            self._model, self._limit = self._connection.routes.admit(self._headers, self._name, version)
        except Exception as error:  # whatever it is, the client is told
            self._fail(error)
            return
        if b"expect" in self._headers:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def take(self, part: bytes) -> None:
        """A part of the body."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._limit:
            self._fail(TooLarge(f"the body is over the limit of {self._limit} bytes"))
        elif self._size > COPIED:
            self._count()

    def _count(self) -> None:
        """What there is of a large body counts as in flight; of a small one only the whole does."""
        if self._receiving is None:
            assert self._model is not None
            self._receiving = Receiving(self._connection.routes.dataplane.batcher, self._model)
        try:
            self._receiving.grow(self._size)
        except QueueFull as error:
            self._fail(error)

    def _received(self) -> None:
        if self._receiving is not None:
            self._receiving.end()
            self._receiving = None

    def run(self) -> None:
        """The body is whole."""
        self._received()
        parts, model = self._parts, self._model
        assert model is not None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        try:
            self._pending = self._connection.routes.submit(model, self._headers, body, self.deliver)
        except Exception as error:
            self._fail(error)

    def deliver(self, answer: Answer, error: ServerError | None) -> None:
        """What the batcher has for this request."""
        self._pending = None
        if error is not None:
            self._fail(error)
        else:
            self._send(self._connection.routes.success(self._name, self._headers, answer))

    def abandon(self) -> None:
        """The connection is gone."""
        self.disconnected = True
        self._received()
        if self._pending is not None:
            self._connection.routes.dataplane.batcher.cancel(self._pending, "disconnect")
            self._pending = None

    def _fail(self, error: Exception) -> None:
        self._received()
        self._send(self._connection.routes.failure(self._name, error))

    def _send(self, response: Response) -> None:
        transport = self._connection.transport
        if transport.is_closing():  # broken off meanwhile; `connection_lost` is on its way
            return
        status, headers, body = response
        if status == 200 and len(headers) == 1 and headers[0] is JSON and self.keep_alive:
            head = _OK_JSON % len(body)
        else:
            lines = [_STATUS[status], *(b"%b: %b\r\n" % pair for pair in headers)]
            lines.append(b"content-length: %d\r\n" % len(body))
            lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
            head = b"".join(lines)
        if len(body) <= COPIED:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        self.response_complete = True
        self._parts = []
        if not self.keep_alive:
            transport.close()
        self._connection.on_response_complete()


class TensorProtocol(HttpToolsProtocol):
    """A connection. `routes` is set by `for_routes`, since uvicorn makes the instances."""

    routes: TensorRoutes
    _answered = 0.0  # the loop's time

    @classmethod
    def for_routes(cls, routes: TensorRoutes) -> type[TensorProtocol]:
        """The class that uvicorn is given, for these routes."""
        return type(cls.__name__, (cls,), {"routes": routes})

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []

    def on_headers_complete(self) -> None:
        headers = dict(self.headers)
        place = self._place(headers)
        if place is None:
            self._make_scope()
            super().on_headers_complete()
            return
        exchange = Exchange(self, place[0], headers, self.parser.should_keep_alive())
        self.cycle: Any = exchange
        exchange.open(place[1])

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if type(cycle) is not Exchange:
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.take(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if type(cycle) is not Exchange:
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.run()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP get the protocol's form of an error as well,
        and the end of the connection."""
        body = b'{"error":"the request is not HTTP"}'
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        self.transport.write(head % len(body) + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def on_response_complete(self) -> None:
        """As uvicorn's; but the timer that ends an idle connection is set once, and looks for itself how
        long that has been: one for each request costs as much as parsing its headers."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._answered = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._set_timer(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if not self.cycle.response_complete:  # its end sets the timer again
            return
        left = self._answered + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._set_timer(left)
        else:
            super().timeout_keep_alive_handler()

    def _set_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """Called whenever something arrives: the timer stays."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        if type(self.cycle) is Exchange:
            self.cycle.abandon()
            self.cycle = None
        super().connection_lost(exc)

    def _place(self, headers: Headers) -> tuple[str, str | None] | None:
        """Model and version of a request that can go the short way; None for any other."""
        place = self.routes.match_url(self.url)
        if place is None:
            return None
        parser, cycle = self.parser, self.cycle
        if parser.get_method() != b"POST":
            return None
        if parser.get_http_version() != "1.1" or parser.should_upgrade() or self.flow.write_paused:
            return None
        if cycle is not None and not cycle.response_complete:  # pipelined: uvicorn queues these
            return None
        return None if b"content-encoding" in headers else place

    def _make_scope(self) -> None:
        """What `on_message_begin` left out, for a request that goes uvicorn's way."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers = self.scope["headers"] = headers
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
