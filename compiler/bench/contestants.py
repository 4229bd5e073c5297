"""Who runs in a benchmark: eager PyTorch, torch.compile in its modes, and our tiers, each as a prepared call
at one shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from dlcb.compiler.driver import compile_model, load_model, options_for
from dlcb.compiler.errors import UnknownName
from dlcb.compiler.source import ModelSource
from dlcb.kernel_cache import Store

Call = Callable[[], object]

_SETTLED = 4  # calls after which torch.compile records nothing more at a shape
_HOT = 10  # calls after which a plan is hot


class Contestant(Protocol):
    """`prepare(inputs)` gives a call at these inputs' shapes, with whatever compile that takes done;
    `seconds` is its cost."""

    name: str

    def prepare(self, inputs: Sequence[torch.Tensor]) -> Call: ...


@dataclass
class Eager:
    module: nn.Module
    name: str = "eager"

    def prepare(self, inputs: Sequence[torch.Tensor]) -> Call:
        return lambda: self.module(*inputs)


@dataclass
class EagerGraph:
    """Eager recorded once into a CUDA graph: what remains of eager without its launch costs."""

    module: nn.Module
    name: str = "eager graph"

    def prepare(self, inputs: Sequence[torch.Tensor]) -> Call:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.module(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.module(*inputs)
        return graph.replay


class TorchCompile:
    """torch.compile. `seconds` adds up the first calls, which compile."""

    def __init__(self, module: nn.Module, name: str, **options: Any) -> None:
        self.name = name
        self.seconds = 0.0
        self._call = torch.compile(module, **options)

    def prepare(self, inputs: Sequence[torch.Tensor]) -> Call:
        start = time.perf_counter()
        # Not one call: the first compiles, the next ones record graphs, and recording clears cuBLAS
        # workspaces that graphs of others, recorded before, would still write to.
        for _ in range(_SETTLED):
            self._call(*inputs)
        if inputs and inputs[0].is_cuda:
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - start
        return lambda: self._call(*inputs)


@dataclass
class Ours:
    """A compiled model; nothing is compiled for a shape. `promote` uses idle moments, as the server does, to
    record plans."""

    call: Callable[..., Sequence[torch.Tensor]]
    name: str = "ours"
    promote: Callable[[], bool] = lambda: False

    def prepare(self, inputs: Sequence[torch.Tensor]) -> Call:
        for _ in range(_HOT):
            self.call(*inputs)
        while self.promote():
            pass
        return lambda: self.call(*inputs)


class OursStatic:
    """Our static tier: the model compiled again for each shape, its sizes literals in the source. `seconds`
    adds up these compiles."""

    name = "ours static"

    def __init__(self, source: ModelSource, store: Store, device: str) -> None:
        self._source, self._store, self._device = source, store, device
        self.seconds = 0.0

    def prepare(self, inputs: Sequence[torch.Tensor]) -> Call:
        start = time.perf_counter()
        pinned = tuple(
            replace(declared, shape=tuple(x.shape))
            for declared, x in zip(self._source.inputs, inputs, strict=True)
        )
        source = replace(self._source, inputs=pinned)
        options = replace(options_for(self._device), static=True)
        key = compile_model(source, self._store, options).artifact_key
        model = load_model(source, key, self._store, device=self._device)
        self.seconds += time.perf_counter() - start
        return Ours(partial(model.call, wait=False), promote=model.promote).prepare(inputs)


def peers(
    module: nn.Module, names: Sequence[str], source: ModelSource, store: Store, device: str
) -> list[Contestant]:
    """The peers called `names`, in that order. UnknownName lists what exists."""
    made: Mapping[str, Callable[[], Contestant]] = {
        "eager": lambda: Eager(module),
        "eager-graph": lambda: EagerGraph(module),
        "compile": lambda: TorchCompile(module, "compile", dynamic=False),
        "compile-dynamic": lambda: TorchCompile(module, "compile dynamic", dynamic=True),
        "reduce-overhead": lambda: TorchCompile(
            module, "reduce-overhead", mode="reduce-overhead", dynamic=False
        ),
        "ours-static": lambda: OursStatic(source, store, device),
    }
    unknown = [name for name in names if name not in made]
    if unknown:
        raise UnknownName(f"unknown peers {', '.join(unknown)}: expected some of {', '.join(made)}")
    return [made[name]() for name in names]
