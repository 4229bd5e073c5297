"""Prepared plans by input shapes: bounded in entries, the least recently used one leaves first, hits, misses
and evictions are counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Plan = TypeVar("Plan")


class ShapeCache(Generic[Plan]):
    """At most `capacity` plans. Not thread-safe, as the plans in it are not."""

    def __init__(self, capacity: int = 512) -> None:
        if capacity < 1:
            raise ValueError(f"a shape cache holds at least one plan, found capacity {capacity}")
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._latest: Plan | None = None  # is last in the order already

    def get(self, key: Hashable) -> Plan | None:
        """The plan, which is now the most recently used; None, and a miss is counted, when there is none."""
        plan = self._plans.get(key)
        if plan is None:
            self.misses += 1
            return None
        self.hits += 1
        if plan is not self._latest:
            self._plans.move_to_end(key)
            self._latest = plan
        return plan

    def put(self, key: Hashable, plan: Plan) -> None:
        """Keep a plan, in place of one under the same key or of the least recently used."""
        if key not in self._plans and len(self._plans) >= self.capacity:
            self._plans.popitem(last=False)
            self.evictions += 1
        self._plans[key] = plan
        self._latest = None

    def peek(self, key: Hashable) -> Plan | None:
        """The plan, if it is there; neither its age nor the counts change."""
        return self._plans.get(key)

    def replace_all(self, replace: Callable[[Plan], Plan]) -> None:
        """Exchange every plan for what `replace` makes of it."""
        for key, plan in self._plans.items():
            self._plans[key] = replace(plan)
        self._latest = None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._plans

    def __iter__(self) -> Iterator[Plan]:
        return iter(tuple(self._plans.values()))

    def __len__(self) -> int:
        return len(self._plans)

    def clear(self) -> None:
        self._plans.clear()
        self._latest = None
