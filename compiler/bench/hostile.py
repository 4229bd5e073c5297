"""Systems of sizes that are made to be hard to solve: each function states one kind of program over a number
of sizes. However they are solved, it must take time linear in that number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from dlcb.compiler.errors import ShapeError
from dlcb.compiler.expr.dag import Expr
from dlcb.compiler.expr.node import all_of, equal, maximum, minimum, not_equal, product, where
from dlcb.compiler.shapes.shape import Shapes, shape
from dlcb.compiler.shapes.system import System

Family = Callable[[System, int], None]


def sizes(system: System, count: int, low: int = 0) -> list[Expr]:
    return [system.fresh(f"n{k}", low) for k in range(count)]


def concat(system: System, count: int) -> None:
    """One sum of all sizes, and operators that use it."""
    first, *others = sizes(system, count)
    total = sum(others, first)
    system.equal(system.fresh("m", 1), total)
    for k in range(20):
        system.require(total >= k)
        system.simplify((total - 1) // 2 + 1)
        system.broadcast(total, system.fresh(f"b{k}"))
    system.exact_quotient(total * 6, 4)


def growing_concat(system: System, count: int) -> None:
    """A sum that each operator adds a size to and halves."""
    total, *others = sizes(system, count)
    for v in others:
        total = system.simplify((total + v) // 2)
        system.require(total >= 1)


def equal_sums(system: System, count: int) -> None:
    """Two sums that are equal, and then their terms."""
    ones, others = sizes(system, count), sizes(system, count)
    system.equal(sum(ones[1:], ones[0]), sum(others[1:], others[0]))
    for one, other in zip(ones, others, strict=True):
        system.equal(one, other)


def broadcasts(system: System, count: int) -> None:
    """All sizes broadcast, one after another."""
    result, *others = sizes(system, count)
    for v in others:
        result = system.broadcast(result, v)


def known_broadcasts(system: System, count: int) -> None:
    """As `broadcasts`, and afterwards each size turns out to be 1 or the first."""
    first, *others = sizes(system, count)
    result = first
    for v in others:
        result = system.broadcast(result, v)
    for k, v in enumerate(others):
        system.equal(v, 1 if k % 2 else first)


def pyramid(system: System, count: int) -> None:
    """Strided windows down, and equality with each level on the way up."""
    x, levels = system.fresh("h"), []
    for _ in range(count):
        levels.append(x)
        x = system.simplify((x + 2 - 3) // 2 + 1)
        system.require(x >= 1)
    for level in reversed(levels):
        x = system.equal(system.simplify(x * 2), level)


def cut_pyramid(system: System, count: int) -> None:
    """Windows down, and cutting to each level on the way up."""
    x, levels = system.fresh("h"), []
    for _ in range(count):
        levels.append(x)
        x = system.simplify((x - 3) // 2 + 1)
        system.require(x >= 1)
    for level in reversed(levels):
        x = system.simplify(minimum(x * 2 + 1, level))


def reshapes(system: System, count: int) -> None:
    """A product of all sizes with one unknown factor."""
    each = sizes(system, count)
    whole = product(each)
    unknown = system.exact_quotient(whole, each[0] * each[1])
    system.equal(whole, unknown * each[0] * each[1])


def sums_multiplied(system: System, count: int) -> None:
    """(a + b) * (c + d) * ..., which multiplied out has 2^n terms."""
    each = sizes(system, 2 * count)
    whole = product(one + other for one, other in zip(each[::2], each[1::2], strict=True))
    system.equal(whole, system.fresh("m"))
    system.require(whole >= 1)


def powers(system: System, count: int) -> None:
    x = system.fresh("x", 1)
    y = x
    for _ in range(count):
        y = system.simplify(y * x)
    system.require(y >= 1)
    system.equal(y, system.fresh("m"))


def least_of_all(system: System, count: int) -> None:
    least, *others = sizes(system, count)
    for v in others:
        least = minimum(least, v)
    system.require(least >= 1)
    system.equal(least, system.fresh("m"))


def slices(system: System, count: int) -> None:
    """Slices of slices: least and greatest in turn."""
    x = system.fresh("n")
    y = x
    for k in range(count):
        y = system.simplify(maximum(maximum(minimum(y, x - k), 0) - 1, 0))
    system.require(y >= 1)


def remainders(system: System, count: int) -> None:
    """Remainders and quotients of each other, by sizes."""
    y = system.fresh("x")
    for v in sizes(system, count, low=1):
        y = system.simplify(y % v + y // v * 3)
    system.require(y >= 0)


def quotients(system: System, count: int) -> None:
    y = system.fresh("x")
    for v in sizes(system, count, low=1):
        y = system.simplify(y // v)
    system.require(y >= 1)


def summed_quotients(system: System, count: int) -> None:
    x = system.fresh("x")
    total = sum((x // (k + 3) for k in range(count)), x // 2)
    system.require(total >= 1)
    system.require(equal(total % 4, 0))


def unions(system: System, count: int) -> None:
    """A long chain of equalities, from its end."""
    each = sizes(system, count)
    for one, other in reversed(list(pairwise(each))):
        system.equal(other, one + 1)


def about_one(system: System, count: int) -> None:
    """Every size is at most one that is then narrowed again and again."""
    x = system.fresh("x")
    for v in sizes(system, count):
        system.require(v <= x)
    for k in range(count):
        system.require(x >= k)


def products_about_one(system: System, count: int) -> None:
    each, x = sizes(system, count), system.fresh("x")
    for k in range(count):
        system.require(x * each[k] <= each[k - 1] + 5)
    for k in range(count):
        system.require(x >= k)


def sum_in_many(system: System, count: int) -> None:
    """A size that stands in many statements is the sum of all; then they are equal."""
    each, x = sizes(system, count), system.fresh("x")
    for k, v in enumerate(each):
        system.require(x * 2 + k <= v * v)
    system.equal(x, sum(each[1:], each[0]))
    for one, other in pairwise(each):
        system.equal(one, other)


def excluded(system: System, count: int) -> None:
    """Values that a size has not, from the highest; then the lowest decides all."""
    x = system.fresh("x")
    for k in range(count, 0, -1):
        system.require(not_equal(x, k))
    system.require(x >= 1)


def one_of_many(system: System, count: int) -> None:
    x = system.fresh("x")
    either = equal(x, 0)
    for k in range(1, count):
        either = either | equal(x, k * 3)
    system.require(either)
    system.require(x >= 4)


def any_of_many(system: System, count: int) -> None:
    each = sizes(system, count)
    either = each[0] >= 3
    for v in each[1:]:
        either = either | (v >= 3)
    system.require(either)
    for v in each[1:]:
        system.require(v <= 2)


def all_of_many(system: System, count: int) -> None:
    each = sizes(system, count)
    system.require(all_of((each[k - 1] <= 5) | (each[k] >= each[k - 1] + k) for k in range(count)))


def branches(system: System, count: int) -> None:
    x, y = system.fresh("x"), system.fresh("y")
    for k in range(count):
        y = system.simplify(where(equal(x, k), y + k, y))
    system.require(y >= 1)


def contradictions(system: System, count: int) -> None:
    """A chain of orders, and statements that each contradict it."""
    each = sizes(system, count)
    for one, other in pairwise(each):
        system.require(one + 1 <= other)
    for one, other in pairwise(each):
        try:
            system.require(one >= other)
        except ShapeError:
            continue
        raise AssertionError(f"{one!r} >= {other!r} contradicts what was stated")


def lists(system: System, count: int) -> None:
    """Appended lists of unknown length, which are found one after another."""
    shapes = Shapes(system)
    unknown = [shapes.fresh("s") for _ in range(count)]
    each = sizes(system, count)
    parts = [part for pair in zip(unknown, each, strict=True) for part in pair]
    shapes.same(shape(*parts), shape(shapes.fresh("u"), *parts[count:]))
    for k, variable in enumerate(unknown):
        shapes.same(shape(variable), shape(each[k], each[k - 1]))


def joined_lists(system: System, count: int) -> None:
    """Broadcasts of lists of unknown length."""
    shapes = Shapes(system)
    result = shape(shapes.fresh("s"), system.fresh("d"))
    for _ in range(count):
        result = shapes.broadcast(result, shape(shapes.fresh("s"), system.fresh("d")))


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        concat, growing_concat, equal_sums, broadcasts, known_broadcasts, pyramid, cut_pyramid, reshapes,
        sums_multiplied, powers, least_of_all, slices, remainders, quotients, summed_quotients, unions,
        about_one, products_about_one, sum_in_many, excluded, one_of_many, any_of_many, all_of_many, branches,
        contradictions, lists, joined_lists,
    )
}  # fmt: skip
