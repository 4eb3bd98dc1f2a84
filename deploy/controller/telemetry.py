"""Tells ClearML what gateways do, for its pages: scalars of the serving Task, and the list of model endpoints.

A duty of the controller. Once a minute it reads the ``/v1/status`` of every gateway. Each version with traffic gets its
rate, errors and latency as scalars; each served endpoint is reported as clearml-serving's own container would. What
ClearML does not take is dropped. It never writes to the configuration.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gateway.registry import RegistryWriter
from gateway.spec import ServingTask

Statuses = Callable[[], Mapping[str, Mapping[str, Any] | None]]
Rows = Mapping[tuple[str, str], list[Mapping[str, Any]]]
"""Endpoint and version → what every gateway counted of it in its last minute, by route."""

EVERY_S: Final = 60.0
MAX_ENDPOINTS: Final = 200
"""Most versions that one round reports."""


class Telemetry:
    """Called with the serving Task after every look; ``wall`` returns Unix seconds. ``statuses``: of every gateway."""

    def __init__(self, store: RegistryWriter, statuses: Statuses, *, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._statuses = statuses
        self._wall = wall
        self._due = 0.0
        self._seen: dict[str, tuple[float, float]] = {}
        """Container → when it was first seen (Unix seconds), and its requests since then."""

    def __call__(self, task: ServingTask) -> None:
        """Report if a minute is over. Raises the registry's errors."""
        now = self._wall()
        if now < self._due:
            return
        self._due = now + EVERY_S
        statuses = {address: status for address, status in self._statuses().items() if status is not None}
        reports = list(self._containers(statuses, task.id, now))
        self._seen = {name: self._seen[name] for name in (str(report["container_id"]) for report in reports)}
        if events := scalars(statuses, task.id, now):
            self._store.report(events)
        for report in reports[:MAX_ENDPOINTS]:
            self._store.report_endpoint(report)

    def _containers(
        self, statuses: Mapping[str, Mapping[str, Any]], task_id: str, now: float
    ) -> Iterator[Mapping[str, Any]]:
        for address, status in statuses.items():
            rows = _rows({address: status})
            for endpoint in status.get("endpoints", ()):
                url, name, version = (str(endpoint[part] or "") for part in ("url", "endpoint", "version"))
                counted = rows.get((name, version), [])
                rate = sum(row["rate"] for row in counted)
                container = hashlib.sha256(f"{task_id} {address} {url}".encode()).hexdigest()[:32]
                since, requests = self._seen.get(container, (now, 0.0))
                self._seen[container] = since, requests + rate * EVERY_S
                model_id = str(endpoint.get("model_id") or "")
                yield {
                    "container_id": container, "endpoint_name": name, "model_version": version,
                    "model_name": str(endpoint.get("model_name") or "code"), "model_source": "ClearML",
                    "endpoint_url": f"{address}/serve/{url}", "uptime_sec": int(now - since),
                    "requests_num": round(requests + rate * EVERY_S), "requests_min": round(rate * 60, 2),
                    "latency_ms": round(1000 * max((row["p50"] or 0.0 for row in counted), default=0.0)),
                    "reference": [
                        {"type": "task", "value": task_id},
                        *([{"type": "model", "value": model_id}] if model_id else []),
                    ],
                }  # fmt: skip


def scalars(statuses: Mapping[str, Mapping[str, Any]], task_id: str, now: float) -> list[dict[str, Any]]:
    """Return ClearML's events for the versions with traffic: rates are sums, a latency is the slowest gateway's.

    The iteration of a scalar is Unix time in seconds, so a curve continues after a restart.
    """
    found: list[tuple[str, str, float]] = []
    for (endpoint, version), rows in sorted(_rows(statuses).items())[:MAX_ENDPOINTS]:
        series = f"{endpoint}/{version}" if version else endpoint
        found += [("requests per second", series, sum(row["rate"] for row in rows)),
                  ("errors per second", series, sum(row["rate"] * row["failed"] for row in rows))]  # fmt: skip
        for name in ("p50", "p95", "p99"):
            known = [row[name] for row in rows if row[name] is not None]
            found += [(f"latency {name}, ms", series, 1000 * max(known))] if known else []
    common = {"task": task_id, "type": "training_stats_scalar", "iter": int(now), "timestamp": int(now * 1000)}
    return [{**common, "metric": title, "variant": series, "value": value} for title, series, value in found]


def _rows(statuses: Mapping[str, Mapping[str, Any]]) -> Rows:
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for status in statuses.values():
        for row in status.get("last_minute", ()):
            if row["endpoint"]:  # requests for paths that do not exist have none
                found.setdefault((row["endpoint"], row["version"]), []).append(row)
    return found
