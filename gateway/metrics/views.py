"""What is shown of the numbers: ``/metrics``, statistics, and the last minute and hour of a gateway for its own page.

A question is one of the methods of ``Views``. With several workers their parent holds it, and each worker passes
questions on (``workers``). What happened in some time is the difference between two snapshots, of which one is taken
every ``STEP_S``: a point of a curve is one step, and the last minute the last four. They are kept in memory only: after
a restart there are none, and what is longer than an hour is Prometheus' work.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Final

from gateway.metrics import catalog, exposition
from gateway.metrics.accumulator import Histogram, Snapshot, Value
from gateway.trace import CANARY, FALLBACK, STAGES

STEP_S: Final = 15.0
_STEPS: Final = 4
_POINTS: Final = 240
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_CURVES: Final = ("rate", "failed", *QUANTILES, *STAGES)

_OF_REQUESTS: Final = frozenset(
    metric.name
    for metric in (
        catalog.REQUESTS, catalog.FALLBACKS, catalog.REQUEST_SECONDS, catalog.STAGE_SECONDS, catalog.ROWS,
        catalog.BATCH_ROWS,
    )
)  # fmt: skip
_TIMED: Final = {
    "success": catalog.REQUEST_SECONDS.name, "queue": "queue", "compute_input": "prepare", "compute_infer": "infer",
    "compute_output": "finish",
}  # fmt: skip
"""Times of the protocol's statistics, and whose sums they are."""
_Point = tuple[float | None, ...]
"""The values of ``_CURVES``: per second, a share, seconds."""


@dataclass(slots=True)
class Seen:
    """What happened to some requests between two snapshots. Requests that fell back are failures of the canary."""

    outcomes: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    """How many requests there were in each bucket of ``catalog.REQUEST_SECONDS``."""
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Sum and number of values, by stage, or by the histogram's name."""

    @property
    def asked(self) -> float:
        """Number of requests."""
        return self.outcomes.total()

    def failures(self, kinds: Collection[str]) -> dict[str, float]:
        """Return the share of each kind of failure on the gateway's side."""
        return {kind: count / self.asked for kind, count in self.outcomes.items() if count and kind in kinds}

    def quantiles(self) -> dict[str, float | None]:
        """Return the times of answers that some shares of them keep."""
        return {name: quantile(share, catalog.REQUEST_SECONDS.buckets, self.times) for name, share in QUANTILES.items()}

    def mean(self, of: str) -> float | None:
        """Return the mean of a stage or histogram; None without values."""
        total, number = self.sums.get(of, (0.0, 0.0))
        return total / number if number else None

    def add(self, of: str, now: Value, before: Value | None) -> None:
        """Add what came in one series, which is that of the outcome or stage ``of``, or of the histogram."""
        if isinstance(now, Histogram):
            counts, total = now.read()
            if isinstance(before, Histogram):
                then, less = before.read()
                counts, total = [new - old for new, old in zip(counts, then, strict=True)], total - less
            if of == catalog.REQUEST_SECONDS.name:
                self.times = [a + b for a, b in zip_longest(counts, self.times, fillvalue=0.0)]
            known, number = self.sums.get(of, (0.0, 0.0))
            self.sums[of] = known + total, number + sum(counts)
        elif isinstance(now, float):
            self.outcomes[of] += now - (before if isinstance(before, float) else 0.0)  # type: ignore[assignment]  # no ints


