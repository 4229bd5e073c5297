"""Sends prepared requests to a server for some seconds and checks every answer's values.

Closed loop: each connection sends its next request when the last is answered. Open loop: requests arrive at
random times at a given mean rate, whether or not earlier ones are answered, and latency counts from the
arrival, so that a server that stalls is not spared. Both are bounded in time and connections and end alone.
"""

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import orjson

from dlcb.loadtest.connection import Connection, Response
from dlcb.loadtest.wire import Encoding, WireError, decode, encode

HALF_TOLERANCE = 2e-2  # of an output's largest magnitude, in fp16


@dataclass(frozen=True)
class Request:
    """One request ready to send, and the outputs it must get (None: not known yet)."""

    path: str
    headers: dict[str, str]
    body: bytes
    shapes: str
    expected: Mapping[str, np.ndarray] | None
    kind: str = ""  # its shape's, in words

    @classmethod
    def of(
        cls,
        model: str,
        inputs: Mapping[str, np.ndarray],
        encoding: Encoding,
        expected: Mapping[str, np.ndarray] | None,
        timeout: float | None = None,
        kind: str = "",
    ) -> "Request":
        headers, body = encode(inputs, encoding, timeout)
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        return cls(f"/v2/models/{model}/infer", headers, body, shapes, expected, kind)


@dataclass
class Tally:
    """What came back: seconds of each good answer (all, and by the kind of shape) and of each refusal,
    statuses, and what was wrong with the others."""

    seconds: list[float] = field(default_factory=list)
    by_kind: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    broken: int = 0
    elapsed: float = 0.0
    complaints: list[str] = field(default_factory=list)

    @property
    def failures(self) -> int:
        return self.wrong + self.broken + sum(n for status, n in self.statuses.items() if status != 200)

    def complain(self, text: str) -> None:
        if len(self.complaints) < 10:
            self.complaints.append(text)


def disagreement(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float) -> str:
    """Empty if the outputs agree, else one line that names the output and both values.

    Floats agree when they differ by at most `tolerance` times the largest expected magnitude (at least 1).
    """
    if got.keys() != expected.keys():
        return f"outputs {sorted(got)}, expected {sorted(expected)}"
    for name, right in expected.items():
        mine = got[name]
        if mine.shape != right.shape or mine.dtype != right.dtype:
            return f"{name} is {mine.dtype}{list(mine.shape)}, expected {right.dtype}{list(right.shape)}"
        tolerance = max(tolerance, HALF_TOLERANCE) if right.dtype == np.float16 else tolerance
        limit = (
            tolerance * max(1.0, float(np.nanmax(np.abs(right), initial=0.0)))
            if right.dtype.kind == "f"
            else 0
        )
        close = np.isclose(mine, right, rtol=0, atol=limit, equal_nan=True)
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~close)[0])
            return f"{name}{list(at)} is {mine[at]}, expected {right[at]} within {limit:.1e}"
    return ""


async def alone(host: str, port: int, requests: list[Request]) -> list[dict[str, np.ndarray]]:
    """The answers to requests sent one at a time; raises if one is not answered with 200."""
    connection = await Connection.open(host, port)
    answers = []
    for request in requests:
        response = await connection.request("POST", request.path, request.headers, request.body)
        if response.status != 200:
            raise WireError(f"{request.shapes}: {response.status} {_reason(response)}")
        answers.append(decode(response.headers, response.body))
    connection.close()
    return answers


async def closed_loop(
    host: str, port: int, requests: list[Request], *, connections: int, seconds: float, tolerance: float
) -> Tally:
    tally, order = Tally(), itertools.cycle(requests)
    began = time.perf_counter()
    deadline = began + seconds

    async def client() -> None:
        connection = await Connection.open(host, port)
        while time.perf_counter() < deadline:
            if not connection.is_open:
                connection = await Connection.open(host, port)
            await ask(connection, next(order), time.perf_counter(), tally, tolerance)
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(client())
    tally.elapsed = time.perf_counter() - began
    return tally


async def open_loop(
    host: str,
    port: int,
    requests: list[Request],
    *,
    rate: float,
    connections: int,
    seconds: float,
    tolerance: float,
) -> Tally:
    tally, idle = Tally(), asyncio.LifoQueue[Connection | None]()
    for _ in range(connections):
        idle.put_nowait(None)  # a connection not yet opened
    began = time.perf_counter()

    async def client(request: Request, arrived: float) -> None:
        connection = await idle.get()
        if connection is None or not connection.is_open:
            connection = await Connection.open(host, port)
        await ask(connection, request, arrived, tally, tolerance)
        idle.put_nowait(connection)

    async with asyncio.TaskGroup() as group:
        for request, arrives in zip(itertools.cycle(requests), _arrivals(rate, seconds), strict=False):
            await asyncio.sleep(max(0.0, began + arrives - time.perf_counter()))
            group.create_task(client(request, began + arrives))
    tally.elapsed = time.perf_counter() - began
    while not idle.empty():
        if (connection := idle.get_nowait()) is not None:
            connection.close()
    return tally


def _arrivals(rate: float, seconds: float) -> Iterator[float]:
    at = random.expovariate(rate)
    while at < seconds:
        yield at
        at += random.expovariate(rate)


async def ask(connection: Connection, request: Request, since: float, tally: Tally, tolerance: float) -> None:
    """One request; its answer is checked and goes into the tally, with the seconds since `since`."""
    try:
        response = await connection.request("POST", request.path, request.headers, request.body)
    except ConnectionError as error:
        tally.broken += 1
        tally.complain(f"{request.shapes}: {error}")
        return
    took = time.perf_counter() - since
    tally.statuses[response.status] += 1
    if response.status != 200:
        if response.status == 429:
            tally.refused.append(took)
        tally.complain(f"{request.shapes}: {response.status} {_reason(response)}")
        return
    assert request.expected is not None
    try:
        problem = disagreement(decode(response.headers, response.body), request.expected, tolerance)
    except (WireError, orjson.JSONDecodeError, KeyError) as error:
        problem = f"not a valid answer: {error!r}"
    if problem:
        tally.wrong += 1
        tally.complain(f"{request.shapes}: {problem}")
        return
    tally.seconds.append(took)
    tally.by_kind[request.kind].append(took)


def _reason(response: Response) -> str:
    return response.body[:300].decode("utf-8", "replace")
