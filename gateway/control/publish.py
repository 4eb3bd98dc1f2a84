"""Swaps the routes that requests read, retires versions that left them, and updates metrics and shadows.

The cost of a swap grows with the number of endpoints, and a thousand builds can end at once. Changes that happen within
0.1 s are therefore published together.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.control.assemble import assemble_snapshot
from gateway.control.compile import Plan
from gateway.control.version import LastGood, Version, Versions
from gateway.handlers.endpoint import Endpoint
from gateway.metrics import catalog
from gateway.metrics.declared import frequency_of
from gateway.metrics.drift import References
from gateway.metrics.observer import Observer
from gateway.metrics.variable_counts import Served
from gateway.path.routing.table import RoutingTable
from gateway.path.shadow import Mirror

_log = logging.getLogger("triton_gateway.control")

_APART_S: Final = 0.1
"""Shortest time between two swaps."""


class RoutePublisher:
    """Keeps routing table, metrics and shadows equal to ``versions`` and the plan that ``plan()`` returns.

    ``published`` is called after each swap with the number of endpoints that began to serve.
    """

    def __init__(
        self,
        versions: Versions,
        plan: Callable[[], Plan | None],
        table: RoutingTable,
        observer: Observer,
        mirror: Mirror,
        references: References,
        *,
        metric_log_frequency: float,
        published: Callable[[int], None],
    ) -> None:
        self._versions = versions
        self._plan = plan
        self._table = table
        self._observer = observer
        self._mirror = mirror
        self._references = references
        self._metric_log_frequency = metric_log_frequency
        self._published = published
        self._finished: list[tuple[Version, Endpoint, LastGood]] = []
        """Endpoints that are ready and begin to serve with the next swap."""
        self._ending: set[asyncio.Task[None]] = set()
        self._due: asyncio.TimerHandle | None = None
        self._watch_due: asyncio.Handle | None = None
        self._last = -math.inf

    def finished(self, version: Version, endpoint: Endpoint, last_good: LastGood) -> None:
        """Put an endpoint into service with the next swap."""
        self._finished.append((version, endpoint, last_good))
        self.soon()

    def soon(self) -> None:
        """Schedule a swap: in the next step of the event loop, or 0.1 s after the last swap."""
        if self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(max(self._last + _APART_S, loop.time()), self._publish)

    def _publish(self) -> None:
        self._due = None
        plan = self._plan()
        if plan is None:
            return
        self._last = asyncio.get_running_loop().time()
        finished, self._finished = self._finished, []
        for version, endpoint, last_good in finished:
            self._serve(version, endpoint, last_good)
        versions = self._versions
        self._table.swap(assemble_snapshot(plan, versions.endpoints(), versions.pending(), self._table.current))
        self._publish_states(plan)
        self._retire()
        self._published(len(finished))
        if self._watch_due is None:
            self._watch_due = asyncio.get_running_loop().call_soon(self.watch)

    def _serve(self, version: Version, endpoint: Endpoint, last_good: LastGood) -> None:
        former, is_restored = self._versions.serving(version.url), version.is_restored
        if not self._versions.serve(version, endpoint, last_good):
            self._in_background(endpoint.retire(), version.url)
        elif is_restored:
            _log.info("endpoint %s is served by the version before, until the new one is ready", version.url)
        else:
            _log.info("endpoint %s is served%s", version.url, " (replaces the previous one)" if former else "")

    def _publish_states(self, plan: Plan) -> None:
        self._observer.faults(fault.subject for fault in plan.faults)
        served = self._versions.served()
        ready: dict[tuple[str, ...], bool] = {
            (wanted.spec.endpoint, wanted.spec.version): url in served for url, wanted in plan.endpoints.items()
        }
        for version in served.values():
            if version.endpoint is not None:
                ready[version.endpoint.identity.endpoint, version.endpoint.identity.version] = True
        self._observer.show(catalog.ENDPOINT_READY, ready)

    def _retire(self) -> None:
        leaving, self._versions.leaving = self._versions.leaving, []
        for version in leaving:
            self._in_background(self._retired(version), version.url)

    async def _retired(self, version: Version) -> None:
        try:
            if version.endpoint is not None:
                await version.endpoint.retire()
        finally:
            self._versions.closed(version)

    def _in_background(self, end: Coroutine[Any, Any, None], url: str) -> None:
        task = asyncio.create_task(end, name=f"retire {url}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def watch(self) -> None:
        """Update metrics and shadows after a swap, or after a change of the reference distributions."""
        self._watch_due = None
        plan = self._plan()
        if plan is None:
            return
        spec = plan.spec
        self._observer.watch.configure(
            {url: self._watched_as(endpoint) for url, endpoint in self._versions.endpoints().items()}, spec.metrics,
            frequency_of(spec.settings, self._metric_log_frequency),
        )  # fmt: skip
        self._observer.expect(self._table.current.routes())
        self._observer.promise(plan.objectives)
        self._mirror.configure(spec.shadows, self._table.current.endpoints)

    def _watched_as(self, endpoint: Endpoint) -> Served:
        identity = endpoint.identity
        labels = identity.details.get("labels")
        return Served(
            identity.endpoint, identity.version, is_text=endpoint.is_text,
            labels=tuple(str(label) for label in labels) if isinstance(labels, list) else (),
            reference=self._references.of(identity.url) or identity.reference,
        )  # fmt: skip

    async def close(self) -> None:
        """Retire every endpoint; nothing is published afterwards."""
        for due in (self._due, self._watch_due):
            if due is not None:
                due.cancel()
        for _, endpoint, _ in self._finished:
            self._in_background(endpoint.retire(), endpoint.identity.url)
        self._finished = []
        self._versions.close()
        self._retire()
        await asyncio.gather(*self._ending, return_exceptions=True)
