"""Turns a tally into numbers: rates, percentiles, the shape-cache hit rate, and the place they were measured.

Shape-cache counters are read from the server's /metrics before and after; only their differences count.
"""

import importlib.metadata
import os
import platform
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from prometheus_client.parser import text_string_to_metric_families

from dlcb.loadtest.drive import Tally

PERCENTILES = (50, 90, 99, 99.9)
Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]  # by name and sorted labels

VERSIONS = ("dlcb", "torch", "numpy", "uvicorn", "httptools", "uvloop", "orjson")


def scrape(url: str) -> Samples:
    """Every sample at `url`/metrics by name and sorted labels; ConnectionError when nobody answers there."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except urllib.error.URLError as error:
        raise ConnectionError(f"no server answers at {url}/metrics: {error.reason}") from error
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples called `name` whose labels include `labels`."""
    return sum(
        value
        for (found, at), value in samples.items()
        if found == name and labels.items() <= dict(at).items()
    )


def shape_cache(before: Samples, after: Samples, model: str) -> dict[str, Any]:
    """Hits, misses and hit rate of `model` between two scrapes, and compiles that a request caused."""
    name = "dlcb_shape_cache_requests_total"

    def grown(name: str, **labels: str) -> int:
        return round(total(after, name, **labels) - total(before, name, **labels))

    hits, misses = grown(name, model=model, result="hit"), grown(name, model=model, result="miss")
    return {
        "hits": hits,
        "misses": misses,
        "hit_rate": hits / (hits + misses) if hits + misses else None,
        "by_pytorch": grown(name, model=model, tier="eager"),
        "compiles_by_request": grown("dlcb_compile_seconds_count", model=model, reason="request"),
    }


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds; empty where nothing was answered."""
    return {
        f"p{percent:g}": round(1e3 * float(np.percentile(seconds, percent)), 3)
        for percent in (PERCENTILES if seconds else ())
    }


def summary(tally: Tally, kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Rates and latencies of one run; milliseconds, good answers only."""
    return {
        "seconds": round(tally.elapsed, 3),
        "good": len(tally.seconds),
        "rps": round(len(tally.seconds) / tally.elapsed, 1),
        "latency_ms": latencies(tally.seconds),
        "by_shape": {
            kind: {"good": len(tally.by_kind[kind]), "latency_ms": latencies(tally.by_kind[kind])}
            for kind in kinds
            if kind in tally.by_kind
        },
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "wrong_values": tally.wrong,
        "broken_connections": tally.broken,
        "complaints": tally.complaints,
    }


def place() -> dict[str, Any]:
    """The machine, the versions and the commit; what every kept number carries."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "gpu": _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in VERSIONS},
    }


def write(folder: Path, name: str, result: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['place']['date'].replace(':', '').replace('+0000', 'Z')}-{name}.json"
    path.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def _commit() -> str | None:
    commit = _output("git", "rev-parse", "--short=12", "HEAD")
    return f"{commit} with changes" if commit and _output("git", "status", "--porcelain") else commit


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
