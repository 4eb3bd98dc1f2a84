"""Counts finished requests, batches and control events.

``finished`` is called once per request, so it only collects traces, of which some are then counted together; counted
one by one they would cost as much as tokenizing a short text. ``snapshot`` counts everything collected so far, so a
reader sees all that happened in this process.

An error while counting an answer, which may be a user's object, fails no request: it is logged, at most once a minute.

Label values come from the configuration, never from a request: requests for unknown paths are counted under an empty
endpoint name.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator, Distribution, Snapshot
from gateway.metrics.feedback import FeedbackCounts
from gateway.metrics.watch import Watch
from gateway.objectives import Objective
from gateway.trace import CANARY, STAGES, Trace

MAX_TENANTS: Final = 1000
"""Tenants with series of their own. Signers of tokens could invent any number of them."""
OTHER: Final = "other"
"""The tenant label of all further tenants."""

_COMPLAIN_EVERY_S: Final = 60.0
_GATHERED: Final = 16
"""So many answered requests are counted at once: counted one by one, each took 8 µs more; if more wait, what they hold
has left the processor's caches when they are counted.
"""
_LARGE_BYTES: Final = 64 << 10
"""A request of this size is counted at once, so that its body is not kept."""
_NS = 1e-9
_Served = tuple[str, str, str]
"""The endpoint, version and route of a request."""

_log = logging.getLogger("triton_gateway.metrics")


class Observer(Accumulator):
    """Counts everything that happens in this process. For use by one event loop."""

    def __init__(
        self,
        *,
        chance: Callable[[], float] = random.random,
        failures: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``failures`` are the outcomes that count as failures; each has a series, at 0, before the first one."""
        super().__init__()
        self.failures = tuple(failures)
        self._expected: set[_Served] = set()
        self._promised: Mapping[str, Objective] = {}
        self.watch = Watch(self, chance, clock, self.complain)
        self.feedback = FeedbackCounts(self)
        self._distributions: dict[_Served, tuple[Distribution, ...]] = {}
        """Of the answers of each version on each route: they are found once, because that takes as long as counting."""
        self._waiting: list[Trace] = []
        """Answered requests that are not counted yet."""
        self._begun = self._ended = self._sampled = 0
        """Requests that began, that ended, and that had begun when ``waited`` was last called."""
        self._tenants: set[str] = set()
        self._complain_at = 0.0

    def started(self) -> None:
        """Count the start of a request."""
        self._begun += 1

    def finished(self, trace: Trace) -> None:
        """Count the end of a request under its outcome; answered ones are counted together with later ones."""
        self._ended += 1
        if trace.outcome != "ok":
            self.count(catalog.REQUESTS, trace.endpoint, trace.version, trace.route, trace.outcome)
            return
        self._waiting.append(trace)
        if len(self._waiting) >= _GATHERED or trace.body_bytes >= _LARGE_BYTES:
            self.settle()

    def settle(self) -> None:
        """Count everything collected so far."""
        waiting, self._waiting = self._waiting, []
        grouped: dict[_Served, list[Trace]] = {}
        for trace in waiting:
            grouped.setdefault((trace.endpoint, trace.version, trace.route), []).append(trace)
        for served, alike in grouped.items():
            try:
                self._count_answered(served, alike)
            except Exception:  # noqa: BLE001 - see the module
                self.complain()

    def _count_answered(self, served: _Served, traces: Sequence[Trace]) -> None:
        endpoint, version, _ = served
        if (distributions := self._distributions.get(served)) is None:
            distributions = self._distributions[served] = (
                self.distribution(catalog.REQUEST_SECONDS, *served),
                *(self.distribution(catalog.STAGE_SECONDS, *served, stage) for stage in STAGES),
                self.distribution(catalog.ROWS, endpoint, version),
            )
        seconds, prepare, queue, infer, finish, rows = distributions
        seconds.observe([trace.total_ns * _NS for trace in traces])
        prepare.observe([trace.prepare_ns * _NS for trace in traces])
        queue.observe([trace.queue_ns * _NS for trace in traces])
        infer.observe([trace.infer_ns * _NS for trace in traces])
        finish.observe([trace.finish_ns * _NS for trace in traces])
        rows.observe([trace.rows for trace in traces])
        self.count(catalog.REQUESTS, *served, "ok", by=len(traces))
        self.count(catalog.TOKENS, endpoint, version, by=sum([trace.tokens for trace in traces]))
        self.count(catalog.TRUNCATED, endpoint, version, by=sum([trace.truncated for trace in traces]))
        if (promised := self._promised.get(endpoint)) is not None:
            within = round(promised.within / _NS)
            late = sum([trace.total_ns > within for trace in traces])
            for result, number in (("late", late), ("in_time", len(traces) - late)):
                self.count(catalog.OBJECTIVE_ANSWERS, endpoint, version, promised.le, result, by=number)
        for trace in traces:
            if trace.trace_id and trace.is_recorded:
                seconds.belongs(trace.trace_id, trace.total_ns * _NS)
        self.watch.answered(traces[0].url, traces)

    def complain(self) -> None:
        """Log the current exception, unless one was logged within the last minute."""
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAIN_EVERY_S
            _log.exception("an event was not counted: the numbers at /metrics are too low")

    def waited(self, late: float) -> None:
        """Add the event loop's delay ``late`` (seconds) to the wait of the requests that began since the last call.

        A timer that is due waits until the loop finishes its round: half a round on average. A request waits for about
        twice as long, because it then also waits for its turn in the next round.
        """
        begun, self._sampled = self._begun - self._sampled, self._begun
        if begun and late > 0:
            self.count(catalog.CPU_WAIT, by=2 * late * begun)

    def called(self, endpoint: str, version: str, rows: int, padded_tokens: int, tokens: int) -> None:
        """Count a call to Triton of a model that takes texts."""
        self.observe(catalog.BATCH_ROWS, rows, endpoint, version)
        self.observe(catalog.BATCH_TOKENS, padded_tokens, endpoint, version)
        self.count(catalog.BATCH_REAL_TOKENS, endpoint, version, by=tokens)

    def cached(self, endpoint: str, version: str, is_hit: bool) -> None:
        """Count a request to a response cache."""
        self.count(catalog.CACHE, endpoint, version, "hit" if is_hit else "miss")

    def snapshot(self) -> Snapshot:
        """Return a copy of everything counted in this process."""
        self.settle()
        self.publish(catalog.IN_FLIGHT, self._begun - self._ended)
        return super().snapshot()

    def expect(self, served: Iterable[_Served]) -> None:
        """Create the failure series of these (endpoint, version, route), at 0.

        Prometheus computes rates from increases: a series that appears with its first failures shows no increase.
        """
        for key in set(served) - self._expected:
            self._expected.add(key)
            endpoint, version, route = key
            for outcome in self.failures:
                self.count(catalog.REQUESTS, *key, outcome, by=0)
                if route == CANARY:
                    self.count(catalog.FALLBACKS, endpoint, version, outcome, by=0)

    def promise(self, objectives: Mapping[str, Objective]) -> None:
        """Publish the objectives of endpoints and count answers by them; the empty name holds the default."""
        shown: dict[tuple[str, ...], float] = {}
        for endpoint, one in objectives.items():
            shown[endpoint, "availability", ""] = one.availability
            if endpoint and one.within:
                shown[endpoint, "latency", one.le] = one.share
        self.show(catalog.OBJECTIVE, shown)
        self._promised = {endpoint: one for endpoint, one in objectives.items() if endpoint and one.within}
        for endpoint, version, _ in self._expected:
            if (own := self._promised.get(endpoint)) is not None:
                for result in ("in_time", "late"):  # at 0, as in `expect`
                    self.count(catalog.OBJECTIVE_ANSWERS, endpoint, version, own.le, result, by=0)

    def over_quota(self, tenant: str, reason: str) -> None:
        """Count a request of a tenant that exceeded a quota."""
        self.count(catalog.OVER_QUOTA, self._tenant(tenant), reason)

    def used(self, tenant: str, endpoint: str, tokens_in: int, tokens_out: int) -> None:
        """Count one answered request of a tenant."""
        tenant = self._tenant(tenant)
        self.count(catalog.TENANT_REQUESTS, tenant, endpoint)
        self.count(catalog.TENANT_TOKENS_IN, tenant, endpoint, by=tokens_in)
        self.count(catalog.TENANT_TOKENS_OUT, tenant, endpoint, by=tokens_out)

    def _tenant(self, tenant: str) -> str:
        if tenant not in self._tenants:
            if len(self._tenants) >= MAX_TENANTS:
                return OTHER
            self._tenants.add(tenant)
        return tenant
