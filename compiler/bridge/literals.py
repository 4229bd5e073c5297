"""What an integer that differs between traces follows. Its values in all traces are matched with those of
sizes already in the graph: the operands' first, then any other, then simple arithmetic of them. What
nothing explains is reported, not guessed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import evaluate, product

Values = tuple[int, ...]
_LARGEST_DIVISOR = 129
_DIVISORS = (*range(2, 17), 32, 64, 128, 256, 512, 1024)  # by which programs part sizes


class Sizes:
    """The sizes of the graph so far and the values they had in each trace."""

    def __init__(self, traces: Sequence[Mapping[str, int]]) -> None:
        self.traces = [dict(sizes) for sizes in traces]
        self._values: dict[Expr, Values | None] = {}
        self._by_values: dict[Values, Expr] = {}
        self._seen: dict[Expr, None] = {}
        self.uncertain: list[Expr] = []  # explanations by a form that so few traces cannot prove

    def observed(self, size: Expr) -> Values | None:
        """The values of `size` in the traces; None where it depends on what only run time knows."""
        if size not in self._values:
            try:
                self._values[size] = tuple(evaluate(size, sizes) for sizes in self.traces)
            except (KeyError, ZeroDivisionError):
                return None
        return self._values[size]

    def define(self, symbol: Expr, values: Values) -> None:
        """A size variable that appeared in the middle of the program, with the values it had."""
        for sizes, value in zip(self.traces, values, strict=True):
            sizes[symbol.value] = value
        self._values.pop(symbol, None)

    def add(self, sizes: Iterable[Expr]) -> None:
        """Sizes that later literals may follow; the first with given values is kept."""
        for size in sizes:
            if not size.is_const and (values := self.observed(size)) is not None:
                self._by_values.setdefault(values, size)
                self._seen.setdefault(size)

    def seen(self) -> Iterable[Expr]:
        """All sizes that were added and are no constants."""
        return self._seen

    def known(self) -> Iterator[tuple[Values, Expr]]:
        return iter(self._by_values.items())

    def explain(self, values: Values, near: Sequence[Expr]) -> Expr | None:
        """An expression that has these values, or None. `near` are the sizes of the operands."""
        near = [size for size in dict.fromkeys(near) if not size.is_const and self.observed(size) is not None]
        for size in near:
            if self.observed(size) == values:
                return size
        if values in self._by_values:
            return self._by_values[values]
        pool = list(dict.fromkeys([*near, *self._by_values.values()]))
        for candidate in itertools.chain(
            self._products(near), _with_constant(self, pool, values), _of_two(pool)
        ):
            if self.observed(candidate) == values:
                return candidate
        for candidate in _scaled(self, pool, values):
            if self.observed(candidate) == values:
                self.uncertain.append(candidate)
                return candidate
        return None

    def explanations(self, values: Values, near: Sequence[Expr], remainders: bool = True) -> Iterator[Expr]:
        """Every expression with these values of the forms that few traces may confuse."""
        pool = list(dict.fromkeys([*near, *self._by_values.values()]))
        pool = [size for size in pool if not size.is_const and self.observed(size) is not None]
        for candidate in itertools.chain(_with_constant(self, pool, values), _of_two(pool)):
            if self.observed(candidate) == values:
                yield candidate
        forms = _ROUNDINGS if remainders else _ROUNDINGS[:4]
        for size, divisor, form in itertools.product(pool, _DIVISORS, forms):
            if all(form(n, divisor) == v for n, v in zip(self.observed(size) or (), values, strict=True)):
                yield form(size, divisor)

    def constant_form(self, value: float, sizes: Sequence[Expr]) -> Expr | None:
        """What has this value in every trace, though it is made of a size that changes; None where nothing
        does that these traces would not tell from a constant."""
        for a, b in itertools.permutations(sizes, 2):
            if set(self.observed(a - b) or ()) == {value}:
                return a - b
        for size, divisor, form in itertools.product(sizes, _DIVISORS, _ROUNDINGS):
            own = self.observed(size) or ()
            if divisor <= min(own) and all(form(n, divisor) == value for n in own):
                return form(size, divisor)
        return None

    def spell(self, exact: Expr, near: Sequence[Expr]) -> Expr:
        """`exact`, or a size of the graph that is the same, which then needs no further parameter. A float
        stays one where it is whole: with it PyTorch chooses the type of a result."""
        if exact.dtype.is_float:
            return exact
        values = self.observed(exact)
        known = [self._by_values[values]] if values in self._by_values else []
        same = (size for size in (*near, *known) if self.observed(size) == values and alike(size, exact))
        return next(same, exact)

    def matches(self, value: int, near: Sequence[Expr]) -> list[Expr]:
        """With a single trace: the sizes in the graph that have this value, the operands' first."""
        pool = dict.fromkeys([*near, *self._seen])
        return [size for size in pool if not size.is_const and self.observed(size) == (value,)]

    def _products(self, near: Sequence[Expr]) -> Iterator[Expr]:
        """Products of neighbours: what a merge of contiguous dims gives."""
        for start in range(len(near)):
            for stop in range(start + 2, len(near) + 1):
                yield product(near[start:stop])


def alike(a: Expr, b: Expr) -> bool:
    """Whether two expressions have equal values wherever they are tried."""
    names = sorted(symbol.value for symbol in a.free | b.free)
    draw = random.Random(0)
    for high in (9, 9, 9, 99, 99, 99, 999, 999, 9999, 9999):
        sizes = {name: draw.randint(1, high) for name in names}
        try:
            if evaluate(a, sizes) != evaluate(b, sizes):
                return False
        except ZeroDivisionError:
            continue
    return True


def _with_constant(sizes: Sizes, pool: Sequence[Expr], values: Values) -> Iterator[Expr]:
    """size + c, size * c and size / c, with the one constant that fits the first trace."""
    for size in pool:
        own = sizes.observed(size)
        if own is None:
            continue
        yield size + (values[0] - own[0])
        if own[0] and values[0] % own[0] == 0:
            yield size * (values[0] // own[0])
        if values[0] and own[0] % values[0] == 0:
            yield size // (own[0] // values[0])


def _of_two(pool: Sequence[Expr]) -> Iterator[Expr]:
    """Sums, differences, products of two sizes."""
    for a, b in itertools.combinations(pool[:24], 2):
        yield a + b
        yield a * b
        yield a - b
        yield b - a


def _scaled(sizes: Sizes, pool: Sequence[Expr], values: Values) -> Iterator[Expr]:
    """Rounded quotients, multiples and remainders by a constant, and a scale with an offset."""
    known = [(size, own) for size in pool if (own := sizes.observed(size)) is not None]
    for divisor in range(2, _LARGEST_DIVISOR):
        for size, own in known:
            for form in _ROUNDINGS:
                if all(form(n, divisor) == value for n, value in zip(own, values, strict=True)):
                    yield form(size, divisor)
    for size, own in known:
        rise, run = values[1] - values[0], own[1] - own[0]
        if run and rise % run == 0:
            yield size * (rise // run) + (values[0] - rise // run * own[0])


# the same on integers and on expressions
_ROUNDINGS: tuple[Callable[[Any, int], Any], ...] = (
    lambda n, d: n // d,
    lambda n, d: (n + (d - 1)) // d,
    lambda n, d: n // d * d,
    lambda n, d: (n + (d - 1)) // d * d,
    lambda n, d: n % d,
    lambda n, d: (0 - n) % d,
)
