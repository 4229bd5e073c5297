"""The words the server's parts exchange: tensors as named bytes, requests, responses and model states. No
HTTP, no torch and no behaviour beyond small readings of their own fields.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from dlcb.server.datatypes import Datatype

Buffer = bytes | bytearray | memoryview
Parts = list[Buffer]  # what is one after the other on the wire


@dataclass(slots=True)
class Tensor:
    """`data` holds the elements little-endian and row-major, exactly `shape` of them."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer


@dataclass(slots=True)
class RequestedOutput:
    """An output the client asked for; `binary` None means the request's default."""

    name: str
    binary: bool | None = None


@dataclass(slots=True)
class InferRequest:
    """One decoded request. `outputs` None asks for all; `timeout` is seconds; `priority` 1 is the highest and
    0 the default, which comes after all others."""

    inputs: dict[str, Tensor]
    outputs: list[RequestedOutput] | None = None
    id: str | None = None
    binary_output: bool = False
    priority: int = 0
    timeout: float | None = None


@dataclass(slots=True)
class RawRequest:
    """A large JSON body that a worker decodes and answers whole; until then its own id, priority and timeout
    are unknown."""

    body: Buffer
    json_length: int | None
    id: str | None = None
    priority: int = 0
    timeout: float | None = None


class State(enum.StrEnum):
    """A model version's state, in the protocol's own words."""

    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"


@dataclass(slots=True)
class Duration:
    """A count of events and the time they took together."""

    count: int = 0
    seconds: float = 0.0

    def add(self, count: int, seconds: float) -> None:
        self.count += count
        self.seconds += seconds

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": int(self.seconds * 1e9)}


@dataclass(slots=True)
class Statistics:
    """What the statistics extension reports of one model version."""

    last_inference_ms: int = 0
    inferences: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    by_batch: dict[int, Duration] = field(default_factory=dict)

    def batch(self, rows: int) -> Duration:
        """The entry for runs of this many rows; past 1024 different ones the last is shared, so it stays
        bounded."""
        found = self.by_batch.get(rows)
        if found is None:
            found = self.by_batch.setdefault(
                rows if len(self.by_batch) < 1024 else max(self.by_batch), Duration()
            )
        return found

    def to_json(self, name: str, version: str) -> dict[str, Any]:
        """One entry of `model_stats`."""
        kinds = (
            "success",
            "fail",
            "queue",
            "compute_input",
            "compute_infer",
            "compute_output",
            "cache_hit",
            "cache_miss",
        )
        empty = Duration().to_json()
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {kind: getattr(self, kind).to_json() for kind in kinds},
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": empty,
                    "compute_infer": spent.to_json(),
                    "compute_output": empty,
                }
                for rows, spent in sorted(self.by_batch.items())
            ],
            "memory_usage": [],
        }
