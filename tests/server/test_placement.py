"""Workers on several GPUs: where they start, and which take jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlcb.server.placement import exchange, least_used
from dlcb.server.supervisor import Supervisor


@dataclass(eq=False)
class Worker:
    gpu: int | None
    models: set[int] = field(default_factory=lambda: {1})


def on(*gpus: int | None) -> list[Any]:
    return [Worker(gpu) for gpu in gpus]


@pytest.mark.parametrize(
    ("gpus", "used", "found"), [((), (), None), ((2, 3), (), 2), ((2, 3), (2,), 3), ((2, 3), (2, 3, 3), 2)]
)
def test_a_worker_starts_where_the_fewest_are(
    gpus: tuple[int, ...], used: tuple[int, ...], found: int | None
) -> None:
    assert least_used(gpus, on(*used)) == found


@pytest.mark.parametrize(
    ("serving", "spare"),
    [((0,), (1,)), ((0, 1), (0,)), ((0, 1), (1,)), ((None, None), (None,)), ((0, 0, 1), (1,)), ((), (0,))],
)
def test_nothing_is_exchanged_where_nothing_is_gained(
    serving: tuple[int | None, ...], spare: tuple[int | None, ...]
) -> None:
    assert exchange(on(*serving), on(*spare)) is None


def test_a_gpu_whose_worker_died_takes_jobs_again() -> None:
    """A spare has taken over on the other GPU; what comes up stands by on this one."""
    first, took_over, came, loading = on(0, 0, 1, 1)
    loading.models = set()
    woken: list[bool] = []
    batcher = SimpleNamespace(lanes=[first, took_over], wake=lambda: woken.append(True))
    supervisor = SimpleNamespace(
        _batcher=batcher,
        _workers=[first, took_over, loading, came],
        _staying=lambda: [first, took_over, loading, came],
        _loads={1: {}},
    )
    Supervisor._spread(cast(Supervisor, supervisor))
    assert {worker.gpu for worker in batcher.lanes} == {0, 1}
    assert came in batcher.lanes and woken == [True]
