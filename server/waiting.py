"""Requests that wait to be run, in groups that may be stacked. The oldest request, by priority and then by
arrival, leads the next batch, so that a rare shape is never starved by a common one. No clock and no worker
here: times are arguments.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dlcb.server.errors import ServerError
from dlcb.server.model import Admission, ServedModel
from dlcb.server.partition import Bounds, rounded, together
from dlcb.server.types import InferRequest, RawRequest

REACH = 4  # batches' worth of the oldest requests, among which those of near lengths are looked for
UNLEARNT_PADDING = 0.25  # most of a batch that may be padding while nothing is known of what it costs
MOST_LOOKED_AT = 128  # of them, since the event loop waits for it: 1 ms
LARGEST_STACK = 64 << 20  # bytes of stacked requests; a larger one runs alone

Deliver = Callable[[Any, ServerError | None], None]  # takes an answer, or None and the error


@dataclass(eq=False, slots=True)
class Pending:
    """A request on its way. `respond` makes the answer from the outputs while they still lie in shared
    memory, `deliver` takes it or the error, once; `order` is its priority, then its number; `done` says that
    it has its answer or is past needing one."""

    model: ServedModel
    request: InferRequest | RawRequest
    admission: Admission
    respond: Callable[[Any], Any]
    deliver: Deliver
    arrived: float
    order: tuple[int, int]
    size: int
    timer: asyncio.TimerHandle | None = None
    waiting: bool = False
    done: bool = False
    deaths: int = 0

    @property
    def key(self) -> Hashable:
        """Requests with equal keys may be stacked. One that was there when a worker died runs alone."""
        group = self.admission.group
        return (self.model.handle, self.order[1] if group is None or self.deaths else group)


class Waiting:
    """The queues of all models, and each model's count of requests in them."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Pending]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def all(self) -> list[Pending]:
        return [pending for group in self._groups.values() for pending in group]

    def add(self, pending: Pending) -> None:
        """Put a request in its place."""
        pending.waiting = True
        pending.model.waiting += 1
        key = pending.key
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = deque((pending,))
        elif pending.order > group[-1].order:
            group.append(pending)
        else:  # an urgent request, or one that comes back: rare, and groups are short
            ordered = sorted((*group, pending), key=lambda entry: entry.order)
            self._groups[key] = deque(ordered)

    def remove(self, pending: Pending) -> None:
        """Take out a request that will not run, and with it what it holds."""
        pending.waiting = False
        pending.model.waiting -= 1
        group = self._groups[pending.key]
        group.remove(pending)
        if not group:
            del self._groups[pending.key]

    def take(self, now: float) -> tuple[list[Pending], float]:
        """The requests of the next batch. Without any, the seconds until a group that still waits for more
        rows may go (0: nothing waits)."""
        groups = self._groups
        best, shortest = None, 0.0
        for key, group in groups.items():
            wait = _wait_left(group, now)
            if wait > 0:
                shortest = min(wait, shortest) if shortest else wait
            elif best is None or group[0].order < groups[best][0].order:
                best = key
        if best is None:
            return [], shortest
        group = groups[best]
        taken = _stackable(group)
        if not group:
            del groups[best]
        for pending in taken:
            pending.waiting = False
            pending.model.waiting -= 1
        return taken, 0.0


def _wait_left(group: deque[Pending], now: float) -> float:
    """Seconds a group still waits for more rows; 0 where its model does not wait, or it has rows enough: as
    many as may be, or as many as pay."""
    head = group[0]
    limit = head.model.batching.max_wait_ms
    if not limit or head.admission.group is None or head.deaths:
        return 0.0
    rows = sum(pending.admission.rows for pending in group)
    enough = head.model.cost.preferred()
    if rows >= head.admission.most_rows:
        return 0.0
    if enough is not None and sum(pending.admission.size for pending in group) >= enough:
        return 0.0
    return head.arrived + limit * 1e-3 - now


def _stackable(group: deque[Pending]) -> list[Pending]:
    """The head of a group and those behind it that fit beside it; they leave the group."""
    lengths = group[0].admission.lengths
    if lengths and any(pending.admission.lengths != lengths for pending in group):
        return _paddable(group)
    head = group.popleft()
    taken, rows, size = [head], head.admission.rows, head.size
    limit = head.admission.most_rows
    while group:
        rows += group[0].admission.rows
        size += group[0].size
        if rows > limit or size > LARGEST_STACK:
            break
        taken.append(group.popleft())
    return taken


def _paddable(group: deque[Pending]) -> list[Pending]:
    """The head of a group and those that are best run with it (see `partition`), of the oldest alone: who
    comes later does not pass many. They leave the group."""
    head, model = group[0], group[0].model
    reach = min(REACH * head.admission.most_rows, MOST_LOOKED_AT)
    oldest = [pending.admission for pending in islice(group, reach)]

    def fits(admission: Admission, rows: int, lengths: tuple[int, ...]) -> bool:
        return model.fits(model.sizes_of_batch(admission, rows, lengths))

    chosen = set(together(oldest, _bounds(model, head.admission), fits))
    waiting = list(group)
    group.clear()
    group.extend(pending for number, pending in enumerate(waiting) if number not in chosen)
    return [pending for number, pending in enumerate(waiting) if number in chosen]


def _bounds(model: ServedModel, admission: Admission) -> Bounds:
    """What a run of such requests costs as far as that is known; until then few runs are best, and padding is
    bounded all the same."""
    bytes_of_one = max(admission.size, 1) / max(admission.positions, 1)
    worth, bound = model.cost.padding_worth(), model.batching.max_padding
    if worth is None:
        worth, bound = math.inf, UNLEARNT_PADDING if bound is None else bound
    return Bounds(worth / bytes_of_one, 1.0 if bound is None else bound, LARGEST_STACK / bytes_of_one)


def lengths_of(requests: Sequence[Pending]) -> Mapping[str, int]:
    """What requests that run together are padded to, by symbol; empty where they are of one size."""
    admissions = [pending.admission for pending in requests]
    head, model = admissions[0], requests[0].model
    if model.padding is None or all(admission.lengths == head.lengths for admission in admissions):
        return {}
    longest = tuple(map(max, zip(*(admission.lengths for admission in admissions), strict=True)))
    rows, own = sum(a.rows for a in admissions), sum(a.positions for a in admissions)

    def fits(lengths: tuple[int, ...]) -> bool:
        return model.fits(model.sizes_of_batch(head, rows, lengths))

    if model.cost.padding_worth() is not None:
        longest = rounded(longest, rows, own, _bounds(model, head), fits)
    return dict(zip(model.padding.symbols, longest, strict=True))


def padding_ratio(requests: Sequence[Pending], lengths: Mapping[str, int]) -> float:
    """Padded elements over all elements of a batch that is padded to these lengths."""
    admissions = [pending.admission for pending in requests]
    total = sum(admission.rows for admission in admissions) * math.prod(lengths.values())
    own = sum(admission.positions for admission in admissions)
    return 1 - own / total if lengths and total else 0.0
