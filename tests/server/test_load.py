"""Behaviour under load: three times more than can be served, and thousands of shapes. The long forms, and a
model that loads beside one that serves, are the load test's own (see `tests/loadtest/test_endurance.py`)."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time

import httpx

from dlcb.loadtest.connection import Connection

from .conftest import LiveServer, Start, resident

SLEEPY = """
server: {host: 127.0.0.1, port: 0, spares: 0, backend: eager_model, grace_seconds: 0}
models:
  - name: sleepy
    factory: eager_model:sleepy
    inputs: [{name: x, datatype: FP32, shape: [batch, width]}]
    outputs: [y]
    batching: {enabled: false}
    limits: {timeout_ms: 250}
"""
Request = tuple[str, bytes, dict[str, str]]
Answered = tuple[int, float]  # status and seconds


def sleep_request(milliseconds: float) -> Request:
    entry = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [milliseconds]}
    return "/v2/models/sleepy/infer", json.dumps({"inputs": [entry]}).encode(), {}


async def connections(server: LiveServer, count: int) -> list[Connection]:
    url = httpx.URL(server.url)
    assert url.port is not None
    return [await Connection.open(url.host, url.port) for _ in range(count)]


async def ask(connection: Connection, request: Request) -> Answered:
    path, data, headers = request
    start = time.perf_counter()
    response = await connection.request("POST", path, headers, data)
    return response.status, time.perf_counter() - start


async def closed_loop(server: LiveServer, request: Request, clients: int, seconds: float) -> float:
    """Good answers a second when every client asks again at once."""
    opened = await connections(server, clients)
    end, good = time.perf_counter() + seconds, 0

    async def client(connection: Connection) -> None:
        nonlocal good
        while time.perf_counter() < end:
            status, _spent = await ask(connection, request)
            good += status == 200

    await asyncio.gather(*map(client, opened))
    for connection in opened:
        connection.close()
    return good / seconds


async def open_loop(server: LiveServer, request: Request, rate: float, seconds: float) -> list[Answered]:
    """Requests at a fixed rate, whether or not they are answered."""
    idle = await connections(server, 256)
    opened = list(idle)
    tasks: list[asyncio.Task[Answered]] = []

    async def one(connection: Connection) -> Answered:
        answered = await ask(connection, request)
        idle.append(connection)
        return answered

    start = time.perf_counter()
    for number in range(int(rate * seconds)):
        wait = start + number / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        assert idle, "256 requests are unanswered: refusals do not come at once"
        tasks.append(asyncio.create_task(one(idle.pop())))
    answers = await asyncio.gather(*tasks)
    for connection in opened:
        connection.close()
    return answers


def assert_overload_is_borne(server: LiveServer, request: Request, deadline: float, seconds: float) -> None:
    capacity = asyncio.run(closed_loop(server, request, 4, max(1.0, seconds / 6)))
    answers = asyncio.run(open_loop(server, request, 3 * capacity, seconds))
    good = sorted(spent for status, spent in answers if status == 200)
    refused = sorted(spent for status, spent in answers if status == 429)
    assert refused and good, (capacity, len(answers))
    p99, refusal = good[int(0.99 * len(good))], statistics.median(refused)
    late = sum(status == 504 for status, _spent in answers)
    print(f"capacity {capacity:.0f}/s, goodput {len(good) / seconds:.0f}/s, p99 {p99 * 1e3:.0f} ms")
    print(f"{len(refused)} refused in {refusal * 1e3:.1f} ms, {late} late")
    assert {status for status, _spent in answers} <= {200, 429, 504}
    assert len(good) >= 0.9 * capacity * seconds
    assert p99 <= deadline + 0.05  # the clock here starts before the server's
    assert refusal < deadline / 4
    assert len(refused) + len(good) >= 0.97 * len(answers)


def test_three_times_the_load(launch: Start) -> None:
    assert_overload_is_borne(launch(SLEEPY), sleep_request(20), 0.25, 4)


def test_thousands_of_shapes_leave_memory_as_it_was(server: LiveServer) -> None:
    """2,000 distinct shapes through front and worker; the first quarter fills what is bounded."""
    draw = random.Random(5)
    shapes = draw.sample([(rows, width) for rows in range(1, 65) for width in range(1, 65)], 2000)

    async def go() -> tuple[int, int]:
        (connection,) = await connections(server, 1)
        settled = 0
        for number, (rows, width) in enumerate(shapes):
            if number == 500:
                settled = resident(server)
            entry = {"name": "x", "shape": [rows, width], "datatype": "FP32", "data": [0.5] * (rows * width)}
            data = json.dumps({"inputs": [entry]}).encode()
            status, _spent = await ask(connection, ("/v2/models/identity/infer", data, {}))
            assert status == 200
        connection.close()
        return settled, resident(server)

    settled, last = asyncio.run(go())
    assert last <= 1.02 * settled + (2 << 20), (settled, last)
