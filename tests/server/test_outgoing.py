"""What the front tells a child that does not read just now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dlcb.server.channel import Channel
from dlcb.server.outgoing import Outgoing

from .conftest import Start

MESSAGES = 2000  # more than any socket holds
MODEL = """
  - name: model{number}
    factory: eager_model:identity
    inputs: [{{name: x, datatype: FP32, shape: [batch, width]}}]
    outputs: [y]
"""


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_what_finds_no_room_comes_later_and_in_order(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends

    async def tell() -> list[int]:
        outgoing = Outgoing(ours)
        for number in range(MESSAGES):
            long = "x" * (200_000 if number % 500 == 0 else 100)  # some travel in a file
            outgoing.send({"number": number, "long": long})
        found = []
        while len(found) < MESSAGES:
            received = await asyncio.to_thread(theirs.receive)
            assert received is not None
            found.append(received[0]["number"])
        outgoing.send({"number": MESSAGES})  # nothing waits any more
        last = theirs.receive()
        assert last is not None
        return [*found, last[0]["number"]]

    assert asyncio.run(tell()) == list(range(MESSAGES + 1))


def test_a_peer_that_goes_takes_what_waits_with_it(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends

    async def tell() -> None:
        outgoing = Outgoing(ours)
        for number in range(MESSAGES):
            outgoing.send({"number": number})
        theirs.close()
        await asyncio.sleep(0.05)
        with pytest.raises(OSError, match="pipe"):
            outgoing.send({"number": MESSAGES})
        outgoing.close()

    asyncio.run(tell())


def test_a_closed_one_leaves_no_writer_behind(ends: tuple[Channel, Channel]) -> None:
    ours, _theirs = ends

    async def tell() -> None:
        outgoing = Outgoing(ours)
        for number in range(MESSAGES):
            outgoing.send({"number": number})
        outgoing.close()
        assert not asyncio.get_running_loop().remove_writer(ours.fileno())

    asyncio.run(tell())


def test_several_hundred_models_start(launch: Start) -> None:
    """More than the sockets to the compile process and to a worker hold at once, when neither reads yet."""
    server = launch(
        "server: {port: 0, spares: 1, backend: eager_model, grace_seconds: 0}\nmodels:"
        + "".join(MODEL.format(number=number) for number in range(400))
    )
    with server.client() as client:
        index = client.post("/v2/repository/index").json()
        assert [each["state"] for each in index] == ["READY"] * 400
    assert not [line for line in server.lines if "is gone" in line]
