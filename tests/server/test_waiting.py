"""The queue: order, fairness, stacking bounds, and waiting for more rows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from dlcb.compiler import Dim, ModelSource
from dlcb.server.metrics import Metrics
from dlcb.server.model import Admission, Cells, ServedModel
from dlcb.server.padding import Padding
from dlcb.server.settings import Batching, Limits
from dlcb.server.types import InferRequest
from dlcb.server.waiting import LARGEST_STACK, Pending, Waiting, lengths_of, padding_ratio


def model(**batching: Any) -> ServedModel:
    source = ModelSource("m", "1")
    return ServedModel(1, source, Batching(**batching), Limits(), Cells(Metrics(), "m"))


class Clerk:
    """Makes requests with rising numbers."""

    def __init__(self, served: ServedModel) -> None:
        self.model = served
        self.waiting = Waiting()
        self.count = 0

    def add(
        self,
        group: Hashable | None,
        rows: int = 1,
        priority: int = 9,
        arrived: float = 0,
        size: int = 1,
        length: int = 0,
        most_rows: int = 0,
    ) -> Pending:
        self.count += 1
        pending = Pending(
            model=self.model,
            request=InferRequest({}),
            admission=Admission(
                rows,
                group,
                (length,) if length else (),
                8 * rows * length,
                max(rows, most_rows or self.model.batching.max_rows),
            ),
            respond=lambda outputs: outputs,
            deliver=lambda answer, error: None,
            arrived=arrived,
            order=(priority, self.count),
            size=size,
        )
        self.waiting.add(pending)
        return pending

    def take(self, now: float = 0) -> list[int]:
        """Numbers of the next batch's requests."""
        return [pending.order[1] for pending in self.waiting.take(now)[0]]


def test_the_oldest_leads_and_takes_its_like_along() -> None:
    clerk = Clerk(model())
    for group in ("a", "b", "a", None, "a", "b"):
        clerk.add(group)
    assert [clerk.take() for _ in range(4)] == [[1, 3, 5], [2, 6], [4], []]
    assert clerk.model.waiting == 0 and not clerk.waiting


def test_a_rare_shape_is_not_starved_by_a_common_one() -> None:
    clerk = Clerk(model(max_rows=2))
    for _ in range(3):
        clerk.add("common")
    rare = clerk.add("rare").order[1]
    taken = []
    for _ in range(4):
        taken.append(clerk.take())
        clerk.add("common")
        clerk.add("common")
    assert taken.index([rare]) <= 2


def test_priority_comes_before_arrival_and_between_groups() -> None:
    clerk = Clerk(model(max_rows=1))
    for group, priority in (("a", 9), ("b", 5), ("a", 1), ("a", 9)):
        clerk.add(group, priority=priority)
    assert [clerk.take() for _ in range(4)] == [[3], [2], [1], [4]]


def test_rows_and_bytes_bound_a_batch_and_a_larger_request_runs_alone() -> None:
    clerk = Clerk(model(max_rows=4))
    for rows in (3, 1, 1, 9, 1):
        clerk.add("a", rows=rows)
    assert [clerk.take() for _ in range(4)] == [[1, 2], [3], [4], [5]]
    clerk.add("a", size=LARGEST_STACK)
    clerk.add("a", size=1)
    assert [clerk.take() for _ in range(2)] == [[6], [7]]


def test_the_memory_of_a_batch_bounds_it_as_rows_do() -> None:
    clerk = Clerk(model(max_rows=8))
    for _ in range(5):
        clerk.add("a", most_rows=2)
    assert [clerk.take() for _ in range(3)] == [[1, 2], [3, 4], [5]]
    padded = Clerk(padding_model(max_rows=8, max_padding=0.9))
    for length, most_rows in ((10, 4), (20, 2), (11, 4), (12, 4)):
        padded.add("b", length=length, most_rows=most_rows)
    assert [padded.take() for _ in range(2)] == [[1, 3, 4], [2]]  # with the longest only two rows would fit


