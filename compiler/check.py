"""The load check: a fresh artifact's outputs against eager
PyTorch at shapes drawn from the signature's edges.

A model that disagrees is served by eager PyTorch from then on (quarantined): said in the log,
the report and a metric, and kept as a reproduction on disk. The verdict is part of the
artifact, so a warm load does not repeat it."""

from __future__ import annotations

import json
import logging
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.agreement import (
    RATIO,
    Deviation,
    Reference,
    deviations,
    draw_sizes,
    random_inputs,
    shapes_of,
    without_cudnn,
    without_tf32,
)
from dlcb.compiler.options import CompileOptions, cache_folder
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.model import load_model
from dlcb.kernel_cache import Store

_FAR = 4.0  # times eager's own error: more than rounding does

logger = logging.getLogger("dlcb.compiler.check")


def check(
    artifact: Artifact,
    key: str,
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    options: CompileOptions,
    store: Store,
    further: Sequence[Mapping[str, int]] = (),
) -> str:
    """Why the artifact under `key` must not serve, as one line for people;
    empty where it agrees with eager. `further` are sizes to try beside those drawn."""
    device = "cuda" if options.target.kind == "cuda" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        logger.warning("%s: compiled for CUDA without a GPU: not checked against eager", source.name)
        return ""
    eager = module.module() if isinstance(module, ExportedProgram) else module
    count = options.check_shapes
    found = disagreements(source, key, eager, store, device=device, count=count, seed=0, further=further)
    if not found:
        return ""
    reason = quarantine_reason(found)
    path = write_reproduction(source, artifact, found)
    logger.error("%s is served by eager PyTorch: %s; reproduction in %s", source.name, reason, path)
    return reason


def disagreements(
    source: ModelSource,
    artifact_key: str,
    module: nn.Module,
    store: Store,
    *,
    device: str,
    count: int,
    seed: int,
    further: Sequence[Mapping[str, int]] = (),
) -> list[Deviation]:
    """The deviations beyond tolerance at up to `count` shapes and at the sizes `further`, at two of them with
    nothing masked as well; a call that fails where eager does not is one as well."""
    model = load_model(source, artifact_key, store, device=device)
    reference = Reference(module.to(device))
    found: list[Deviation] = []
    with warnings.catch_warnings(), without_tf32():
        warnings.simplefilter("ignore")  # the model's own, at shapes that nobody asked for
        drawn = [*draw_sizes(model.signature, count, seed), *further]
        unmasked = drawn[-2:] if model.mask else []
        for number, sizes in enumerate([*drawn, *unmasked]):
            shapes = shapes_of(model.signature, sizes)
            given = random_inputs(source, shapes, seed + number)
            bare = number >= len(drawn)
            if bare:
                given[model.mask].fill_(1)
            inputs = [x.to(device) for x in given.values()]
            try:
                with without_cudnn():
                    eager = reference.eager(inputs)
            except Exception:  # the user's code may raise anything
                continue  # eager itself refuses this shape
            try:
                ours = model.call(*inputs, unmasked=bare)
            except Exception as error:  # nothing of ours may fail where eager PyTorch does not
                found.append(Deviation(shapes, "*", 0, 0, False, f"{type(error).__name__}: {error}"))
            else:
                found += deviations(shapes, source.outputs, ours, eager, _exact(reference, inputs, eager))
    return _beyond_chance(found)


def _exact(
    reference: Reference, inputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """The results in float64; eager's own where the model names a narrower type itself, which float64
    operands do not fit."""
    try:
        return reference.exact(inputs)
    except RuntimeError:
        return eager


def _beyond_chance(rows: Sequence[Deviation]) -> list[Deviation]:
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


def quarantine_reason(found: Sequence[Deviation]) -> str:
    """One line for people: the first deviation and how many there are."""
    first = found[0]
    what = first.reason or f"error {first.error:.2e}, eager's own {first.eager_error:.2e}"
    return f"{len(found)} deviations from eager; first: output {first.output} at {dict(first.shapes)}: {what}"


def write_reproduction(source: ModelSource, artifact: Artifact, found: Sequence[Deviation]) -> Path:
    """What is needed to see the disagreement again:
    source, graph text and the shapes, under the cache folder."""
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
