"""Which GPU a worker is started on, and which workers take jobs, so that all GPUs do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dlcb.server.process import WorkerProcess


def least_used(gpus: Sequence[int], workers: Sequence[WorkerProcess]) -> int | None:
    """The GPU that has the fewest of these workers; None where none is named."""
    used = [worker.gpu for worker in workers]
    return min(gpus, key=used.count, default=None)


def exchange(
    serving: Sequence[WorkerProcess], spare: Sequence[WorkerProcess]
) -> tuple[WorkerProcess, WorkerProcess] | None:
    """A worker that takes jobs and a spare that is to do so in its place, since on its GPU two fewer do; None
    where none is better placed. So it is after a spare has taken over on another GPU than that of the worker
    that died, and a new one has come there."""
    used = Counter(worker.gpu for worker in serving)
    if not (serving and spare):
        return None
    one = max(serving, key=lambda worker: used[worker.gpu])
    other = min(spare, key=lambda worker: used[worker.gpu])
    return (one, other) if used[one.gpu] > used[other.gpu] + 1 else None
