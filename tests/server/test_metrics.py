"""Counters that follow what others count, and how families look when scraped."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlcb.server.metrics import Metrics, Total


def test_a_total_adds_up_its_sources() -> None:
    total = Total()
    for source, reading in [("a", 3), ("b", 2), ("a", 5), ("b", 2)]:
        total.follow(source, reading)
    assert total.value == 7


def test_a_total_never_falls_when_a_source_begins_again() -> None:
    total = Total()
    seen = []
    for reading in (4, 6, 1, 3):
        total.follow("worker", reading)
        seen.append(total.value)
    assert seen == [4, 6, 7, 9]


def test_what_only_grows_is_scraped_as_a_counter() -> None:
    metrics = Metrics()
    metrics.guard_failures.cell("m").follow("worker", 2)
    metrics.cache_hits.cell().value = 5
    families = {
        family.name: family for family in text_string_to_metric_families(asyncio.run(metrics.text()).decode())
    }
    found = {
        sample.name: (families[name].type, sample.value)
        for name in ("dlcb_guard_failures", "dlcb_kernel_cache_hits", "dlcb_kernel_cache_bytes")
        for sample in families[name].samples
    }
    assert found == {
        "dlcb_guard_failures_total": ("counter", 2),
        "dlcb_kernel_cache_hits_total": ("counter", 5),
        "dlcb_kernel_cache_bytes": ("gauge", 0),
    }


def test_requests_go_on_while_a_scrape_is_written() -> None:
    """And may add cells and count in them."""
    metrics = Metrics()
    for number in range(200):
        for family in (metrics.requests, metrics.request_seconds):
            family.cell(f"m{number}", *["x"] * (len(family.labels) - 1))

    async def turns() -> int:
        scrape, count = asyncio.create_task(metrics.text()), 0
        while not scrape.done():
            count += 1
            metrics.guard_failures.cell(f"new{count}").add()
            await asyncio.sleep(0)
        assert b"dlcb_guard_failures_total" in scrape.result()
        return count

    assert asyncio.run(turns()) > 10


def test_a_cell_with_the_wrong_labels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dlcb_guard_failures_total has labels \('model',\), got \(\)"):
        Metrics().guard_failures.cell()
