"""Admission control of one process: decides whether one more request is admitted, and makes the refusal if not.

An edge asks before it reads the body, and once more if only the body names the endpoint. A request is admitted if
the process has a place for its class, its endpoint has less than its share of the places, and the endpoint has less
work in hand than keeps its model busy. Refusals are counted here, and they put limits of work into force.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from gateway.admission import SHARE, Permits
from gateway.errors import Overloaded
from gateway.handlers.endpoint import Endpoint
from gateway.metrics.observer import Observer
from gateway.path.routing.table import RoutingTable
from gateway.trace import BATCH, CLASSES

_log = logging.getLogger("triton_gateway.request")

_MOST_REFUSED: Final = 0.5
"""The path of a canary is full if half of its requests or more would be refused."""
_LOG_EVERY_S: Final = 1.0
_PRESS_EVERY_S: Final = 0.1
"""While the process is full, it looks every 0.1 s which endpoints fill it."""


class AdmissionControl:
    """Admission control. One per event loop."""

    def __init__(self, table: RoutingTable, permits: Permits, observer: Observer) -> None:
        self._table = table
        self._permits = permits
        self._observer = observer
        self._refused = 0
        self._press_at = 0.0
        self._log_at = 0.0

    def check(self, path: str, rank: int, tenant: str = "") -> None:
        """Raise ``Overloaded`` if the endpoint at ``path`` has its share of the places, or enough work in hand."""
        permits = self._permits
        if permits.in_flight >= permits.easy[rank] and self._is_full_at(path, rank, tenant):
            raise self._refusal(path, rank)

    def _refusal(self, path: str, rank: int) -> Overloaded:
        permits = self._permits
        if permits.is_full(rank):
            return permits.full(rank)
        found = self._at(path)
        if rank != BATCH:  # class batch is limited to half of the places, which is no sign of overload
            permits.press((one for endpoint in found for one in endpoint.pressure), time.monotonic())
        return permits.share_is_full(path) if self._has_share(found, rank) else permits.work_is_full(path, rank)

    def count(self, error: Overloaded, rank: int) -> None:
        """Count a refusal, and log the number once a second: a line for each would take longer than the refusal."""
        self._observer.overloaded(error.because or "backend", CLASSES[rank])
        self._refused += 1
        now = time.monotonic()
        if error.because == "gateway_full" and now >= self._press_at and rank != BATCH:
            self._press_at = now + _PRESS_EVERY_S
            self._permits.press((one for endpoint in self._filling() for one in endpoint.pressure), now)
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            _log.info(
                "refused %d requests because of overload", self._refused,
                extra={"code": Overloaded.kind, "refused": self._refused, "in_flight": self._permits.in_flight},
            )  # fmt: skip
            self._refused = 0

    def endpoint_at(self, path: str | None) -> str:
        """Return the name of the endpoint at ``path``, empty if none is served: its metrics count the refusal."""
        found = self._at(path or "")
        return found[0].identity.endpoint if found else ""

    def _is_full_at(self, path: str, rank: int, tenant: str) -> bool:
        found, permits = self._at(path), self._permits
        return self._has_share(found, rank) or (
            permits.pressure.is_on and permits.look(time.monotonic()) and self._is_overloaded(path, found, rank, tenant)
        )

    def _is_overloaded(self, path: str, found: Sequence[Endpoint], rank: int, tenant: str) -> bool:
        """Return whether a request for one of the versions ``found`` at a path is refused for the work in hand.

        The version of a canary is drawn later. If one of them is full, the stable version answers for it.
        """
        snapshot = self._table.current
        canary = snapshot.canaries.get(path)
        if canary is None:
            return bool(found) and found[0].is_overloaded(rank, tenant)
        stable = snapshot.endpoints.get(canary.stable)
        if stable is None or not stable.is_overloaded(rank, tenant):
            return False
        endpoints = snapshot.endpoints
        return sum(
            share for url, share in canary.shares.items()
            if url == canary.stable or endpoints[url].is_overloaded(rank, tenant)
        ) >= _MOST_REFUSED  # fmt: skip

    def _at(self, path: str) -> Sequence[Endpoint]:
        """Return the endpoint versions that may answer ``path``: one, or all of a canary."""
        snapshot = self._table.current
        canary = snapshot.canaries.get(path)
        if canary is not None:
            return [snapshot.endpoints[url] for url in canary.urls]
        endpoint = snapshot.endpoints.get(path) or snapshot.endpoints.get(snapshot.defaults.get(path, ""))
        return () if endpoint is None else (endpoint,)

    def _has_share(self, found: Sequence[Endpoint], rank: int) -> bool:
        """Return whether the versions at one path have their share of the places."""
        permits = self._permits
        # A share is at least one place, because this request may already hold the last one.
        return (
            sum(one.leases for one in found) >= max(SHARE * (permits.ceilings[rank] - permits.in_flight), 1)
            and len(self._table.current.endpoints) > len(found)
        )  # fmt: skip

    def _filling(self) -> list[Endpoint]:
        """Return the endpoints that fill the process: those with an eighth of the requests, else the largest."""
        endpoints = self._table.current.endpoints.values()
        least = min(self._permits.in_flight / SHARE, max((one.leases for one in endpoints), default=0))
        return [one for one in endpoints if one.leases >= least]
