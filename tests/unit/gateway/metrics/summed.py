"""The sum of several workers' numbers, and what a snapshot holds, for tests."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gateway.metrics import catalog
from gateway.metrics.accumulator import Gauge, Histogram, Snapshot
from gateway.metrics.views import Views
from gateway.metrics.workers import Parent, Totals


def summed(*living: Snapshot, ended: Sequence[Snapshot] = ()) -> Snapshot:
    """Return the sum of what several workers have told their parent."""
    totals, pairs = Totals(Views(())), []
    for snapshot in (*ended, *living):
        parents, of_worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        totals.add(parents)
        Parent(of_worker).close(snapshot)
        pairs.append((parents, of_worker))
    for parents, _ in pairs[: len(ended)]:
        totals.end(parents)
    for parents, _ in pairs[len(ended) :]:
        totals.hear(parents)
    merged = totals.sum()
    for pair in pairs:
        for one in pair:
            one.close()
    return merged


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
