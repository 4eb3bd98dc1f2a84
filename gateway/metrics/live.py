"""The last minutes of a gateway, for its own page: rate, failures, quantiles, batch sizes, drift by endpoint version.

Reads the observer's families as they are (no second count), every ``STEP_S``; a minute is the difference between now
and then. With several workers each leaves what it has counted in a small file beside the others' (``share``), and
every worker's page adds them up: what it shows is the whole gateway, at most ``STEP_S`` old.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from gateway.metrics import catalog
from gateway.metrics.drift import Verdict
from gateway.pace import unhurried
from gateway.trace import CANARY, FALLBACK

STEP_S: Final = 5.0
WINDOW_S: Final = 60.0
DRIFT_WINDOW_S: Final = 3600.0
_DRIFT_STEP_S: Final = 60.0
_HISTORY: Final = 60
"""Steps of the rate's history: five minutes."""
_OLD_S: Final = 3 * STEP_S

Numbers = dict[tuple[str, ...], tuple[float, ...]]
Counted = dict[str, Any]
"""What one process has counted lately, as plain values: ``seconds``, ``grown``, ``history``, ``drift``."""


@dataclass(frozen=True, slots=True)
class Row:
    """One version behind one route. Quantiles in seconds, None where nothing was answered."""

    endpoint: str
    version: str
    route: str
    rate: float
    share: float
    """Of the endpoint's requests, by the version that was chosen; 0 for ``fallback``: the canary was chosen."""
    failed: float
    """Share of this row's requests that failed by our doing; a canary's include those the stable version answered."""
    refused: float
    """Share of this row's requests that did not end well by their callers' doing."""
    p50: float | None
    p95: float | None
    p99: float | None
    rows_per_call: float | None
    history: list[float]
    """Requests per second of the version (all its routes) in steps of ``STEP_S``, the newest last."""