def test_a_group_waits_for_rows_only_so_long_and_holds_nobody_up() -> None:
    clerk = Clerk(model(max_rows=2, max_wait_ms=10))
    clerk.add("a", arrived=0.0)
    taken, wait = clerk.waiting.take(0.004)
    assert taken == [] and abs(wait - 0.006) < 1e-9
    clerk.add(None, arrived=0.004)
    assert clerk.take(0.004) == [2]
    assert clerk.take(0.011) == [1]
    clerk.add("a", arrived=1.0)
    clerk.add("a", arrived=1.0)
    assert clerk.take(1.0) == [3, 4]


def test_a_group_that_gains_nothing_by_growing_waits_for_nobody() -> None:
    served = model(max_rows=100, max_wait_ms=10)
    clerk = Clerk(served)
    clerk.add("a", length=10)
    assert clerk.take(0.001) == []
    for size in (100, 200, 300, 400) * 3:
        served.cost.observe(size, 1e-5 + size * 1e-5)  # a run costs a byte: twenty bytes are near the best
    assert clerk.take(0.001) == [1]


def test_one_that_leaves_is_forgotten_and_one_that_survived_a_worker_runs_alone() -> None:
    clerk = Clerk(model())
    first, second, third = (clerk.add("a") for _ in range(3))
    clerk.waiting.remove(second)
    assert clerk.model.waiting == 2
    assert clerk.take() == [1, 3]
    for pending in (first, third):
        pending.deaths = 1
        clerk.waiting.add(pending)
    clerk.add("a")
    assert [clerk.take() for _ in range(3)] == [[1], [3], [4]]


def padding_model(**batching: Any) -> ServedModel:
    served = model(**batching)
    served.padding = Padding(["length"], "mask", {"mask": [1]}, {"mask": 0})
    return served


def test_the_oldest_takes_the_lengths_nearest_to_its_own_within_the_bound() -> None:
    clerk = Clerk(padding_model(max_padding=0.25))
    for length in (10, 90, 11, 40, 9):
        clerk.add("a", length=length)
    assert [clerk.take() for _ in range(3)] == [[1, 3, 5], [2], [4]]


def test_padding_that_costs_more_than_a_run_is_left_out() -> None:
    served = padding_model(max_padding=0.9)
    for size in (100, 200, 300, 400) * 3:
        served.cost.observe(
            size, 0.001 + size * 1e-5
        )  # a run costs as much as 100 bytes, which is 12 elements
    clerk = Clerk(served)
    for length in (10, 20, 40):
        clerk.add("a", length=length)
    assert [clerk.take() for _ in range(2)] == [[1, 2], [3]]


def test_where_padding_costs_nothing_only_the_file_bounds_it() -> None:
    for bound, together in ((None, [1, 2, 3]), (0.5, [1, 2])):
        served = padding_model(max_padding=bound)
        for size in (100, 200, 300, 400) * 3:
            served.cost.observe(size, 0.001)  # a GPU that is not full
        clerk = Clerk(served)
        for length in (10, 20, 200):
            clerk.add("a", length=length)
        assert clerk.take() == together


def test_while_nothing_is_learnt_padding_is_bounded() -> None:
    clerk = Clerk(padding_model())
    for length in (10, 12, 200):
        clerk.add("a", length=length)
    assert [clerk.take() for _ in range(2)] == [[1, 2], [3]]


def test_what_is_padded_is_padded_to_round_lengths_once_it_is_known_what_that_costs() -> None:
    served = padding_model()
    clerk = Clerk(served)
    of_two_sizes = [clerk.add("a", length=length) for length in (20, 61)]
    assert lengths_of(of_two_sizes) == {"length": 61}
    for size in (100, 200, 300, 400) * 3:
        served.cost.observe(size, 0.001)  # a GPU that is not full
    assert lengths_of(of_two_sizes) == {"length": 64}
    served.padded_dims = (Dim("length", 1, 100, multiple=2),)
    assert lengths_of(of_two_sizes) == {"length": 64}
    for longest, dim in ((62, Dim("length", 1, 63)), (61, Dim("length", 1, None, multiple=61))):
        served.padded_dims = (dim,)
        assert lengths_of(of_two_sizes) == {"length": longest}
    assert padding_ratio(of_two_sizes, {"length": 64}) == pytest.approx(1 - 81 / 128)
    assert lengths_of(of_two_sizes[:1]) == {} and padding_ratio(of_two_sizes[:1], {}) == 0
