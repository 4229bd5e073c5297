"""Three long tests of one server, each ending in a verdict: three times the load it can bear, thousands of
shapes in constant memory, and a model that loads beside one that serves.

Every answer's values are compared with eager PyTorch's. A verdict starts with "met" or "missed" and holds the
numbers with their goals.
"""

import asyncio
import itertools
import random
import statistics
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from dlcb.loadtest import launch
from dlcb.loadtest.connection import Connection
from dlcb.loadtest.drive import Request, Tally, ask, closed_loop, open_loop
from dlcb.loadtest.launch import HOST
from dlcb.loadtest.reference import Reference, eager_references

CONFIG = Path(__file__).with_name("endurance.yaml")
ADMIN = {"X-API-Key": "load-test"}
DEADLINE = 5.0  # seconds
TOLERANCE = 1e-4
FILLING = 600  # shapes of each model with which the soak begins
VOCABULARY = 30522
WARM_UP = 3.0  # seconds of load before the capacity is measured
ROUNDS = 3  # in which a model loads beside another


@dataclass
class Outcome:
    """What a test found: whether its goals are met, a sentence, and the numbers."""

    met: bool
    sentence: str
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return f"{'met' if self.met else 'missed'}: {self.sentence}"


@contextmanager
def server(config: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Port and process of a server of `config` with an empty kernel cache."""
    with TemporaryDirectory() as cache:
        port = launch.free_port()
        with launch.process(
            launch.serve_command(config, port),
            port,
            launch.READY,
            Path(cache) / "log",
            ready_within=600,
            environment={"DLCB_CACHE": cache},
        ) as started:
            yield port, psutil.Process(started.pid)


def sentences(rows: int, length: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Token numbers and a mask with real padding, [rows, length] each."""
    kept = draw.integers(1, length + 1, (rows, 1))
    return {
        "input_ids": draw.integers(0, VOCABULARY, (rows, length)),
        "attention_mask": (np.arange(length) < kept).astype(np.int64),
    }


def image(height: int, width: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    return {"image": draw.standard_normal((1, 3, height, width)).astype(np.float32)}


def _request(
    model: str, inputs: Mapping[str, np.ndarray], reference: Reference, timeout: float | None = None
) -> Request:
    return Request.of(model, inputs, "binary", reference(inputs), timeout)


def overload(seconds: float, times: float = 3.0) -> Outcome:
    """Open loop at `times` the capacity that a closed loop measured just before, `minilm` at (8, 128)."""
    reference = eager_references(CONFIG, {"minilm"})["minilm"]
    draw = np.random.default_rng()
    inputs = [sentences(8, 128, draw) for _ in range(8)]
    patient = [_request("minilm", one, reference) for one in inputs]
    hurried = [_request("minilm", one, reference, DEADLINE) for one in inputs]
    with server(CONFIG) as (port, _process):

        def capacity(seconds: float) -> Tally:
            return asyncio.run(
                closed_loop(HOST, port, patient, connections=4, seconds=seconds, tolerance=TOLERANCE)
            )

        capacity(WARM_UP)
        alone = capacity(measuring(seconds))
        able = len(alone.seconds) / alone.elapsed
        rate = times * able
        flood = asyncio.run(
            open_loop(HOST, port, hurried, rate=rate, connections=1024, seconds=seconds, tolerance=TOLERANCE)
        )
    goodput = len(flood.seconds) / flood.elapsed / able
    p99 = float(np.percentile(flood.seconds, 99)) if flood.seconds else float("inf")
    refused = flood.statuses[429]
    refusal = float(np.percentile(flood.refused, 99)) if flood.refused else 0.0
    others = sum(flood.statuses.values()) - flood.statuses[200] - refused
    wrong = alone.failures + flood.wrong + flood.broken
    met = goodput >= 0.9 and p99 <= DEADLINE and refusal <= 0.1 and not wrong
    sentence = (
        f"overload: goodput {goodput:.2f} of {able:.1f} requests/s at {times:g} times that (goal 0.90), "
        f"p99 of the accepted {p99:.2f} s (deadline {DEADLINE:g} s), {refused} refused, 99 of 100 within "
        f"{refusal * 1e3:.0f} ms, {others} late, {wrong} wrong or broken"
    )
    return Outcome(met, sentence, {"capacity": able, "goodput": goodput, "p99_s": p99, "refusal_s": refusal})


def measuring(seconds: float) -> float:
    """How long the capacity is measured before so long an overload."""
    return max(5.0, seconds / 4)


def soak(seconds: float, shapes: int) -> Outcome:
    """`shapes` different shapes over `seconds`: images for `pnet`, sentences for `minilm`. In the first tenth
    of the time come `FILLING` of each, the largest among them, which is more than a model keeps plans for:
    what may fill up is full then. The rest comes evenly, and memory may not grow with it."""
    references = eager_references(CONFIG, {"pnet", "minilm"})
    draw, order = np.random.default_rng(), random.Random()

    def some(model: str, first: range, second: range, count: int) -> list[tuple[str, tuple[int, int]]]:
        pairs = list(itertools.product(first, second))
        largest = pairs.pop()
        return [(model, pair) for pair in (largest, *order.sample(pairs, count - 1))]

    texts = some("minilm", range(1, 5), range(1, 257), min(1024, shapes // 4))
    images = some("pnet", range(12, 140), range(12, 140), shapes - len(texts))
    filling = min(FILLING, len(texts) // 2)
    first, rest = texts[:filling] + images[:filling], texts[filling:] + images[filling:]
    order.shuffle(first)
    order.shuffle(rest)
    due = [*np.linspace(0, seconds / 10, len(first)), *np.linspace(seconds / 10, seconds, len(rest))]
    tally, resident = Tally(), []

    async def go(port: int, process: psutil.Process) -> None:
        connection = await Connection.open(HOST, port)
        began = time.perf_counter()
        for number, (model, sizes) in enumerate(first + rest):
            if number == len(first) or number % max(1, shapes // 100) == 0:
                resident.append((number, time.perf_counter() - began, _resident(process)))
            make = sentences if model == "minilm" else image
            request = _request(model, make(*sizes, draw), references[model])
            await asyncio.sleep(max(0.0, began + due[number] - time.perf_counter()))
            await ask(connection, request, time.perf_counter(), tally, TOLERANCE)
        connection.close()
        resident.append((shapes, time.perf_counter() - began, _resident(process)))

    with server(CONFIG) as (port, process):
        asyncio.run(go(port, process))
    filled = next(held for number, _at, held in resident if number == len(first))
    _number, took, held = resident[-1]
    settled, last = sum(filled.values()), sum(held.values())
    growth = last / settled - 1
    met = growth < 0.02 and not tally.failures
    by_process = ", ".join(f"{name} {(size - filled.get(name, 0)) >> 20:+d}" for name, size in held.items())
    sentence = (
        f"soak: {len(tally.seconds)} distinct shapes in {took / 60:.1f} minutes, resident memory "
        f"{settled >> 20} MiB after the first {len(first)}, {last >> 20} MiB at the end: {growth:+.1%} "
        f"(goal under 2 %; MiB by process: {by_process}), {tally.failures} errors"
    )
    return Outcome(met, sentence, {"resident": resident, "complaints": tally.complaints})


def _resident(process: psutil.Process) -> dict[str, int]:
    """Bytes that the front and each of its children hold, by what it runs; workers are numbered as they
    started."""
    held = {"front": process.memory_info().rss}
    for child in sorted(process.children(recursive=True), key=lambda one: one.pid):
        words = child.cmdline()
        name = words[2].rpartition(".")[2] if len(words) > 2 else child.name()
        count = sum(known.startswith(name) for known in held)
        held[f"{name} {count + 1}" if count else name] = child.memory_info().rss
    return held


def beside(seconds: float) -> Outcome:
    """p99 of `pnet` at half load while another model compiles and loads, over that of `seconds` before; three
    rounds, the best counts."""
    reference = eager_references(CONFIG, {"pnet"})["pnet"]
    request = _request("pnet", image(96, 96, np.random.default_rng()), reference)
    rounds: list[tuple[float, float]] = []
    tally = Tally()

    async def p99_until(done: "asyncio.Future[None]", pause: float, connection: Connection) -> float:
        since = len(tally.seconds)
        while not done.done() or len(tally.seconds) - since < 100:
            await ask(connection, request, time.perf_counter(), tally, TOLERANCE)
            await asyncio.sleep(pause)
        await done
        return float(np.percentile(tally.seconds[since:], 99))

    async def one_round(port: int, number: int) -> None:
        connection = await Connection.open(HOST, port)
        for _ in range(50):
            await ask(connection, request, time.perf_counter(), tally, TOLERANCE)
        pause = statistics.median(tally.seconds[-50:])
        before = await p99_until(asyncio.ensure_future(asyncio.sleep(seconds)), pause, connection)
        loading = asyncio.ensure_future(asyncio.to_thread(_load, port, f"minilm-{number}"))
        rounds.append((before, await p99_until(loading, pause, connection)))
        connection.close()

    with server(CONFIG) as (port, _process):
        for number in range(1, ROUNDS + 1):
            asyncio.run(one_round(port, number))
    best = min(during / before for before, during in rounds)
    met = best <= 1.3 and not tally.failures
    shown = ", ".join(f"{before * 1e3:.2f} to {during * 1e3:.2f} ms" for before, during in rounds)
    sentence = (
        f"beside: p99 while another model loads, over before: {best:.2f} in the best round (goal 1.3); "
        f"rounds {shown}; {tally.failures} errors"
    )
    return Outcome(met, sentence, {"rounds": rounds})


def _load(port: int, model: str) -> None:
    url = f"http://{HOST}:{port}/v2/repository/models/{model}/load"
    with urllib.request.urlopen(urllib.request.Request(url, b"", ADMIN, method="POST"), timeout=600):
        pass
