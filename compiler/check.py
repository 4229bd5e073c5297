"""The load check: a fresh artifact's outputs against eager PyTorch at shapes drawn from the signature's
edges.

A model that disagrees, or that PyTorch refuses wherever it is tried, is served by eager PyTorch from then on
(quarantined): said in the log, the report and a metric, and kept as a reproduction on disk. Where PyTorch
refuses sizes that the program would answer, the program is limited. The verdict is part of the artifact, so a
warm load does not repeat it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.export import ExportedProgram

from dlcb.compiler.artifact import Artifact, Shapes
from dlcb.compiler.bridge.agreement import (
    Deviation,
    Reference,
    deviations,
    draw_sizes,
    random_inputs,
    shapes_of,
    without_cudnn,
    without_tf32,
)
from dlcb.compiler.bridge.generalize import exported_sizes
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.disagreement import beyond_chance, in_words, write_reproduction
from dlcb.compiler.errors import IndexRangeError, RequestError
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.refused import Refusal, refusals
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.eager import refusal_words
from dlcb.compiler.thunks.model import CompiledModel, load_model
from dlcb.kernel_cache import Store

logger = logging.getLogger("dlcb.compiler.check")


@dataclass(frozen=True)
class Verdict:
    """`quarantined`: why the artifact must not serve, as one line for people; "" where it agrees with eager.
    `refusals` limit it to sizes that PyTorch does not refuse. `notes` are for the report. `confirmed`: the
    shapes of all inputs, in their order, wherever it was seen to agree."""

    quarantined: str = ""
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    confirmed: tuple[Shapes, ...] = ()


@dataclass
class Trials:
    """What calls at several sizes showed. `refused` are those that our program answered and PyTorch refuses,
    with its words; `last_words` are what it said last."""

    deviations: list[Deviation] = field(default_factory=list)
    accepted: list[Mapping[str, int]] = field(default_factory=list)
    refused: list[tuple[Mapping[str, int], str]] = field(default_factory=list)
    last_words: str = ""
    out_of_range: IndexRangeError | None = None  # of a value that the declared range allowed


def check(
    artifact: Artifact,
    key: str,
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    options: CompileOptions,
    store: Store,
    further: Sequence[Mapping[str, int]] = (),
    examples: Sequence[Mapping[str, int]] = (),
) -> Verdict:
    """Compares the artifact under `key` with eager. `further` are sizes to try beside those drawn; `examples`
    where PyTorch refuses all of these."""
    device = "cuda" if options.target.kind == "cuda" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        logger.warning("%s: compiled for CUDA without a GPU: not checked against eager", source.name)
        return Verdict()
    eager = module.module() if isinstance(module, ExportedProgram) else module
    model = load_model(source, key, store, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, where it copies the module of a program
        reference = Reference(eager.to(device), [declared.name for declared in source.inputs])
    drawn = [*draw_sizes(model.signature, options.check_shapes, seed=0), *further]
    if isinstance(module, ExportedProgram):  # that it refuses sizes it was not exported for says nothing
        fixed = exported_sizes(source, Trace.of(module))
        drawn = [{name: fixed.get(name, size) for name, size in sizes.items()} for sizes in drawn]
    trials = _try(source, model, reference, drawn)
    if not trials.accepted:
        trials = _try(source, model, reference, examples)
    if found := beyond_chance(trials.deviations):
        path = write_reproduction(source, artifact, found)
        reason = f"{in_words(found)}; reproduction in {path}"
    elif not trials.accepted:
        said = [trials.last_words, *([_advice(trials.out_of_range)] if trials.out_of_range else [])]
        reason = f"PyTorch refuses every shape that was tried: {'; '.join(said)}"
    else:
        asked = partial(_refuses, source, model, reference)
        notes = (_advice(trials.out_of_range),) if trials.out_of_range else ()
        confirmed = [tuple(shapes_of(model.signature, sizes).values()) for sizes in trials.accepted]
        limits = tuple(refusals(trials.refused, trials.accepted, asked))
        return Verdict("", limits, notes, tuple(dict.fromkeys(confirmed)))
    logger.error("%s is served by eager PyTorch: %s", source.name, reason)
    return Verdict(reason)


def _advice(wrong: IndexRangeError) -> str:
    """A request's error where `values` are right; here they are not."""
    low, high = wrong.low, wrong.high
    return (
        f"the load check drew {wrong.value} for '{wrong.input}', where {low} to {high - 1} is legal: its "
        f"`values` should be [{low}, {high}]"
    )


def _try(
    source: ModelSource,
    model: CompiledModel,
    reference: Reference,
    drawn: Sequence[Mapping[str, int]],
) -> Trials:
    """Calls at all these sizes, at two of them with nothing masked as well. A call of ours that fails where
    eager does not deviates, too."""
    found = Trials()
    names = [spec.name for spec in model.signature.outputs]
    with warnings.catch_warnings(), without_tf32():
        warnings.simplefilter("ignore")  # the model's own, at shapes that nobody asked for
        unmasked = drawn[-2:] if model.mask else []
        for number, sizes in enumerate([*drawn, *unmasked]):
            shapes, bare = shapes_of(model.signature, sizes), number >= len(drawn)
            given = random_inputs(source, shapes, number)
            if bare:
                given[model.mask].fill_(1)
            inputs = [x.to(model.device.torch_device) for x in given.values()]
            try:
                with without_cudnn():
                    eager = _eager(model, reference, inputs)
            except Exception as error:  # the user's code may raise anything
                found.last_words = refusal_words(error)
                try:
                    model.call(*inputs, unmasked=bare)
                    found.refused.append((sizes, found.last_words))
                except IndexRangeError as wrong:
                    found.out_of_range = wrong
                except RequestError:
                    pass
                continue
            found.accepted.append(sizes)
            try:
                ours = model.call(*inputs, unmasked=bare)
            except Exception as error:  # nothing of ours may fail where eager PyTorch does not
                failed = Deviation(shapes, "*", 0, 0, False, f"{type(error).__name__}: {error}")
                found.deviations.append(failed)
            else:
                found.deviations += deviations(shapes, names, ours, eager, _exact(reference, inputs, eager))
    return found


def _eager(
    model: CompiledModel, reference: Reference, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """PyTorch's outputs; a ValueError where it leaves some out, as attention does with its weights over
    nothing: no signature says that."""
    made = reference.eager(inputs)
    if len(made) != len(model.signature.outputs):
        raise ValueError(f"it gives {len(made)} outputs, elsewhere {len(model.signature.outputs)}")
    return made


def _refuses(
    source: ModelSource, model: CompiledModel, reference: Reference, sizes: Mapping[str, int]
) -> bool:
    """Whether PyTorch refuses the model at these sizes."""
    inputs = random_inputs(source, shapes_of(model.signature, sizes), 0)
    try:
        with warnings.catch_warnings(), without_cudnn():
            warnings.simplefilter("ignore")
            _eager(model, reference, [x.to(model.device.torch_device) for x in inputs.values()])
    except Exception:  # the user's code may raise anything
        return True
    return False


def _exact(
    reference: Reference, inputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """The results in float64; eager's own where the model names a narrower type itself, which float64
    operands do not fit."""
    try:
        return reference.exact(inputs)
    except RuntimeError:
        return eager
