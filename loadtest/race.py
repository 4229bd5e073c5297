"""The race: interleaved rounds of wrk against each contestant, the values of every answer checked, medians
and processor time a request.

wrk keeps each different body that came, with its count, and each is decoded and compared here. They are few,
since one request is sent again and again: sums are ordered otherwise in a batch of another size.
"""

import json
import re
import statistics
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dlcb.loadtest.contestants import CONTESTANTS, Contestant, Running, expected, write_weights
from dlcb.loadtest.launch import HOST
from dlcb.loadtest.wire import JSON_LENGTH, Encoding, WireError

SCRIPT = """
local threads = {}
local function read(name)
  local file = assert(io.open(name, "rb")); local text = file:read("*a"); file:close(); return text
end
function setup(thread) table.insert(threads, thread) end
function init(arguments)
  wrk.method, wrk.body = "POST", read(arguments[1])
  folder, counts, known, refused = arguments[2], {}, {}, 0
end
function response(status, headers, body)
  local at = known[body]
  if status ~= 200 then
    refused = refused + 1
  elseif at then
    counts[at] = counts[at] + 1
  else
    table.insert(counts, 1)
    known[body] = #counts
    local length = headers["inference-header-content-length"] or headers["Inference-Header-Content-Length"]
    local file = assert(io.open(string.format("%s/%d.%d", folder, #counts, length or -1), "wb"))
    file:write(body); file:close()
  end
end
function done(summary, latency, requests)
  local thread = threads[1]
  local errors = summary.errors
  local broken = errors.connect + errors.read + errors.write + errors.timeout
  print(string.format("answers %d refused %d broken %d seconds %.6f p50_ms %.4f counts %s", summary.requests,
    thread:get("refused"), broken, summary.duration / 1e6, latency:percentile(50) / 1e3,
    table.concat(thread:get("counts"), " ")))
end
"""
RESULT = re.compile(
    r"answers (\d+) refused (\d+) broken (\d+) seconds ([\d.]+) p50_ms ([\d.]+) counts ([\d ]*)"
)
TOLERANCE = 1e-5  # of the largest magnitude, at least of 1


@dataclass(frozen=True)
class Case:
    """One row of the race; the goals are for our server on two quiet cores."""

    name: str
    model: str
    floats: int
    encoding: Encoding = "json"
    connections: int = 16
    rps: float | None = None
    of_raw: float | None = None
    above_triton: bool = False
    overhead_ms: float | None = None


CASES = (
    Case("identity", "identity", 64, rps=13_000, of_raw=0.85),
    Case("perceptron-json", "perceptron", 128, rps=9_000, above_triton=True),
    Case("perceptron-binary", "perceptron", 128, "binary", rps=11_000, above_triton=True),
    Case("echo-binary", "identity", 150_528, "binary", of_raw=0.75),
    Case("echo-json", "identity", 150_528, rps=55),
    Case("small-answer-json", "mean", 150_528, rps=120),
    Case("one-connection", "perceptron", 128, connections=1, overhead_ms=0.15),
)


@dataclass
class Rounds:
    """What one contestant did in one case; one entry a round."""

    contestant: str
    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    own_ms: list[float] = field(default_factory=list)
    wrong: int = 0
    complaint: str = ""


