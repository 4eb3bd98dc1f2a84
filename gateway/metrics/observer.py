"""Turns finished traces, batches and control events into Prometheus samples.

Called once per request in the pipeline's ``finally``, so it only adds to plain Python numbers; ``flush`` carries them
to prometheus_client, which takes a lock per sample and searches buckets one by one (together some 30 µs per request, as
much as tokenizing a short text). Flushing happens before every exposition, so a scrape misses nothing this process has
counted; with several workers also every ``FLUSH_S``, so that the others' expositions are at most that old.

Counting never costs an answer: what goes wrong here (a folder of numbers that somebody removed, a full disk) is logged,
now and then, and the request goes on.

Label values come from the configuration only, never from a request: unknown paths are all counted under one empty
endpoint.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.metrics import catalog
from gateway.metrics.catalog import Metric
from gateway.metrics.custom import Watch
from gateway.metrics.exemplars import Exemplars
from gateway.metrics.live import Live
from gateway.metrics.tally import Count, Distribution
from gateway.trace import Trace

FLUSH_S: Final = 0.02

_MOST_UNFLUSHED: Final = 2000
"""Answers after which what was put aside is added up, so that it stays small."""

_COMPLAIN_EVERY_S: Final = 60.0

_log = logging.getLogger("triton_gateway.metrics")

Count_ = TypeVar("Count_", bound=Callable[..., None])

_NS = 1e-9
_STAGES = ("prepare", "queue", "infer", "finish")


def _harmless(count: Count_) -> Count_:
    """Let nothing that goes wrong in a method reach its caller; see the module."""

    @functools.wraps(count)
    def counted(self: Observer, *args: object, **kwargs: object) -> None:
        try:
            count(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - as above
            self.complain()

    return cast("Count_", counted)


class Observer:
    """Owns this process's metric families on ``registry``. One event loop calls it."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        chance: Callable[[], float] = random.random,
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._families: dict[str, Any] = {m.name: _family(m, registry) for m in catalog.CATALOG}
        self.live = Live(self._families)
        self.exemplars = Exemplars()
        self._models: set[tuple[str, ...]] = set()
        self.watch = Watch(self._families, chance, later or _after_this)
        self._served: dict[tuple[str, str, str], _ServedMetrics] = {}
        self._outcomes: dict[tuple[str, str, str, str], Count] = {}
        self._failed: dict[tuple[str, str, str, str], Distribution] = {}
        self._counts: dict[tuple[str, ...], Count] = {}
        self._batches: dict[tuple[str, str], _BatchMetrics] = {}
        self._in_flight = 0
        self._begun = 0
        self._cpu_wait = Count(self._families[catalog.CPU_WAIT.name])
        self._is_dirty = False
        self._unflushed = 0
        self._complain_at = 0.0

    def started(self) -> None:
        """Count a request in."""
        self._in_flight += 1
        self._begun += 1
        self._is_dirty = True

    def unstarted(self) -> None:
        """Take ``started`` back."""
        self._in_flight -= 1

    def finished(self, trace: Trace) -> None:
        """Count a request out, under exactly one outcome."""
        try:
            self._count_out(trace)
        except Exception:  # noqa: BLE001 - see the module
            self.complain()

    def _count_out(self, trace: Trace) -> None:
        self._in_flight -= 1
        self._is_dirty = True
        key = (trace.endpoint, trace.version, trace.route, trace.outcome)
        count = self._outcomes.get(key)
        if count is None:
            count = self._outcomes[key] = Count(self._families[catalog.REQUESTS.name].labels(*key))
        count.value += 1
        if trace.outcome != "ok":
            failed = self._failed.get(key)
            if failed is None:
                failed = self._failed[key] = _distribution(self._families, catalog.FAILURE_SECONDS, *key)
            failed.observe(trace.total_ns * _NS)
            self._unflushed += 1
            if self._unflushed >= _MOST_UNFLUSHED:
                self.flush()
            return
        served = self._served.get(key[:3])
        if served is None:
            served = self._served[key[:3]] = _ServedMetrics(self._families, *key[:3])
        served.observe(trace)
        self._unflushed += 1
        if self._unflushed >= _MOST_UNFLUSHED:
            self.flush()
        if trace.trace_id and trace.is_recorded:
            self.exemplars.saw(key[:3], trace.total_ns * _NS, trace.trace_id)
        self.watch.answered(trace)

    def complain(self) -> None:
        """Log the exception that is being handled, unless one was logged lately."""
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAIN_EVERY_S
            _log.exception("what happens is not counted: the numbers at /metrics are too low")

    def waited(self, late: float) -> None:
        """Take a sample of how late the event loop is (seconds), for the requests that began since the last sample.

        A loop that works through one round of everything that is ready lets a request wait about that round: half of it
        until the round ends, half of it for its place in the next one. A timer only waits for the first half.
        """
        begun, self._begun = self._begun, 0
        if begun and late > 0:
            self._cpu_wait.value += 2 * late * begun
            self._is_dirty = True

    @_harmless
    def batched(self, endpoint: str, version: str, rows: int, padded_tokens: int, tokens: int) -> None:
        """Count one call to the backend."""
        self._is_dirty = True
        batch = self._batches.get((endpoint, version))
        if batch is None:
            batch = self._batches[endpoint, version] = _BatchMetrics(self._families, endpoint, version)
        batch.rows.observe(rows)
        batch.padded.observe(padded_tokens)
        batch.tokens.value += tokens

    @_harmless
    def cached(self, endpoint: str, version: str, *, is_hit: bool) -> None:
        """Count one look into a response cache."""
        self._count(catalog.CACHE, endpoint, version, "hit" if is_hit else "miss").value += 1
        self._is_dirty = True

    @_harmless
    def fell_back(self, endpoint: str, version: str, outcome: str) -> None:
        """Count a canary version's failure that its stable version answers for."""
        self._count(catalog.FALLBACKS, endpoint, version, outcome).value += 1
        self._is_dirty = True

    @_harmless
    def mirrored(self, endpoint: str, version: str, outcome: str, difference: float = 0.0, total_ns: int = 0) -> None:
        """Count one request that was drawn for a shadow; the numbers are of one that was answered and compared."""
        self._count(catalog.SHADOWS, endpoint, version, outcome).value += 1
        self._is_dirty = True
        if outcome in ("agreed", "differed"):
            # Few a second: they need no tally.
            self._families[catalog.SHADOW_DIFFERENCE.name].labels(endpoint, version).observe(difference)
            self._families[catalog.SHADOW_SECONDS.name].labels(endpoint, version).observe(total_ns * _NS)

    @_harmless
    def words(self, endpoint: str, version: str, hits: int, misses: int) -> None:
        """Add texts a word cache answered and did not answer since the last time."""
        if hits or misses:
            self._count(catalog.WORD_CACHE, endpoint, version, "hit").value += hits
            self._count(catalog.WORD_CACHE, endpoint, version, "miss").value += misses
            self._is_dirty = True

    def _count(self, metric: Metric, *labels: str) -> Count:
        key = (metric.name, *labels)
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = Count(self._families[metric.name].labels(*labels))
        return count

    @_harmless
    def flush(self) -> None:
        """Carry what was counted to prometheus_client."""
        if not self._is_dirty:
            return
        self.watch.flush()
        self._is_dirty = False
        self._unflushed = 0
        self._families[catalog.IN_FLIGHT.name].set(self._in_flight)
        self._cpu_wait.flush()
        for count in (*self._outcomes.values(), *self._counts.values()):
            count.flush()
        for served in self._served.values():
            served.flush()
        for failed in self._failed.values():
            failed.flush()
        for batch in self._batches.values():
            batch.flush()

    @_harmless
    def reconciled(self, outcome: str) -> None:
        """Count one look at the serving Task."""
        self._families[catalog.RECONCILES.name].labels(outcome).inc()

    @_harmless
    def contacted(self, unix_time: float) -> None:
        """Remember when the registry last answered."""
        self._families[catalog.LAST_CONTACT.name].set(unix_time)

    @_harmless
    def built(self, outcome: str) -> None:
        """Count one attempt to build an endpoint version."""
        self._families[catalog.BUILDS.name].labels(outcome).inc()

    @_harmless
    def endpoint_states(self, ready: dict[tuple[str, str], bool | None]) -> None:
        """Publish which endpoint versions are served; those no longer configured (None) have no number any more."""
        family = self._families[catalog.ENDPOINT_READY.name]
        for (endpoint, version), is_ready in ready.items():
            family.labels(endpoint, version).set(math.nan if is_ready is None else int(is_ready))

    @_harmless
    def models(self, served: set[tuple[str, ...]]) -> None:
        """Publish which model each version is: label values of ``MODEL_INFO``; those that are gone have no number."""
        family = self._families[catalog.MODEL_INFO.name]
        for gone in self._models - served:
            family.labels(*gone).set(math.nan)
        for new in served - self._models:
            family.labels(*new).set(1)
        self._models = served

    @_harmless
    def build_info(self, version: str) -> None:
        """Publish the running version."""
        self._families[catalog.BUILD_INFO.name].labels(version).set(1)


