"""The numbers of one process: plain Python numbers by metric and labels, written by its event loop only.

Adding to a plain number costs a tenth of what prometheus_client's classes take (a lock per sample, and with several
workers a write to a mapped file). ``snapshot`` copies all numbers at once. Readers (``/metrics``, the page, other
workers) use the copy, in another thread.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gateway.metrics.catalog import CATALOG, Metric


class Series(NamedTuple):
    """The identity of a number: metric name and label values."""

    metric: str
    labels: tuple[str, ...] = ()


class Gauge(NamedTuple):
    """A value and when it was set; of several workers' values most often the newest is used.

    Times are seconds of the monotonic clock, which all processes of a machine share.
    """

    value: float
    at: float


class Exemplar(NamedTuple):
    """The trace of a request, its seconds, and the Unix time of its end."""

    trace_id: str
    seconds: float
    at: float


class Histogram(NamedTuple):
    """A copy of a histogram and when it began; ``numbers`` are float64: one count per bucket (the last above all
    bounds) and the values' sum. ``exemplars``: the newest trace of each bucket, by its number.
    """

    bounds: tuple[float, ...]
    at: float
    numbers: bytes
    exemplars: Mapping[int, Exemplar] = {}

    def read(self) -> tuple[list[float], float]:
        """Return the counts of the buckets, and the values' sum."""
        *counts, total = array("d", self.numbers)
        return counts, total


Value = float | Gauge | Histogram
"""A counter is a float."""
Snapshot = Mapping[Series, Value]
"""A copy of all numbers, or those that have changed; of each kind, series are in the order of their creation."""


class Distribution:
    """A histogram."""

    __slots__ = ("_copy", "_exemplars", "_numbers", "_since", "bounds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._numbers = [0.0] * (len(bounds) + 2)
        self._since = time.monotonic()
        self._exemplars: dict[int, tuple[str, float, float]] = {}
        self._copy: Histogram | None = None

    def observe(self, values: Iterable[float]) -> None:
        """Count finite values."""
        bounds, numbers, total = self.bounds, self._numbers, 0.0
        for value in values:
            # The first bucket whose bound is not below the value: Prometheus' "less than or equal".
            numbers[bisect_left(bounds, value)] += 1
            total += value
        numbers[-1] += total
        self._copy = None

    def belongs(self, trace_id: str, value: float) -> None:
        """Remember the trace that a counted value belongs to: it leads from a slow bar on a board to a trace."""
        self._exemplars[bisect_left(self.bounds, value)] = trace_id, value, time.time()

    def copy(self) -> Histogram:
        """Return a copy; the same one until something is counted, as most versions are idle most of the time."""
        if self._copy is None:
            numbers = array("d", self._numbers).tobytes()
            exemplars = {place: Exemplar(*newest) for place, newest in self._exemplars.items()}
            self._copy = Histogram(self.bounds, self._since, numbers, exemplars)
        return self._copy


class Accumulator:
    """The numbers of one process. A series is created by the first call that asks for it, and stays."""

    def __init__(self) -> None:
        self._counters: dict[Series, float] = {}
        self._gauges: dict[Series, Gauge] = {}
        self._histograms: dict[Series, Distribution] = {}
        self._shown: dict[str, Mapping[tuple[str, ...], float]] = {}
        """The values that ``show`` has set, by metric."""
        for metric in CATALOG:
            if not metric.labels and metric.type == "counter":
                self.count(metric, by=0)
            elif not metric.labels and metric.type == "gauge":
                self._gauges[Series(metric.name)] = Gauge(0.0, 0.0)

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to the counter with these labels. Raises ``ValueError`` if their number is wrong."""
        series: Any = (metric.name, labels)  # equal to a `Series`, and made in a third of the time
        if series in self._counters:
            self._counters[series] += by
        else:
            self._counters[_series(metric, labels)] = float(by)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value in the histogram with these labels. Raises as ``count``."""
        self.distribution(metric, *labels).observe((value,))

    def publish(self, metric: Metric, value: float, *labels: str) -> None:
        """Set the gauge with these labels, as of now. Raises as ``count``."""
        self._gauges[_series(metric, labels)] = Gauge(value, time.monotonic())

    def show(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        """Set the gauges of a metric to ``values``, by labels; others that were set this way go."""
        before = self._shown.get(metric.name, {})
        for gone in before.keys() - values.keys():
            del self._gauges[Series(metric.name, gone)]
        for labels, value in values.items():
            if before.get(labels) != value:
                self.publish(metric, value, *labels)
        self._shown[metric.name] = dict(values)

    def distribution(self, metric: Metric, *labels: str, bounds: tuple[float, ...] = ()) -> Distribution:
        """Return the histogram with these labels and ``bounds`` (default: the metric's). Raises as ``count``.

        It starts from zero, and the former counts are dropped, if its bounds differ from those in use.
        """
        series, bounds = _series(metric, labels), bounds or metric.buckets
        found = self._histograms.get(series)
        if found is None or found.bounds != bounds:
            found = self._histograms[series] = Distribution(bounds)
        return found

    def snapshot(self) -> Snapshot:
        """Return a copy of all numbers."""
        return {
            **self._counters, **self._gauges, **{series: found.copy() for series, found in self._histograms.items()},
        }  # fmt: skip


def _series(metric: Metric, labels: tuple[str, ...]) -> Series:
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {', '.join(metric.labels) or '(none)'}, not {len(labels)}")
    return Series(metric.name, labels)
