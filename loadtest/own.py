"""Models that no scenario is written for: what a running server says of their inputs (datatypes, ranges of
sizes, the values that they were checked with) becomes a scenario of shapes that the server calls legal."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlcb.loadtest.scenarios import Input, Integers, Normal, Padding, Range, Uniform, Values, values_of
from dlcb.loadtest.wire import DATATYPES, Encoding, WireError

UNBOUNDED = 64  # the largest size that is drawn where there is no bound, or four times the least
MOST_ELEMENTS = 1 << 18  # of all inputs of a request
RANKS: Range = (1, 3)  # of inputs that take any
ATTEMPTS = 50  # shapes drawn until one is legal


@dataclass(frozen=True)
class Size:
    """A size variable: `low` to `high` (None: no bound), and what it is a multiple of."""

    low: int
    high: int | None
    multiple: int = 1

    def draw(self, random: np.random.Generator) -> int:
        """As often small as large: the logarithm is uniform."""
        low = max(self.low, 1)
        high = max(UNBOUNDED, 4 * low) if self.high is None else self.high
        return self.at_least(round(math.exp(random.uniform(math.log(low), math.log(max(high, low))))))

    def at_least(self, size: int) -> int:
        """The size, or the legal one next to it: below, where there is one."""
        below = size // self.multiple * self.multiple
        return below if below >= max(self.low, 1) else -(-max(self.low, 1) // self.multiple) * self.multiple


@dataclass(frozen=True)
class OwnModel:
    """A model of the server at `url`. Shapes of `inputs` hold names of `sizes`; None is any rank."""

    url: str
    model: str
    inputs: tuple[Input, ...]
    sizes: Mapping[str, Size]
    encoding: Encoding = "binary"

    @property
    def name(self) -> str:
        return self.model

    def draw(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """The inputs of one request. WireError where the server calls no shape of many legal."""
        refusal = ""
        for _ in range(ATTEMPTS):
            shapes = self._shapes(random)
            refusal = self._refusal(shapes)
            if not refusal:
                return {given.name: values_of(given, shapes[given.name], random) for given in self.inputs}
        raise WireError(f"{self.model}: none of {ATTEMPTS} drawn shapes is legal; of the last: {refusal}")

    def _shapes(self, random: np.random.Generator) -> dict[str, tuple[int, ...]]:
        sizes = {name: size.draw(random) for name, size in self.sizes.items()}
        any_rank = tuple(
            int(size) for size in random.integers(1, UNBOUNDED // 4, random.integers(*RANKS, endpoint=True))
        )
        while True:
            shapes = {
                given.name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in given.shape)
                if isinstance(given.shape, tuple)
                else any_rank
                for given in self.inputs
            }
            largest = max(sizes, key=lambda name: sizes[name], default="")
            smaller = self.sizes[largest].at_least(sizes[largest] // 2) if largest else 0
            if sum(map(math.prod, shapes.values())) <= MOST_ELEMENTS or smaller >= sizes.get(largest, 0):
                return shapes
            sizes[largest] = smaller

    def _refusal(self, shapes: Mapping[str, Sequence[int]]) -> str:
        """What the server says against these shapes, "" where it takes them."""
        if any(given.shape is None for given in self.inputs):
            return ""  # a plan of a rank that was never met is a compilation
        try:
            found = _ask(f"{self.url}/v1/models/{self.model}/plan", {"shapes": shapes})
        except WireError as error:
            return str(error)
        return found["refused"] or ""


def elements(inputs: Mapping[str, np.ndarray]) -> int:
    return sum(array.size for array in inputs.values())


def kinds(drawn: Sequence[Mapping[str, np.ndarray]]) -> list[str]:
    """The third of all requests that each is of, by the elements of its inputs."""
    counts = [elements(inputs) for inputs in drawn]
    ordered = sorted(counts)
    ends = sorted({ordered[-(-len(ordered) * third // 3) - 1] for third in (1, 2, 3)})
    said, start = {}, ordered[0]
    for end in ends:
        said[end] = f"{start:,} to {end:,} elements"
        start = next((count for count in ordered if count > end), end)
    return [said[next(end for end in ends if count <= end)] for count in counts]


def served(url: str) -> list[str]:
    """The names of the models that take requests. ConnectionError when nobody answers."""
    entries = _ask(f"{url}/v2/repository/index", {"ready": True})
    return list(dict.fromkeys(entry["name"] for entry in entries))


def own_model(url: str, model: str) -> OwnModel:
    """A model as its server describes it. WireError for one that it does not serve, and for a datatype that
    this client cannot send or read."""
    found = _ask(f"{url}/v1/models/{model}/coverage")
    described = _ask(f"{url}/v2/models/{model}")
    for tensor in (*described["inputs"], *described["outputs"]):
        if tensor["datatype"] not in DATATYPES:
            raise WireError(
                f"{model}: '{tensor['name']}' is {tensor['datatype']}, which has no type in NumPy"
            )
    kinds = {tensor["name"]: DATATYPES[tensor["datatype"]] for tensor in described["inputs"]}
    mask = found["padding"]["mask"]
    inputs = tuple(
        Input(
            name,
            str(kinds[name]),
            _shape(said),
            Padding() if name == mask else _values(kinds[name], found["values"][name]["drawn"]),
        )
        for name, said in found["inputs"].items()
    )
    sizes = {
        name: Size(symbol["low"], symbol["high"], symbol["multiple"])
        for name, symbol in found["symbols"].items()
    }
    return OwnModel(url, model, inputs, sizes)


def _shape(said: str) -> tuple[str | int, ...] | None:
    """`[batch, 3, height]` as the server writes shapes."""
    if not said.startswith("["):
        return None
    return tuple(int(dim) if dim.isdigit() else dim for dim in re.findall(r"[^\[\], ]+", said))


def _values(kind: np.dtype[Any], drawn: Sequence[float] | None) -> Values:
    if kind.kind in "iub":
        low, high = drawn or (0, 2)
        return Integers(int(low), int(high))
    return Normal() if drawn is None else Uniform(*drawn)


def _ask(url: str, body: Any = None) -> Any:
    """What a route answers. WireError with its words where it refuses, ConnectionError if nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise WireError(f"{error.code} {error.read()[:600].decode('utf-8', 'replace')}") from error
    except urllib.error.URLError as error:
        raise ConnectionError(f"no server answers at {url}: {error.reason}") from error