def _after_this(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class _ServedMetrics:
    """What one version's answers on one route add up to. A request costs one tuple; ``flush`` does the rest at once."""

    __slots__ = ("_distributions", "_seen", "_sums")

    def __init__(self, families: dict[str, Any], endpoint: str, version: str, route: str) -> None:
        pair = (endpoint, version)
        self._distributions = (
            _distribution(families, catalog.REQUEST_SECONDS, *pair, route),
            *(_distribution(families, catalog.STAGE_SECONDS, *pair, route, stage) for stage in _STAGES),
            _distribution(families, catalog.ROWS, *pair),
        )
        self._sums = tuple(
            Count(families[metric.name].labels(*pair))
            for metric in (catalog.TOKENS, catalog.UNKNOWN_TOKENS, catalog.TRUNCATED)
        )
        self._seen: list[tuple[int, ...]] = []

    def observe(self, trace: Trace) -> None:
        self._seen.append((
            trace.total_ns, trace.prepare_ns, trace.queue_ns, trace.infer_ns, trace.finish_ns, trace.rows,
            trace.tokens, trace.unknown_tokens, trace.truncated,
        ))  # fmt: skip

    def flush(self) -> None:
        if not self._seen:
            return
        columns = np.array(self._seen, dtype=np.float64).T
        self._seen.clear()
        columns[:5] *= _NS
        for distribution, column in zip(self._distributions, columns[:6], strict=True):
            distribution.observe_all(column)
            distribution.flush()
        for count, total in zip(self._sums, columns[6:].sum(axis=1).tolist(), strict=True):
            count.value += total
            count.flush()


class _BatchMetrics:
    __slots__ = ("padded", "rows", "tokens")

    def __init__(self, families: dict[str, Any], endpoint: str, version: str) -> None:
        self.rows = _distribution(families, catalog.BATCH_ROWS, endpoint, version)
        self.padded = _distribution(families, catalog.BATCH_TOKENS, endpoint, version)
        self.tokens = Count(families[catalog.BATCH_REAL_TOKENS.name].labels(endpoint, version))

    def flush(self) -> None:
        self.rows.flush()
        self.padded.flush()
        self.tokens.flush()


def _distribution(families: dict[str, Any], metric: Metric, *labels: str) -> Distribution:
    return Distribution(families[metric.name].labels(*labels), metric.buckets)


def _family(metric: Metric, registry: CollectorRegistry) -> Any:
    if metric.type == "counter":
        return Counter(metric.name.removesuffix("_total"), metric.help, metric.labels, registry=registry)
    if metric.type == "gauge":
        # Multi-process mode sums gauges of living workers where they add up and takes the newest where they do not.
        mode: Literal["livesum", "livemostrecent"] = "livesum" if metric is catalog.IN_FLIGHT else "livemostrecent"
        return Gauge(metric.name, metric.help, metric.labels, registry=registry, multiprocess_mode=mode)
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
