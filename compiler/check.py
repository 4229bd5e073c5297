"""The load check: a fresh artifact's outputs against eager PyTorch at shapes drawn from the signature's
edges.

A model that disagrees, or that PyTorch refuses wherever it is tried, is served by eager PyTorch from then on
(quarantined): said in the log, the report and a metric, and kept as a reproduction on disk. Where PyTorch
refuses sizes that the program would answer, the program is limited. The verdict is part of the artifact, so a
warm load does not repeat it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace

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
    relative_error,
    shapes_of,
    without_cudnn,
    without_tf32,
)
from dlcb.compiler.bridge.chance import Drawn, Recording, Repeating
from dlcb.compiler.bridge.datatypes import misdeclared
from dlcb.compiler.bridge.far_values import Tensors, far_deviations
from dlcb.compiler.bridge.files import exported_sizes
from dlcb.compiler.bridge.one_device import settle
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.disagreement import beyond_chance, in_words, write_reproduction
from dlcb.compiler.errors import CaptureError, DeclarationError, GuardError, IndexRangeError, RequestError
from dlcb.compiler.refused import Refusal, refusals, too_small
from dlcb.compiler.signature import Signature
from dlcb.compiler.source import ModelSource
from dlcb.compiler.thunks.assemble import load_model
from dlcb.compiler.thunks.eager import refusal_words
from dlcb.compiler.thunks.model import CompiledModel
from dlcb.kernel_cache import Store

logger = logging.getLogger("dlcb.compiler.check")

_STEADY = 1e-3  # least relative error between answers to the same inputs that says they are not the same
_SEEDS = 3  # of inputs that must all be refused where values may be at fault


@dataclass(frozen=True)
class Verdict:
    """`quarantined`: why the artifact must not serve, as one line for people; "" where it agrees with eager.
    `refusals` limit it to sizes that PyTorch does not refuse. `notes` are for the report. `confirmed`: the
    shapes of all inputs, in their order, wherever it was seen to agree."""

    quarantined: str = ""
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    confirmed: tuple[Shapes, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What PyTorch gives at some sizes: its outputs and those of float64, or the words in which it refuses
    them. `seed` is that of the inputs; `bare` inputs have nothing masked."""

    sizes: Mapping[str, int]
    seed: int
    bare: bool = False
    eager: tuple[torch.Tensor, ...] = ()
    exact: Sequence[torch.Tensor] = ()
    refusal: str | None = None
    drawn: Drawn | None = None  # the random numbers in it

    def drawing(self) -> AbstractContextManager[object]:
        """While it is entered, the same random numbers are drawn."""
        return nullcontext() if self.drawn is None else Repeating(self.drawn)


def prepared(
    source: ModelSource,
    module: nn.Module | ExportedProgram,
    device: str,
    first: Mapping[str, tuple[int, ...]] | None = None,
) -> Reference:
    """The eager module on `device`, where `module` itself is moved. It is called once at `first` shapes, so
    that what PyTorch loads for that, which on a GPU takes longer than all answers, is there when they are
    asked; what it says there does not matter."""
    eager = module.module() if isinstance(module, ExportedProgram) else module
    with warnings.catch_warnings(), without_tf32():
        warnings.simplefilter("ignore")  # PyTorch's own, where it copies the module of a program
        reference = Reference(settle(eager, device), [declared.name for declared in source.inputs])
        if first is not None:
            inputs = [*random_inputs(source, first, 0, device).values()]
            with suppress(Exception):  # the user's code may raise anything
                with without_cudnn():
                    reference.eager(inputs)
                reference.exact(inputs)
    return reference


