"""The sum of several workers' numbers, for tests."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gateway.metrics.accumulator import Snapshot
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
