"""One model version as the front knows it: its signature, state, limits and counters. It admits or refuses a
request by shapes alone, and remembers the shapes it has admitted, so that a known shape costs one look-up.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlcb.compiler import Dim, ModelSource, Signature
from dlcb.compiler.made_of import rewritten
from dlcb.compiler.signature import compile_expression, wrong_names
from dlcb.server.access import TokenBucket
from dlcb.server.batch import group_of, rows_of
from dlcb.server.cost import Cost
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.errors import BadRequest
from dlcb.server.memory import Footprint, check_memory, footprint_of
from dlcb.server.metrics import Histogram, Metrics, Number
from dlcb.server.padding import Padding, choose, declared_lines
from dlcb.server.settings import Batching, Limits
from dlcb.server.types import InferRequest, State, Statistics

ADMISSIONS_KEPT = 4096
QUICK = 0.002  # seconds of a run, under which the way to the worker and back shows


@dataclass(frozen=True, slots=True)
class Admission:
    """What admitting found out: the request's rows, the group it may be stacked with (None: it runs alone),
    its own sizes of the dims that are padded, the bytes of its inputs, the rows that a batch of its shape may
    have, all its sizes by symbol, and the shapes of its own outputs (where padding may make them longer)."""

    rows: int
    group: Hashable | None
    lengths: tuple[int, ...] = ()
    size: int = 0
    most_rows: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def positions(self) -> int:
        """Places along the padded dims, of all rows."""
        return self.rows * math.prod(self.lengths)


class Cells:
    """The metric cells of one model, found once."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.queue: Histogram = metrics.request_seconds.cell(model, "queue")
        self.execute: Histogram = metrics.request_seconds.cell(model, "execute")
        self.total: Histogram = metrics.request_seconds.cell(model, "total")
        self.rows: Histogram = metrics.batch_rows.cell(model)
        self.requests: Histogram = metrics.batch_requests.cell(model)
        self.padding: Histogram = metrics.padding.cell(model)
        self.depth: Number = metrics.queue_depth.cell(model)
        self.ok: Number = metrics.requests.cell(model, "200")


