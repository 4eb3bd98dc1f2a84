"""Turns finished traces, batches and control events into Prometheus samples.

Called once per request in the pipeline's ``finally``; label children are cached per endpoint version, because looking
one up costs more than incrementing it. Label values come from the configuration only, never from a request: unknown
paths are all counted under one empty endpoint.
"""

from __future__ import annotations

from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.metrics import catalog
from gateway.metrics.catalog import Metric
from gateway.trace import Trace

_NS = 1e-9
_STAGES = ("prepare", "queue", "infer", "finish")


class Observer:
    """Owns this process's metric families on ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families: dict[str, Any] = {m.name: _family(m, registry) for m in catalog.CATALOG}
        self._served: dict[tuple[str, str, str], _ServedMetrics] = {}
        self._outcomes: dict[tuple[str, str, str, str], Any] = {}
        self._batches: dict[tuple[str, str], tuple[Any, Any, Any]] = {}
        self._in_flight = self._families[catalog.IN_FLIGHT.name]

    def started(self) -> None:
        """Count a request in."""
        self._in_flight.inc()

    def finished(self, trace: Trace) -> None:
        """Count a request out, under exactly one outcome."""
        self._in_flight.dec()
        key = (trace.endpoint, trace.version, trace.route, trace.outcome)
        counter = self._outcomes.get(key)
        if counter is None:
            counter = self._outcomes[key] = self._families[catalog.REQUESTS.name].labels(*key)
        counter.inc()
        if trace.outcome != "ok":
            return
        served = self._served.get(key[:3])
        if served is None:
            served = self._served[key[:3]] = _ServedMetrics(self._families, *key[:3])
        served.observe(trace)

    def batched(self, endpoint: str, version: str, rows: int, padded_tokens: int, tokens: int) -> None:
        """Count one call to the backend."""
        children = self._batches.get((endpoint, version))
        if children is None:
            children = self._batches[endpoint, version] = (
                self._families[catalog.BATCH_ROWS.name].labels(endpoint, version),
                self._families[catalog.BATCH_TOKENS.name].labels(endpoint, version),
                self._families[catalog.BATCH_REAL_TOKENS.name].labels(endpoint, version),
            )
        children[0].observe(rows)
        children[1].observe(padded_tokens)
        children[2].inc(tokens)

    def reconciled(self, outcome: str) -> None:
        """Count one look at the serving Task."""
        self._families[catalog.RECONCILES.name].labels(outcome).inc()

    def contacted(self, unix_time: float) -> None:
        """Remember when the registry last answered."""
        self._families[catalog.LAST_CONTACT.name].set(unix_time)

    def built(self, outcome: str) -> None:
        """Count one attempt to build an endpoint version."""
        self._families[catalog.BUILDS.name].labels(outcome).inc()

    def endpoint_states(self, ready: dict[tuple[str, str], bool]) -> None:
        """Publish which endpoint versions are served; versions no longer configured are set to 0."""
        family = self._families[catalog.ENDPOINT_READY.name]
        for (endpoint, version), is_ready in ready.items():
            family.labels(endpoint, version).set(1 if is_ready else 0)

    def build_info(self, version: str) -> None:
        """Publish the running version."""
        self._families[catalog.BUILD_INFO.name].labels(version).set(1)


class _ServedMetrics:
    __slots__ = ("duration", "rows", "stages", "tokens", "truncated", "unknown")

    def __init__(self, families: dict[str, Any], endpoint: str, version: str, route: str) -> None:
        pair = (endpoint, version)
        self.duration = families[catalog.REQUEST_SECONDS.name].labels(endpoint, version, route)
        self.stages = [families[catalog.STAGE_SECONDS.name].labels(*pair, stage) for stage in _STAGES]
        self.rows = families[catalog.ROWS.name].labels(*pair)
        self.tokens = families[catalog.TOKENS.name].labels(*pair)
        self.unknown = families[catalog.UNKNOWN_TOKENS.name].labels(*pair)
        self.truncated = families[catalog.TRUNCATED.name].labels(*pair)

    def observe(self, trace: Trace) -> None:
        self.duration.observe(trace.total_ns * _NS)
        prepare, queue, infer, finish = self.stages
        prepare.observe(trace.prepare_ns * _NS)
        queue.observe(trace.queue_ns * _NS)
        infer.observe(trace.infer_ns * _NS)
        finish.observe(trace.finish_ns * _NS)
        self.rows.observe(trace.rows)
        if trace.tokens:
            self.tokens.inc(trace.tokens)
        if trace.unknown_tokens:
            self.unknown.inc(trace.unknown_tokens)
        if trace.truncated:
            self.truncated.inc(trace.truncated)


def _family(metric: Metric, registry: CollectorRegistry) -> Any:
    if metric.type == "counter":
        return Counter(metric.name.removesuffix("_total"), metric.help, metric.labels, registry=registry)
    if metric.type == "gauge":
        # Multi-process mode sums gauges of living workers where they add up and takes the newest where they do not.
        mode: Literal["livesum", "livemostrecent"] = "livesum" if metric is catalog.IN_FLIGHT else "livemostrecent"
        return Gauge(metric.name, metric.help, metric.labels, registry=registry, multiprocess_mode=mode)
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
