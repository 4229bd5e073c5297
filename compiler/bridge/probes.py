"""At which sizes a module is traced: small first, then larger and rounder ones until its forward accepts
them. Sizes are distinct, never square and without a common pattern, so that a literal in a trace points to
one size."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from dlcb.compiler.bridge import capture
from dlcb.compiler.bridge.agreement import without_fast_path
from dlcb.compiler.bridge.record import Trace
from dlcb.compiler.bridge.stand_ins import HERE, Home, refuse_home
from dlcb.compiler.bridge.survived import surviving
from dlcb.compiler.bridge.unchanged import unchanged
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate
from dlcb.compiler.source import InputDeclaration

Bindings = Mapping[str, int]  # size variable -> value

# (unit, least, greatest): sizes are unit * a number between. Later rows serve programs that refuse the
# earlier ones: convolutions over small images, patches, windows, sound.
_LADDER = ((1, 5, 13), (1, 34, 61), (32, 2, 7), (100, 2, 9), (224, 2, 4), (1, 700, 1300), (1, 5000, 9000))
_ROUND = (2, 3, 4)  # rows of multiples
_ODD = 200  # draws after which sizes are multiples
_BATCH = (2, 9)
_DISTINCT = (5, 34)  # the least of sizes that are drawn to be repaired
_TRIES = 8  # changes that may leave a refusal as it was
_LARGEST_SAMPLE = 1 << 26  # elements
_SAME_REFUSALS = 10  # at images of a few hundred pixels, too
_REFUSALS = 24  # traces that may fail before the program counts as one that cannot be traced


@dataclass(frozen=True)
class FreeDim:
    """A free size of the inputs: its variable, its range, and where it stands."""

    symbol: Expr
    low: int
    high: int | None
    declared: bool
    places: tuple[tuple[str, int], ...]  # (input, axis)
    leading: bool  # the first axis wherever it stands: a batch, which stays small

    @property
    def name(self) -> str:
        return self.symbol.value


@dataclass
class Prober:
    """Traces one module at sizes of its choice; keeps what it learned about sizes that are refused."""

    module: nn.Module
    inputs: tuple[InputDeclaration, ...]
    dims: Mapping[str, Sequence[Expr | int]]
    free: Sequence[FreeDim]
    programs: dict[tuple[tuple[str, int], ...], Trace | CaptureError] = field(default_factory=dict)
    units: list[int] = field(default_factory=list)  # numbers that error messages named
    rung: int = 0
    fixed: dict[str, int] = field(default_factory=dict)  # dims that are held at one size
    tied: dict[str, Expr] = field(default_factory=dict)  # dims that follow others, over those
    home: Home = HERE  # that it is traced for

    def trace(self, sizes: Bindings) -> Trace:
        """The program at these sizes, traced once. Raises CaptureError where the forward fails."""
        key = tuple(sorted(sizes.items()))
        if key not in self.programs:
            try:
                self.programs[key] = capture.trace(self.module, self.tensors(sizes), self.home)
            except CaptureError as error:
                refuse_home(self.home, error)
                self.programs[key] = error
        known = self.programs[key]
        if isinstance(known, CaptureError):
            raise known
        return known

    def accepts(self, sizes: Bindings) -> bool:
        """Whether the program runs at these sizes."""
        try:
            self.trace(sizes)
        except CaptureError:
            return False
        return True

    def runs(self, sizes: Bindings) -> bool:
        """Whether the program runs at these sizes on real tensors, whose values are looked at too."""
        arguments, keywords = capture.bound(self.module, self.tensors(sizes))
        try:
            with (
                capture.user_code("forward"),
                unchanged(self.module),
                surviving(self.module),
                torch.no_grad(),
                without_fast_path(),  # as it is served
                self.home.labelled(),
            ):
                self.module(*arguments, **keywords)
        except CaptureError:
            return False
        return True

    def tensors(self, sizes: Bindings) -> dict[str, torch.Tensor]:
        """Inputs of these sizes."""
        shapes = {name: shape_at(dims, sizes) for name, dims in self.dims.items()}
        return {declared.name: _sample(declared, shapes[declared.name]) for declared in self.inputs}

    def samples(self) -> Iterator[dict[str, torch.Tensor]]:
        """Inputs of the sizes that are tried first."""
        return map(self.tensors, self._candidates())

    def first(self) -> dict[str, int]:
        """Sizes that the program accepts, from the lowest rung of the ladder. Raises the last refusal;
        one that is the same whatever the sizes are ends the search."""
        refusals: list[CaptureError] = []
        if self._is_of_images() and self.accepts(sizes := self._draw(1, 1, [self._draw(0, 0, [])])):
            return (
                sizes  # among the smallest ones results shrink to axes of 1, and others would be looked for
            )
        for sizes in self._candidates():
            try:
                self.trace(sizes)
                return sizes
            except capture.ChangesItself:
                raise
            except CaptureError as error:
                refusals.append(error)
                self._learn(error)
            reasons = {refusal.message.partition(" failed: ")[2] for refusal in refusals}
            if len(refusals) >= _SAME_REFUSALS and len(reasons) == 1:
                break
        everything = {dim.name for dim in self.free}
        for least in _DISTINCT:  # perhaps sizes depend on each other
            if (found := self.repaired(self._distinct(least), everything, alike=True)) is not None:
                return found
        raise refusals[-1]

    def repaired(self, sizes: Bindings, movable: set[str], alike: bool) -> dict[str, int] | None:
        """These sizes, where the program refuses them with those of `movable` changed as the refusals say: a
        size that one names is set to another number in it, each size once, or all that are `alike` together.
        None where that leads nowhere."""
        now, left = dict(sizes), set(movable)
        met: list[Bindings] = []
        for _ in range(2 * len(movable) + 1):
            said = self._refusal(now)
            if said is None:
                return now
            met.append(now)
            step = self._step(now, said, left, alike, met)
            if step is None:
                return None
            left -= set() if alike else {name for name in left if step[name] != now[name]}
            now = step
        return None

    def _step(
        self, now: Bindings, said: str, movable: set[str], alike: bool, met: Sequence[Bindings]
    ) -> dict[str, int] | None:
        """One change after which the program says something else, or nothing: a size becomes what it should
        be, or what makes a sum with it so."""
        tries = 0
        names = sorted(movable)
        # of two sizes that have to be equal a refusal may name one alone
        pairs = _pairs(said) or list(itertools.product(_numbers(said), {now[name] for name in names}))
        for wanted, found in pairs:
            same = [name for name in names if now[name] == found]
            steps = [dict.fromkeys(same, wanted)] if alike and same else [{name: wanted} for name in same]
            parts = {name: now[name] + wanted - found for name in names}
            steps += [{name: size} for name, size in parts.items() if size in now.values()]
            for step in steps:
                tried = {**now, **step}
                if tried in met or not all(self._fits(name, size) for name, size in step.items()):
                    continue
                if self._refusal(tried) != said:
                    return tried
                tries += 1
                if tries == _TRIES:
                    return None
        return None

    def response(self, first: Bindings, name: str, movable: set[str]) -> dict[str, int] | None:
        """`first` with another value of one dim, and of those of `movable` that have to change with it; where
        that can be, by a multiple or a whole part of its change, as rounding hides."""
        some: dict[str, int] | None = None
        for step in (7, first[name], 64, 60):
            value = first[name] + step
            if value in first.values() or not self._fits(name, value):
                continue
            if (found := self.repaired({**first, name: value}, movable - {name}, False)) is not None:
                moved = [found[other] - own for other, own in first.items() if found[other] != own]
                if all(each % step == 0 or step % each == 0 for each in moved):
                    return found
                some = some or found
        return some

    def _refusal(self, sizes: Bindings) -> str | None:
        """What the program says to these sizes; None where it takes them."""
        try:
            self.trace(sizes)
        except CaptureError as error:
            said = error.message.partition(" failed: ")[2]
            return said.rpartition(", at `")[0] or said  # without the user's line, which has numbers as well
        return None

    def _fits(self, name: str, size: int) -> bool:
        dim = self._dim(name)
        high = _LARGEST_SAMPLE if dim.high is None else dim.high
        # 1 would hide by a broadcast what 0 would by emptiness
        return name not in self.fixed and max(dim.low, 2) <= size <= high

    def _dim(self, name: str) -> FreeDim:
        return next(dim for dim in self.free if dim.name == name)

    def others(
        self, first: Bindings, count: int, allowed: Callable[[Bindings], bool]
    ) -> list[dict[str, int]]:
        """Up to `count` more sizes that the program accepts and `allowed` admits, each dim different from
        those before."""
        chosen: list[dict[str, int]] = []
        if all(dim.name in self.fixed for dim in self.free):
            return chosen
        refused = 0
        for attempt in range(1, 400):
            rung = self.rung + (1 if attempt % 2 and self.rung + 1 < len(_LADDER) and refused < 2 else 0)
            if attempt > _ODD and not chosen and not refused:  # only multiples may be left
                rung = _ROUND[attempt % len(_ROUND)]
            sizes = self._draw(rung, attempt, [first, *chosen])
            if min(sizes.values()) < 0 or not allowed(sizes) or sizes in [first, *chosen]:
                continue
            try:
                self.trace(sizes)
                chosen.append(sizes)
            except CaptureError as error:
                refused += 1
                self._learn(error)
            if len(chosen) == count or refused > _REFUSALS:
                break
        return chosen

    def moved(self, first: Bindings, name: str, size: int) -> dict[str, int]:
        """`first` with another size of one dim and of those tied to it."""
        sizes = {**first, name: size}
        if name in self.tied:  # one of those that it follows moves instead
            leader = min(symbol.value for symbol in self.tied[name].free)
            sizes[leader] += size - first[name]
        sizes |= {follower: evaluate(value, sizes) for follower, value in self.tied.items()}
        return sizes if sizes[name] == size and min(sizes.values()) >= 0 else {**first, name: size}

    def partner(self, first: Bindings, name: str) -> str | None:
        """An earlier dim of the same size that `name` can only change together with, if there is one."""
        for other in self.free:
            if other.name == name:
                return None
            same = first[other.name] == first[name]
            if same and self.varied(first, other.name, lambda sizes: True, name) is not None:
                return other.name
        return None

    def varied(
        self, first: Bindings, name: str, allowed: Callable[[Bindings], bool], *together: str
    ) -> dict[str, int] | None:
        """`first` with another value of one dim (and of those `together` with it) that the program accepts;
        None where it accepts none."""
        dim = self._dim(name)
        for attempt in range(12):
            value = self._size(
                dim,
                self.rung if attempt % 2 else min(self.rung + 1, len(_LADDER) - 1),
                random.Random(attempt),
            )
            sizes = {**first, name: value, **dict.fromkeys(together, value)}
            if value == first[name] or not allowed(sizes):
                continue
            try:
                self.trace(sizes)
                return sizes
            except CaptureError as error:
                self._learn(error)
        return None

    # ---- drawing -----------------------------------------------------------------------------------

    def _is_of_images(self) -> bool:
        """Whether the one input has two free axes behind those of batch and channels."""
        free = [
            axis for dim in self.free for _, axis in dim.places if axis > 1 and dim.name not in self.fixed
        ]
        return len(self.inputs) == 1 and len(free) > 1

    def _candidates(self) -> Iterator[dict[str, int]]:
        """Sizes to begin with: up the ladder, then small ones made of the numbers that the refusals named."""
        for rung, attempt in itertools.product(range(len(_LADDER)), range(2)):
            self.rung = rung
            yield self._draw(rung, attempt, [])
            if alike := self._alike():  # perhaps inputs must agree on an axis
                self.tied = alike
                yield self._draw(rung, attempt, [])
                self.tied = {}
        self.rung = 0
        for unit in list(self.units):
            yield from self._multiples(unit, 0)
        for attempt in range(2, _REFUSALS):
            yield self._draw(0, attempt, [])

    def _distinct(self, least: int) -> dict[str, int]:
        """Sizes no two of which are equal, as far as their ranges allow."""
        sizes = random.Random(least).sample(range(least, least + 3 * len(self.free) + 2), len(self.free))
        return {
            dim.name: max(min(size, dim.high if dim.high is not None else size), dim.low)
            for dim, size in zip(self.free, sizes, strict=True)
        } | self.fixed

    def _alike(self) -> dict[str, Expr]:
        """Dims paired with an earlier one on the same axis of another input."""
        first: dict[int, FreeDim] = {}
        pairs: dict[str, Expr] = {}
        for dim in self.free:
            earlier = first.setdefault(dim.places[0][1], dim)
            if earlier is not dim:
                pairs[dim.name] = earlier.symbol
        return pairs

    def _multiples(self, unit: int, rung: int) -> Iterator[dict[str, int]]:
        """Sizes where one dim is a small multiple of a number that a refusal named."""
        sizes = self._draw(rung, 0, [])
        for dim in self.free:
            for count in (1, 3):
                if dim.low <= unit * count <= (dim.high or unit * count):
                    yield {**sizes, dim.name: unit * count}

    def _draw(self, rung: int, attempt: int, taken: Sequence[Bindings]) -> dict[str, int]:
        draw = random.Random(1000 * rung + attempt)
        sizes: dict[str, int] = {}
        for dim in self.free:
            if dim.name in self.fixed:
                sizes[dim.name] = self.fixed[dim.name]
                continue
            if dim.name in self.tied:
                continue
            for _ in range(40):
                size = self._size(dim, rung, draw)
                fresh = size not in sizes.values() and all(size != other[dim.name] for other in taken)
                if fresh or (dim.high is not None and dim.high - dim.low < 8):
                    break
            sizes[dim.name] = size
        sizes |= {name: evaluate(value, sizes) for name, value in self.tied.items()}
        return {dim.name: sizes[dim.name] for dim in self.free}

    def _size(self, dim: FreeDim, rung: int, draw: random.Random) -> int:
        if dim.high is not None and dim.high <= 1:
            return draw.randint(dim.low, dim.high)
        unit, least, greatest = (1, *_BATCH) if dim.leading else _LADDER[rung]
        if self.units and not dim.leading and draw.random() < 0.5:
            unit, least, greatest = draw.choice(self.units), 1, 7
        low = max(least, -(-max(dim.low, 2) // unit))
        high = greatest if dim.high is None else min(greatest, dim.high // unit)
        if low > high:  # the declared range lies elsewhere
            low = max(dim.low, min(2, dim.high or 2))
            return draw.randint(low, min(dim.high if dim.high is not None else low + 20, low + 20))
        return unit * draw.randint(low, high)

    def _learn(self, error: CaptureError) -> None:
        """Numbers in the message: a size that must be a multiple of 100 fails with a message that holds
        100."""
        for text in re.findall(r"\d+", error.message.partition("failed:")[2]):
            number = int(text)
            if 2 <= number <= 4096 and number not in self.units and len(self.units) < 6:
                self.units.append(number)


def _pairs(said: str) -> list[tuple[int, int]]:
    """Numbers in a refusal that may have to be equal: those of two shapes, place by place, else any two that
    are no numbers of axes."""
    shapes = [[int(size) for size in shape.split(",")] for shape in re.findall(r"\[(\d+(?:, \d+)*)\]", said)]
    if len(shapes) == 2:
        beside = zip(reversed(shapes[0]), reversed(shapes[1]), strict=False)
        found = [pair for pair in beside if pair[0] != pair[1]]
        return [*found, *((b, a) for a, b in found)]
    return list(itertools.permutations(_numbers(said), 2))


def _numbers(said: str) -> list[int]:
    """Numbers in a refusal that may be sizes, and are no numbers of axes."""
    numbers = map(int, re.findall(r"\d+", said))
    return list(dict.fromkeys(n for n in numbers if n >= _DISTINCT[0]))


def shape_at(dims: Sequence[Expr | int], sizes: Bindings) -> tuple[int, ...]:
    """The shape that `dims` are at these sizes."""
    return tuple(dim if isinstance(dim, int) else sizes[dim.value] for dim in dims)


def _sample(declared: InputDeclaration, shape: tuple[int, ...]) -> torch.Tensor:
    """The least legal value everywhere: tracing looks at shapes and types only."""
    if math.prod(shape) > _LARGEST_SAMPLE:
        raise CaptureError(
            f"'{declared.name}' of rank {len(shape)} would be traced at sizes {list(shape)}, which differ so "
            f"that they can be told apart: {math.prod(shape):.1e} elements, and at most "
            f"{_LARGEST_SAMPLE:.1e} are traced",
            stage="generalize",
        )
    low = declared.values[0] if declared.values else 0
    kind = getattr(torch, declared.dtype)
    return torch.full(shape, low if kind.is_floating_point else int(low), dtype=kind)
