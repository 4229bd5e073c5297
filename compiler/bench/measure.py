"""Time several contestants side by side: interleaved rounds in one process, medians, fresh random inputs for
each shape.

On a GPU a round is timed with events on the current stream, so that host time hides where the device is the
limit, and counts where it is not. On a CPU with one thread it is the processor's time, else the clock's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Call = Callable[[], object]

_ROUND_SECONDS = 0.03  # a round repeats a call until it lasts about this long
_MOST_REPEATS = 200


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median over rounds, and the spread (highest less lowest round over the median)."""

    seconds: float
    spread: float


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def once(call: Call, device: str) -> float:
    """Seconds of one call, device work included."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def interleaved(
    contestants: Mapping[str, Call], device: str, rounds: int = 7, warmup: int = 3
) -> dict[str, Timing]:
    """Each contestant's time a call. Every round runs all of them, each round in the opposite order of the
    one before."""
    repeats = {}
    for name, call in contestants.items():
        for _ in range(warmup):
            call()
        repeats[name] = max(1, min(_MOST_REPEATS, int(_ROUND_SECONDS / max(once(call, device), 1e-6))))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        order = list(contestants.items())
        for name, call in order if number % 2 else reversed(order):
            samples[name].append(_round(call, repeats[name], device))
    return {name: _timing(values) for name, values in samples.items()}


def _round(call: Call, repeats: int, device: str) -> float:
    if device != "cuda":
        # of one thread the processor's time says what it does, whoever else wants the processor
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        for _ in range(repeats):
            call()
        return (clock() - start) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def _timing(samples: list[float]) -> Timing:
    median = statistics.median(samples)
    return Timing(median, (max(samples) - min(samples)) / median)


def geometric_mean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")
