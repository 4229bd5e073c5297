"""What batching is worth: clients whose sentences have all lengths, over the same model with each request run
alone, and over clients that pad every sentence to the longest. The kernels are the same on all sides.

Every answer's values are compared with eager PyTorch's.
"""

import asyncio
import statistics
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dlcb.loadtest.drive import Request, closed_loop
from dlcb.loadtest.endurance import TOLERANCE, VOCABULARY, Outcome, server
from dlcb.loadtest.launch import HOST
from dlcb.loadtest.reference import eager_references

CONFIG = Path(__file__).with_name("batching.yaml")
SHORTEST, LONGEST = 4, 256  # tokens of a sentence
CLIENTS = 32
SENTENCES = 96
ROUNDS = 3
GOALS = {"one at a time": 1.15, "padded to 256": 1.6}  # throughput of the batched over that of each
WAYS = 1 + len(GOALS)


def batching(seconds: float) -> Outcome:
    """Requests a second of each way in turn, `seconds` a turn, medians over `ROUNDS`."""
    reference = eager_references(CONFIG, {"minilm"})["minilm"]
    draw = np.random.default_rng()
    texts = [_sentence(int(length), draw) for length in draw.integers(SHORTEST, LONGEST + 1, SENTENCES)]
    padded = [{name: np.pad(x, ((0, 0), (0, LONGEST - x.shape[1]))) for name, x in t.items()} for t in texts]
    expected = [reference(text) for text in texts]

    def requests(model: str, inputs: list[dict[str, np.ndarray]]) -> list[Request]:
        pairs = zip(inputs, expected, strict=True)
        return [Request.of(model, given, "binary", answer) for given, answer in pairs]

    ways = {
        "batched": requests("minilm", texts),
        "one at a time": requests("minilm-alone", texts),
        "padded to 256": requests("minilm", padded),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    failures = 0
    with server(CONFIG) as (port, _process):
        for number in range(ROUNDS + 1):  # the first warms up
            for name, asked in ways.items():
                tally = asyncio.run(
                    closed_loop(HOST, port, asked, connections=CLIENTS, seconds=seconds, tolerance=TOLERANCE)
                )
                failures += tally.failures
                if number:
                    rates[name].append(len(tally.seconds) / tally.elapsed)
    return _outcome({name: statistics.median(values) for name, values in rates.items()}, rates, failures)


def _sentence(length: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "input_ids": draw.integers(0, VOCABULARY, (1, length)),
        "attention_mask": np.ones((1, length), np.int64),
    }


def _outcome(medians: Mapping[str, float], rates: Mapping[str, list[float]], failures: int) -> Outcome:
    gains = {name: medians["batched"] / medians[name] for name in GOALS}
    met = all(gain >= GOALS[name] for name, gain in gains.items()) and not failures
    shown = ", ".join(
        f"{gain:.2f} times {name} ({medians[name]:.1f}; goal {GOALS[name]})" for name, gain in gains.items()
    )
    sentence = (
        f"batching: {CLIENTS} clients, lengths {SHORTEST} to {LONGEST}: {medians['batched']:.1f} requests/s, "
        f"{shown}; {failures} errors"
    )
    return Outcome(met, sentence, {"rates": rates})
