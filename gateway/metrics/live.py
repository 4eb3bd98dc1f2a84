"""The last minute of this process, for its own page: rate, failures, quantiles, batch sizes by endpoint version.

Reads the observer's families as they are (no second count), every ``STEP_S``; a minute is the difference between now
and then. With several workers each page shows one worker: Prometheus is what adds up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from gateway.metrics import catalog

STEP_S: Final = 5.0
WINDOW_S: Final = 60.0

_Numbers = dict[tuple[str, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """One version behind one route. Quantiles in seconds, None where nothing was answered."""

    endpoint: str
    version: str
    route: str
    rate: float
    share: float
    """Of the endpoint's requests."""
    failed: float
    """Share of this row's requests that did not end well."""
    p50: float | None
    p95: float | None
    p99: float | None
    rows_per_call: float | None


class Live:
    """Remembers what the families said during the last minute. ``families`` are prometheus_client's, by name."""

    def __init__(self, families: Mapping[str, Any]) -> None:
        self._families = families
        self._seen: deque[tuple[float, _Numbers]] = deque()

    def sample(self, now: float) -> None:
        """Remember what is counted now; ``now`` in seconds of any steady clock."""
        self._seen.append((now, self._read()))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Return the rows of the last minute as plain values, busiest first."""
        if not self._seen:
            return []
        began, before = self._seen[0]
        current = self._read()
        seconds = max(now - began, 1.0)
        grown: _Numbers = {}
        for key, values in current.items():
            old = before.get(key, (0.0,) * len(values))
            grown[key] = tuple(a - b for a, b in zip(values, old, strict=True))
        served: dict[tuple[str, str, str], dict[str, float]] = {}
        for (kind, *labels), values in grown.items():
            if kind == catalog.REQUESTS.name and values[0] > 0:
                endpoint, version, route, outcome = labels
                outcomes = served.setdefault((endpoint, version, route), {})
                outcomes[outcome] = outcomes.get(outcome, 0.0) + values[0]
        totals: dict[str, float] = {}
        for (endpoint, _, _), outcomes in served.items():
            totals[endpoint] = totals.get(endpoint, 0.0) + sum(outcomes.values())
        found = []
        for (endpoint, version, route), outcomes in served.items():
            count = sum(outcomes.values())
            buckets = grown.get((catalog.REQUEST_SECONDS.name, endpoint, version, route), ())
            p50, p95, p99 = (_quantile(q, catalog.REQUEST_SECONDS.buckets, buckets) for q in (0.5, 0.95, 0.99))
            calls = grown.get((catalog.BATCH_ROWS.name, endpoint, version), (0.0, 0.0))
            found.append(
                Row(
                    endpoint, version, route, count / seconds, count / totals[endpoint],
                    1 - outcomes.get("ok", 0.0) / count, p50, p95, p99, calls[0] / calls[1] if calls[1] else None,
                )
            )  # fmt: skip
        return [asdict(row) for row in sorted(found, key=lambda row: (-totals[row.endpoint], row.endpoint, -row.rate))]

    def _read(self) -> _Numbers:
        # The children's numbers have no public reader but the exposition, which would be parsed text.
        found: _Numbers = {}
        for labels, child in self._children(catalog.REQUESTS):
            found[catalog.REQUESTS.name, *labels] = (child._value.get(),)  # noqa: SLF001 - see above
        for labels, child in self._children(catalog.REQUEST_SECONDS):
            found[catalog.REQUEST_SECONDS.name, *labels] = tuple(b.get() for b in child._buckets)  # noqa: SLF001 - as above
        for labels, child in self._children(catalog.BATCH_ROWS):
            calls = sum(b.get() for b in child._buckets)  # noqa: SLF001 - as above
            found[catalog.BATCH_ROWS.name, *labels] = (child._sum.get(), calls)  # noqa: SLF001 - as above
        return found

    def _children(self, metric: catalog.Metric) -> list[tuple[tuple[str, ...], Any]]:
        return list(self._families[metric.name]._metrics.items())  # noqa: SLF001 - as above


def _quantile(share: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """The quantile within its bucket, as PromQL's ``histogram_quantile`` has it; the last bound for what is beyond."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, running = share * total, 0.0
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if count and running + count >= wanted:
            return low + (high - low) * (wanted - running) / count
        running += count
    return bounds[-1]
