"""The load generator on real sockets: good answers are counted, false values and broken connections found."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import orjson
import pytest

from dlcb.loadtest import launch, report
from dlcb.loadtest.contestants import CONTESTANTS, write_weights
from dlcb.loadtest.drive import Request, Tally, alone, closed_loop, disagreement, open_loop

HOST = launch.HOST


def request(value: float) -> Request:
    sent = {"x": np.full((1, 4), value, np.float32)}
    return Request.of("identity", sent, "json", {"y": sent["x"]})


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    weights = tmp_path_factory.mktemp("echo") / "weights.npz"
    write_weights(weights)
    with CONTESTANTS[0].serving(Path(sys.executable), weights) as running:
        yield running.port


@asynccontextmanager
async def server(answer: Callable[[int], bytes | None], delay: float = 0.0) -> AsyncIterator[int]:
    """Answers the n-th request with `answer(n)` as the tensor's list, or closes the connection for None."""
    count = 0
    connections: set[asyncio.Task] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            count += 1
            await asyncio.sleep(delay)
            body = answer(count - 1)
            if body is None:
                break
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:  # the client went away
            writer.close()

    listening = await asyncio.start_server(connected, HOST, 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await asyncio.wait(connections)  # each ends when its client closes


def answer_with(*values: float) -> bytes:
    tensor = {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": values}
    return orjson.dumps({"outputs": [tensor]})


def test_closed_loop_counts_good_answers(echo: int) -> None:
    requests = [request(value) for value in (1.5, -2.25, 3.0)]
    tally = asyncio.run(closed_loop(HOST, echo, requests, connections=4, seconds=0.3, tolerance=0.0))
    assert tally.failures == 0, tally.complaints
    assert len(tally.seconds) == tally.statuses[200] > 20
    summary = report.summary(tally)
    assert summary["rps"] == pytest.approx(len(tally.seconds) / tally.elapsed, rel=0.01)
    assert 0 < summary["latency_ms"]["p50"] <= summary["latency_ms"]["p99"]


def test_open_loop_keeps_its_rate(echo: int) -> None:
    tally = asyncio.run(
        open_loop(HOST, echo, [request(1.0)], rate=200, connections=4, seconds=0.5, tolerance=0.0)
    )
    assert tally.failures == 0, tally.complaints
    assert 50 < len(tally.seconds) < 200  # 100 expected, standard deviation 10


def test_open_loop_latency_counts_from_the_arrival() -> None:
    """One connection, 20 ms an answer, arrivals much faster: those that wait must show it."""

    async def drive() -> Tally:
        async with server(lambda _: answer_with(1, 1, 1, 1), delay=0.02) as port:
            return await open_loop(
                HOST, port, [request(1.0)], rate=200, connections=1, seconds=0.2, tolerance=0.0
            )

    tally = asyncio.run(drive())
    assert tally.failures == 0 and len(tally.seconds) > 5
    assert max(tally.seconds) > 0.06


def test_false_values_are_found() -> None:
    async def drive() -> Tally:
        async with server(lambda n: answer_with(1, 1, 1, 1 if n % 2 else 1.5)) as port:
            return await closed_loop(HOST, port, [request(1.0)], connections=1, seconds=0.1, tolerance=1e-4)

    tally = asyncio.run(drive())
    assert abs(tally.wrong - len(tally.seconds)) <= 1 and tally.wrong > 0
    assert "y[0, 3] is 1.5, expected 1.0" in tally.complaints[0]


def test_an_answer_that_is_no_tensor_is_a_false_one() -> None:
    async def drive() -> Tally:
        async with server(lambda _: b"{}") as port:
            return await closed_loop(HOST, port, [request(1.0)], connections=1, seconds=0.05, tolerance=0.0)

    tally = asyncio.run(drive())
    assert tally.wrong == tally.failures > 0 and not tally.seconds


def test_a_broken_connection_is_counted_and_opened_again() -> None:
    async def drive() -> Tally:
        async with server(lambda n: None if n == 0 else answer_with(1, 1, 1, 1)) as port:
            return await closed_loop(HOST, port, [request(1.0)], connections=1, seconds=0.1, tolerance=0.0)

    tally = asyncio.run(drive())
    assert tally.broken == 1 and tally.seconds
    assert "closed the connection" in tally.complaints[0]


def test_answers_alone_are_what_the_server_said(echo: int) -> None:
    first, second = asyncio.run(alone(HOST, echo, [request(1.0), request(2.0)]))
    assert (first["y"] == 1).all() and (second["y"] == 2).all()


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (np.ones(2, np.float32), np.ones(2, np.float32), ""),
        (np.float32([np.nan, 1]), np.float32([np.nan, 1]), ""),
        (np.float32([1000.05]), np.float32([1000]), ""),
        (np.float32([1.01]), np.float32([1]), "y[0] is 1.0099999904632568, expected 1.0"),
        (np.float32([np.nan]), np.float32([1]), "y[0] is nan"),
        (np.int64([3]), np.int64([4]), "y[0] is 3, expected 4"),
        (np.ones((1, 2), np.float32), np.ones(2, np.float32), "float32[1, 2], expected float32[2]"),
        (np.ones(2, np.float64), np.ones(2, np.float32), "float64[2], expected float32[2]"),
    ],
)
def test_disagreement(got: np.ndarray, expected: np.ndarray, words: str) -> None:
    found = disagreement({"y": got}, {"y": expected}, 1e-4)
    assert (words in found) if words else not found


def test_a_server_that_ends_early_is_one_clear_error(tmp_path: Path) -> None:
    began = time.monotonic()
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(launch.LaunchError, match=r"exit code 1 before it was ready[^$]*no such model"),
        launch.process(command, launch.free_port(), "/", tmp_path / "log"),
    ):
        pytest.fail("entered the block")
    assert time.monotonic() - began < 30
