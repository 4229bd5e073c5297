"""The tensor routes as raw ASGI: headers and body in, the data plane's answer out. No framework touches a
tensor's bytes; whatever goes wrong becomes `{"error": ...}` with its status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from dlcb.compiler import RequestError
from dlcb.server import codec
from dlcb.server.access import Access
from dlcb.server.batcher import Receiving
from dlcb.server.dataplane import LARGE_JSON, Answer, Dataplane, deliver_to
from dlcb.server.errors import NotReady, QueueFull, ServerError, TooLarge, Unauthorized, status_and_message
from dlcb.server.metrics import Metrics
from dlcb.server.model import ServedModel
from dlcb.server.settings import Server
from dlcb.server.types import Buffer, InferRequest, Parts
from dlcb.server.waiting import Deliver, Pending

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[bytes, bytes]
Response = tuple[int, list[tuple[bytes, bytes]], Parts]  # status, headers without the length, body
Place = tuple[str, str | None]  # a model's name, and the version if one is named

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")
HINT = (b"dlcb-hint", b"as binary tensors this is several times faster: send Inference-Header-Content-Length")
LARGE_DIGITS = len(str(LARGE_JSON))
PATHS_KEPT = 1024
COMPRESS_FROM = 1024  # bytes of an answer
ERROR_KEPT = 2000  # characters

log = logging.getLogger("dlcb.access")


class ClientGone(Exception):
    """The connection closed before the body had come, or before the answer was there."""


class TensorRoutes:
    """`POST /v1/models/NAME/infer` and `/v2/models/NAME[/versions/VERSION]/infer`, on one handler.

    The parts of a request's way are methods of their own, because the common request takes it without a task
    (see `protocol`); called as an ASGI application it goes the same way.
    """

    def __init__(self, dataplane: Dataplane, metrics: Metrics, settings: Server) -> None:
        self.dataplane = dataplane
        self._metrics = metrics
        self._limit = settings.limits.body_bytes
        self._access = Access(settings.keys) or None  # without keys there is nothing to ask
        self._log_every = settings.access_log_every
        if self._log_every:
            log.setLevel(logging.INFO)  # who asks for it gets it, whatever else is logged
        self._count = 0
        self._known: dict[bytes, Place | None] = {}

    def match(self, path: str) -> Place | None:
        """Model name and version of an inference path; None for any other path."""
        return _parse(path)

    def match_url(self, url: bytes) -> Place | None:
        """As `match`, of a URL as it was sent; None also for one with escapes or a query."""
        try:
            return self._known[url]
        except KeyError:
            if len(self._known) >= PATHS_KEPT:
                self._known.clear()
            plain = url.isascii() and b"%" not in url and b"?" not in url
            found = self._known[url] = _parse(url.decode()) if plain else None
            return found

    def admit(self, headers: Headers, name: str, version: str | None) -> tuple[ServedModel, int]:
        """The model that a request with these headers is for, and the most bytes its body may have. An error
        when it is refused before its body is read."""
        if self._access is not None:
            self._access.check(headers, name)
        declared = headers.get(b"content-length")
        size = int(declared) if declared is not None and declared.isdigit() else 0
        model = self.dataplane.registry.get(name, version)
        limit = min(self._limit, model.limits.body_bytes)
        if size > limit:
            raise TooLarge(f"the body of {size} bytes is over the limit of {limit}")
        if model.rate is not None:
            model.rate.check(f"model '{name}'")
        self.dataplane.batcher.room(model, size)
        return model, limit

    def submit(self, model: ServedModel, headers: Headers, body: Buffer, deliver: Deliver) -> Pending:
        """Queue a request whose body is there, and unpacked; `deliver` gets the Answer or the error."""
        stated = headers.get(b"inference-header-content-length")
        json_length = None if stated is None else codec.header_length(stated, len(body))
        return self.dataplane.submit(model, body, json_length, deliver)

    def success(self, name: str, headers: Headers, answer: Answer, pending: Pending | None) -> Response:
        """The response to a request that was answered."""
        body, json_length = answer
        extra = (
            [JSON]
            if json_length is None
            else [BINARY, (b"inference-header-content-length", b"%d" % json_length)]
        )
        accepted = headers.get(b"accept-encoding")
        if accepted in (b"gzip", b"deflate") and sum(map(len, body)) >= COMPRESS_FROM:
            # Only for a client that asks for exactly one: libraries offer a list by habit, and numbers pack
            # badly.
            body = [codec.compress(b"".join(body), accepted.decode())]
            extra.append((b"content-encoding", accepted))
        if json_length is None and _is_large_json(headers, len(body[0])):
            extra.append(HINT)
        if self._log_every:
            self._log(name, 200, pending)
        return 200, extra, body

    def failure(self, name: str, error: Exception, pending: Pending | None = None) -> Response:
        """The response to a request that was not answered; it is counted."""
        if not isinstance(error, ServerError | RequestError):  # a fault of ours
            log.error("a request failed", exc_info=error, extra={"fields": {"model": name}})
        status, headers, body = failure(error)
        label = name if self.dataplane.registry.repository.has(name) else "unknown"
        self._metrics.requests.cell(label, str(status)).add()
        if self._log_every:
            self._log(name, status, pending)
        return status, headers, body

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, name: str, version: str | None
    ) -> None:
        try:
            status, headers, body = await self._infer(scope, receive, name, version)
        except ClientGone:
            return
        except Exception as error:
            status, headers, body = self.failure(name, error)
        whole = b"".join(body)
        headers = [*headers, (b"content-length", b"%d" % len(whole))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": whole})

    async def _infer(self, scope: Scope, receive: Receive, name: str, version: str | None) -> Response:
        if scope["method"] != "POST":
            return 405, [JSON, (b"allow", b"POST")], [b'{"error":"inference takes POST"}']
        headers: Headers = dict(scope["headers"])
        model, limit = self.admit(headers, name, version)
        receiving = Receiving(self.dataplane.batcher, model)
        try:
            body = await read_body(receive, limit, grow=receiving.grow)
        finally:
            receiving.end()
        encoding = headers.get(b"content-encoding")
        if encoding is not None and encoding != b"identity":
            body = await self._unpack(body, encoding.decode("latin-1").strip().lower(), limit)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = self.submit(model, headers, body, deliver_to(answer))
        gone = asyncio.ensure_future(receive())  # the body has been read: what comes next is the client's end
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientGone
            return self.success(name, headers, answer.result(), pending)
        finally:
            gone.cancel()
            self.dataplane.batcher.cancel(pending, "disconnect")

    async def _unpack(self, body: bytes, encoding: str, limit: int) -> bytes:
        if len(body) < COMPRESS_FROM:
            return codec.decompress(body, encoding, limit)
        return await asyncio.to_thread(codec.decompress, body, encoding, limit)

    def _log(self, name: str, status: int, pending: Pending | None) -> None:
        """Every n-th request as a line; one that was queued with its id, seconds since then, and shapes."""
        self._count += 1
        if self._count % self._log_every:
            return
        fields: dict[str, Any] = {"model": name, "status": status, "number": self._count}
        if pending is not None:
            fields["id"] = pending.request.id
            fields["seconds"] = round(time.perf_counter() - pending.arrived, 6)
            if isinstance(pending.request, InferRequest):  # another is decoded by a worker
                fields["shapes"] = {key: tensor.shape for key, tensor in pending.request.inputs.items()}
        log.info("request", extra={"fields": fields})


async def read_body(receive: Receive, limit: int, grow: Callable[[int], None] | None = None) -> bytes:
    """The whole body; `grow` is told how much of it has come. TooLarge as soon as `limit` bytes are
    passed."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        chunks, size = [body], len(body)
        while message.get("more_body"):
            if size > limit:
                raise TooLarge(f"the body is over the limit of {limit} bytes")
            if grow is not None:
                grow(size)
            message = await receive()
            chunk = message.get("body", b"")
            chunks.append(chunk)
            size += len(chunk)
        body = b"".join(chunks)
    if message["type"] == "http.disconnect":
        raise ClientGone
    if len(body) > limit:
        raise TooLarge(f"the body of {len(body)} bytes is over the limit of {limit}")
    return body


def failure(error: BaseException) -> Response:
    """The response an error becomes."""
    status, message = status_and_message(error)
    headers = [JSON]
    if isinstance(error, QueueFull | NotReady) and error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return status, headers, [orjson.dumps({"error": message[:ERROR_KEPT]})]


def _is_large_json(headers: Headers, answer: int) -> bool:
    """Whether the request, which asked for JSON, or its answer of so many bytes holds so many numbers that
    JSON is what takes the time."""
    if answer > LARGE_JSON:
        return True
    size = headers.get(b"content-length", b"")
    if len(size) < LARGE_DIGITS or b"inference-header-content-length" in headers:
        return False
    return size.isdigit() and int(size) > LARGE_JSON


def _parse(path: str) -> Place | None:
    match path.split("/"):
        case ["", "v1" | "v2", "models", name, "infer"] if name:
            return name, None
        case ["", "v1" | "v2", "models", name, "versions", version, "infer"] if name and version:
            return name, version
    return None