class Answers:
    """PyTorch's side of the check, at sizes drawn from the signature and at `further` ones, at two of them
    with nothing masked as well. It needs no kernel, and so is asked while they are compiled."""

    def __init__(
        self,
        source: ModelSource,
        module: nn.Module | ExportedProgram,
        reference: Reference,
        signature: Signature,
        mask: str,
        device: str,
        count: int,
        further: Sequence[Mapping[str, int]] = (),
        draws: bool = False,
    ) -> None:
        """`reference` is `module` as `prepared` on the device; `draws`: the program draws random numbers."""
        self.source, self.signature, self.device, self.draws = source, signature, device, draws
        self._mask, self._reference = mask, reference
        drawn = [*draw_sizes(signature, count, seed=0), *further]
        if isinstance(module, ExportedProgram):  # that it refuses sizes it was not exported for says nothing
            fixed = exported_sizes(source, Trace.of(module))
            drawn = [{name: fixed.get(name, size) for name, size in sizes.items()} for sizes in drawn]
        self.drawn = self.at(drawn)
        if mask:
            self.drawn += self.at(drawn[-2:], len(drawn), bare=True)
        self._steady = self._is_steady()

    def at(self, drawn: Sequence[Mapping[str, int]], first_seed: int = 0, bare: bool = False) -> list[Answer]:
        """The answers at these sizes."""
        with warnings.catch_warnings(), without_tf32():
            warnings.simplefilter("ignore")  # the model's own, at shapes that nobody asked for
            return [self._at(sizes, seed, bare) for seed, sizes in enumerate(drawn, first_seed)]

    def _at(self, sizes: Mapping[str, int], seed: int, bare: bool) -> Answer:
        inputs = self.inputs(sizes, seed, bare)
        recording = Recording() if self.draws else None
        try:
            with recording or nullcontext():
                eager = self._eager(inputs)
            if self.device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # the user's code may raise anything
            if self.device == "cuda":
                _require_device(sizes)
            return Answer(sizes, seed, bare, refusal=refusal_words(error))
        answer = Answer(sizes, seed, bare, eager, drawn=recording.drawn if recording else None)
        try:
            with answer.drawing():
                exact: Sequence[torch.Tensor] = self._reference.exact(inputs)
        except Exception:  # it names a narrower type itself, or its hooks know no copy of it
            exact = eager
        if [x.shape for x in exact] != [x.shape for x in eager]:  # it counts on the bytes of a type
            exact = eager
        return replace(answer, exact=exact)

    def inputs(self, sizes: Mapping[str, int], seed: int, bare: bool = False) -> list[torch.Tensor]:
        """The same for the same arguments."""
        given = random_inputs(self.source, shapes_of(self.signature, sizes), seed, self.device)
        if bare:
            given[self._mask].fill_(1)
        return list(given.values())

    def far(self, model: CompiledModel, sizes: Mapping[str, int]) -> list[Deviation]:
        """Where the model deviates at values that the others do not reach."""

        def ours(inputs: Tensors) -> Tensors | None:
            try:
                return model.call(*inputs)
            except RequestError:
                return None

        def asked(call: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors | None]:
            def answer(inputs: Tensors) -> Tensors | None:
                try:
                    return call(inputs)
                except Exception:  # the user's code may raise anything
                    return None

            return answer

        names = [spec.name for spec in self.signature.outputs]
        calls = ours, asked(self._eager), asked(self._reference.exact)
        with warnings.catch_warnings(), without_tf32():
            warnings.simplefilter("ignore")  # the model's own, at values that nobody asked for
            return far_deviations(self.source, shapes_of(self.signature, sizes), names, self.device, calls)

    def refuses(self, sizes: Mapping[str, int], seed: int = 0) -> bool:
        """Whether PyTorch refuses the model at these sizes, with the inputs of `seed`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._eager(self.inputs(sizes, seed))
        except Exception:  # the user's code may raise anything
            return True
        return False

    def incomparable(self) -> str:
        """Why no answer says that the model is right; "" where they do."""
        drawn = [each.drawn for each in self.drawn if each.drawn is not None]
        if unseen := next((each.unseen for each in drawn if each.unseen), ""):
            return f"{unseen} does not show which random numbers it draws: answers cannot be compared"
        if any(each.seeded for each in drawn):
            return "the model itself says which random numbers it draws"
        if not self._steady:
            return "it gives another answer at each call, though PyTorch draws the same random numbers"
        return ""

    def _is_steady(self) -> bool:
        """Whether it answers the largest inputs as before when it is asked again."""
        given = [each for each in self.drawn if each.refusal is None]
        if not given:
            return True
        most = max(given, key=lambda each: sum(x.numel() for x in each.eager))
        inputs = self.inputs(most.sizes, most.seed, most.bare)
        with warnings.catch_warnings(), without_tf32(), most.drawing():
            warnings.simplefilter("ignore")
            again = self._eager(inputs)
        return all(map(_are_alike, most.eager, again))

    def misdeclared(self, trials: Trials) -> DeclarationError | None:
        """What is wrong with the declared types, where that is why PyTorch refuses all sizes."""
        if trials.out_of_range is not None:
            return None
        names = [declared.name for declared in self.source.inputs]
        refused = (
            dict(zip(names, self.inputs(each.sizes, each.seed, each.bare), strict=True))
            for each in self.drawn
        )
        return misdeclared(self._reference.module, self.source.inputs, refused, trials.last_words)

    def always_refuses(self, sizes: Mapping[str, int]) -> bool:
        """Whether it does with whichever values were tried."""
        return all(self.refuses(sizes, seed) for seed in range(_SEEDS))

    def _eager(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """PyTorch's outputs; a ValueError where it leaves some out, as attention does with its weights over
        nothing: no signature says that."""
        with without_cudnn():
            made = self._reference.eager(inputs)
        wanted = len(self.signature.outputs)
        if len(made) != wanted:
            raise ValueError(f"it gives {len(made)} outputs, elsewhere {wanted}")
        return made


@dataclass
class Trials:
    """What calls at several sizes showed. `refused` are those that our program answered and PyTorch refuses,
    with its words; `inside` those that a call of PyTorch's within the program refused as well, where values
    may be at fault. `last_words` are what it said last."""

    deviations: list[Deviation] = field(default_factory=list)
    accepted: list[Mapping[str, int]] = field(default_factory=list)
    refused: list[tuple[Mapping[str, int], str]] = field(default_factory=list)
    inside: list[tuple[Mapping[str, int], str]] = field(default_factory=list)
    last_words: str = ""
    out_of_range: IndexRangeError | None = None  # of a value that the declared range allowed


def check(
    artifact: Artifact,
    key: str,
    answers: Answers,
    store: Store,
    parameters: Mapping[str, torch.Tensor],
    examples: Sequence[Mapping[str, int]] = (),
) -> Verdict:
    """Compares the artifact under `key`, whose `parameters` are those in the store, with PyTorch's answers,
    with those at `examples` where PyTorch refuses all that were drawn. DeclarationError where it refuses
    them for the declared types of the inputs."""
    source = answers.source
    try:
        model = load_model(source, key, store, device=answers.device, parameters=parameters)
    except GuardError as error:  # a call on parameters alone, which PyTorch may never come to
        return _quarantined(source, f"what is made at load is refused: {error.message}")
    trials = _try(model, answers, answers.drawn)
    if not trials.accepted:
        trials = _try(model, answers, answers.at(examples))
    if why := answers.incomparable():
        reason = why
    elif found := beyond_chance(trials.deviations):
        path = write_reproduction(source, artifact, found)
        reason = f"{in_words(found)}; reproduction in {path}"
    elif not trials.accepted and (wrong := answers.misdeclared(trials)):
        raise wrong
    elif not trials.accepted:
        said = [trials.last_words, *([_advice(trials.out_of_range)] if trials.out_of_range else [])]
        reason = f"PyTorch refuses every shape that was tried: {'; '.join(said)}"
    else:
        notes = (_advice(trials.out_of_range),) if trials.out_of_range else ()
        sure = trials.accepted
        if artifact.report.unproven:
            sure = [sizes for sizes in sure if not answers.far(model, sizes)]
        confirmed = [tuple(shapes_of(model.signature, sizes).values()) for sizes in sure]
        limits = refusals(trials.refused, trials.accepted, answers.refuses)
        limits += too_small(trials.inside, trials.accepted, answers.always_refuses)
        return Verdict("", tuple(limits), notes, tuple(dict.fromkeys(confirmed)))
    return _quarantined(source, reason)


def _require_device(sizes: Mapping[str, int]) -> None:
    """Raises CaptureError where PyTorch's own kernels have met a bad index, after which the GPU runs nothing
    more in this process."""
    try:
        torch.cuda.synchronize()
    except Exception as error:
        at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise CaptureError(
            f"PyTorch's own answer at {at} stops the GPU: {refusal_words(error)}; where such sizes are not "
            "meant to be legal, `dims` can say so",
            stage="reference",
        ) from error


def _quarantined(source: ModelSource, reason: str) -> Verdict:
    logger.error("%s is served by eager PyTorch: %s", source.name, reason)
    return Verdict(reason)


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """But for the order in which a GPU adds up, which may round every element of a half type otherwise."""
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    return relative_error(one, other) < max(_STEADY, 4 * torch.finfo(one.dtype).eps)


def _advice(wrong: IndexRangeError) -> str:
    """A request's error where `values` are right; here they are not."""
    low, high = wrong.low, wrong.high
    return (
        f"the load check drew {wrong.value} for '{wrong.input}', where {low} to {high - 1} is legal: its "
        f"`values` should be [{low}, {high}]"
    )


