"""Numbers as Prometheus reads them: a snapshot as text, and what a text says; and what a snapshot itself holds."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import catalog
from gateway.metrics.accumulator import Gauge, Histogram, Snapshot
from gateway.metrics.exposition import Numbers, respond


def render(snapshot: Snapshot) -> bytes:
    """Return a snapshot in Prometheus' text format."""
    return respond("", Numbers(snapshot))[0]


def parse(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the name, labels and value of every sample in an exposition. Raises ``ValueError`` if it is invalid."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def counted(snapshot: Snapshot, metric: catalog.Metric) -> dict[tuple[str, ...], float]:
    """Return the counters or gauges of one metric by labels."""
    return {
        series.labels: value.value if isinstance(value, Gauge) else value
        for series, value in snapshot.items()
        if series.metric == metric.name and isinstance(value, float | Gauge)
    }


def histograms(snapshot: Snapshot) -> dict[tuple[str, ...], tuple[tuple[float, ...], list[float]]]:
    """Return bounds and numbers of every histogram by labels."""
    found = {series.labels: value for series, value in snapshot.items() if isinstance(value, Histogram)}
    return {labels: (one.bounds, [*one.read()[0], one.read()[1]]) for labels, one in found.items()}
