"""Behaviour under load that lasts: three times more than can be served, thousands of shapes, and a model that
loads beside one that serves."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from pathlib import Path

import httpx
import numpy
import pytest

from dlcb.loadtest.connection import Connection

from .conftest import LiveServer, Start, resident
from .test_quickstart import CONFIG as QUICKSTART
from .test_quickstart import body as sentence_body
from .test_quickstart import sentences

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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_times_the_load_of_minilm_for_a_minute(launch: Start) -> None:
    text = QUICKSTART.read_text().replace("# limits: {} ", "limits: {timeout_ms: 5000} #", 1)
    server = launch(text, "--port", "0")
    data, headers = sentence_body(*sentences(8, 128, random.Random(0)))
    assert_overload_is_borne(server, ("/v2/models/minilm/infer", data, headers), 5.0, 60)


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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_shapes_of_minilm_leave_memory_as_it_was(launch: Start) -> None:
    server = launch(QUICKSTART, "--port", "0")
    draw = random.Random(6)
    shapes = draw.sample([(rows, length) for rows in range(1, 41) for length in range(1, 257)], 10_000)
    shapes.sort(key=lambda shape: draw.random() * shape[0] * shape[1])
    marks: list[int] = []

    async def go() -> None:
        (connection,) = await connections(server, 1)
        start = time.monotonic()
        for rows, length in shapes:
            if time.monotonic() - start > 60 * (len(marks) + 1):
                marks.append(resident(server))
            data, headers = sentence_body(*sentences(rows, length, draw))
            assert (await ask(connection, ("/v2/models/minilm/infer", data, headers)))[0] == 200

    asyncio.run(go())
    marks.append(resident(server))
    print("resident MiB after each minute:", [mark >> 20 for mark in marks])
    assert marks[-1] <= 1.02 * marks[0] + (4 << 20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_that_loads_does_not_move_the_latency_of_another(launch: Start, tmp_path: Path) -> None:
    """pnet at half load while minilm compiles and loads: p99 within 1.3 of before, best of three rounds. Each
    round's minilm has other bounds, so that it is compiled anew."""
    text = QUICKSTART.read_text()
    head, _models, rest = text.partition("models:\n")
    blocks = rest.split("\n  - name: ")
    minilm = next(block for block in blocks if block.strip().removeprefix("- name: ").startswith("minilm"))
    others = [block for block in blocks if block is not minilm and block.startswith("pnet")]
    minilm = minilm.strip().removeprefix("- name: ")
    versions = [
        minilm.replace('version: "1"', f'version: "{number}"\n    load: false').replace(
            "minilm\n", f"minilm{number}\n", 1
        )
        + f"\n    dims: {{batch: [1, {100 + number}]}}"
        for number in range(3)
    ]
    head = head.replace("  port: 8000", "  keys: {admin: [admin-key]}\n  port: 8000")
    server = launch(
        head + "models:\n" + "".join(f"  - name: {block}\n" for block in (*others, *versions)), "--port", "0"
    )
    image = numpy.random.default_rng(0).standard_normal((1, 3, 96, 96)).astype("f4")
    entry = {
        "name": "image",
        "shape": image.shape,
        "datatype": "FP32",
        "parameters": {"binary_data_size": image.nbytes},
    }
    json_part = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    request = (
        "/v2/models/pnet/infer",
        json_part + image.tobytes(),
        {"Inference-Header-Content-Length": str(len(json_part))},
    )

    async def p99_until(done: asyncio.Future[None], pause: float, connection: Connection) -> float:
        spent: list[float] = []
        while not done.done() or len(spent) < 100:
            status, seconds = await ask(connection, request)
            assert status == 200
            spent.append(seconds)
            await asyncio.sleep(pause)
        return sorted(spent)[int(0.99 * len(spent))]

    async def load(number: int) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
            path = f"/v2/repository/models/minilm{number}/load"
            response = await client.post(path, headers={"X-API-Key": "admin-key"})
            assert response.status_code == 200, response.text

    async def one_round(number: int) -> float:
        (connection,) = await connections(server, 1)
        pause = statistics.median([(await ask(connection, request))[1] for _ in range(50)])  # half load
        loop = asyncio.get_running_loop()
        before = await p99_until(asyncio.ensure_future(asyncio.sleep(20)), pause, connection)
        during = await p99_until(loop.create_task(load(number)), pause, connection)
        connection.close()
        print(f"round {number}: p99 {before * 1e3:.1f} ms before, {during * 1e3:.1f} ms during")
        return during / before

    ratios = [asyncio.run(one_round(number)) for number in range(3)]
    assert min(ratios) <= 1.3, ratios
