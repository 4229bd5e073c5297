"""One model version as the front knows it: its signature, state, limits and counters. It admits or refuses a
request by shapes alone, and remembers the shapes it has admitted, so that a known shape costs one look-up.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlcb.compiler import ModelSource, Signature
from dlcb.server.access import TokenBucket
from dlcb.server.batch import group_of, length_of, rows_of
from dlcb.server.cost import Cost
from dlcb.server.datatypes import BY_DTYPE
from dlcb.server.errors import BadRequest
from dlcb.server.metrics import Histogram, Metrics, Number
from dlcb.server.padding import Padding, padding_of
from dlcb.server.settings import Batching, Limits
from dlcb.server.types import InferRequest, State, Statistics

ADMISSIONS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Admission:
    """What admitting found out: the request's rows, the group it may be stacked with (None: it runs alone),
    its size of the padded dim (0: none is padded), and the bytes of its inputs."""

    rows: int
    group: Hashable | None
    length: int = 0
    size: int = 0


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
    state: State = State.LOADING
    reason: str = ""
    signature: Signature = field(default_factory=lambda: Signature((), ()))
    artifact_key: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    padding: Padding | None = None
    rate: TokenBucket | None = None
    statistics: Statistics = field(default_factory=Statistics)
    counters: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    unanswered: int = 0
    cost: Cost = field(default_factory=Cost)
    run_seconds: float = 0.01  # of late; until something has run, not quick
    turn_seconds: float = 0.0  # a request's share of its worker's time, of late
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    expected: tuple[tuple[str, Any], ...] = ()
    all_outputs: dict[bool, list[tuple[str, bool]]] = field(default_factory=dict)
    admitted: dict[tuple[tuple[int, ...], ...], Admission] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def version(self) -> str:
        return self.source.version

    def compiled(self, signature: Signature, artifact_key: str, report: Mapping[str, Any]) -> None:
        """Take what the compile process found. PaddingError when the declared mask does not fit the
        model."""
        self.signature = signature
        self.artifact_key = artifact_key
        self.report = report
        self.expected = tuple((spec.name, BY_DTYPE[spec.dtype]) for spec in signature.inputs)
        # A request that names no outputs gets all of them; half types have no JSON form, which `choose` then
        # says.
        self.all_outputs = {True: [(spec.name, True) for spec in signature.outputs]}
        if all(BY_DTYPE[spec.dtype].json_types for spec in signature.outputs):
            self.all_outputs[False] = [(spec.name, False) for spec in signature.outputs]
        mask = self.batching.mask if self.batching.enabled else None
        self.padding = None if mask is None else padding_of(signature, self.source, mask)
        self.admitted.clear()

    def admit(self, request: InferRequest) -> Admission:
        """BadRequest or ContractError, naming input, axis and rule, when the signature forbids the
        request."""
        inputs = request.inputs
        shapes = []
        for name, datatype in self.expected:
            tensor = inputs.get(name)
            if tensor is None:
                raise BadRequest(f"missing input '{name}'; model '{self.name}' takes {self._input_names()}")
            if tensor.datatype is not datatype:
                raise BadRequest(
                    f"input '{name}' has datatype {tensor.datatype.name}, expected {datatype.name}"
                )
            shapes.append(tensor.shape)
        if len(inputs) != len(shapes):
            extra = next(name for name in inputs if name not in dict(self.expected))
            raise BadRequest(f"unexpected input '{extra}'; model '{self.name}' takes {self._input_names()}")
        key = tuple(shapes)
        found = self.admitted.get(key)
        return found if found is not None else self._check(request, key)

    def _check(self, request: InferRequest, key: tuple[tuple[int, ...], ...]) -> Admission:
        self.signature.check(
            {name: tensor.shape for name, tensor in request.inputs.items()},
            {name: tensor.datatype.dtype for name, tensor in request.inputs.items()},
        )
        batch = self.signature.batch
        stackable = batch if self.batching.enabled else None
        admission = Admission(
            rows_of(request, batch),
            group_of(request, stackable, self.padding),
            length_of(request, self.padding),
            sum(len(tensor.data) for tensor in request.inputs.values()),
        )
        if batch is None or len(batch.input_axes) == len(self.expected):  # else the group depends on values
            if len(self.admitted) >= ADMISSIONS_KEPT:
                self.admitted.clear()
            self.admitted[key] = admission
        return admission

    def _input_names(self) -> str:
        return ", ".join(f"'{name}'" for name, _datatype in self.expected)
