"""From the bytes of a request to the bytes of its answer: validate, batch, execute, respond. There is no HTTP
here; tests and other front ends call it directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlcb.server import codec
from dlcb.server.batcher import Batcher, Pending
from dlcb.server.errors import ServerError
from dlcb.server.model import Admission, ServedModel
from dlcb.server.registry import Registry
from dlcb.server.types import Buffer, InferRequest, Parts, RawRequest, State, Tensor
from dlcb.server.waiting import Deliver

LARGE_JSON = 256 << 10  # bytes of JSON from which on a worker decodes it, and the event loop does not

# A body, and the length of its JSON part when binary tensors follow. It may lie in shared memory, which is
# there for the callback that takes it and no longer.
Answer = tuple[Parts, int | None]


@dataclass
class Dataplane:
    """The registry says which model a request is for, the batcher runs it."""

    registry: Registry
    batcher: Batcher

    async def infer(
        self, name: str, version: str | None, body: Buffer, json_length: int | None = None
    ) -> Answer:
        """One request, start to end. ServerError or RequestError with the reason when there is no answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        model = self.registry.get(name, version)
        pending = self.submit(model, body, json_length, deliver_to(answer))
        try:
            return await answer
        finally:
            self.batcher.cancel(pending, "disconnect")  # whoever awaited the answer may have gone

    def submit(self, model: ServedModel, body: Buffer, json_length: int | None, deliver: Deliver) -> Pending:
        """Decode, check and queue a request; `deliver` gets its Answer or the error.
        `json_length` 0 says that the body is one raw tensor."""
        if model.state is not State.READY:  # it went, or came anew, while the body was on its way
            model = self.registry.get(model.name, model.version)
        if json_length == 0:
            request = codec.decode_raw(body, model.signature.inputs)
        elif (len(body) if json_length is None else json_length) > LARGE_JSON:
            return self._submit_raw(model, body, json_length, deliver)
        else:
            request = codec.decode(body, json_length)
        admission = model.admit(request)
        respond = responder(model, request)
        return self.batcher.submit(model, request, admission, respond, deliver, len(body))

    def _submit_raw(
        self, model: ServedModel, body: Buffer, json_length: int | None, deliver: Deliver
    ) -> Pending:
        """Leave decoding, checking and encoding to the worker; such a request runs alone."""
        request = RawRequest(body, json_length)
        return self.batcher.submit(model, request, Admission(1, None), _whole, deliver, len(body))


def deliver_to(future: asyncio.Future[Answer]) -> Deliver:
    """What lets a future be waited for in place of a callback: it gets a copy, which stays."""

    def deliver(answer: Answer, error: ServerError | None) -> None:
        if future.done():  # the task that awaits it was cancelled a moment ago
            return
        if error is not None:
            future.set_exception(error)
        else:
            parts, json_length = answer
            future.set_result(([b"".join(parts)], json_length))

    return deliver


def responder(model: ServedModel, request: InferRequest) -> Callable[[dict[str, Tensor]], Answer]:
    """How this request's outputs become its answer. BadRequest when it asks for outputs that are not
    there."""
    chosen = model.all_outputs.get(request.binary_output) if request.outputs is None else None
    if chosen is None:
        chosen = codec.choose_outputs(request, model.signature.outputs)

    def respond(outputs: dict[str, Tensor]) -> Answer:
        named = [(outputs[name], binary) for name, binary in chosen]
        return codec.encode(model.name, model.version, request.id, named)

    return respond


def _whole(answer: Any) -> Answer:
    view, json_length = answer
    return [view], json_length