class Live:
    """Remembers what the families said during the last minutes.

    ``families`` are prometheus_client's, by name; ``failures`` the outcomes that are our doing, not the callers'.
    """

    def __init__(self, families: Mapping[str, Any], failures: Collection[str]) -> None:
        self._families = families
        self._failures = frozenset(failures)
        self._seen: deque[tuple[float, Numbers]] = deque()
        self._history: deque[dict[tuple[str, ...], float]] = deque(maxlen=_HISTORY)
        self._bins_seen: deque[tuple[float, Numbers]] = deque()

    def sample(self, now: float, current: Numbers | None = None) -> None:
        """Remember what is counted now, or was when ``read`` gave ``current``; ``now`` in seconds of a steady clock."""
        current = self.read() if current is None else current
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
        if not self._bins_seen or now - self._bins_seen[-1][0] >= _DRIFT_STEP_S:
            self._bins_seen.append((now, self._read_bins()))
            while len(self._bins_seen) > 1 and self._bins_seen[1][0] <= now - DRIFT_WINDOW_S:
                self._bins_seen.popleft()

    def counted(self, now: float) -> Counted:
        """Return what this process has counted lately."""
        if not self._seen:
            return {"seconds": 1.0, "grown": [], "history": [], "drift": []}
        began, before = self._seen[0]
        series = {key for step in self._history for key in step}
        return {
            "seconds": max(now - began, 1.0),
            "grown": [[key, values] for key, values in _grown(self.read(), before).items() if any(values)],
            "history": [[key, [round(step.get(key, 0.0), 3) for step in self._history]] for key in sorted(series)],
            "drift": [
                [key, values] for key, values in _grown(self._read_bins(), self._bins_seen[0][1]).items() if any(values)
            ],
        }

    def share(self, folder: Path, now: float) -> None:
        """Leave what this process has counted where the other workers look."""
        path = folder / f"live_{os.getpid()}.json"
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(self.counted(now)))
        aside.replace(path)

    def rows(self, now: float, others: Iterable[Counted] = ()) -> list[dict[str, Any]]:
        """Return the rows of the last minute as plain values, by endpoint, version and route."""
        served: dict[tuple[str, str, str], dict[str, float]] = {}
        fell_back: dict[tuple[str, str, str], float] = {}
        buckets: dict[tuple[str, ...], list[float]] = {}
        calls: dict[tuple[str, ...], list[float]] = {}
        history: dict[tuple[str, ...], list[float]] = {}
        for part in (self.counted(now), *others):
            for (kind, *labels), values in part["grown"]:
                if kind == catalog.REQUESTS.name:
                    outcomes = served.setdefault((labels[0], labels[1], labels[2]), {})
                    outcomes[labels[3]] = outcomes.get(labels[3], 0.0) + values[0] / part["seconds"]
                elif kind == catalog.FALLBACKS.name:
                    canary = (labels[0], labels[1], CANARY)
                    fell_back[canary] = fell_back.get(canary, 0.0) + values[0] / part["seconds"]
                else:
                    sums = buckets if kind == catalog.REQUEST_SECONDS.name else calls
                    _add(sums.setdefault((*labels,), [0.0] * len(values)), values)
            for labels, rates in part["history"]:
                # The newest are the last ones, however long each process has lived.
                mine = history.setdefault((*labels,), [])
                mine[:0] = [0.0] * (len(rates) - len(mine))
                _add(mine, [0.0] * (len(mine) - len(rates)) + rates)
        totals: dict[str, float] = {}
        for (endpoint, _, _), outcomes in served.items():
            totals[endpoint] = totals.get(endpoint, 0.0) + sum(outcomes.values())
        found = []
        for key in served.keys() | fell_back.keys():
            endpoint, version, route = key
            outcomes, failed_over = served.get(key, {}), fell_back.get(key, 0.0)
            rate = sum(outcomes.values()) + failed_over
            failed = failed_over + sum(outcomes.get(kind, 0.0) for kind in self._failures)
            share = 0.0 if route == FALLBACK else rate / totals[endpoint]
            counts = buckets.get((endpoint, version, route), [])
            p50, p95, p99 = (_quantile(q, catalog.REQUEST_SECONDS.buckets, counts) for q in (0.5, 0.95, 0.99))
            rows, made = calls.get((endpoint, version), (0.0, 0.0))
            found.append(
                Row(
                    endpoint, version, route, rate, share, failed / rate,
                    max(0.0, 1 - (outcomes.get("ok", 0.0) + failed) / rate),
                    p50, p95, p99, rows / made if made else None, history.get((endpoint, version), []),
                )
            )  # fmt: skip
        # By name, not by rate: what a reader looks at must not change its place at every refresh.
        return [asdict(row) for row in sorted(found, key=lambda row: (row.endpoint, row.version, row.route))]

    def drift(self, now: float, others: Iterable[Counted] = ()) -> list[dict[str, Any]]:
        """Return how each variable that has a reference stands, by what was seen within the last hour.

        Only what was counted for the reference in use: labels name it.
        """
        seen: dict[tuple[str, ...], float] = {}
        for part in (self.counted(now), *others):
            for labels, values in part["drift"]:
                seen[*labels,] = seen.get((*labels,), 0.0) + values[0]
        references: dict[tuple[str, ...], dict[str, float]] = {}
        for labels, child in self._children(catalog.DRIFT_REFERENCE):
            ratio = child._value.get()  # noqa: SLF001 - see `read`
            if ratio > 0:  # NaN where the reference is gone
                references.setdefault(labels[:4], {})[labels[4]] = ratio
        sizes = {
            labels: child._value.get()  # noqa: SLF001 - see `read`
            for labels, child in self._children(catalog.DRIFT_REFERENCE_SIZE)
        }
        found = []
        for key, ratios in sorted(references.items()):
            counts = tuple(seen.get((*key, name), 0.0) for name in ratios)
            verdict = Verdict(
                key[0], key[1], key[2], tuple(ratios), tuple(ratios.values()), counts, sizes.get(key, math.inf)
            )  # fmt: skip
            found.append({
                **asdict(verdict), "n": verdict.n, "psi": verdict.psi if verdict.n else None,
                "noise": verdict.bound if verdict.n else None, "state": verdict.state,
            })  # fmt: skip
        return found

    def read(self, pause: Callable[[], None] = unhurried) -> Numbers:
        """Return what is counted now; safe in a thread, ``pause`` is called between numbers."""
        # The children's numbers have no public reader but the exposition, which would be parsed text.
        found: Numbers = {}
        for labels, child in self._children(catalog.REQUESTS):
            pause()
            found[catalog.REQUESTS.name, *labels] = (child._value.get(),)  # noqa: SLF001 - see above
        for labels, child in self._children(catalog.FALLBACKS):
            found[catalog.FALLBACKS.name, *labels] = (child._value.get(),)  # noqa: SLF001 - as above
        for labels, child in self._children(catalog.REQUEST_SECONDS):
            pause()
            found[catalog.REQUEST_SECONDS.name, *labels] = tuple(b.get() for b in child._buckets)  # noqa: SLF001 - as above
        for labels, child in self._children(catalog.BATCH_ROWS):
            pause()
            calls = sum(b.get() for b in child._buckets)  # noqa: SLF001 - as above
            found[catalog.BATCH_ROWS.name, *labels] = (child._sum.get(), calls)  # noqa: SLF001 - as above
        return found

    def _read_bins(self) -> Numbers:
        return {
            labels: (child._value.get(),)  # noqa: SLF001 - see `read`
            for labels, child in self._children(catalog.DRIFT_OBSERVATIONS)
        }

    def _children(self, metric: catalog.Metric) -> list[tuple[tuple[str, ...], Any]]:
        return list(self._families[metric.name]._metrics.items())  # noqa: SLF001 - see `read`


def shared(folder: Path) -> list[Counted]:
    """Return what the other workers that share ``folder`` have left there lately."""
    found = []
    for path in folder.glob("live_*.json"):
        if path.stem == f"live_{os.getpid()}":
            continue
        with contextlib.suppress(OSError, ValueError):  # it may be replaced or removed meanwhile
            if time.time() - path.stat().st_mtime < _OLD_S:
                found.append(json.loads(path.read_text()))
    return found


def _grown(current: Numbers, before: Numbers) -> Numbers:
    return {
        key: tuple(a - b for a, b in zip(values, before.get(key, (0.0,) * len(values)), strict=True))
        for key, values in current.items()
    }


def _add(sums: list[float], values: Sequence[float]) -> None:
    for i, value in enumerate(values):
        sums[i] += value


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
