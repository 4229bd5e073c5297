"""What the load test sends, as data: a scenario names a model, ranges of its dims and what its inputs hold.

`Scenario.draw` gives the inputs of one request, fresh sizes and values each time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dlcb.loadtest.wire import Encoding

Range = tuple[int, int]  # inclusive


@dataclass(frozen=True)
class Normal:
    """Standard normal floats."""


@dataclass(frozen=True)
class Uniform:
    """Uniform floats, low <= value < high."""

    low: float
    high: float


@dataclass(frozen=True)
class Integers:
    """Uniform integers, low <= value < high."""

    low: int
    high: int


@dataclass(frozen=True)
class Padding:
    """A mask [..., length]: each row is a drawn number of ones (at least one), then zeros."""


Values = Normal | Uniform | Integers | Padding


@dataclass(frozen=True)
class AnyRank:
    """A shape whose rank is drawn, and then each of its sizes."""

    rank: Range
    size: Range


@dataclass(frozen=True)
class Input:
    name: str
    dtype: str
    shape: tuple[str | int, ...] | AnyRank | None
    values: Values


@dataclass(frozen=True)
class Scenario:
    name: str
    model: str
    inputs: tuple[Input, ...]
    dims: Mapping[str, Range] = field(default_factory=dict)
    encoding: Encoding = "binary"

    def draw(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """The inputs of one request; dims of one name have one size."""
        sizes = {name: int(random.integers(low, high + 1)) for name, (low, high) in self.dims.items()}
        return {declared.name: values_of(declared, _shape(declared.shape, sizes, random), random)
                for declared in self.inputs}  # fmt: skip


def _shape(
    shape: tuple[str | int, ...] | AnyRank | None, sizes: Mapping[str, int], random: np.random.Generator
) -> tuple[int, ...]:
    if isinstance(shape, AnyRank):
        rank = int(random.integers(shape.rank[0], shape.rank[1] + 1))
        return tuple(int(size) for size in random.integers(shape.size[0], shape.size[1] + 1, rank))
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape or ())


def values_of(declared: Input, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """What an input of this shape holds."""
    match declared.values:
        case Uniform(low, high):
            return random.uniform(low, high, shape).astype(declared.dtype)
        case Normal():
            return random.standard_normal(shape).astype(declared.dtype)
        case Integers(low, high):
            return random.integers(low, high, shape).astype(declared.dtype)
        case Padding():
            *rows, length = shape
            kept = random.integers(1, length + 1, (*rows, 1))
            return (np.arange(length) < kept).astype(declared.dtype)


TOKENS = (
    Input("input_ids", "int64", ("batch", "sequence"), Integers(0, 30522)),
    Input("attention_mask", "int64", ("batch", "sequence"), Padding()),
)
IMAGE = (Input("image", "float32", ("batch", 3, "height", "width"), Normal()),)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("minilm", "minilm", TOKENS, {"batch": (1, 8), "sequence": (4, 128)}),
        Scenario("minilm-json", "minilm", TOKENS, {"batch": (1, 1), "sequence": (4, 64)}, encoding="json"),
        Scenario("pnet", "pnet", IMAGE, {"batch": (1, 2), "height": (24, 160), "width": (24, 160)}),
        Scenario(
            "standardize",
            "standardize",
            (Input("x", "float32", AnyRank(rank=(1, 4), size=(2, 24)), Normal()),),
        ),
    )
}
