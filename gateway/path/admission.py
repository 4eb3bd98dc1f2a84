"""Who is admitted: one more request, before its body is read, and once more if only the body names its endpoint.

A request is admitted if the process has a place for its class and room for its bytes, its endpoint has less than its
share of the places, and has less work in hand than keeps its model busy. Refusals are counted here, and they put limits
of work into force.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gateway.batching.pressure import CEILINGS, NO_PRESSURE, Pressure
from gateway.callers.rights import Caller
from gateway.errors import Draining, Overloaded, RequestError
from gateway.health import Health
from gateway.metrics import catalog
from gateway.metrics.observer import Observer
from gateway.path.routing import RoutingTable
from gateway.trace import BATCH, CLASSES, DEFAULT, DEFAULT_FLOW, Flow

SHARE: Final = 8
"""If several endpoints are served, one may hold 8 times as many requests as there are free places."""
_WHY: Final = {
    "gateway_full": "this gateway already works on {places} requests and takes no more",
    "batch_full": "this gateway already works on {places} requests and takes no more of class batch beside them",
    "endpoint_full": "this gateway works on as many requests of this endpoint as others leave room for",
    "work_full": "this endpoint has as much work in hand as keeps its model busy",
    "bytes_full": "this gateway already holds as many bytes of requests as it may: send less at once",
}
_PRESS_EVERY_S: Final = 0.1
"""While the process is full, the limits of all endpoints come into force, at most every 0.1 s."""


def flow_of(asked: bytes, caller: Caller | None) -> Flow:
    """Return the class and tenant of a request; ``asked``: its header ``x-priority``, empty for none.

    A caller that asks for more than its own class gets its own class. Raises ``RequestError`` for an unknown class.
    """
    rank = DEFAULT if caller is None else CLASSES.index(caller.priority)
    if asked:
        name = asked.decode("latin-1").strip().lower()
        if name not in CLASSES:
            raise RequestError(f"x-priority must be one of {', '.join(CLASSES)}")
        wanted = CLASSES.index(name)
        rank = wanted if caller is None else max(rank, wanted)
    if caller is None:
        return DEFAULT_FLOW if rank == DEFAULT else Flow(rank, "")
    return Flow(rank, caller.tenant)


class Permit:
    """The right of one request to take bytes in. An ``Ask`` is its own.

    It is taken before a request's body is read, and returned after the last byte of its reply was written. An early
    refusal costs microseconds. An unbounded queue would cost callers their deadlines, and the process its memory.
    """

    permits: Permits | None
    """Who gave it; None: nobody, or it was returned."""
    held_bytes: int

    def __init__(self, permits: Permits) -> None:
        self.permits = permits
        self.held_bytes = 0

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes for this request. Raises ``Overloaded`` if the limit is reached.

        A request that is the only one with a body may exceed the limit.
        """
        permits = self.permits
        if permits is None:
            return
        held = permits.held_bytes
        if held + size > permits.max_bytes and held > self.held_bytes:
            raise permits.refusal("bytes_full")
        permits.held_bytes += size
        self.held_bytes += size

    def release(self) -> None:
        """Return the permit; a second time does nothing."""
        permits = self.permits
        if permits is not None:
            self.permits = None
            permits.in_flight -= 1
            permits.held_bytes -= self.held_bytes


