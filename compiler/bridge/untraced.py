"""Programs that cannot be traced, because what they do next depends on values, or leaves PyTorch; those whose
kernels were not to be had: the compiler refused them, or generating them took too long; and those whose
answers cannot be compared. PyTorch runs them as they are; what their outputs are called and of which type
they are comes from running them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import torch
from torch import nn

from dlcb.compiler.bridge import capture
from dlcb.compiler.bridge.agreement import random_inputs, without_fast_path
from dlcb.compiler.bridge.datatypes import misdeclared
from dlcb.compiler.bridge.declared import declare
from dlcb.compiler.bridge.emit import from_torch
from dlcb.compiler.bridge.flattened import flattened
from dlcb.compiler.bridge.one_device import called
from dlcb.compiler.bridge.probes import Bindings, Prober, shape_at
from dlcb.compiler.bridge.unchanged import State, unchanged
from dlcb.compiler.dtype import DType
from dlcb.compiler.errors import (
    CaptureError,
    CompilerError,
    Incomparable,
    RefusedCode,
    TooLong,
    UnsupportedOperator,
)
from dlcb.compiler.shapes.system import System
from dlcb.compiler.source import InputDeclaration, ModelSource


@dataclass(frozen=True)
class Untraced:
    """The inputs with a name for every free dim, the outputs' names and types, and why nothing more is
    known."""

    inputs: tuple[InputDeclaration, ...]
    outputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    why: str


def untraced(source: ModelSource, module: nn.Module, error: CompilerError, device: str = "cpu") -> Untraced:
    """What is known of a program on `device` whose compilation ended in `error`. Raises it where the program
    does not run at any size that is tried, or where its answers depend on what earlier ones left in
    tensors that it holds, and a DeclarationError where it runs with inputs of other types."""
    dims, free = declare(source, source.inputs, System())
    runner = _Runner(module, source.inputs, dims, free)
    runner.device = device
    held = [*module.parameters(), *module.buffers(), *State(module, around=True).tensors()]
    before = _contents(held)
    try:
        sizes = runner.first()
    except CompilerError as refusal:
        words = refusal.message.rpartition(" failed: ")[2]
        wrong = misdeclared(module, source.inputs, runner.samples(), words)
        raise wrong or error from None
    steady = _is_steady(source, runner, sizes)
    if _contents(held) != before and not steady:
        raise CaptureError(
            f"{error.message}: its answers depend on those before, and those of a served model must not",
            stage="capture",
            source_line=error.source_line,
        ) from error
    inputs = tuple(
        replace(each, shape=tuple(d if isinstance(d, int) else d.value for d in dims[each.name]))
        for each in source.inputs
    )
    leaves, spec = flattened(runner.result)
    names = capture.names_of(leaves, spec, source.outputs)
    dtypes = [_carried(leaf.dtype).name for leaf in leaves if leaf is not None]
    traced = isinstance(error, (RefusedCode, TooLong, Incomparable))
    why = error.message if traced else f"it cannot be traced: {error.message}"
    why += f" ({error.source_line})" if error.source_line else ""
    return Untraced(inputs, tuple(names), tuple(dtypes), why)


def _carried(kind: torch.dtype) -> DType:
    """The element type of an output. UnsupportedOperator for one that no answer carries."""
    if kind.is_complex:
        raise UnsupportedOperator(
            f"an output of type {kind} fits in no answer: expected real numbers, as torch.view_as_real gives"
        )
    return from_torch(kind)


def _contents(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """How often each tensor was written to, and what it holds, since not all writes count."""
    return [(each._version, _checksum(each)) for each in tensors]


def _checksum(tensor: torch.Tensor) -> int:
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    plain = dense.detach().cpu().contiguous().flatten()
    return crc32(plain.view(torch.uint8).numpy().data) if plain.numel() else 0


def _is_steady(source: ModelSource, runner: _Runner, sizes: Bindings) -> bool:
    """Whether the program answers as it did before it was asked something else, at values that it takes."""
    shapes = {name: shape_at(dims, sizes) for name, dims in runner.dims.items()}
    answers: list[list[torch.Tensor]] = []
    for seed in (0, 1, 0):
        try:
            runner.call(random_inputs(source, shapes, seed))
        except CaptureError:
            return False
        leaves, _ = flattened(runner.result)
        answers.append([leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return all(torch.equal(*map(_bits, pair)) for pair in zip(answers[0], answers[2], strict=True))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """In which NaN equals NaN."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


class _Runner(Prober):
    """Looks for sizes at which the program itself runs, on real tensors."""

    result: object = None
    device = "cpu"

    def trace(self, sizes: Bindings) -> None:  # type: ignore[override]
        self.call(self.tensors(sizes))

    def call(self, inputs: Mapping[str, torch.Tensor]) -> None:
        with capture.user_code("forward"), unchanged(self.module), torch.no_grad(), without_fast_path():
            here = {name: tensor.to(self.device) for name, tensor in inputs.items()}
            self.result = called(self.module, self.device, lambda: capture.bound(self.module, here))
