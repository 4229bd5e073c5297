"""The tensor routes as raw ASGI: headers and body in, the data plane's answer out. No framework touches a
tensor's bytes; whatever goes wrong becomes `{"error": ...}` with its status.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson

from dlcb.compiler import RequestError
from dlcb.server import codec
from dlcb.server.dataplane import Dataplane
from dlcb.server.errors import QueueFull, ServerError, TooLarge, Unauthorized, status_and_message
from dlcb.server.metrics import Metrics
from dlcb.server.settings import Server

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[bytes, bytes]

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")
PATHS_KEPT = 1024
COMPRESS_FROM = 1024  # bytes of an answer
ERROR_KEPT = 2000  # characters

log = logging.getLogger("dlcb.access")


class ClientGone(Exception):
    """The connection closed before the body had come."""


class TensorRoutes:
    """`POST /v1/models/NAME/infer` and `/v2/models/NAME[/versions/VERSION]/infer`, on one handler."""

    def __init__(self, dataplane: Dataplane, metrics: Metrics, settings: Server) -> None:
        self._dataplane = dataplane
        self._metrics = metrics
        self._limit = settings.limits.body_bytes
        self._keys = [key.encode() for key in settings.keys.infer]
        self._log_every = settings.access_log_every
        self._count = 0
        self._known: dict[str, tuple[str, str | None] | None] = {}

    def match(self, path: str) -> tuple[str, str | None] | None:
        """Model name and version of an inference path; None for any other path."""
        try:
            return self._known[path]
        except KeyError:
            if len(self._known) >= PATHS_KEPT:
                self._known.clear()
            found = self._known[path] = _parse(path)
            return found

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, name: str, version: str | None
    ) -> None:
        try:
            start, body = await self._infer(scope, receive, name, version)
        except ClientGone:
            return
        except asyncio.CancelledError:
            raise
        except (ServerError, RequestError) as error:
            start, body = failure(error)
            self._count_failure(name, start["status"])
        except Exception as error:  # a fault of ours: the client gets a 500 in the protocol's form
            log.exception("a request failed", extra={"fields": {"model": name}})
            start, body = failure(error)
            self._count_failure(name, start["status"])
        if self._log_every:
            self._log(name, start["status"])
        await send(start)
        await send({"type": "http.response.body", "body": body})

    async def _infer(
        self, scope: Scope, receive: Receive, name: str, version: str | None
    ) -> tuple[dict[str, Any], bytes]:
        if scope["method"] != "POST":
            return response(405, b'{"error":"inference takes POST"}', [JSON, (b"allow", b"POST")])
        headers: Headers = dict(scope["headers"])
        if self._keys:
            check_key(headers, self._keys)
        declared = headers.get(b"content-length")
        size = int(declared) if declared is not None and declared.isdigit() else 0
        model = self._dataplane.model(name, version, size)
        limit = min(self._limit, model.limits.body_bytes)
        if size > limit:
            raise TooLarge(f"the body of {size} bytes is over the limit of {limit}")
        message = await receive()
        body: bytes = message.get("body", b"")
        if size != len(body) or message.get("more_body"):  # it comes in pieces
            body = await read_body(receive, limit, message)
        encoding = headers.get(b"content-encoding")
        if encoding is not None and encoding != b"identity":
            body = await self._unpack(body, encoding.decode("latin-1").strip().lower(), limit)
        stated = headers.get(b"inference-header-content-length")
        json_length = None if stated is None else codec.header_length(stated, len(body))
        pending = self._dataplane.submit(model, body, json_length)
        pending.receive = receive
        try:
            answer, answer_length = await pending.future
        except asyncio.CancelledError:
            if pending.dropped:
                raise ClientGone from None
            self._dataplane.batcher.cancel(pending, "cancel")  # the task itself was cancelled
            raise
        finally:
            if pending.watcher is not None:
                pending.watcher.cancel()
        extra = [JSON]
        if answer_length is not None:
            extra = [BINARY, (b"inference-header-content-length", b"%d" % answer_length)]
        accepted = headers.get(b"accept-encoding")
        if accepted in (b"gzip", b"deflate") and len(answer) >= COMPRESS_FROM:
            # Only for a client that asks for exactly one: libraries offer a list by habit, and numbers pack
            # badly.
            answer = codec.compress(answer, accepted.decode())
            extra.append((b"content-encoding", accepted))
        return response(200, answer, extra)

    async def _unpack(self, body: bytes, encoding: str, limit: int) -> bytes:
        if len(body) < COMPRESS_FROM:
            return codec.decompress(body, encoding, limit)
        return await asyncio.to_thread(codec.decompress, body, encoding, limit)

    def _count_failure(self, name: str, status: int) -> None:
        label = name if self._dataplane.registry.repository.has(name) else "unknown"
        self._metrics.requests.cell(label, str(status)).add()

    def _log(self, name: str, status: int) -> None:
        self._count += 1
        if self._count % self._log_every == 0:
            log.info("request", extra={"fields": {"model": name, "status": status, "number": self._count}})


async def read_body(receive: Receive, limit: int, message: Message | None = None) -> bytes:
    """The whole body; `message` is its first piece if that was read. TooLarge as soon as `limit` bytes are
    passed."""
    message = message or await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        chunks, size = [body], len(body)
        while message.get("more_body"):
            if size > limit:
                raise TooLarge(f"the body is over the limit of {limit} bytes")
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


def check_key(headers: Headers, keys: Iterable[bytes]) -> None:
    """Unauthorized unless the request carries one of the keys. Every key is compared, each in constant
    time."""
    given = headers.get(b"x-api-key", b"")
    if not given:
        scheme, _space, rest = headers.get(b"authorization", b"").partition(b" ")
        given = rest.strip() if scheme.lower() == b"bearer" else b""
    matches = [hmac.compare_digest(given, key) for key in keys]
    if not any(matches):
        raise Unauthorized("a valid key is needed, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'")


def failure(error: BaseException) -> tuple[dict[str, Any], bytes]:
    """The response an error becomes."""
    status, message = status_and_message(error)
    headers = [JSON]
    if isinstance(error, QueueFull):
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return response(status, orjson.dumps({"error": message[:ERROR_KEPT]}), headers)


def response(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[dict[str, Any], bytes]:
    """The first ASGI message of a response, and its body."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    return {"type": "http.response.start", "status": status, "headers": headers}, body


def _parse(path: str) -> tuple[str, str | None] | None:
    match path.split("/"):
        case ["", "v1" | "v2", "models", name, "infer"] if name:
            return name, None
        case ["", "v1" | "v2", "models", name, "versions", version, "infer"] if name and version:
            return name, version
    return None
