"""The short way of an inference request through HTTP: uvicorn's connection, which for these requests neither
starts a task nor builds a scope. Bytes in, one write out; every other request, and whatever is unusual about
one of ours, goes uvicorn's own way to the ASGI application.
"""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dlcb.server.batcher import Receiving
from dlcb.server.errors import QueueFull, ReceiveTimeout, ServerError, TooLarge
from dlcb.server.large_body import LargeBody
from dlcb.server.tensors import JSON
from dlcb.server.types import Buffer, Parts

if TYPE_CHECKING:
    from dlcb.server.dataplane import Answer
    from dlcb.server.model import ServedModel
    from dlcb.server.tensors import Headers, Place, Response, TensorRoutes
    from dlcb.server.waiting import Pending

COPIED = 1 << 16  # bytes of a body up to which it is small, and copied where that is simpler
LONGEST_HEAD = 4096  # bytes of a head that a connection remembers
LARGEST_HEAD = 64 << 10  # bytes of a head that is still coming, beside what came first
RECEIVE_SECONDS = 30.0  # until a head must be whole, and between two pieces of a body
HALF_CLOSED_SECONDS = 0.05  # until a client that has ended its side is first asked whether it is there

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_SPECIAL = {b"expect", b"transfer-encoding", b"upgrade"}  # headers that ask for more than an answer
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Exchange:
    """One inference request on a connection, from its headers to its answer. It stands
    where uvicorn keeps the request it is serving, so `response_complete`, `disconnected`
    and `keep_alive` mean what they mean there."""

    __slots__ = (
        "_connection", "_limit", "_model", "_parts", "_pending", "_receiving", "_size",
        "disconnected", "headers", "keep_alive", "place", "response_complete",
    )  # fmt: skip

    def __init__(self, connection: TensorProtocol, place: Place, headers: Headers, keep_alive: bool) -> None:
        self._connection = connection
        self.place = place
        self.headers = headers
        self.keep_alive = keep_alive
        self.response_complete = False
        self.disconnected = False
        self._parts: Parts = []
        self._size = 0
        self._limit = 0
        self._model: ServedModel | None = None
        self._pending: Pending | None = None
        self._receiving: Receiving | None = None

    def open(self) -> None:
        """The headers are there: refuse the request now, or wait for its body."""
        try:
            self._model, self._limit = self._connection.routes.admit(self.headers, *self.place)
        except Exception as error:  # whatever it is, the client is told
            self._fail(error)
            return
        if b"expect" in self.headers:
            self._connection.transport.write(_CONTINUE)

    def take(self, part: Buffer) -> None:
        """A part of the body."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._limit:
            self._fail(TooLarge(f"the body is over the limit of {self._limit} bytes"))
        else:
            self.grown(self._size)

    def grown(self, size: int) -> None:
        """What there is of a large body counts as in flight; of a small one only the whole does."""
        if size <= COPIED or self.response_complete:
            return
        if self._receiving is None:
            assert self._model is not None
            self._receiving = Receiving(self._connection.routes.dataplane.batcher, self._model)
        try:
            self._receiving.grow(size)
        except QueueFull as error:
            self._fail(error)

    def begun(self) -> Parts:
        """The parts of the body that have been taken, for somebody else to go on with."""
        parts, self._parts = self._parts, []
        return parts

    def _received(self) -> None:
        if self._receiving is not None:
            self._receiving.end()
            self._receiving = None

    def run(self, body: Buffer | None = None) -> None:
        """The body is whole; without one it is what was taken."""
        if self.response_complete:  # refused before
            return
        self._received()
        if body is None:
            parts = self.begun()
            body = parts[0] if len(parts) == 1 else b"".join(parts)
        model = self._model
        assert model is not None
        try:
            self._pending = self._connection.routes.submit(model, self.headers, body, self.deliver)
        except Exception as error:
            self._fail(error)

    def deliver(self, answer: Answer, error: ServerError | None) -> None:
        """What the batcher has for this request."""
        pending, self._pending = self._pending, None
        if error is not None:
            self._fail(error, pending)
        else:
            self._send(self._connection.routes.success(self.place[0], self.headers, answer, pending))

    def abandon(self) -> None:
        """The connection is gone."""
        self.disconnected = True
        self._received()
        if self._pending is not None:
            self._connection.routes.dataplane.batcher.cancel(self._pending, "disconnect")
            self._pending = None

    def end(self, error: ServerError) -> None:
        """Refuse a request that will never be whole, and with it the connection."""
        self.keep_alive = False
        self._fail(error)

    def _fail(self, error: Exception, pending: Pending | None = None) -> None:
        self._received()
        self._send(self._connection.routes.failure(self.place[0], error, pending))

    def _send(self, response: Response) -> None:
        transport = self._connection.transport
        if transport.is_closing():  # broken off meanwhile; `connection_lost` is on its way
            return
        status, headers, body = response
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if status == 200 and len(headers) == 1 and headers[0] is JSON and self.keep_alive:
            head = _OK_JSON % size
        else:
            lines = [_STATUS[status], *(b"%b: %b\r\n" % pair for pair in headers)]
            lines.append(b"content-length: %d\r\n" % size)
            lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
            head = b"".join(lines)
        if size <= COPIED:
            transport.write(b"".join((head, *body)))
        else:
            self._connection.write_large([head, *body])
        self.response_complete = True
        self._parts = []
        if not self.keep_alive:
            transport.close()
        self._connection.on_response_complete()


class Head(NamedTuple):
    """The head of a request as it was sent, down to the empty line, and what it was found to mean."""

    text: bytes
    whole: int  # bytes of the request with its body
    place: Place
    headers: Headers


class TensorProtocol(HttpToolsProtocol):
    """A connection. `routes` is set by `for_routes`, since uvicorn makes the instances.

    A client mostly sends one head again and again. When a request comes in one piece, with the head of the
    last one byte for byte, its meaning is known and the parser is not asked: it stands between two messages
    before and after. That is a fifth of the front's own work for a small request. Of a large body the parser
    sees what comes with the head, and `LargeBody` the rest.
    """

    routes: TensorRoutes
    receive_seconds = RECEIVE_SECONDS
    _answered = 0.0  # the loop's time
    _heard = 0.0  # when the connection was made, a head began, or a piece of a body came
    _in_head = False
    _head_bytes = 0  # of the head that is coming
    _begun = 0  # messages that the parser has seen the beginning of, and the end
    _ended = 0
    _head: Head | None = None
    _half_closed = False

    @classmethod
    def for_routes(cls, routes: TensorRoutes) -> type[TensorProtocol]:
        """The class that uvicorn is given, for these routes."""
        return type(cls.__name__, (cls,), {"routes": routes})

    def data_received(self, data: bytes) -> None:
        head = self._head
        if head is not None and self._repeats(head, data):
            exchange = self._exchange(head.place, head.headers, True)
            if not exchange.response_complete:
                exchange.run(data[len(head.text) :])
            return
        begun, between, in_head = self._begun, self._ended == self._begun, self._in_head
        super().data_received(data)
        if in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD:
                self._refuse(431, "the headers are too large")
        if between and self._begun == begun + 1 and type(self.cycle) is Exchange:
            self._after_head(self.cycle, data)

    def _repeats(self, head: Head, data: bytes) -> bool:
        """Whether this is one whole request with that head, and none is on its way."""
        if len(data) != head.whole or not data.startswith(head.text):
            return False
        return self._ended == self._begun and self.cycle.response_complete and not self.flow.write_paused

    def _after_head(self, exchange: Exchange, data: bytes) -> None:
        """One request has come, or begun, and nothing else: keep the head of a whole one, if the next may be
        taken as this was; take the rest of a large one without the parser."""
        headers = exchange.headers
        declared = headers.get(b"content-length", b"")
        if not declared.isdigit() or b"transfer-encoding" in headers:
            return
        size, length = int(declared), data.find(b"\r\n\r\n") + 4
        if self._ended == self._begun:
            whole = length + size == len(data)
            if whole and exchange.keep_alive and length <= LONGEST_HEAD and not _SPECIAL & headers.keys():
                self._head = Head(data[:length], len(data), exchange.place, headers)
        elif size > COPIED and self.scheme == "http" and not exchange.response_complete:
            self._receive_large(exchange, size)

    def _receive_large(self, exchange: Exchange, size: int) -> None:
        """Let the rest of a body come from the socket to where it stays; `size` is within the limit."""

        def grown(filled: int) -> None:
            self._heard = self.loop.time()
            exchange.grown(filled)

        def ended(body: memoryview) -> None:
            self._ended += 1
            self.parser = httptools.HttpRequestParser(self)  # the old one waits for the body still
            self.transport.set_protocol(self)
            exchange.run(body)

        self.transport.set_protocol(LargeBody(self, size, exchange.begun(), grown, ended))

    def write_large(self, parts: Parts) -> None:
        """Hand an answer to the kernel from where it lies; only what it does not take at once is copied."""
        transport, rest = self.transport, parts
        if self.scheme == "http" and not transport.get_write_buffer_size():
            try:
                sent = os.writev(transport.get_extra_info("socket").fileno(), parts)
            except OSError:  # full, or broken: the transport will find that out
                sent = 0
            rest = []
            for part in parts:
                rest.append(memoryview(part)[sent:])
                sent = max(0, sent - len(part))
        transport.write(b"".join(rest))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_message_begin(self) -> None:
        self._begun += 1
        self._heard, self._in_head, self._head_bytes = self.loop.time(), True, 0
        self.url = b""
        self.headers = []

    def on_headers_complete(self) -> None:
        self._in_head = False
        headers = dict(self.headers)
        place = self._place(headers)
        if place is None:
            self._make_scope()
            super().on_headers_complete()
            return
        self._exchange(place, headers, self.parser.should_keep_alive())

    def _exchange(self, place: Place, headers: Headers, keep_alive: bool) -> Exchange:
        exchange = Exchange(self, place, headers, keep_alive)
        self.cycle: Any = exchange
        exchange.open()
        return exchange

    def on_body(self, body: bytes) -> None:
        self._heard = self.loop.time()
        cycle = self.cycle
        if type(cycle) is not Exchange:
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.take(body)

    def on_message_complete(self) -> None:
        self._ended += 1
        cycle = self.cycle
        if type(cycle) is not Exchange:
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.run()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP get the protocol's form of an error as well,
        and the end of the connection."""
        self._refuse(400, "the request is not HTTP")

    def _refuse(self, status: int, message: str) -> None:
        """The end of a connection whose request cannot be understood."""
        body = b'{"error":"%b"}' % message.encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(
            body
        )
        self.transport.write(_STATUS[status] + head + body)
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _while_connected(self.app)
        self._heard = self.loop.time()
        self._set_timer(min(self.receive_seconds, self.timeout_keep_alive))

    def on_response_complete(self) -> None:
        """As uvicorn's; but the timer that ends an idle connection is set once, and looks for itself how
        long that has been: one for each request costs as much as parsing its headers."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self._half_closed:
            self.transport.close()  # once what was written has been sent
            return
        self.flow.resume_reading()
        self._answered = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._set_timer(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        cycle, receiving = self.cycle, self._ended < self._begun
        answering = cycle is not None and not cycle.response_complete
        if self.transport.is_closing() or (answering and (not receiving or self._in_head or self.pipeline)):
            return  # the answer's end sets the timer again
        if receiving or cycle is None:
            left = self._heard + self.receive_seconds - self.loop.time()
        else:
            left = self._answered + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._set_timer(min(left, self.timeout_keep_alive))
        elif receiving:
            self._stalled()
        else:
            super().timeout_keep_alive_handler()

    def _stalled(self) -> None:
        """Nothing more comes of a request: it is refused, if it has not been, and the connection ends."""
        message = f"the request did not come whole: nothing more of it came for {self.receive_seconds:g} s"
        if self._in_head:
            self._refuse(408, message)
        elif type(self.cycle) is Exchange and not self.cycle.response_complete:
            self.cycle.end(ReceiveTimeout(message))
        else:
            self.transport.close()

    def _set_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """Called whenever something arrives: the timer stays."""

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, and still gets the answers to what has come whole. Whether it is there to
        read them only sending tells."""
        cycle, whole = self.cycle, self._ended == self._begun
        if not whole or cycle is None or cycle.response_complete or self.scheme != "http":
            return False  # over TLS the loop closes in any case
        self._half_closed = True
        self.loop.call_later(HALF_CLOSED_SECONDS, self._ask_client, 2 * HALF_CLOSED_SECONDS)
        return True

    def _ask_client(self, seconds: float) -> None:
        """Send what every client passes over. One that is gone answers with a reset, so that the next time
        this ends in `connection_lost`; then a request that waits is dropped."""
        cycle = self.cycle
        if cycle is None or self.transport.is_closing():
            return
        if not self.pipeline and (type(cycle) is Exchange or _may_be_asked(cycle)):
            self.transport.write(_CONTINUE)  # no answer has begun
        self.loop.call_later(seconds, self._ask_client, 2 * seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        if type(self.cycle) is Exchange:
            self.cycle.abandon()
            self.cycle = None
        super().connection_lost(exc)

    def _place(self, headers: Headers) -> Place | None:
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


def _while_connected(app: Any) -> Any:
    """What uvicorn serves, which says nothing to a client that is gone: between the end of a connection and
    uvicorn's hearing of it a write is an error, and each would be in the log."""

    async def connected(scope: Any, receive: Any, send: Any) -> None:
        cycle: RequestResponseCycle = send.__self__

        async def say(message: Any) -> None:
            if cycle.transport.is_closing():
                cycle.disconnected = True
            await send(message)

        await app(scope, receive, say)

    return connected


def _may_be_asked(cycle: RequestResponseCycle) -> bool:
    """Whether an interim response may be sent within one of uvicorn's exchanges."""
    return cycle.scope["http_version"] == "1.1" and not cycle.response_started