@dataclass(eq=False, slots=True)
class ServedModel:
    """A loaded, or loading, model version. `handle` names it to the workers: a reload has another handle."""

    handle: int
    source: ModelSource
    batching: Batching
    limits: Limits
    cells: Cells
    name: str = field(init=False)
    version: str = field(init=False)
    state: State = State.LOADING
    reason: str = ""
    signature: Signature = field(default_factory=lambda: Signature((), ()))
    artifact_key: str = ""
    code: Mapping[str, str] = field(default_factory=dict)  # digests of what of the user's it was made of
    folder: str = ""  # of its factory
    changed: str = ""  # which of that is another by now than what serves, as somebody saw last
    report: Mapping[str, Any] = field(default_factory=dict)
    padding: Padding | None = None
    unpadded: str = ""  # why the declared mask, or a padding that was proven, is not used
    probes: Sequence[Sequence[int]] = ()  # shapes of inputs of any rank, to be run before it serves
    footprint: Footprint | None = None
    memory: int | None = None  # bytes that a run may take
    largest: int = 1  # rows of a batch, whatever its shape
    padded_dims: tuple[Dim, ...] = ()
    rate: TokenBucket | None = None
    statistics: Statistics = field(default_factory=Statistics)
    counters: Mapping[str, int] = field(default_factory=dict)
    ranks: Sequence[Mapping[str, Any]] = ()  # that a worker has compiled of a model of any rank, with kernels
    waiting: int = 0
    unanswered: int = 0
    cost: Cost = field(default_factory=Cost)
    run_seconds: float = 0.01  # of late; until something has run, not quick
    front_seconds: float = 0.0  # the front's own work for a job, of late
    turn_seconds: float = 0.0  # a request's share of its worker's time, of late
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    expected: tuple[tuple[str, Any], ...] = ()
    all_outputs: dict[bool, list[tuple[str, bool]]] = field(default_factory=dict)
    admitted: dict[tuple[tuple[int, ...], ...], Admission] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, self.version = self.source.name, self.source.version

    def is_quick(self) -> bool:
        """Whether a worker should get its next job early: where it would wait for us as long as it runs."""
        return self.run_seconds < max(QUICK, self.front_seconds)

    def compiled(self, signature: Signature, artifact_key: str, report: Mapping[str, Any]) -> None:
        """Take what the compile process found."""
        self.signature = signature
        self.artifact_key = artifact_key
        self.report = report
        self.expected = tuple((spec.name, BY_DTYPE[spec.dtype]) for spec in signature.inputs)
        # A request that names no outputs gets all of them; half types have no JSON form, which `choose` then
        # says.
        self.all_outputs = {True: [(spec.name, True) for spec in signature.outputs]}
        if all(BY_DTYPE[spec.dtype].json_types for spec in signature.outputs):
            self.all_outputs[False] = [(spec.name, False) for spec in signature.outputs]
        self.padding, self.unpadded = None, ""
        if self.stacks:
            self.padding, self.unpadded = choose(signature, self.batching.mask)
        dims = {dim for spec in signature.inputs for dim in spec.dims or () if isinstance(dim, Dim)}
        symbols = () if self.padding is None else self.padding.symbols
        self.padded_dims = tuple(dim for dim in dims if dim.symbol in symbols)
        self.footprint = footprint_of(signature)
        self.largest = self._largest()
        self.admitted.clear()

    def find_change(self) -> str:
        """Which of the user's modules and files is another by now than the one that serves, and what to do;
        "" where none is. It reads what was written since it was asked before."""
        return rewritten(self.source, self.code, Path(self.folder))

    @property
    def stacks(self) -> bool:
        """Whether requests may share a batch at all."""
        return self.batching.stacks

    def batching_lines(self) -> list[str]:
        """What becomes of requests that wait together, and why they are not stacked or padded."""
        proofs = self.report.get("batching", ())
        return [*proofs, *declared_lines(self.batching, self.padding, self.unpadded)]

    def stop_padding(self, reason: str) -> None:
        """A worker found that padding changes results after all."""
        self.padding, self.unpadded = None, reason
        self.admitted.clear()

    def limit_memory(self, available: int) -> None:
        """From now on a run may take so many bytes, unless the configuration says how many."""
        limit = self.limits.memory_bytes or available
        if limit != self.memory:
            self.memory = limit
            self.admitted.clear()

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether a run at these sizes has memory enough, breaks no guard, and is padded to legal sizes."""
        if any(dim.nearest(sizes[dim.symbol]) != sizes[dim.symbol] for dim in self.padded_dims):
            return False
        if self.footprint is not None and self.memory is not None and self.footprint(sizes) > self.memory:
            return False
        return all(compile_expression(guard.expression)(sizes) for guard in self.signature.guards)

    def sizes_of_batch(self, admission: Admission, rows: int, lengths: Sequence[int] = ()) -> dict[str, int]:
        """The sizes of a batch of requests like this one, by symbol."""
        sizes = dict(admission.sizes)
        if self.signature.batch is not None:
            sizes[self.signature.batch.symbol] = rows
        if self.padding is not None and lengths:
            sizes.update(zip(self.padding.symbols, lengths, strict=True))
        return sizes

    def admit(self, request: InferRequest) -> Admission:
        """BadRequest or ContractError, naming input, axis and rule, when the signature forbids the
        request."""
        inputs = request.inputs
        shapes = []
        for name, datatype in self.expected:
            tensor = inputs.get(name)
            if tensor is None:
                raise BadRequest(self._wrong_names(inputs))
            if tensor.datatype is not datatype:
                raise BadRequest(
                    f"input '{name}' has datatype {tensor.datatype.name}, expected {datatype.name}"
                )
            shapes.append(tensor.shape)
        if len(inputs) != len(shapes):
            raise BadRequest(self._wrong_names(inputs))
        key = tuple(shapes)
        found = self.admitted.get(key)
        return found if found is not None else self._check(request, key)

    def _check(self, request: InferRequest, key: tuple[tuple[int, ...], ...]) -> Admission:
        shapes = {name: tensor.shape for name, tensor in request.inputs.items()}
        sizes = self.signature.check(
            shapes, {name: tensor.datatype.dtype for name, tensor in request.inputs.items()}
        )
        check_memory(self.name, self.footprint, sizes, self.memory, self.signature.batch)
        batch, padding = self.signature.batch, self.padding
        lengths = () if padding is None else padding.lengths(sizes)
        stacked = self.stacks and 0 not in lengths  # a reduction over nothing is apart
        admission = Admission(
            rows_of(request, batch),
            group_of(request, batch if stacked else None, padding),
            lengths,
            sum(len(tensor.data) for tensor in request.inputs.values()),
            sizes=sizes,
            outputs={} if padding is None else known_shapes(self.signature, shapes),
        )
        admission = replace(admission, most_rows=self._most_rows(admission))
        if batch is None or len(batch.input_axes) == len(self.expected):  # else the group depends on values
            if len(self.admitted) >= ADMISSIONS_KEPT:
                self.admitted.clear()
            self.admitted[key] = admission
        return admission

    def _largest(self) -> int:
        """The rows that the configuration and the model's own range allow in a batch."""
        batch = self.signature.batch
        if batch is None:
            return 1
        dims = [dim for spec in self.signature.inputs for dim in spec.dims or () if isinstance(dim, Dim)]
        highs = [dim.high for dim in dims if dim.symbol == batch.symbol and dim.high is not None]
        return min([self.batching.max_rows, *highs])

    def _most_rows(self, admission: Admission) -> int:
        """The rows that a batch of such requests may have: as many as fit, found by halving."""
        low, high = admission.rows, self.largest
        if admission.group is None or low >= high or self.fits(self.sizes_of_batch(admission, high)):
            return max(low, high)
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(self.sizes_of_batch(admission, middle)):
                low = middle
            else:
                high = middle
        return low

    def _wrong_names(self, given: Iterable[str]) -> str:
        return wrong_names(given, [name for name, _datatype in self.expected], f"model '{self.name}'")


def known_shapes(signature: Signature, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The output shapes that follow from input shapes."""
    found = signature.output_shapes(shapes)
    return {name: shape for name, shape in found.items() if shape is not None}
