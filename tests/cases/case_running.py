"""What the cases share: compile a factory's module as a user would, call it, and hold it against eager
PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch

from dlcb.compiler import (
    CompiledModel,
    CompileOptions,
    InputDeclaration,
    ModelSource,
    compile_model,
    load_model,
)
from dlcb.compiler.bridge.agreement import Reference, compare
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.build.toolchain import calls
from dlcb.compiler.errors import RequestError
from dlcb.compiler.report import Report
from dlcb.compiler.signature import Signature
from dlcb.kernel_cache import LayeredStore

# the cases compare with eager themselves
OPTIONS = CompileOptions(check_shapes=0, optimisation="-O1")
Declared = tuple[str | int, ...]


@dataclass(frozen=True)
class Case:
    """A compiled model beside the module that it came from."""

    source: ModelSource
    signature: Signature
    report: Report
    model: CompiledModel
    reference: Reference

    def agrees(self, *tensors: torch.Tensor, tier: str = "dynamic") -> tuple[torch.Tensor, ...]:
        """The outputs, after a comparison with eager; no compiler runs, and the call is served by `tier`."""
        before, failures = calls.total, self.model.counters.guard_failures
        found = self.model.call(*tensors)
        inputs = dict(zip((x.name for x in self.source.inputs), tensors, strict=True))
        wrong = [
            d for d in compare(lambda *_: found, self.reference, inputs, self.source.outputs) if not d.agrees
        ]
        assert not wrong, wrong
        assert calls.total == before
        fell = self.model.counters.guard_failures - failures
        assert (fell > 0) == (tier == "eager"), f"{fell} calls fell to eager PyTorch"
        return found

    def refused(self, *arrays: numpy.ndarray | torch.Tensor) -> str:
        """The message with which both the signature and the model refuse these inputs, or the model alone."""
        given = {x.name: numpy.asarray(array) for x, array in zip(self.source.inputs, arrays, strict=True)}
        with pytest.raises(RequestError) as caught:
            self.signature.check(
                {k: a.shape for k, a in given.items()}, {k: str(a.dtype) for k, a in given.items()}
            )
            self.model.run(given)
        with pytest.raises(RequestError):
            self.model.run(given)
        return str(caught.value)

    def free(self) -> set[str]:
        return set(self.report.free_dims)


def declare(
    shapes: Mapping[str, Declared], types: Mapping[str, str], values: Mapping[str, Any]
) -> tuple[InputDeclaration, ...]:
    return tuple(
        InputDeclaration(name, types.get(name, "float32"), shape, values.get(name))
        for name, shape in shapes.items()
    )


def compiled(
    store: LayeredStore,
    factory: str,
    shapes: Mapping[str, Declared],
    *,
    types: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
    outputs: int = 1,
    dims: Mapping[str, tuple[int, int | None]] | None = None,
    options: CompileOptions = OPTIONS,
) -> Case:
    """The model of `case_models:<factory>`; `shapes` declares its inputs."""
    source = ModelSource(
        factory,
        "1",
        factory=f"case_models:{factory}",
        inputs=declare(shapes, types or {}, values or {}),
        outputs=tuple(f"out{k}" for k in range(outputs)),
        dims=dims or {},
    )
    compilation = compile_model(source, store, options)
    device = "cuda" if options.target.kind == "cuda" else "cpu"
    model = load_model(source, compilation.artifact_key, store, device=device)
    return Case(source, compilation.signature, compilation.report, model, Reference(load_module(source)))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def each_length(lengths: Sequence[int], *rest: int) -> list[torch.Tensor]:
    return [random(n, *rest) for n in lengths]
