"""Every metric of the server, made in one place and passed in. Numbers are kept in plain cells, since only
the front's event loop writes them, and become Prometheus families when scraped; labels are model names,
tiers, phases and other short lists, never a shape.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

REQUEST_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
COMPILE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIO_BUCKETS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75)


class Number:
    """One counter or gauge cell."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Total(Number):
    """A counter of what others count: each source says how much that is since it began. It never falls, also
    when a source begins again or is replaced by another."""

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        super().__init__()
        self._readings: dict[Hashable, float] = {}

    def follow(self, source: Hashable, reading: float) -> None:
        """Add what the source counted since its last reading; a lower one says that it began again."""
        before = self._readings.get(source, 0.0)
        self.value += reading - before if reading >= before else reading
        self._readings[source] = reading


class Histogram:
    """One histogram cell: a count for each bucket, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


_SHOWN: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
Cell = TypeVar("Cell", Number, Total, Histogram)


class Family(Generic[Cell]):
    """A named metric: `cell(*labels)` makes or finds one of its cells; hot paths keep the cell they found."""

    def __init__(
        self, kind: str, name: str, help: str, labels: tuple[str, ...], make: Callable[[], Cell]
    ) -> None:
        self.kind = kind
        self.name = name
        self.help = help
        self.labels = labels
        self.cells: dict[tuple[str, ...], Cell] = {}
        self._make: Callable[[], Cell] = make
        if not labels:
            self.cell()  # a metric without labels is there, and 0, from the start

    def cell(self, *labels: str) -> Cell:
        found = self.cells.get(labels)
        if found is None:
            if len(labels) != len(self.labels):
                raise ValueError(f"{self.name} has labels {self.labels}, got {labels}")
            found = self.cells[labels] = self._make()
        return found

    def forget(self, label: str) -> None:
        """Drop the cells whose first label this is: gauges of something that is gone."""
        for key in [key for key in self.cells if key and key[0] == label]:
            del self.cells[key]

    def collect(self) -> Metric:
        """This family as prometheus_client shows it."""
        family: Any = _SHOWN[self.kind](self.name, self.help, labels=self.labels)
        for labels, cell in list(self.cells.items()):  # the event loop may add some meanwhile
            if isinstance(cell, Histogram):
                family.add_metric(labels, _cumulative(cell), cell.total)
            else:
                family.add_metric(labels, cell.value)
        return family


class Metrics(Collector):
    """The families, as attributes; `before_scrape` are called first and refresh gauges that are read, not
    counted."""

    def __init__(self) -> None:
        self.before_scrape: list[Callable[[], None]] = []
        self._families: list[Family] = []
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        total = self._total

        self.shape_cache = counter(
            "dlcb_shape_cache_requests_total", "Runs by tier, and by whether the launch plan was there.",
            "model", "tier", "result",
        )  # fmt: skip
        self.compile_seconds = histogram(
            "dlcb_compile_seconds",
            "Compilations, by what asked for them: load, probe (a rank before ready), jit (a rank first met"
            " after it) or request (stays 0).",
            COMPILE_BUCKETS, "model", "tier", "reason",
        )  # fmt: skip
        self.request_seconds = histogram(
            "dlcb_request_seconds", "Time of inference requests by phase: queue, execute and total.",
            REQUEST_BUCKETS, "model", "phase",
        )  # fmt: skip
        self.requests = counter(
            "dlcb_requests_total", "Answered inference requests by HTTP status.", "model", "status"
        )
        self.queue_depth = gauge("dlcb_queue_depth", "Requests that wait to be run.", "model")
        self.inflight_bytes = gauge("dlcb_inflight_bytes", "Bytes of accepted and unanswered requests.")
        self.dropped = counter(
            "dlcb_dropped_requests_total", "Requests that left the queue unrun, by cause.",
            "model", "cause",
        )  # fmt: skip
        self.batch_rows = histogram("dlcb_batch_rows", "Rows of a run.", ROW_BUCKETS, "model")
        self.batch_requests = histogram("dlcb_batch_requests", "Requests in a run.", ROW_BUCKETS, "model")
        self.padding = histogram(
            "dlcb_padding_ratio", "Padded elements over all elements of a run.", RATIO_BUCKETS, "model"
        )
        self.guard_failures = total(
            "dlcb_guard_failures_total", "Derived guards that sent a run to the next tier.", "model"
        )
        self.quarantined = gauge(
            "dlcb_quarantined_regions", "Regions that disagreed with eager, and run eagerly.", "model"
        )
        self.verdicts = total(
            "dlcb_shape_verdicts_total",
            "Shapes of models that are confirmed shape by shape, by what a comparison with eager found:"
            " confirmed (the program serves them from then on) or refuted (PyTorch does).",
            "model", "verdict",
        )  # fmt: skip
        self.plans = gauge("dlcb_shape_cache_entries", "Launch plans kept.", "model")
        self.plan_evictions = total(
            "dlcb_shape_cache_evictions_total", "Launch plans dropped for others.", "model"
        )
        self.compiler_calls = total(
            "dlcb_compiler_calls_total", "Toolchain calls in the workers; stays 0.", "model"
        )
        self.cache_bytes = gauge("dlcb_kernel_cache_bytes", "Bytes in the kernel cache.")
        self.cache_entries = gauge("dlcb_kernel_cache_entries", "Entries in the kernel cache.")
        # Counted in the cache's folder, by all processes since it was made: shown as they stand.
        self.cache_hits = counter(
            "dlcb_kernel_cache_hits_total", "Kernel cache look-ups that found their entry, all processes."
        )
        self.cache_misses = counter("dlcb_kernel_cache_misses_total", "Kernel cache look-ups that did not.")
        self.cache_evictions = counter("dlcb_kernel_cache_evictions_total", "Entries evicted.")
        self.cache_corrupt = counter(
            "dlcb_kernel_cache_corrupt_total", "Entries found damaged, and treated as missing."
        )
        self.worker_restarts = counter(
            "dlcb_worker_restarts_total", "Workers that died or failed to start, and were replaced."
        )
        self.workers_ready = gauge("dlcb_workers_ready", "Workers that take batches.")
        self.process_bytes = gauge("dlcb_process_resident_bytes", "Resident memory by process.", "process")
        self.device_bytes = gauge("dlcb_device_memory_bytes", "Device memory that workers hold.", "device")
        self.slot_bytes = gauge("dlcb_slot_bytes", "Shared memory for tensors on their way to workers.")
        self.model_ready = gauge(
            "dlcb_model_ready", "1 for a version that takes requests.", "model", "version"
        )
        self.load_failures = counter(
            "dlcb_model_load_failures_total", "Loads of a version that failed.", "model", "version"
        )
        self.code_changed = gauge(
            "dlcb_model_code_changed",
            "1 for a version whose Python modules, weights or program are others by now than those that"
            " serve, until a load.",
            "model", "version",
        )  # fmt: skip
        self.ready = gauge("dlcb_ready", "1 while the server is ready.")

        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterable[Metric]:
        return [family.collect() for family in self._families]

    async def text(self) -> bytes:
        """The exposition that /metrics answers. Another thread writes it, since it takes 0.5 ms a model
        and more, and requests go on meanwhile."""
        for refresh in self.before_scrape:
            refresh()
        return await asyncio.to_thread(generate_latest, self._registry)

    def _counter(self, name: str, help: str, *labels: str) -> Family[Number]:
        return self._add(Family("counter", name, help, labels, Number))

    def _total(self, name: str, help: str, *labels: str) -> Family[Total]:
        return self._add(Family("counter", name, help, labels, Total))

    def _gauge(self, name: str, help: str, *labels: str) -> Family[Number]:
        return self._add(Family("gauge", name, help, labels, Number))

    def _histogram(self, name: str, help: str, bounds: tuple[float, ...], *labels: str) -> Family[Histogram]:
        return self._add(Family("histogram", name, help, labels, lambda: Histogram(bounds)))

    def _add(self, family: Family) -> Family:
        self._families.append(family)
        return family


def _cumulative(cell: Histogram) -> list[tuple[str, float]]:
    running, buckets = 0, []
    for bound, count in zip((*cell.bounds, float("inf")), cell.counts, strict=True):
        running += count
        buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(running)))
    return buckets
