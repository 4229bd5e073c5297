"""Races the server against a bare ASGI echo with wrk: interleaved rounds, medians, every answer checked.

Each contestant's answer is first decoded and its values compared with what was sent; from then on wrk
compares every body with that one, byte for byte, and counts those that differ.
"""

import asyncio
import re
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dlcb.loadtest.connection import Connection
from dlcb.loadtest.drive import disagreement
from dlcb.loadtest.wire import WireError, decode, encode

SCRIPT = """
local threads = {}
local function read(name)
  local file = assert(io.open(name, "rb")); local text = file:read("*a"); file:close(); return text
end
function setup(thread) table.insert(threads, thread) end
function init(arguments)
  wrk.method, wrk.body = "POST", read(arguments[1])
  wrk.headers["Content-Type"] = "application/json"
  expected, wrong = read(arguments[2]), 0
end
function response(status, headers, body)
  if status ~= 200 or body ~= expected then wrong = wrong + 1 end
end
function done(summary, latency, requests)
  local wrong = 0
  for _, thread in ipairs(threads) do wrong = wrong + thread:get("wrong") end
  local p50 = latency:percentile(50) / 1e3
  print(string.format("answers %d wrong %d p50_ms %.3f", summary.requests, wrong, p50))
end
"""
RESULT = re.compile(r"answers (\d+) wrong (\d+) p50_ms ([\d.]+)")
RATE = re.compile(r"Requests/sec:\s+([\d.]+)")


@dataclass
class Contestant:
    name: str
    port: int
    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    wrong: int = 0


def race(
    contestants: list[Contestant], wrk: Path, *, floats: int, connections: int, rounds: int, seconds: int
) -> None:
    """Fills each contestant's rates and p50s, one entry a round: the identity of `floats` float32 in JSON."""
    sent = {"x": np.random.default_rng().standard_normal((1, floats)).astype(np.float32)}
    _, body = encode(sent, "json")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "post.lua").write_text(SCRIPT)
        (folder / "body").write_bytes(body)
        for one in contestants:
            (folder / one.name).write_bytes(asyncio.run(_checked_answer(one, body, sent)))
        for _ in range(rounds):
            for one in contestants:
                _round(one, wrk, folder, connections, seconds)


async def _checked_answer(one: Contestant, body: bytes, sent: dict[str, np.ndarray]) -> bytes:
    connection = await Connection.open("127.0.0.1", one.port)
    response = await connection.request(
        "POST", "/v2/models/identity/infer", {"Content-Type": "application/json"}, body
    )
    connection.close()
    if response.status != 200:
        raise WireError(f"{one.name} answered {response.status}: {response.body[:300]!r}")
    (output,) = decode(response.headers, response.body).values()
    if problem := disagreement({"x": output}, sent, 0.0):
        raise WireError(f"{one.name}: {problem}")
    return response.body


def _round(one: Contestant, wrk: Path, folder: Path, connections: int, seconds: int) -> None:
    url = f"http://127.0.0.1:{one.port}/v2/models/identity/infer"
    command = [str(wrk), "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(folder / "post.lua"), url]
    files = ["--", str(folder / "body"), str(folder / one.name)]
    text = subprocess.run([*command, *files], capture_output=True, text=True, check=True).stdout
    result, rate = RESULT.search(text), RATE.search(text)
    if result is None or rate is None:
        raise WireError(f"wrk printed no result: {text}")
    one.rates.append(float(rate[1]))
    one.p50_ms.append(float(result[3]))
    one.wrong += int(result[2])


def medians(contestants: list[Contestant]) -> list[dict[str, float | str]]:
    return [
        {
            "name": one.name,
            "rps": round(statistics.median(one.rates), 1),
            "p50_ms": round(statistics.median(one.p50_ms), 3),
            "of_first": round(
                statistics.median(
                    mine / first for mine, first in zip(one.rates, contestants[0].rates, strict=True)
                ),
                3,
            ),
            "wrong": one.wrong,
        }
        for one in contestants
    ]
