"""The sum of several workers' numbers, and what a snapshot holds, for tests."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gateway.metrics import catalog
from gateway.metrics.accumulator import Gauge, Histogram, Snapshot
from gateway.metrics.views import Views
from gateway.metrics.workers import Parent, Totals


class Family:
    """A parent, and its workers by name."""

    def __init__(self) -> None:
        self.totals = Totals(Views(()))
        self.of: dict[str, tuple[socket.socket, Parent, socket.socket]] = {}

    def add(self, name: str) -> Parent:
        """Start a worker; return its way to the parent."""
        parents, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.totals.add(parents)
        self.of[name] = (parents, Parent(link), link)
        return self.of[name][1]

    def end(self, name: str) -> None:
        """Kill a worker."""
        parents, _, link = self.of.pop(name)
        link.close()
        self.totals.end(parents)
        parents.close()


def summed(*living: Snapshot, ended: Sequence[Snapshot] = ()) -> Snapshot:
    """Return the sum of what several workers have told their parent."""
    family, ends = Family(), [f"ended {number}" for number in range(len(ended))]
    for name, snapshot in zip([*ends, *map(str, range(len(living)))], (*ended, *living), strict=True):
        family.add(name).close(snapshot)
    for name in [*family.of]:
        if name in ends:
            family.end(name)
        else:
            family.totals.hear(family.of[name][0])
    merged = family.totals.sum()
    for name in [*family.of]:
        family.end(name)
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
