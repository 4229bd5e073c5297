"""A stream of shapes, each met once: what a server sees. A hundred distinct pairs of sizes go through eager,
torch.compile with dynamic shapes and ours; the calls in which torch.compile compiles are counted apart."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch._dynamo.utils import counters  # the only place that tells whether a call compiled

from dlcb.compiler.bench.measure import once
from dlcb.compiler.bench.suites import Case, case_inputs, cases
from dlcb.compiler.bridge.capture import load_eager
from dlcb.compiler.driver import compile_model, load_model, options_for
from dlcb.kernel_cache import open_store

PAIRS = 100
TURN = 10  # pairs that one contestant meets in a row
RANGES = {"cpu": ((1, 16), (32, 192)), "cuda": ((1, 64), (32, 512))}  # of the first free dim and the others
SURVEY = ("chain", "normalisation", "attention")


def shape_cases(device: str) -> tuple[Case, ...]:
    """Graphs of the survey and the models whose length or image size is free."""
    survey = (case for case in cases("survey", device) if case.source.name in SURVEY)
    return (*survey, *(case for case in cases("models", device) if len(_free(case)) > 1))


def _free(case: Case) -> list[str]:
    """The names of the dims that calls choose."""
    dims = [dim for declared in case.source.inputs for dim in declared.shape or ()]
    return list(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))


@dataclass
class ShapesResult:
    """Seconds by contestant: all calls together without compiles, and the compiles; and how many those
    were."""

    case: str
    pairs: int
    seconds: dict[str, float] = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    compiles: dict[str, int] = field(default_factory=dict)


def run_shapes(case: Case, device: str, pairs: int = PAIRS, seed: int = 0) -> ShapesResult:
    """Each pair of sizes once, after one call each at sizes of no pair. The contestants take turns, in a new
    order each time: what one left in the processor's caches is not measured as another's, nor is the making
    of inputs, which lie on the device before a turn begins. Raises CompilerError where ours cannot be
    compiled."""
    result = ShapesResult(case.source.name, pairs)
    with tempfile.TemporaryDirectory(prefix="dlcb-bench-") as folder, torch.no_grad():
        store = open_store(Path(folder))
        start = time.perf_counter()
        key = compile_model(case.source, store, options_for(device)).artifact_key
        ours = load_model(case.source, key, store, device=device).call
        result.compile_seconds["ours"], result.compiles["ours"] = time.perf_counter() - start, 1
        eager = load_eager(case.source).to(device)
        torch._dynamo.reset()
        calls: dict[str, Callable[..., object]] = {
            "eager": eager,
            "compile dynamic": torch.compile(eager, dynamic=True),
            "ours": ours,
        }
        draw = random.Random(seed)
        outside = list(case_inputs(case, _outside(case, device), device, seed).values())
        for name, call in calls.items():
            _count(result, name, partial(call, *outside), device)
        result.seconds = {}  # of libraries that set themselves up
        numbered = list(enumerate(_pairs(case, device, pairs, draw)))
        for first in range(0, pairs, TURN):
            turn = [
                list(case_inputs(case, sizes, device, seed + number).values())
                for number, sizes in numbered[first : first + TURN]
            ]
            for name in draw.sample(list(calls), len(calls)):
                for tensors in turn:
                    _count(result, name, partial(calls[name], *tensors), device)
    return result


def _count(result: ShapesResult, name: str, call: Callable[[], object], device: str) -> None:
    """Add a call's time where it belongs. A call that compiled is made again, and that one counts as the
    call."""
    before = counters["stats"]["unique_graphs"]
    seconds = once(call, device)
    if counters["stats"]["unique_graphs"] != before:
        again = once(call, device)
        result.compile_seconds[name] = result.compile_seconds.get(name, 0.0) + seconds - again
        result.compiles[name] = result.compiles.get(name, 0) + 1
        seconds = again
    result.seconds[name] = result.seconds.get(name, 0.0) + seconds


def _outside(case: Case, device: str) -> dict[str, int]:
    (_, high), (shortest, _) = RANGES[device]
    return {name: shortest - 1 if k else high + 1 for k, name in enumerate(_free(case))}


def _pairs(case: Case, device: str, count: int, draw: random.Random) -> list[dict[str, int]]:
    names = _free(case)
    (low, high), (shortest, longest) = RANGES[device]
    everything = [(a, b) for a in range(low, high + 1) for b in range(shortest, longest + 1)]
    # an image's height and width are the same number
    return [{name: a if name == names[0] else b for name in names} for a, b in draw.sample(everything, count)]
