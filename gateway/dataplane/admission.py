"""Whether there is room for one more request, and the refusal if there is none.

Asked at an edge before the body is read, and once more if only the body says who is asked. There is room if this
process has a place for the request's class, if its endpoint has not more than its share of the places, and if the
endpoint has less work in hand than keeps its model busy. Counts its refusals, and lets limits of work hold where they
are for want of room.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from gateway.admission import SHARE, Permits
from gateway.dataplane.routing.table import RoutingTable
from gateway.endpoints.endpoint import Endpoint
from gateway.errors import Overloaded
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.trace import BATCH, CLASSES

_log = logging.getLogger("triton_gateway.request")

_TELL_EVERY_S: Final = 1.0
_PRESS_EVERY_S: Final = 0.1
"""While this process is full it is looked so often at who fills it."""


class AdmissionControl:
    """Knows who is served and what is in flight. One per event loop."""

    def __init__(self, table: RoutingTable, permits: Permits, observer: Observer, health: Health) -> None:
        self._table = table
        self._permits = permits
        self._observer = observer
        self._health = health
        self._refused = 0
        self._press_at = 0.0
        self._tell_at = 0.0

    def check(self, path: str, rank: int, tenant: str = "") -> None:
        """Raise ``Overloaded`` if what is at ``path`` has its share of this process, or as much work as it needs."""
        if self._is_full_at(path, rank, tenant):
            raise self.refusal(path, rank)

    def is_full(self, path: str | None, rank: int, tenant: str = "") -> bool:
        """Return whether a request would be refused now for want of room, and for nothing else."""
        permits, health = self._permits, self._health
        return (
            (permits.in_flight >= permits.ceilings[rank] or (path is not None and self._is_full_at(path, rank, tenant)))
            and health.first_sync_done and not health.is_draining
        )  # fmt: skip

    def refusal(self, path: str | None, rank: int) -> Overloaded:
        """Return the refusal that ``is_full`` tells of."""
        permits = self._permits
        if path is None or permits.is_full(rank):
            return permits.full(rank)
        found = self._at(path)
        if rank != BATCH:  # it has its own half, and ends there
            permits.press((one for endpoint in found for one in endpoint.pressure), time.monotonic())
        return permits.share_is_full(path) if self._has_share(found, rank) else permits.work_is_full(path, rank)

    def refused(self, error: Overloaded, rank: int, path: str | None, seconds: float) -> None:
        """Count a request for ``path``, if that is known, that there was no room for, ``seconds`` after it came."""
        self._observer.refused(error.kind, self.endpoint_at(path), seconds)
        self.count(error, rank)

    def count(self, error: Overloaded, rank: int) -> None:
        """Count a refusal, and say how many there were; a line for each would take longer than refusing."""
        self._observer.overloaded(error.because or "backend", CLASSES[rank])
        self._refused += 1
        now = time.monotonic()
        if error.because == "gateway_full" and now >= self._press_at and rank != BATCH:
            self._press_at = now + _PRESS_EVERY_S
            self._permits.press((one for endpoint in self._filling() for one in endpoint.pressure), now)
        if now >= self._tell_at:
            self._tell_at = now + _TELL_EVERY_S
            _log.info(
                "refused %d requests for want of room", self._refused,
                extra={"code": Overloaded.kind, "refused": self._refused, "in_flight": self._permits.in_flight},
            )  # fmt: skip
            self._refused = 0

    def endpoint_at(self, path: str | None) -> str:
        """Return what is asked at ``path``, as far as it is served: a refusal for want of room is its failure."""
        found = self._at(path or "")
        return found[0].identity.endpoint if found else ""

    def _is_full_at(self, path: str, rank: int, tenant: str) -> bool:
        found, permits = self._at(path), self._permits
        return self._has_share(found, rank) or (
            (permits.pressure.is_on and permits.look(time.monotonic()))
            and bool(found) and all(endpoint.is_overloaded(rank, tenant) for endpoint in found)
        )  # fmt: skip

    def _at(self, path: str) -> Sequence[Endpoint]:
        """Return what may answer ``path``."""
        snapshot = self._table.current
        path = snapshot.defaults.get(path, path)
        endpoint = snapshot.endpoints.get(path)
        if endpoint is not None:
            return (endpoint,)
        canary = snapshot.canaries.get(path)
        return () if canary is None else [snapshot.endpoints[u] for u in canary.urls if u in snapshot.endpoints]

    def _has_share(self, found: Sequence[Endpoint], rank: int) -> bool:
        """Return whether those of one address have their share of this process."""
        permits = self._permits
        # Who has nothing has no share: the last place may be the one that this request has already.
        return (
            sum(one.leases for one in found) >= max(SHARE * (permits.ceilings[rank] - permits.in_flight), 1)
            and len(self._table.current.endpoints) > len(found)
        )  # fmt: skip

    def _filling(self) -> list[Endpoint]:
        """Return who fills this process: who has an eighth of what is in flight, or most of it if nobody has that."""
        endpoints = self._table.current.endpoints.values()
        least = min(self._permits.in_flight / SHARE, max((one.leases for one in endpoints), default=0))
        return [one for one in endpoints if one.leases >= least]
