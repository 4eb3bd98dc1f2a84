"""Stand-ins around a request in flight: a handler that the test controls, endpoints and records that count."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from gateway.admission import Permits, Pressure
from gateway.call import Call
from gateway.errors import GatewayError
from gateway.handlers.endpoint import Endpoint, Identity, Job
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.path.inflight import InFlight
from gateway.path.routing.canary import Weighted
from gateway.path.routing.snapshot import Snapshot
from gateway.path.routing.table import RoutingTable
from gateway.path.submit import DataPlane
from gateway.trace import Trace


class Obedient:
    """A handler that keeps its jobs until the test ends them; ``given_up`` counts the cancelled ones."""

    takes_bytes = False

    def __init__(self, begin: Callable[[Job], None] | None = None) -> None:
        self.jobs: list[Job] = []
        self.given_up = 0
        self.is_closed = False
        self._begin = begin

    def start(self, job: Job) -> None:
        """Take a job."""
        assert not self.is_closed, "asked after it was closed"
        self.jobs.append(job)
        if self._begin is not None:
            self._begin(job)
        else:
            job.prepared()
            job.queued(self._leave)

    def _leave(self) -> None:
        self.given_up += 1

    async def close(self) -> None:
        """Be closed: nobody may hold it any more."""
        assert not self.is_closed, "closed twice"
        self.is_closed = True


class Counted(Endpoint):
    """An endpoint that counts its leases and releases."""

    __slots__ = ("leased", "released")

    def __init__(self, handler: Any, url: str = "e") -> None:
        super().__init__(Identity(url, url, "", url), handler)
        self.leased = self.released = 0

    def lease(self) -> None:
        """Count it."""
        assert not self.handler.is_closed, "leased after it was closed"
        self.leased += 1
        super().lease()

    def release(self) -> None:
        """Count it."""
        self.released += 1
        assert self.released <= self.leased
        super().release()


class Records:
    """A ledger that keeps its records."""

    keeps_pieces = False

    def __init__(self) -> None:
        self.ended: list[Trace] = []
        self.fallen: list[str] = []

    def record(self, trace: Trace) -> None:
        """Keep a record."""
        self.ended.append(trace)

    def fell_back(self, trace: Trace, error: GatewayError, stable: Endpoint) -> None:
        """Keep the url of the version that answered."""
        del trace, error
        self.fallen.append(stable.identity.url)


class Echo(Call):
    """A call whose reply is the answer's repr; ``refuses`` makes ``question`` raise for the endpoint of that url."""

    def __init__(self, path: str = "e", refuses: dict[str, Exception] | None = None) -> None:
        self.path = path
        self.refuses = refuses or {}
        self.rendered = 0

    def question(self, endpoint: Endpoint) -> Any:
        """Return a body."""
        if endpoint.identity.url in self.refuses:
            raise self.refuses[endpoint.identity.url]
        return {"text": endpoint.identity.url}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """Return the reply. An answer that is an exception is raised."""
        del trace, outputs
        self.rendered += 1
        if isinstance(answer, Exception):
            raise answer
        return repr((endpoint.identity.url, answer)).encode()

    def piece(self, event: Any) -> bytes:
        """Not used."""
        raise NotImplementedError


class Plane:
    """A data plane over endpoints whose handlers the test controls."""

    def __init__(
        self, *urls: str, timeout: float = 30.0, max_requests: int = 3, max_bytes: int = 1000, limits: str = "off"
    ) -> None:
        self.table, self.health = RoutingTable(), Health(None)
        self.health.first_sync_done = True
        self.permits = Permits(max_requests, max_bytes, Pressure(limits))
        self.plane = DataPlane(self.table, self.permits, Observer(), self.health, timeout=timeout)
        self.ended: list[Trace] = []
        self.plane.records.subscribe(self.ended.append)
        self.endpoints = {url: Counted(Obedient(), url) for url in urls}
        self.publish()

    def publish(self, **canaries: Weighted) -> None:
        """Publish a snapshot of ``endpoints``."""
        served: dict[str, Endpoint] = dict(self.endpoints)
        self.table.swap(Snapshot("r", MappingProxyType(served), MappingProxyType(canaries)))

    def job(self, url: str) -> Any:
        """Return the newest job of an endpoint."""
        handler: Any = self.endpoints[url].handler
        return handler.jobs[-1]

    def submit(self, call: Any) -> tuple[InFlight, list[InFlight]]:
        """Submit a call; return the flight, and a list that holds it when it has ended."""
        done: list[InFlight] = []
        return self.plane.submit(call, done.append), done