def _try(model: CompiledModel, answers: Answers, asked: Sequence[Answer]) -> Trials:
    """Calls at all sizes for which there is an answer. A call of ours that fails where eager does not
    deviates, too."""
    found = Trials()
    names = [spec.name for spec in model.signature.outputs]
    with warnings.catch_warnings(), without_tf32():
        warnings.simplefilter("ignore")  # the model's own, at shapes that nobody asked for
        for answer in asked:
            inputs = answers.inputs(answer.sizes, answer.seed, answer.bare)
            if answer.refusal is not None:
                found.last_words = answer.refusal
                try:
                    model.call(*inputs, unmasked=answer.bare)
                    found.refused.append((answer.sizes, answer.refusal))
                except IndexRangeError as wrong:
                    found.out_of_range = wrong
                except RequestError:
                    if _is_served(model, answer.sizes):
                        found.inside.append((answer.sizes, answer.refusal))
                except Exception:  # no guard of ours says so, and it would fail in another way
                    found.refused.append((answer.sizes, answer.refusal))
                continue
            found.accepted.append(answer.sizes)
            shapes = shapes_of(model.signature, answer.sizes)
            try:
                with answer.drawing():
                    ours = model.call(*inputs, unmasked=answer.bare)
            except IndexRangeError as wrong:
                if wrong.low < wrong.high:  # else no index is legal, and what PyTorch does is no answer
                    found.deviations.append(_failed(shapes, wrong))
            except Exception as error:  # nothing of ours may fail where eager PyTorch does not
                found.deviations.append(_failed(shapes, error))
            else:
                found.deviations += deviations(shapes, names, ours, answer.eager, answer.exact)
    return found


def _is_served(model: CompiledModel, sizes: Mapping[str, int]) -> bool:
    """Whether no guard of ours keeps these sizes from the program."""
    try:
        return model.plan(shapes_of(model.signature, sizes)).tier != "eager"
    except RequestError:
        return False


def _failed(shapes: Mapping[str, tuple[int, ...]], error: Exception) -> Deviation:
    return Deviation(shapes, "*", 0, 0, False, f"{type(error).__name__}: {error}")
