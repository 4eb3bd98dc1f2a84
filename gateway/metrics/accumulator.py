"""The numbers of one process: plain Python numbers by metric and labels, written by its event loop only.

Adding to a plain number costs a tenth of what prometheus_client's classes take (a lock per sample, and with several
workers a write to a mapped file). ``snapshot`` copies all numbers at once. Readers (``/metrics``, the page, other
workers) use the copy, in another thread.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gateway.metrics.catalog import CATALOG, REQUEST_SECONDS, Metric

Exemplars = Mapping[tuple[str, str, str, int], tuple[str, float, float]]
"""The newest trace of each bucket of ``REQUEST_SECONDS``, which leads from a slow bar on a board to a trace: trace id,
seconds and Unix time, by endpoint, version, route and number of the bucket.
"""


class Series(NamedTuple):
    """The identity of a number: metric name and label values; ``bounds`` for histograms only."""

    metric: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


class Snapshot(NamedTuple):
    """A copy of all numbers, or what was added to them; series are in the order of their creation.

    Times are seconds of the monotonic clock, which all processes of a machine share.
    """

    counts: Sequence[tuple[Series, float]] = ()
    gauges: Sequence[tuple[Series, float, float]] = ()
    """Each with its value and when it was set; 0 if it never was."""
    histograms: Sequence[tuple[Series, float, bytes]] = ()
    """Each with when it began, and float64 of one count per bucket (the last above all bounds) and the values' sum."""
    exemplars: Exemplars = MappingProxyType({})

    def shown(self) -> Iterator[tuple[Series, float]]:
        """Yield every gauge that has no labels or that a living process has set."""
        for series, value, at in self.gauges:
            if at or not series.labels:
                yield series, value

    def distributed(self) -> Iterator[tuple[Series, Sequence[float]]]:
        """Yield every histogram with its numbers; of those that differ in bounds only, the newest."""
        newest: dict[tuple[str, tuple[str, ...]], tuple[float, int]] = {}
        for at, (series, since, _) in enumerate(self.histograms):
            newest[series[:2]] = max(newest.get(series[:2], (since, at)), (since, at))
        for _, at in newest.values():
            series, _, numbers = self.histograms[at]
            yield series, array("d", numbers)


class Count:
    """A counter; add to ``value``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Gauge:
    """A value and when it was set; of several workers' values the newest is used."""

    __slots__ = ("at", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.at = 0.0

    def set(self, value: float) -> None:
        """Set the value, as of now."""
        self.value = value
        self.at = time.monotonic()


class Distribution:
    """A histogram."""

    __slots__ = ("_bounds", "_numbers", "since")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._numbers = array("d", bytes(8 * (len(bounds) + 2)))
        self.since = time.monotonic()

    def observe(self, values: Iterable[float]) -> None:
        """Count finite values."""
        bounds, numbers, total = self._bounds, self._numbers, 0.0
        for value in values:
            # The first bucket whose bound is not below the value: Prometheus' "less than or equal".
            numbers[bisect_left(bounds, value)] += 1
            total += value
        numbers[-1] += total

    def numbers(self) -> bytes:
        """Return the counts of the buckets, then the sum, as float64."""
        return self._numbers.tobytes()

    def begin(self) -> None:
        """Reset to zero."""
        self._numbers = array("d", bytes(8 * len(self._numbers)))
        self.since = time.monotonic()


class Accumulator:
    """The numbers of one process. A series is created by the first call that asks for it, and stays."""

    def __init__(self) -> None:
        self._counters: dict[Series, Count] = {}
        self._gauges: dict[Series, Gauge] = {}
        self._histograms: dict[Series, Distribution] = {}
        self._holds: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
        """The bounds in use for each histogram."""
        self._shown: dict[str, Mapping[tuple[str, ...], float]] = {}
        """The values that ``show`` has set, by metric."""
        self._exemplars: dict[tuple[str, str, str, int], tuple[str, float, float]] = {}
        for metric in CATALOG:
            if not metric.labels and metric.type == "counter":
                self.count(metric)
            elif not metric.labels and metric.type == "gauge":
                self.gauge(metric)

    def count(self, metric: Metric, *labels: str) -> Count:
        """Return the counter with these labels. Raises ``ValueError`` if their number is wrong."""
        found = self._counters.get((metric.name, labels, ()))  # type: ignore[call-overload]  # equal to a Series
        return found if found is not None else self._counters.setdefault(_series(metric, labels), Count())

    def gauge(self, metric: Metric, *labels: str) -> Gauge:
        """Return the gauge with these labels. Raises as ``count``."""
        found = self._gauges.get((metric.name, labels, ()))  # type: ignore[call-overload]  # equal to a Series
        return found if found is not None else self._gauges.setdefault(_series(metric, labels), Gauge())

    def show(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        """Set the gauges of a metric to ``values``, by labels; others that were set this way become NaN."""
        before = self._shown.get(metric.name, {})
        for gone in before.keys() - values.keys():
            self.gauge(metric, *gone).set(math.nan)
        for labels, value in values.items():
            if before.get(labels) != value:
                self.gauge(metric, *labels).set(value)
        self._shown[metric.name] = dict(values)

    def distribution(self, metric: Metric, *labels: str, bounds: tuple[float, ...] = ()) -> Distribution:
        """Return the histogram with these labels and ``bounds`` (default: the metric's). Raises as ``count``.

        If the bounds differ from those in use, the histogram starts from zero and the former counts are dropped.
        """
        series = _series(metric, labels, bounds or metric.buckets)
        found = self._histograms.get(series)
        if found is None:
            found = self._histograms[series] = Distribution(series.bounds)
        elif self._holds[series[:2]] != series.bounds:
            found.begin()
        self._holds[series[:2]] = series.bounds
        return found

    def belongs(self, served: tuple[str, str, str], seconds: float, trace_id: str) -> None:
        """Remember the trace of an answered request, for its bucket of ``REQUEST_SECONDS``."""
        self._exemplars[*served, bisect_left(REQUEST_SECONDS.buckets, seconds)] = (trace_id, seconds, time.time())

    def snapshot(self) -> Snapshot:
        """Return a copy of all numbers."""
        return Snapshot(
            [(series, count.value) for series, count in self._counters.items()],
            [(series, gauge.value, gauge.at) for series, gauge in self._gauges.items()],
            [(series, found.since, found.numbers()) for series, found in self._histograms.items()],
            dict(self._exemplars),
        )


def _series(metric: Metric, labels: tuple[str, ...], bounds: tuple[float, ...] = ()) -> Series:
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {', '.join(metric.labels) or '(none)'}, not {len(labels)}")
    return Series(metric.name, labels, bounds)
