"""The last hour of each endpoint version as curves, for the page of one gateway: 240 points of 15 seconds.

A point is the difference between two snapshots of all workers' numbers. It is kept in memory only: after a restart the
curves are empty, and what is longer than an hour is Prometheus' work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any, Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.live import Numbers, counted, growth, quantile

POINT_S: Final = 15.0
_POINTS: Final = 240
STAGES: Final = ("prepare", "queue", "infer", "finish")
QUANTILES: Final = (0.5, 0.95, 0.99)

_Key = tuple[str, str]
"""Endpoint and version."""
_Point = tuple[float | None, ...]
"""Requests per second, share of failures, the ``QUANTILES`` and the means of the ``STAGES`` in seconds."""


class Curves:
    """Keeps the points. Not thread-safe. ``failures``: the outcomes that count as the gateway's failures."""

    def __init__(self, failures: Collection[str]) -> None:
        self._failures = frozenset(failures)
        self._before: tuple[float, Numbers] | None = None
        self._points: deque[tuple[float, dict[_Key, _Point]]] = deque(maxlen=_POINTS)

    def sample(self, now: float, snapshot: Snapshot) -> None:
        """Remember the numbers, if the last point is ``POINT_S`` old; ``now`` in seconds of a monotonic clock."""
        if self._before is not None and now - self._before[0] < POINT_S:
            return
        counts = counted(snapshot, catalog.STAGE_SECONDS)
        if self._before is not None:
            then, before = self._before
            versions: dict[_Key, list[tuple[tuple[str, ...], tuple[float, ...]]]] = {}
            for key, more in growth(counts, before).items():
                if any(more):
                    versions.setdefault((key[1], key[2]), []).append((key, more))
            self._points.append((now, {of: self._point(found, now - then) for of, found in versions.items()}))
        self._before = now, counts

    def of(self, endpoint: str, now: float) -> list[dict[str, Any]]:
        """Return the curves of an endpoint's versions, those with traffic in the last hour.

        Each has ``version``, ``ago`` (seconds before ``now``, the oldest first), and one list per curve, with None
        where nothing was asked: ``rate`` (per second), ``failed`` (a share), ``p50``, ``p95``, ``p99`` and the stages'
        means (seconds).
        """
        versions = sorted({version for _, of in self._points for name, version in of if name == endpoint})
        names = ("rate", "failed", *(f"p{share * 100:.0f}" for share in QUANTILES), *STAGES)
        idle: _Point = (0.0,) + (None,) * (len(names) - 1)
        found = []
        for version in versions:
            points = [of.get((endpoint, version), idle) for _, of in self._points]
            columns = dict(zip(names, map(list, zip(*points, strict=True)), strict=True))
            found.append({"version": version, "ago": [round(now - at, 1) for at, _ in self._points], **columns})
        return found

    def _point(self, grown: list[tuple[tuple[str, ...], tuple[float, ...]]], seconds: float) -> _Point:
        asked = failed = 0.0
        times = [0.0] * len(catalog.LATENCY_BUCKETS) + [0.0]
        stages = dict.fromkeys(STAGES, (0.0, 0.0))
        for (kind, _, _, *labels), values in grown:
            if kind == catalog.REQUESTS.name:
                asked += values[0]
                failed += values[0] * (labels[1] in self._failures)
            elif kind == catalog.FALLBACKS.name:  # of a canary; the stable version counts the request that it answered
                asked += values[0]
                failed += values[0]
            elif kind == catalog.REQUEST_SECONDS.name:
                times = [a + b for a, b in zip(times, values, strict=True)]
            elif labels[1] in stages:
                total, number = stages[labels[1]]
                stages[labels[1]] = total + values[0], number + values[1]
        quantiles = (quantile(share, catalog.LATENCY_BUCKETS, times) for share in QUANTILES)
        means = (total / number if number else None for total, number in stages.values())
        return (
            _rounded(asked / seconds), _rounded(failed / asked if asked else None), *map(_rounded, (*quantiles, *means))
        )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
