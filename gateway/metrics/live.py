"""The last minutes of a gateway for its own page: rate, failures, quantiles, batch sizes and drift by endpoint version.

Reads the numbers of all workers every ``STEP_S``, from the same snapshots as ``/metrics``. The numbers of a minute are
the difference between two snapshots.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.catalog import Metric
from gateway.metrics.drift import MISSING, Counts, Shares, bin_of, in_order
from gateway.trace import CANARY, FALLBACK

STEP_S: Final = 5.0
WINDOW_S: Final = 60.0
BINS_S: Final = 3600.0
"""The time over which bins are shown: that of the controller's metrics."""
_BINS_STEP_S: Final = 300.0
_HISTORY: Final = 60
"""Steps in the history of rates: five minutes."""

Numbers = dict[tuple[str, ...], tuple[float, ...]]
Judged = Mapping[tuple[str, ...], Mapping[str, Any]]
"""Endpoint, version and variable → what the controller has found of it (``registry.judged``)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One version on one route. Quantiles are in seconds, None without answers."""

    endpoint: str
    version: str
    route: str
    rate: float
    share: float
    """Share of the endpoint's requests that were routed to this version; 0 for ``fallback``, routed to the canary."""
    failed: float
    """Share of this row's requests that failed on the gateway's side; a canary's include those that stable answered."""
    refused: float
    """Share of this row's requests that failed because of their callers."""
    failures: dict[str, float]
    """Share of this row's requests by outcome, of those outcomes that are failures; the most frequent first."""
    p50: float | None
    p95: float | None
    p99: float | None
    rows_per_call: float | None
    history: list[float]
    """Requests per second of the version over all routes, in steps of ``STEP_S``, the newest last."""


