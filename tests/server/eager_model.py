"""A backend for the server's tests: the same two functions as `dlcb.compiler`, over models of a few numpy
lines each. It compiles nothing, so that a server is up in a second; what a model does stands in its function
below.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy

from dlcb.compiler import (
    ArtifactError,
    BatchAxes,
    CompilerError,
    DeclarationError,
    Dim,
    IndexRangeError,
    InputDeclaration,
    ModelSource,
    RequestError,
    Signature,
    TensorSpec,
    ToolchainError,
)
from dlcb.compiler.signature import Guard
from dlcb.kernel_cache import Key, Store, model_owner

log = logging.getLogger(__name__)

Arrays = Mapping[str, numpy.ndarray]


@dataclass(frozen=True)
class Program:
    """A model: its function, the texts of its output dims and dtypes, and where rows lie, when they are
    independent."""

    run: Callable[..., numpy.ndarray]
    output_dims: tuple[str, ...] | None
    dtype: str = "float32"
    batch_axis: int | None = None
    guards: tuple[str, ...] = ()
    padding: tuple[str, ...] = ()  # sizes whose padding is said to be harmless
    memory: str = ""


def echo(x: numpy.ndarray) -> numpy.ndarray:
    return x


def mlp(x: numpy.ndarray) -> numpy.ndarray:
    rng = numpy.random.default_rng(0)
    first, second = rng.standard_normal((128, 256), "float32"), rng.standard_normal((256, 128), "float32")
    return numpy.maximum(x @ first, 0) @ second


def row_sums(x: numpy.ndarray) -> numpy.ndarray:
    return x.sum(axis=1)


def standardize(x: numpy.ndarray) -> numpy.ndarray:
    if not x.ndim:
        raise RequestError("PyTorch refuses inputs 'x' []: it has no last axis")
    with numpy.errstate(invalid="ignore"):  # a probe is constant
        return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def look_up(ids: numpy.ndarray) -> numpy.ndarray:
    """A table of 100 rows: value i is i squared."""
    wrong = numpy.argwhere((ids < 0) | (ids >= 100))
    if len(wrong):
        position = tuple(int(place) for place in wrong[0])
        raise IndexRangeError("ids", position, int(ids[position]), 0, 100)
    return (ids.astype("float32")) ** 2


def sleepy(x: numpy.ndarray) -> numpy.ndarray:
    """Sleeps for the largest value, in milliseconds."""
    time.sleep(float(x.max()) / 1e3)
    return x


def gated(x: numpy.ndarray) -> numpy.ndarray:
    """Runs until the test lets it through: says that it has begun, and waits for a file. A probe, of zeros,
    is let through at once."""
    if not x.any():
        return x
    gate = gate_of(os.getppid(), int(x.max()))
    Path(f"{gate}.begun").touch()
    deadline = time.monotonic() + 60
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return x


def gate_of(server: int, number: int) -> Path:
    """The file that lets a run of `gated` through; `server` is the process id of the front."""
    return Path(tempfile.gettempdir()) / f"dlcb-gate-{server}-{number}"


def deadly(x: numpy.ndarray) -> numpy.ndarray:
    """Ends the process at a 13, raises at a 7."""
    if (x == 13).any():
        os._exit(13)
    if (x == 7).any():
        raise RuntimeError("seven")
    return x


def centred(x: numpy.ndarray, mask: numpy.ndarray) -> numpy.ndarray:
    """Each row less the mean of what its mask keeps."""
    return x - (x * mask).sum(1, keepdims=True) / numpy.maximum(mask.sum(1, keepdims=True), 1)


def placed(x: numpy.ndarray) -> numpy.ndarray:
    """Each element and its position."""
    return x + numpy.arange(x.shape[1], dtype=x.dtype)


def neighbours(x: numpy.ndarray) -> numpy.ndarray:
    """Each difference of neighbours along both axes: one shorter than the input."""
    return x[:, 1:, 1:] - x[:, :-1, :-1]


def wrongly_proven(x: numpy.ndarray) -> numpy.ndarray:
    return x - x.mean(1, keepdims=True)


def talkative(x: numpy.ndarray) -> numpy.ndarray:
    """Warns at every run, as PyTorch does of the deviation of one element, and fails at a 7."""
    warnings.warn("degrees of freedom is <= 0", UserWarning, stacklevel=2)
    warnings.warn("will behave otherwise in the future", FutureWarning, stacklevel=2)
    return deadly(x)


def leaky(x: numpy.ndarray, mask: numpy.ndarray) -> numpy.ndarray:
    """Takes a mask and looks behind it."""
    return x - x.mean(1, keepdims=True) * mask.max(1, keepdims=True)


def mixed(x: numpy.ndarray, mask: numpy.ndarray) -> numpy.ndarray:
    """Less the mean of all rows."""
    return x - (x * mask).sum() / numpy.maximum(mask.sum(), 1)


PROGRAMS = {
    "centred": Program(centred, ("batch", "length"), batch_axis=0),
    "leaky": Program(leaky, ("batch", "length"), batch_axis=0),
    "mixed": Program(mixed, ("batch", "length")),
    "placed": Program(placed, ("batch", "length"), batch_axis=0, padding=("length",)),
    "neighbours": Program(
        neighbours, ("batch", "height - 1", "width - 1"), batch_axis=0, padding=("height", "width")
    ),
    "wrongly_proven": Program(wrongly_proven, ("batch", "length"), batch_axis=0, padding=("length",)),
    "heavy": Program(echo, ("batch", "width"), batch_axis=0, memory="1000 * batch * width"),
    "identity": Program(echo, ("batch", "width"), batch_axis=0),
    "mlp": Program(mlp, ("batch", "128"), batch_axis=0),
    "row_sums": Program(row_sums, ("batch",), batch_axis=0),
    "columns": Program(echo, ("height", "batch"), batch_axis=1),
    "standardize": Program(standardize, None),
    "look_up": Program(look_up, ("batch", "length"), batch_axis=0),
    "sleepy": Program(sleepy, ("batch", "width"), batch_axis=0),
    "gated": Program(gated, ("batch", "width"), batch_axis=0),
    "deadly": Program(deadly, ("batch", "width"), batch_axis=0),
    "talkative": Program(talkative, ("batch", "width"), batch_axis=0),
    "halves": Program(echo, ("batch", "width"), dtype="float16", batch_axis=0),
    "brains": Program(echo, ("batch", "width"), dtype="bfloat16", batch_axis=0),
    "flags": Program(echo, ("batch", "width"), dtype="bool", batch_axis=0),
    "bytes": Program(echo, ("batch", "width"), dtype="uint8", batch_axis=0),
    "square": Program(echo, ("batch", "n", "m"), batch_axis=0, guards=("n * m <= 100",)),
}


@dataclass
class Counters:
    entries: int = 0
    compiler_calls: int = 0
    guard_failures: int = 0
    confirmed: int = 0
    refuted: int = 0


@dataclass(frozen=True)
class Report:
    tier: str
    dims: tuple[dict[str, Any], ...]
    kernels: tuple[str, ...] = ()
    batching: tuple[str, ...] = ()
    from_cache: bool = False
    quarantined: str = ""


@dataclass(frozen=True)
class Compilation:
    artifact_key: str
    signature: Signature
    report: Report
    modules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    outputs: dict[str, numpy.ndarray]
    tier: str
    result: str


@dataclass(frozen=True)
class Plan:
    output_shapes: dict[str, tuple[int, ...] | None]
    tier: str
    bytes: int
    cached: bool
    would_compile: bool


@dataclass
class Model:
    """The loaded model: a shape is a hit when it came before. Any-rank models ask for a compilation at each
    new rank."""

    source: ModelSource
    signature: Signature
    program: Program
    request_compile: Callable[[ModelSource], Future[str]] | None
    counters: Counters = field(default_factory=Counters)
    seen: set[tuple[int, ...]] = field(default_factory=set)
    ranks: dict[int, Future[str]] = field(default_factory=dict)
    loaded_ranks: dict[tuple[int, ...], Any] = field(default_factory=dict)
    recorded: int = 0

    def run(self, inputs: Arrays) -> Outcome:
        values = inputs[self.source.inputs[0].name]
        hit = values.shape in self.seen
        self.seen.add(values.shape)
        self.counters.entries = len(self.seen)
        if self.source.arguments.get("unproven"):  # as if each shape had been compared once
            self.counters.refuted = sum(13 in shape for shape in self.seen)
            self.counters.confirmed = len(self.seen) - self.counters.refuted
        tier = "dynamic" if self.program.output_dims is not None else self._tier(values)
        output = self.program.run(*(inputs[entry.name] for entry in self.source.inputs))
        return Outcome({self.source.outputs[0]: output}, tier, "hit" if hit else "miss")

    def promote(self) -> bool:
        """Records one plan, as a model on a GPU would, for each shape it has seen."""
        self.recorded = min(self.recorded + 1, len(self.seen) + 1)
        return self.recorded <= len(self.seen)

    def plan(self, shapes: Mapping[str, tuple[int, ...]]) -> Plan:
        shape = shapes[self.source.inputs[0].name]
        tier, compiles = "dynamic", False
        if self.program.output_dims is None:
            compiles = len(shape) not in self.ranks
            tier = "jit" if self.source.jit == "wait" or not compiles else "eager"
        return Plan(self.signature.output_shapes(shapes), tier, 0, tuple(shape) in self.seen, compiles)

    def _tier(self, values: numpy.ndarray) -> str:
        if values.ndim not in self.ranks and self.request_compile is not None:
            shape = tuple(f"d{axis}" for axis in range(values.ndim))
            inputs = tuple(replace(entry, shape=shape) for entry in self.source.inputs)
            self.ranks[values.ndim] = self.request_compile(replace(self.source, inputs=inputs))
        future = self.ranks[values.ndim]
        if self.source.jit == "wait":
            wait([future], timeout=30)
        if future.done() and (error := future.exception()) is not None:
            log.warning("stays eager: %s", error)
            return "eager"
        return "jit" if future.done() else "eager"


def find_model(source: ModelSource, store: Store, options: None = None) -> Compilation | None:
    key = key_of(source)
    return None if store.get(key) is None else _compilation(source, key, cached=True)


def compile_model(
    source: ModelSource,
    store: Store,
    options: None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Compilation:
    """An artifact that names the program. `arguments` of the source say how long it takes and whether it
    fails."""
    if progress is not None:
        progress("capture", 0.5)
    time.sleep(source.arguments.get("compile_seconds", 0))
    if source.arguments.get("fails") == "compiler":
        raise CompilerError("told to fail", stage="capture")
    if source.arguments.get("fails") == "declaration":
        raise DeclarationError("told to be another", key="outputs")
    if source.arguments.get("fails") == "toolchain":
        raise ToolchainError("there is no compiler", stage="build")
    if source.arguments.get("fails") == "process":
        os._exit(9)
    if source.arguments.get("fails") == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if source.arguments.get("fails") == "fault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if source.arguments.get("fails") == "exit":
        sys.exit("told to leave")
    key = key_of(source)
    cached = store.get(key) is not None
    if not cached:
        store.put(key, b"artifact", kind="artifact", label=source.name)
    return _compilation(source, key, cached)


def key_of(source: ModelSource) -> str:
    return Key({"source": json.dumps(source.to_json(), sort_keys=True)}).digest


def _compilation(source: ModelSource, key: str, cached: bool) -> Compilation:
    signature = signature_of(source)
    dims = tuple(
        {"size": name} for entry in source.inputs for name in entry.shape or () if isinstance(name, str)
    )
    quarantined = str(source.arguments.get("quarantined", ""))
    tier = "dynamic" if source.inputs[0].shape is not None else "jit"
    tier = "eager" if quarantined else tier
    alone = "no size is proven to count independent rows: each request runs alone"
    batching = (alone,) if signature.batch is None else ()
    return Compilation(key, signature, Report(tier, dims, (), batching, cached, quarantined))


def pin_model(source: ModelSource, artifact_key: str, store: Store, options: None = None) -> None:
    store.pin(artifact_key, model_owner(source.name, source.version))
    store.path(artifact_key)


def load_model(
    source: ModelSource,
    artifact_key: str,
    store: Store,
    *,
    device: str = "cpu",
    request_compile: Callable[[ModelSource], Future[str]] | None = None,
) -> Model:
    if store.get(artifact_key) is None:
        raise ArtifactError(f"no artifact {artifact_key}", stage="load")
    if source.arguments.get("fails") == "load" or Path(source.arguments.get("fails_with", "/none")).exists():
        raise RuntimeError("told to fail")
    if source.arguments.get("fails") == "worker":
        os._exit(9)
    if source.arguments.get("fails") == "exit at load":
        sys.exit("told to leave")
    return Model(source, signature_of(source), program_of(source), request_compile)


def program_of(source: ModelSource) -> Program:
    return PROGRAMS[str(source.factory).partition(":")[2]]


def signature_of(source: ModelSource) -> Signature:
    program, first = program_of(source), source.inputs[0]
    batch = None
    axis = program.batch_axis
    if first.shape is not None and axis is not None and isinstance(first.shape[axis], str):
        names = [entry.name for entry in source.inputs]
        batch = BatchAxes(str(first.shape[axis]), dict.fromkeys(names, axis), {source.outputs[0]: axis})
    output = source.outputs[0]
    return Signature(
        inputs=tuple(TensorSpec(entry.name, entry.dtype, dims_of(source, entry)) for entry in source.inputs),
        outputs=(TensorSpec(output, program.dtype, None),),
        output_dims={output: program.output_dims},
        guards=tuple(Guard(text) for text in program.guards),
        batch=batch,
        padding=dict.fromkeys(program.padding, ""),
        memory=program.memory,
    )


def dims_of(source: ModelSource, entry: InputDeclaration) -> tuple[Dim | int, ...] | None:
    if entry.shape is None:
        return None
    return tuple(
        dim if isinstance(dim, int) else Dim(dim, *source.dims.get(dim, (0, None)), reason="declared")
        for dim in entry.shape
    )
