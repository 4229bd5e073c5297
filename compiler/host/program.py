"""The host program: what runs between a request's shapes and its results, as data. Guards, sizes, buffers,
kernel launches and calls are written over size variables; the interpreter gives them numbers. It prints well
and travels as JSON, expressions as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.host.codec import Plain, decode, encode

POSITION = "position"  # the size variable that stands for the row-major position of a bad index


@dataclass(frozen=True)
class Input:
    """A tensor from the caller. A dim that is a size variable met for the first time binds it; any other is
    checked."""

    name: str
    dtype: str
    dims: tuple[Expr, ...]


@dataclass(frozen=True)
class Definition:
    """A size variable that is not read off an input: it equals an expression over others."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Guard:
    """A fact that every later step relies on. `declared`: the contract says so, and breaking it is the
    caller's fault; otherwise it was derived, and the next tier may still serve the call."""

    condition: Expr
    declared: bool
    reason: str


@dataclass(frozen=True)
class Buffer:
    """Memory for `elements` of `dtype`. `place` says whose it is:

    "input" the caller's, "parameter" the model's, "arena" shared between buffers that are not live together,
    "result" allocated in each call and handed on, "call" what a library or eager call returns.
    It is live from step `first` to step `last` of its segment, both included; one that outlives the segment
    has the number of steps as `last`.
    """

    name: str
    dtype: str
    elements: Expr
    place: str
    first: int
    last: int


@dataclass(frozen=True)
class Tensor:
    """A buffer as a library call, an eager call or the caller sees it. Strides and offset count elements."""

    name: str
    buffer: str
    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True)
class IndexCheck:
    """Where a bad index came from: coordinates in an input, over `POSITION` and sizes, and the legal range.
    An index that is computed inside the program has no coordinates; `input` then names the value that holds
    it."""

    input: str
    coordinates: tuple[Expr, ...] | None
    shape: tuple[Expr, ...]  # of the tensor of indices, for a position without coordinates in an input
    low: Expr
    high: Expr


@dataclass(frozen=True)
class LaunchParameter:
    """A number given to a kernel; a "magic" or "magic64" one is a divisor, given as multiplier
    and shift (see `host.magic`)."""

    kind: str
    value: Expr


@dataclass(frozen=True)
class Variant:
    """One kernel of a launch: usable when its guards hold and every buffer is aligned to `alignment`
    bytes."""

    kernel: str
    buffers: tuple[str, ...]
    parameters: tuple[LaunchParameter, ...]
    guards: tuple[Expr, ...]
    alignment: int
    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr]
    shared_bytes: Expr
    domain: Expr
    checks: tuple[IndexCheck, ...]


@dataclass(frozen=True)
class Launch:
    """The first usable variant runs, unless its domain is empty."""

    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class CheckedTensor:
    """A tensor of indices that a call is about to read through, looked at before the call. One that is
    `ignored` is read through by nobody."""

    tensor: str
    check: IndexCheck
    ignored: int | None = None


@dataclass(frozen=True)
class LibraryCall:
    """A contraction by its operator's name, or "product": a linear layer over matrices of rows and columns.
    Inputs and result are tensors of the program."""

    operator: str
    inputs: tuple[str, ...]
    attributes: Plain
    result: str
    checks: tuple[CheckedTensor, ...]


@dataclass(frozen=True)
class EagerCall:
    """An ATen operator by name. In `arguments` and `keywords` "$k" stands for the k-th input, "#k" for the
    number that it holds, see `thunks.eager`."""

    target: str
    inputs: tuple[str, ...]
    arguments: Plain
    results: tuple[str, ...]
    checks: tuple[CheckedTensor, ...]

    @property
    def reads_numbers(self) -> bool:
        """Whether the host has to wait for values that only the run makes."""
        return any(isinstance(leaf, str) and leaf.startswith("#") for leaf in _leaves(self.arguments))


def _leaves(value: Plain) -> Iterator[Plain]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


Step = Launch | LibraryCall | EagerCall


@dataclass(frozen=True)
class Binding:
    """A size variable that is read off the result of an eager call."""

    size: str
    result: str
    axis: int


@dataclass(frozen=True)
class Segment:
    """Steps whose sizes are known together. `binds` are the size variables that its last step, an eager call,
    makes known; what uses them stands in the next segment."""

    guards: tuple[Guard, ...]
    buffers: tuple[Buffer, ...]
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    binds: tuple[Binding, ...]


@dataclass(frozen=True)
class Output:
    """A result by the name the caller knows it by."""

    name: str
    tensor: str


@dataclass(frozen=True)
class Program:
    """A whole host program. `units` are the store's keys of the binaries that hold its kernels (none without
    kernels).

    `prologue` computes parameters from parameters, once, at load: its inputs and outputs go by parameter
    names.
    """

    name: str
    inputs: tuple[Input, ...]
    parameters: tuple[Buffer, ...]
    definitions: tuple[Definition, ...]
    segments: tuple[Segment, ...]
    outputs: tuple[Output, ...]
    units: tuple[str, ...]
    prologue: Program | None = None

    @property
    def launches(self) -> int:
        """How many kernels a call launches at most."""
        return sum(isinstance(step, Launch) for segment in self.segments for step in segment.steps)

    @property
    def calls(self) -> tuple[str, ...]:
        """The library operators and ATen targets that a call runs, in order."""
        steps = [step for segment in self.segments for step in segment.steps]
        return tuple(
            step.operator if isinstance(step, LibraryCall) else step.target
            for step in steps
            if not isinstance(step, Launch)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal program back."""
        return encode(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Program:
        """The inverse of `to_json`. ArtifactError when the data are no host program."""
        return decode(Program, data)