class Views:
    """Answers questions from snapshots, one at a time. ``failures``: the outcomes that count as the gateway's failures.

    ``shows_process``: whether CPU and memory of this process are the gateway's. ``clock`` is monotonic.
    """

    def __init__(
        self, failures: Collection[str], *, shows_process: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = frozenset(failures)
        self._process = exposition.process_metrics() if shows_process else None
        self._clock = clock
        self._seen: deque[tuple[float, Snapshot]] = deque(maxlen=_STEPS + 1)
        self._points: deque[tuple[float, dict[tuple[str, ...], _Point]]] = deque(maxlen=_POINTS)

    def metrics(self, snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
        """Return the text of ``/metrics`` in the form that ``accept`` asks for, and its content type."""
        return exposition.respond(accept, exposition.Numbers(snapshot, self._process))

    def statistics(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return the statistics extension of the Open Inference Protocol: one row per version that can be called.

        Counts are requests, ``inference_count`` is rows and ``execution_count`` calls to Triton; times are nanoseconds.
        What fell back failed for the canary, and succeeded for the version that answered.
        """
        return [_row(version, seen) for version, seen in sorted(between({}, snapshot, 2).items()) if version[0]]

    def lately(self, snapshot: Snapshot, endpoints: Sequence[str]) -> dict[str, Any]:
        """Return ``last_minute`` and the ``curves`` of ``endpoints`` for ``/v1/status``."""
        return {
            "last_minute": self._last_minute(snapshot), "curves": {name: self._curves(name) for name in endpoints},
        }  # fmt: skip

    def sample(self, snapshot: Snapshot) -> None:
        """Remember the numbers for the page; to be called about every ``STEP_S``, by several workers as well."""
        now = self._clock()
        if self._seen and now - self._seen[-1][0] < 0.9 * STEP_S:  # another worker has just called
            return
        if self._seen:
            began, before = self._seen[-1]
            versions = between(before, snapshot, 2)
            points = {of: self._point(seen, (now - began) or 1.0) for of, seen in versions.items() if seen.asked}
            self._points.append((now, points))
        self._seen.append((now, snapshot))

    def _last_minute(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return each version on each route that had requests in the last minute, by endpoint, version and route.

        ``rate``: requests per second. ``share``: of the endpoint's requests that were routed here; 0 for ``fallback``,
        which were routed to the canary. ``failed``: share that failed on the gateway's side, of a canary including what
        stable answered; ``failures``: the same by outcome, the most frequent first. ``refused``: share that failed
        because of the callers. ``p50``, ``p95``, ``p99``: seconds, None without answers. ``rows_per_call``: mean.
        """
        if not self._seen:
            return []
        began, before = self._seen[0]
        seconds = max(self._clock() - began, 1.0)
        versions = between(before, snapshot, 2)
        routes = {key: seen for key, seen in between(before, snapshot, 3).items() if seen.asked}
        totals: Counter[str] = Counter()
        for (endpoint, _, route), seen in routes.items():
            if route != FALLBACK:
                totals[endpoint] += seen.outcomes.total()
        found = []
        # Sorted by name, not by rate, so that rows keep their places on the page.
        for (endpoint, version, route), seen in sorted(routes.items()):
            failures = seen.failures(self._failures)
            failed = sum(failures.values())
            found.append({
                "endpoint": endpoint, "version": version, "route": route, "rate": seen.asked / seconds,
                "share": 0.0 if route == FALLBACK else seen.asked / totals[endpoint], "failed": failed,
                "refused": max(0.0, 1 - seen.outcomes["ok"] / seen.asked - failed),
                "failures": {kind: failures[kind] for kind in sorted(failures, key=lambda one: (-failures[one], one))},
                **seen.quantiles(), "rows_per_call": versions[endpoint, version].mean(catalog.BATCH_ROWS.name),
            })  # fmt: skip
        return found

    def _curves(self, endpoint: str) -> list[dict[str, Any]]:
        """Return the curves of an endpoint's versions, those with traffic in the last hour.

        Each has ``version``, ``ago`` (in seconds, the oldest first), and one list per curve, with None
        where nothing was asked: ``rate`` (per second), ``failed`` (a share), ``p50``, ``p95``, ``p99`` and the stages'
        means (seconds).
        """
        now = self._clock()
        idle: _Point = (0.0,) + (None,) * (len(_CURVES) - 1)
        found = []
        for version in sorted({of[1] for _, every in self._points for of in every if of[0] == endpoint}):
            points = [every.get((endpoint, version), idle) for _, every in self._points]
            columns = dict(zip(_CURVES, map(list, zip(*points, strict=True)), strict=True))
            found.append({"version": version, "ago": [round(now - at, 1) for at, _ in self._points], **columns})
        return found

    def _point(self, seen: Seen, seconds: float) -> _Point:
        values = (
            seen.asked / seconds, sum(seen.failures(self._failures).values()), *seen.quantiles().values(),
            *map(seen.mean, STAGES),
        )  # fmt: skip
        return tuple(None if value is None else float(f"{value:.4g}") for value in values)


def _row(served: tuple[str, ...], seen: Seen) -> dict[str, Any]:
    endpoint, version = served
    sums = {of: seen.sums.get(of, (0.0, 0.0)) for of in (*_TIMED.values(), catalog.ROWS.name, catalog.BATCH_ROWS.name)}
    done = int(seen.outcomes["ok"])
    return {
        "name": endpoint,
        "version": version or "1",
        "last_inference": 0,
        "inference_count": int(sums[catalog.ROWS.name][0]),
        "execution_count": int(sums[catalog.BATCH_ROWS.name][1]) or done,
        "inference_stats": {
            **{name: {"count": int(sums[of][1]), "ns": round(sums[of][0] * 1e9)} for name, of in _TIMED.items()},
            "fail": {"count": int(seen.outcomes.total()) - done, "ns": 0},
            **{name: {"count": 0, "ns": 0} for name in ("cache_hit", "cache_miss")},
        },
        "batch_stats": [],
    }


def between(before: Snapshot, now: Snapshot, width: int) -> dict[tuple[str, ...], Seen]:
    """Return what came between two snapshots, by the first ``width`` labels; what is new counts from 0."""
    found: dict[tuple[str, ...], Seen] = {}
    for series, value in now.items():
        name, labels = series
        if name in _OF_REQUESTS and (old := before.get(series)) != value:
            if name == catalog.FALLBACKS.name:
                labels = (*labels[:2], CANARY, labels[2])
            of = labels[3] if len(labels) > 3 else name
            found.setdefault(labels[:width], Seen()).add(of, value, old)
    return found


def quantile(share: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """Return a quantile by interpolation within its bucket, as PromQL's ``histogram_quantile``; None without values."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, running = share * total, 0.0
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if count and running + count >= wanted:
            return low + (high - low) * (wanted - running) / count
        running += count
    return bounds[-1]