class Live:
    """Remembers the counts of the last minutes. Not thread-safe.

    ``failures`` are the outcomes that count as the gateway's failures. Times are seconds of a monotonic clock.
    """

    def __init__(self, failures: Collection[str]) -> None:
        self._failures = frozenset(failures)
        self._seen: deque[tuple[float, Numbers]] = deque()
        self._history: deque[dict[tuple[str, ...], float]] = deque(maxlen=_HISTORY)
        self._bins_seen: deque[tuple[float, Counts]] = deque()

    def sample(self, now: float, snapshot: Snapshot) -> None:
        """Remember the counts at time ``now``."""
        current = counted(snapshot, catalog.BATCH_ROWS)
        if self._seen:
            then, before = self._seen[-1]
            seconds = max(now - then, 0.1)
            rates: dict[tuple[str, ...], float] = {}
            for (kind, *labels), values in current.items():
                if kind == catalog.REQUESTS.name:
                    grown = values[0] - before.get((kind, *labels), (0.0,))[0]
                    rates[*labels[:2],] = rates.get((*labels[:2],), 0.0) + grown / seconds
            self._history.append(rates)
        self._seen.append((now, current))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        if not self._bins_seen or now - self._bins_seen[-1][0] >= _BINS_STEP_S:
            self._bins_seen.append((now, _variables(snapshot, references(snapshot))))
            while len(self._bins_seen) > 1 and self._bins_seen[1][0] <= now - BINS_S:
                self._bins_seen.popleft()

    def rows(self, now: float, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return the rows of the last minute as plain values, by endpoint, version and route."""
        if not self._seen:
            return []
        began, before = self._seen[0]
        seconds = max(now - began, 1.0)
        served: dict[tuple[str, str, str], dict[str, float]] = {}
        fell_back: dict[tuple[str, str, str], dict[str, float]] = {}
        buckets: dict[tuple[str, ...], Sequence[float]] = {}
        calls: dict[tuple[str, ...], Sequence[float]] = {}
        totals: dict[str, float] = {}
        for (kind, *labels), values in growth(counted(snapshot, catalog.BATCH_ROWS), before).items():
            if not any(values):
                continue
            if kind == catalog.REQUESTS.name:
                endpoint, version, route, outcome = labels
                served.setdefault((endpoint, version, route), {})[outcome] = values[0] / seconds
                totals[endpoint] = totals.get(endpoint, 0.0) + values[0] / seconds
            elif kind == catalog.FALLBACKS.name:
                fell_back.setdefault((labels[0], labels[1], CANARY), {})[labels[2]] = values[0] / seconds
            elif kind == catalog.REQUEST_SECONDS.name:
                buckets[*labels,] = values
            else:
                calls[*labels,] = values
        found = []
        for key in served.keys() | fell_back.keys():
            endpoint, version, route = key
            outcomes, failed_over = served.get(key, {}), fell_back.get(key, {})
            rate = sum(outcomes.values()) + sum(failed_over.values())
            failures = dict(failed_over)
            for kind in self._failures & outcomes.keys():
                failures[kind] = failures.get(kind, 0.0) + outcomes[kind]
            failed = sum(failures.values())
            # A canary's failure is counted before stable has answered, so it may be the row's only count.
            share = 0.0 if route == FALLBACK else rate / totals.get(endpoint, rate)
            counts = buckets.get((endpoint, version, route), [])
            p50, p95, p99 = (quantile(q, catalog.REQUEST_SECONDS.buckets, counts) for q in (0.5, 0.95, 0.99))
            rows, made = calls.get((endpoint, version), (0.0, 0.0))
            found.append(
                Row(
                    endpoint, version, route, rate, share, failed / rate,
                    max(0.0, 1 - (outcomes.get("ok", 0.0) + failed) / rate),
                    {kind: failures[kind] / rate for kind in sorted(failures, key=lambda one: (-failures[one], one))},
                    p50, p95, p99, rows / made if made else None,
                    [round(step.get((endpoint, version), 0.0), 3) for step in self._history],
                )
            )  # fmt: skip
        # Sorted by name, not by rate, so that rows keep their places on the page.
        return [asdict(row) for row in sorted(found, key=lambda row: (row.endpoint, row.version, row.route))]

    def drift(self, snapshot: Snapshot, judged: Judged) -> list[dict[str, Any]]:
        """Return each variable that has a reference: its bins over the last hour, and what the controller has found."""
        in_use = references(snapshot)
        found = []
        for key, now in sorted(_variables(snapshot, in_use).items()):
            before = next((seen[key] for _, seen in self._bins_seen if key in seen), now)
            grown = {name: count - before.get(name, 0.0) for name, count in now.items()}
            if min(grown.values()) < 0:  # it was counted anew: with other words, or in other bins
                grown = now
            shares = Shares(in_use[key], grown)
            endpoint, version, variable = key
            found.append({
                "endpoint": endpoint, "version": version, "variable": variable, "bins": shares.bins,
                "reference": shares.then.tolist(), "reference_size": sum(in_use[key].values()),
                "counts": shares.seen.tolist(), "n": shares.n,
                "moved": {shares.named(name): by for name, by in shares.moved},
                "state": "not judged", "days": None, "visible": None, "since": None, **judged.get(key, {}),
            })  # fmt: skip
        return found


def _variables(snapshot: Snapshot, wanted: Collection[tuple[str, str, str]]) -> Counts:
    """Return the counts of variables by bin."""
    found: Counts = {key: {MISSING: 0.0} for key in wanted}
    for (name, labels, _), count in snapshot.counted():
        if name in (catalog.VARIABLE_ENUM.name, catalog.VARIABLE_IGNORED.name):
            endpoint, version, variable, value = labels
            if (of := found.get((endpoint, version, variable))) is not None:
                value = value if name == catalog.VARIABLE_ENUM.name else MISSING
                of[value] = of.get(value, 0.0) + count
    for (name, labels, bounds), numbers in snapshot.distributed():
        if name == catalog.VARIABLE_SCALAR.name:
            endpoint, version, variable = labels
            if (of := found.get((endpoint, version, variable))) is not None:
                of |= dict(zip(map(bin_of, (*bounds, math.inf)), numbers[:-1].tolist(), strict=True))
    return found


def references(snapshot: Snapshot) -> Counts:
    """Return the references in use, by endpoint, version and variable."""
    found: Counts = {}
    for (name, labels, _), count in snapshot.shown():
        if name == catalog.DRIFT_REFERENCE.name and count >= 0:  # NaN if it is gone
            endpoint, version, variable, bin_name = labels
            found.setdefault((endpoint, version, variable), {})[bin_name] = count
    return {key: in_order(bins) for key, bins in found.items()}


def counted(snapshot: Snapshot, mean: Metric) -> Numbers:
    """Return what is counted of requests, by metric and labels: numbers, and times of answers by bucket.

    Of the histogram ``mean`` the sum and the number of its values are enough.
    """
    found: Numbers = {}
    for (name, labels, _), value in snapshot.counted():
        if name in (catalog.REQUESTS.name, catalog.FALLBACKS.name):
            found[name, *labels] = (value,)
    for (name, labels, _), numbers in snapshot.distributed():
        if name == catalog.REQUEST_SECONDS.name:
            found[name, *labels] = (*numbers[:-1].tolist(),)
        elif name == mean.name:
            found[name, *labels] = (float(numbers[-1]), float(numbers[:-1].sum()))
    return found


def growth(current: Numbers, before: Numbers) -> Numbers:
    """Return what has come since ``before``; what was not there then counts from 0."""
    return {
        key: tuple(a - b for a, b in zip(values, before.get(key, (0.0,) * len(values)), strict=True))
        for key, values in current.items()
    }


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