def race(
    cases: Sequence[Case],
    contestants: Sequence[Contestant],
    python: Path,
    wrk: Path,
    *,
    rounds: int,
    seconds: int,
) -> dict[str, list[Rounds]]:
    """Starts every contestant, then gives each its turn in each round of each case; by the case's name."""
    results: dict[str, list[Rounds]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        weights = write_weights(folder / "weights.npz")
        (folder / "post.lua").write_text(SCRIPT)
        running = [stack.enter_context(one.serving(python, folder / "weights.npz")) for one in contestants]
        for one in running:
            one.stop()
        for case in cases:
            x = np.random.default_rng().standard_normal((1, case.floats)).astype(np.float32)
            right = expected(case.model, x, weights)
            able = [one for one in running if one.contestant.takes(case.encoding)]
            results[case.name] = [Rounds(one.contestant.name) for one in able]
            for number in range(-1, rounds):  # the first warms up
                for one, kept in zip(able, results[case.name], strict=True):
                    counted = kept if number >= 0 else Rounds(kept.contestant)
                    with one.turn():
                        _round(one, case, x, right, counted, wrk, folder, seconds if number >= 0 else 1)
    return results


def _round(
    one: Running,
    case: Case,
    x: np.ndarray,
    right: np.ndarray,
    kept: Rounds,
    wrk: Path,
    folder: Path,
    seconds: int,
) -> None:
    path, headers, body = one.contestant.request(case.model, x, case.encoding)
    (folder / "body").write_bytes(body)
    with tempfile.TemporaryDirectory(dir=folder) as answers:
        command = [str(wrk), "-t1", f"-c{case.connections}", f"-d{seconds}s", "--timeout", "30s"]
        command += [part for header in headers.items() for part in ("-H", ": ".join(header))]
        command += ["-s", str(folder / "post.lua"), f"http://{HOST}:{one.port}{path}"]
        ran, cpu = _model_runs(one, case.model), one.cpu_seconds()
        command += ["--", str(folder / "body"), answers]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        cpu, after = one.cpu_seconds() - cpu, _model_runs(one, case.model)
        found = RESULT.search(done.stdout)
        if found is None:
            raise WireError(f"wrk printed no result: {done.stdout}{done.stderr}")
        count, refused, broken = map(int, found.groups()[:3])
        counts = found[6].split()
        for answer in Path(answers).iterdir():
            number, length = map(int, answer.name.split("."))
            complaint = _complaint(one.contestant, answer.read_bytes(), length, right, case.encoding)
            if complaint:
                kept.wrong += int(counts[number - 1])
                kept.complaint = complaint
    kept.wrong += refused + broken
    kept.rates.append(count / float(found[4]))
    kept.p50_ms.append(float(found[5]))
    kept.cpu_us.append(cpu / max(count, 1) * 1e6)
    if after[0] > ran[0]:
        kept.own_ms.append((after[1] - ran[1]) / (after[0] - ran[0]) * 1e-6)


def _complaint(who: Contestant, body: bytes, length: int, right: np.ndarray, encoding: Encoding) -> str:
    """Empty where the answer's values are right."""
    headers = {JSON_LENGTH.lower(): str(length)} if length >= 0 else {}
    try:
        row = who.output(headers, body, encoding)
    except (WireError, ValueError, KeyError) as error:
        return f"no valid answer: {error!r}"
    if row.shape != right.shape:
        return f"{row.size} numbers came, {right.size} were expected"
    worst = float(np.abs(row - right).max())
    limit = TOLERANCE * max(1.0, float(np.abs(right).max()))
    return "" if worst <= limit else f"values are off by {worst:.2e}, {limit:.2e} is allowed"


def _model_runs(one: Running, model: str) -> tuple[int, int]:
    """How often our server has run the model, and the nanoseconds that took; of others nothing is known."""
    if one.contestant.script:
        return 0, 0
    url = f"http://{HOST}:{one.port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        statistics = json.load(answer)["model_stats"][0]["inference_stats"]["compute_infer"]
    return statistics["count"], statistics["ns"]


def summary(case: Case, results: Sequence[Rounds]) -> list[dict[str, Any]]:
    """One row a contestant: medians over the rounds, and of the rounds' ratios to the bare ASGI."""
    raw = next((one for one in results if one.contestant == CONTESTANTS[0].name), None)
    return [
        {
            "case": case.name,
            "contestant": one.contestant,
            "rps": round(statistics.median(one.rates), 1),
            "of_raw": round(_ratio(one.rates, raw.rates), 3) if raw else None,
            "p50_ms": round(statistics.median(one.p50_ms), 3),
            "own_ms": round(statistics.median(one.own_ms), 4) if one.own_ms else None,
            "cpu_us": round(statistics.median(one.cpu_us), 1),
            "wrong": one.wrong,
            "complaint": one.complaint,
            "rounds": len(one.rates),
        }
        for one in results
    ]


def _ratio(mine: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(mine, others, strict=True))


def verdicts(case: Case, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each goal of the case that can be told from who took part, with both numbers; it starts
    with "met" or "missed"."""
    by_name = {row["contestant"]: row for row in rows}
    ours = by_name.get("dlcb")
    if ours is None:
        return []
    goals: list[tuple[bool, str]] = []
    if case.rps is not None:
        goals.append((ours["rps"] >= case.rps, f"{ours['rps']:,.0f} rps, goal {case.rps:,.0f}"))
    if case.of_raw is not None and ours["of_raw"] is not None:
        met = ours["of_raw"] >= case.of_raw
        goals.append((met, f"{ours['of_raw']:.2f} of raw ASGI, goal {case.of_raw:.2f}"))
    if case.above_triton and "triton" in by_name:
        theirs = by_name["triton"]["rps"]
        goals.append((ours["rps"] > theirs, f"{ours['rps']:,.0f} rps, Triton {theirs:,.0f}"))
    if case.overhead_ms is not None and ours["own_ms"] is not None:
        over = ours["p50_ms"] - ours["own_ms"]
        goals.append((over <= case.overhead_ms, f"{over:.3f} ms over the model, goal {case.overhead_ms:.2f}"))
    return [f"{'met' if met else 'missed'}: {case.name}: {text}" for met, text in goals]