class Permits:
    """Counts the requests of one event loop, and the bytes of their bodies. Not thread-safe.

    Each class of priority has a ceiling: class batch fills half of the places at most, class critical may exceed the
    limit by a sixteenth. One endpoint among several may hold ``SHARE`` times as many requests as there are free places.
    A single busy endpoint then gets nearly all places, two busy ones about half each, and some places stay free for an
    endpoint without requests. Nothing is reserved.
    """

    __slots__ = (
        "ceilings", "easy", "held_bytes", "in_flight", "max_bytes", "pressure", "retry_after",
    )  # fmt: skip

    def __init__(self, max_requests: int, max_bytes: int, pressure: Pressure = NO_PRESSURE) -> None:
        self.max_bytes = max_bytes
        self.ceilings = tuple(max(int(share * max_requests), 1) for share in CEILINGS)
        """The maximum of requests in flight, by rank of the class."""
        self.easy = tuple(ceiling * SHARE // (SHARE + 1) for ceiling in self.ceilings)
        """Below this number of requests, by rank, no endpoint can have its share."""
        self.pressure = pressure
        self.in_flight = 0
        self.held_bytes = 0
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Returns the seconds after which a refused caller may try again."""

    def full(self, rank: int = DEFAULT) -> Overloaded:
        """Return the refusal of one request too many."""
        is_batch = rank == BATCH and self.in_flight < self.ceilings[DEFAULT]
        return self.refusal("batch_full" if is_batch else "gateway_full", rank)

    def refusal(self, because: str, rank: int = DEFAULT) -> Overloaded:
        """Return a refusal."""
        message = _WHY[because].format(places=self.ceilings[rank])
        return Overloaded(message, because=because, hint="try again", retry_after=self.retry_after())

    def admit(self, permit: Permit, rank: int = DEFAULT) -> None:
        """Give a request its permit. Raises ``Overloaded``."""
        if self.in_flight >= self.ceilings[rank]:
            raise self.full(rank)
        if self.held_bytes > self.max_bytes:
            raise self.refusal("bytes_full")
        self.in_flight += 1
        permit.permits = self
        permit.held_bytes = 0

    def take(self, rank: int = DEFAULT) -> Permit:
        """Return a permit for work that is no request for inference. Raises ``Overloaded``."""
        place = Permit(self)
        self.admit(place, rank)
        return place

    def keep(self) -> Callable[[], None]:
        """Keep a place for work that goes on after its request has ended; return what ends it. It is never refused."""
        self.in_flight += 1
        return Permit(self).release

    def mirror(self, size: int) -> Callable[[], None]:
        """Give a mirrored request of ``size`` bytes a place of class batch; return what ends it.

        Raises ``Overloaded`` unless half of the places and bytes are free.
        """
        if 2 * (self.held_bytes + size) > self.max_bytes:
            raise self.refusal("bytes_full", BATCH)
        permit = self.take(BATCH)
        permit.hold(size)
        return permit.release


class AdmissionControl:
    """Admission control. One per event loop."""

    def __init__(self, table: RoutingTable, permits: Permits, observer: Observer, health: Health) -> None:
        self._table = table
        self._permits = permits
        self._observer = observer
        self._health = health
        self._press_at = 0.0

    def enter(self, permit: Permit, path: str | None, flow: Flow) -> None:
        """Give a request its permit, before its body is read; ``path``: the endpoint, if the address names it.

        Raises ``Draining``, ``Unavailable``, ``EndpointNotFound``, ``VersionNotFound`` or ``Overloaded``.
        """
        if self._health.is_draining:
            raise Draining("this gateway is shutting down", hint="send the request to another one", retry_after=1)
        if path is not None:
            snapshot = self._table.current
            if not snapshot.serves(path):
                raise snapshot.missing(path)
            self.check(path, flow.rank, flow.tenant)
        self._permits.admit(permit, flow.rank)

    def check(self, path: str, rank: int, tenant: str = "") -> None:
        """Raise ``Overloaded`` if the endpoint at ``path`` has its share of the places, or enough work in hand."""
        permits = self._permits
        if not permits.pressure.is_on and permits.in_flight < permits.easy[rank]:
            return
        endpoints, found, now = self._table.current.endpoints, self._table.current.at(path), time.monotonic()
        # A share is at least one place, because this request may already hold the last one.
        share = max(SHARE * (permits.ceilings[rank] - permits.in_flight), 1)
        if sum(one.leases for one in found) >= share and len(endpoints) > len(found):
            because = "endpoint_full"
        # The version is drawn later. If that of a canary is full, the stable version answers for it.
        elif permits.pressure.look(now) and found and found[0].is_overloaded(rank, tenant):
            because = "work_full"
        else:
            return
        if permits.in_flight >= permits.ceilings[rank]:
            raise permits.full(rank)
        if rank != BATCH:  # class batch is limited to half of the places, which is no sign of overload
            for one in found:
                one.press(now)
        raise permits.refusal(because, rank)

    def count(self, error: Overloaded, rank: int) -> None:
        """Count a refusal."""
        self._observer.count(catalog.REFUSED, error.because or "backend", CLASSES[rank])
        now = time.monotonic()
        if error.because == "gateway_full" and now >= self._press_at and rank != BATCH:
            self._press_at = now + _PRESS_EVERY_S
            for endpoint in self._table.current.endpoints.values():
                endpoint.press(now)
