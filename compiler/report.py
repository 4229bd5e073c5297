"""What a compilation did, as plain data:
verdicts on dims, kernels, library and eager calls, seconds by stage.

It travels in the artifact as JSON; `dlcb explain` and the server print it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class DimLine:
    """The verdict on one input dim. `size` is its symbol or its pinned size as text; `certainty` is
    "proven" or says how far the evidence goes; `beyond` says what becomes of other sizes."""

    input: str
    axis: int
    size: str
    low: int
    high: int | None
    multiple: int
    reason: str
    source_line: str
    certainty: str
    beyond: str = "refused"


@dataclass(frozen=True)
class GraphLine:
    """One of several graphs of a model, in the order in which they are tried: where it serves, and how much
    it runs."""

    serves: str
    kernels: int
    calls: int
    source_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelLine:
    """One generated kernel: the operators it fuses, what it writes, its variants,
    and in which tier it runs."""

    name: str
    operators: tuple[str, ...]
    outputs: tuple[str, ...]
    variants: int
    tier: str
    source_lines: tuple[str, ...] = ()
    graph: int = 1  # which of the model's graphs runs it


@dataclass(frozen=True)
class GuardLine:
    """What must hold of the sizes before anything is launched: the condition, what needs it, and at which
    line of the model ("" where the declaration does)."""

    condition: str
    reason: str
    source_line: str = ""
    graph: int = 1  # which of the model's graphs needs it


@dataclass(frozen=True)
class CallLine:
    """A call that PyTorch runs: a library operator or, by its ATen name, an eager one, with the reason."""

    operator: str
    tier: str
    count: int
    reason: str = ""
    graph: int = 1


@dataclass(frozen=True)
class Report:
    """`tier` is "static", "dynamic",
    "jit" or "eager" (quarantined or not compiled). `seconds` are by stage."""

    tier: str
    dims: tuple[DimLine, ...] = ()
    kernels: tuple[KernelLine, ...] = ()
    calls: tuple[CallLine, ...] = ()
    guards: tuple[GuardLine, ...] = ()
    notes: tuple[str, ...] = ()
    batching: tuple[str, ...] = ()  # what was proven about running requests together
    seconds: Mapping[str, float] = field(default_factory=dict)
    compiler_calls: int = 0
    from_cache: bool = False
    quarantined: str = ""  # why outputs come from eager PyTorch, where they do
    graphs: tuple[GraphLine, ...] = ()  # where there are several
    elsewhere: tuple[str, ...] = ()  # where no graph serves, so that PyTorch runs the model, and why
    unproven: str = ""  # why each tuple of shapes is compared with eager PyTorch before it is served compiled

    @property
    def free_dims(self) -> tuple[str, ...]:
        """Symbols of the free dims, each once."""
        return tuple(dict.fromkeys(line.size for line in self.dims if not line.size.isdigit()))

    @property
    def eager_nodes(self) -> int:
        return sum(line.count for line in self.calls if line.tier == "eager")

    @property
    def library_calls(self) -> int:
        return sum(line.count for line in self.calls if line.tier == "library")

    def as_cached(self) -> Report:
        """The same report, of a compilation that found everything in the store."""
        return replace(self, from_cache=True, compiler_calls=0)

    def with_seconds(self, seconds: Mapping[str, float], compiler_calls: int) -> Report:
        return replace(self, seconds=dict(seconds), compiler_calls=compiler_calls)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """The inverse of `to_json`;
        unknown fields are a KeyError or TypeError, which the artifact turns into its own error."""
        rows = {
            "dims": DimLine,
            "kernels": KernelLine,
            "calls": CallLine,
            "guards": GuardLine,
            "graphs": GraphLine,
        }
        made: dict[str, Any] = {
            name: tuple(row(**_tuples(item)) for item in data[name]) for name, row in rows.items()
        }
        made |= {name: tuple(data[name]) for name in ("notes", "batching", "elsewhere")}
        return Report(**{**data, **made})


def _tuples(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
