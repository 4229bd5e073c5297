"""Requests damaged at random, thousands of them:
never a 5xx, never silence, no growth, and the next good request is answered."""

from __future__ import annotations

import json
import random
import struct
from contextlib import closing
from copy import deepcopy
from typing import Any

import pytest

from .conftest import LiveServer, resident
from .test_http import Connection, body, data_of, request

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**64, -(2**63), 1.5, 1e400, "", "x", "FP32", "BYTES", "\x00", "é" * 50,
    [], {}, [[]], [None], {"name": "x"}, [1, [2]], "9" * 400,
)  # fmt: skip
HEADERS = (
    b"content-type: text/html",
    b"content-type: application/octet-stream",
    b"content-encoding: gzip",
    b"content-encoding: deflate",
    b"content-encoding: br",
    b"inference-header-content-length: 0",
    b"inference-header-content-length: 40",
    b"inference-header-content-length: 99999999999999999999",
    b"inference-header-content-length: -4",
    b"accept-encoding: gzip",
)


def good(draw: random.Random) -> dict[str, Any]:
    values = [draw.uniform(-9, 9) for _ in range(draw.randint(0, 6))]
    return {
        "id": "a",
        "parameters": {"priority": draw.randint(0, 3), "binary_data_output": False},
        "inputs": [{"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}],
        "outputs": [{"name": "y", "parameters": {"binary_data": draw.random() < 0.5}}],
    }


def damage_document(draw: random.Random) -> bytes:
    """Some values of a good request replaced, left out, doubled or added."""
    document = good(draw)
    for _ in range(draw.randint(1, 3)):
        holder: Any = document
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(holder[key], dict | list) and draw.random() < 0.7:
                holder = holder[key]
                continue
            change = draw.random()
            if change < 0.6:
                holder[key] = deepcopy(draw.choice(ODD))
            elif change < 0.8:
                del holder[key]
            elif isinstance(holder, list):
                holder.append(holder[key])
            else:
                holder[draw.choice(("extra", "binary_data_size", "shared_memory_region", "data"))] = deepcopy(
                    draw.choice(ODD)
                )
            break
    return json.dumps(document).encode()


def damage_bytes(draw: random.Random) -> bytes:
    """A good request with bytes overwritten, cut off, repeated or nested deeply."""
    data = bytearray(json.dumps(good(draw)).encode())
    change = draw.random()
    if change < 0.5:
        for _ in range(draw.randint(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    elif change < 0.7:
        del data[draw.randrange(len(data)) :]
    elif change < 0.8:
        data += data[draw.randrange(len(data)) :]
    elif change < 0.9:
        data = bytearray(b'{"inputs":' + b"[" * draw.randint(1, 3000))
    else:
        data = bytearray(draw.randbytes(draw.randint(0, 300)))
    return bytes(data)


def damage_binary(draw: random.Random) -> tuple[bytes, bytes]:
    """A binary request whose lengths disagree, or whose values are anything."""
    size = draw.choice((0, 4, 8, 12, -4, 2**40, "8", None))
    entry = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry] * draw.randint(1, 2)}).encode()
    stated = len(head) + draw.choice((0, 0, 0, 1, -1, 8))
    tail = b"".join(struct.pack("<I", draw.getrandbits(32)) for _ in range(draw.randint(0, 4)))
    return head + tail, b"inference-header-content-length: %d" % stated


def damaged(draw: random.Random) -> bytes:
    """One request, well framed as HTTP and broken otherwise."""
    model = draw.choice(("identity", "identity", "look_up", "flags", "standardize", "square", "nobody"))
    kind = draw.random()
    if kind < 0.5:
        return request(damage_document(draw), model=model)
    if kind < 0.75:
        return request(damage_bytes(draw), model=model)
    if kind < 0.9:
        data, header = damage_binary(draw)
        return request(data, header, model=model)
    return request(json.dumps(good(draw)).encode(), draw.choice(HEADERS), model=model)


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_damaged_requests(server: LiveServer, count: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    settled = 0
    statuses: dict[int, int] = {}
    with closing(Connection(server)) as connection:
        for number in range(count):
            if number == count // 4:
                settled = resident(server)
            sent = damaged(draw)
            connection.send(sent)
            status, headers, content = connection.response()
            statuses[status] = statuses.get(status, 0) + 1
            assert status == 200 or 400 <= status < 500, (status, sent, content)
            if status != 200:
                answer = json.loads(content)
                assert list(answer) == ["error"] and answer["error"], (sent, content)
                assert headers["content-type"] == "application/json", sent
        connection.send(request(body(3)))
        assert data_of(connection.response()) == [3]
    assert statuses.get(400, 0) > count / 3, statuses
    assert resident(server) < 1.05 * settled + (4 << 20)
