"""What deviations from eager PyTorch amount to: which of them rounding cannot explain, one line for people,
and a reproduction on disk."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.agreement import RATIO, Deviation
from dlcb.compiler.options import cache_folder
from dlcb.compiler.source import ModelSource

_FAR = 4.0  # times eager's own error: more than rounding does


def beyond_chance(rows: Sequence[Deviation]) -> list[Deviation]:
    """The rows that disagree, unless rounding alone explains them.

    On a small output of a half type the ratio to eager's own error is luck: a handful of numbers,
    each rounded once. So a row counts where it is far off, and a near miss only where all shapes
    together, as root mean squares, miss as well."""
    wrong = [row for row in rows if not row.agrees]
    far = [row for row in wrong if row.reason or not row.error <= _FAR * row.eager_error + _FAR * row.floor]
    if far or not wrong:
        return far
    error, eager = (
        math.sqrt(statistics.fmean(x * x for x in xs))
        for xs in zip(*((r.error, r.eager_error) for r in rows), strict=True)
    )
    return wrong if error > RATIO * eager + max(row.floor for row in rows) else []


def in_words(found: Sequence[Deviation]) -> str:
    """One line for people: the first deviation and how many there are."""
    first = found[0]
    what = first.reason or f"error {first.error:.2e}, eager's own {first.eager_error:.2e}"
    return f"{len(found)} deviations from eager; first: output {first.output} at {dict(first.shapes)}: {what}"


def write_reproduction(source: ModelSource, artifact: Artifact, found: Sequence[Deviation]) -> Path:
    """What is needed to see the disagreement again: source, graph text and the shapes, under the cache
    folder."""
    folder = cache_folder() / "reproductions"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{source.name}-{source.version}.json"
    deviations = [
        {
            "shapes": dict(d.shapes),
            "output": d.output,
            "error": d.error,
            "eager_error": d.eager_error,
            "reason": d.reason,
        }
        for d in found
    ]
    path.write_text(
        json.dumps({"source": source.to_json(), "graph": artifact.graph, "deviations": deviations}, indent=1)
    )
    return path
