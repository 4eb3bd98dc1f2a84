"""THE HOT PATH. If you read one file, read this one, and then ``inflight.py``.

An edge has read a request and a protocol has made a ``Call`` of it; ``submit`` takes it to the endpoint version that
answers. The version is chosen and held in one step, the deadline is armed, the endpoint starts, and ``done`` is called
exactly once. That is the same for every protocol and every transport; a coroutine (ASGI, gRPC, a hook that calls
another endpoint) uses ``ask``, which is ``submit`` and a future.

What comes before belongs to the edge: a permit, taken before the body is read and given back after the last byte was
written. What comes after is in ``InFlight``: the one end of a request, and the fallback of a failed canary.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.admission import SHARE, Permit, Permits
from gateway.call import Ask, Call, Refuse
from gateway.dataplane.deadlines import Deadlines
from gateway.dataplane.inflight import ENDED, Done, InFlight, Send
from gateway.dataplane.routing.table import RoutingTable
from gateway.endpoints.endpoint import Endpoint
from gateway.errors import OF_CALLERS, DeadlineExceeded, Draining, GatewayError, Overloaded, Unavailable
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.trace import BATCH, CLASSES, DEFAULT, TRACEPARENT, Trace

_log = logging.getLogger("triton_gateway.request")

_TELL_EVERY_S: Final = 1.0
_PINNED: Final = "pinned"
_PRESS_EVERY_S: Final = 0.1
"""While this process is full it is looked so often at who fills it."""
_TIMES: Final = ("total", "prepare", "queue", "infer", "finish")

Listener = Callable[[Trace], None]
Watch = Callable[[InFlight], Callable[[], None]]
"""``watch(flight)`` looks whether the caller leaves, and then cancels the flight; returns what ends the watch."""


class RequestSpans(Protocol):
    """What makes spans of requests; see ``spans``."""

    def begin(self, request_id: str, parent: str = "") -> Trace:
        """Open a request's record."""
        ...

    def finished(self, trace: Trace) -> None:
        """Export what became of it."""
        ...


class DataPlane:
    """Answers calls from the current snapshot. One per event loop; holds no request, save by its deadline.

    ``timeout``: seconds that a request may take whose caller does not say.
    """

    def __init__(
        self,
        table: RoutingTable,
        permits: Permits,
        observer: Observer,
        health: Health,
        *,
        timeout: float,
        spans: RequestSpans | None = None,
        access_log: bool = False,
    ) -> None:
        self.timeout = timeout
        self.permits = permits
        self._table = table
        self._observer = observer
        self._health = health
        self._access_log = access_log
        self._deadlines = Deadlines()
        self._refused = 0
        self._press_at = 0.0
        self._tell_at = 0.0
        self.is_quiet = spans is None and not access_log
        """Whether a request that is refused at once leaves nothing but a number."""
        self.new_trace: Callable[..., Trace] = Trace if spans is None else spans.begin
        """Opens a request's record: ``new_trace(request_id, traceparent)``."""
        self._listeners: tuple[Listener, ...] = () if spans is None else (spans.finished,)
        self.keeps_pieces = False
        """See ``Ledger.keeps_pieces``."""

    # --- at the edge: before the body is read -------------------------------------------------------------------------

    def open(self, request_id: str, parent: str = "") -> Trace:
        """Count a request in and return its record; ``submit`` or ``refuse`` must follow."""
        self._observer.started()
        return self.new_trace(request_id, parent)

    def permit(self, size: int = 0, path: str | None = None, rank: int = DEFAULT, tenant: str = "") -> Permit:
        """Let a request in whose body has ``size`` bytes, as far as that is known: before its body is read.

        ``path``: who is asked, if the address names it. Raises ``Draining``, ``Unavailable`` or ``Overloaded``.
        """
        health = self._health
        if health.is_draining:
            raise Draining("this gateway is shutting down", hint="send the request to another one", retry_after=1)
        if not health.first_sync_done:
            raise Unavailable("this gateway has not read its configuration yet", hint="try again", retry_after=1)
        if path is not None:
            self.require_room(path, rank, tenant)
        return self.permits.take(size, rank)

    def require_room(self, path: str, rank: int, tenant: str = "") -> None:
        """Raise ``Overloaded`` if what is at ``path`` has its share of this process, or as much work as it needs."""
        if self._is_full_at(path, rank, tenant):
            raise self.refusal(path, rank)

    def is_full(self, path: str | None, rank: int, tenant: str = "") -> bool:
        """Return whether a request would be refused now for want of room, and for nothing else."""
        permits, health = self.permits, self._health
        return (
            (permits.in_flight >= permits.ceilings[rank] or (path is not None and self._is_full_at(path, rank, tenant)))
            and health.first_sync_done and not health.is_draining
        )  # fmt: skip

    def _is_full_at(self, path: str, rank: int, tenant: str) -> bool:
        found, permits = self._at(path), self.permits
        return self._has_share(found, rank) or (
            (permits.pressure.is_on and permits.look(time.monotonic()))
            and bool(found) and all(endpoint.has_work_enough(rank, tenant) for endpoint in found)
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
        permits = self.permits
        # Who has nothing has no share: the last place may be the one that this request has already.
        return (
            sum(one.leases for one in found) >= max(SHARE * (permits.ceilings[rank] - permits.in_flight), 1)
            and len(self._table.current.endpoints) > len(found)
        )  # fmt: skip

    def refusal(self, path: str | None, rank: int) -> Overloaded:
        """Return the refusal that ``is_full`` tells of."""
        permits = self.permits
        if path is None or permits.is_full(rank):
            return permits.full(rank)
        found = self._at(path)
        if rank != BATCH:  # it has its own half, and ends there
            permits.press((one for endpoint in found for one in endpoint.pressure), time.monotonic())
        return permits.share_is_full(path) if self._has_share(found, rank) else permits.work_is_full(path, rank)

    def refused(self, error: Overloaded, rank: int, path: str | None, seconds: float) -> None:
        """Count a request for ``path``, if that is known, that there was no room for, ``seconds`` after it came."""
        self._observer.refused(error.kind, self._endpoint_at(path), seconds)
        self._count_refusal(error, rank)

    def expect(self, path: str) -> None:
        """Raise at once what a call for ``path`` would be refused with, if there is nothing there; chooses nothing."""
        snapshot = self._table.current
        if path not in snapshot.endpoints and path not in snapshot.canaries:
            snapshot.resolve(path)

    def _endpoint_at(self, path: str | None) -> str:
        """Return what is asked at ``path``, as far as it is served: a refusal for want of room is its failure."""
        found = self._at(path or "")
        return found[0].identity.endpoint if found else ""

    def refuse(
        self, trace: Trace, error: BaseException, refuse: Refuse | None = None, path: str | None = None
    ) -> InFlight:
        """End a request that never became a call: no permit, a body that cannot be read. ``reply`` is there at once.

        ``path``: who was asked, if that is known.
        """
        if isinstance(error, Overloaded):
            trace.endpoint = self._endpoint_at(path)
        call = Call()
        call.refuse = refuse
        flight = InFlight(call, trace, _nobody, self, self._deadlines)
        flight.failed(error)
        return flight

    # --- the way through ----------------------------------------------------------------------------------------------

    def submit(self, call: Call, done: Done, trace: Trace | None = None, send: Send | None = None) -> InFlight:
        """Start to answer ``call``; ``done`` is called with the flight when it has ended. Never awaits, never raises.

        ``send`` takes the pieces of an answer, if the caller wants pieces (``call.streams``) and the endpoint can.
        ``flight.cancel()`` says that nobody waits any more.
        """
        flight = InFlight(call, self.open("") if trace is None else trace, done, self, self._deadlines, send)
        try:
            snapshot = self._table.current
            if call.pin:
                endpoint, route, fallback = snapshot.pinned(call.pin), _PINNED, None
            else:
                key = call.key
                if key is None and call.path in snapshot.canaries:
                    key = call.body_key()
                endpoint, route, fallback = snapshot.resolve(call.path, key)
        except Exception as error:  # noqa: BLE001 - every failure becomes an answer
            flight.failed(error)
        else:
            # Nothing may come between the choice and the lease that `begin` takes: a version that was replaced in
            # between would be closed.
            flight.begin(endpoint, route, fallback, call.timeout or self.timeout)
        return flight

    async def ask(
        self, call: Call, trace: Trace | None = None, send: Send | None = None, watch: Watch | None = None
    ) -> InFlight:
        """Do what ``submit`` does, and return the flight when it has ended; cancelling cancels the flight."""
        return await _until_end(lambda done: self.submit(call, done, trace, send), watch)

    async def call(self, path: str, body: object, timeout: float) -> object:
        """Answer a hook's ``send_request`` in process, counted like any other request; raises ``GatewayError``.

        It needs no permit: the request whose hook calls has one.
        """
        around = TRACEPARENT.get()
        question = Ask(path, body)
        question.timeout = timeout
        try:
            flight = await self.ask(question, self.open("", around))
        finally:
            TRACEPARENT.set(around)
        if flight.error is not None:
            raise flight.error
        return flight.reply

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with the record of every request that ends from now on; returns what ends that."""
        self._listeners = (*self._listeners, listener)

        def leave() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return leave

    def record(self, trace: Trace) -> None:
        """See ``Ledger.record``: metrics, listeners (spans, shadows), log."""
        self._observer.finished(trace)
        for listener in self._listeners:
            listener(trace)
        if isinstance(trace.error, Overloaded):
            self._count_refusal(trace.error, trace.lane.rank)
            if self._access_log:
                _write_log(trace)
        elif trace.error is not None or self._access_log:
            if isinstance(trace.error, DeadlineExceeded) and trace.error.because:
                self._observer.overloaded(trace.error.because, CLASSES[trace.lane.rank])
            _write_log(trace)

    def _count_refusal(self, error: Overloaded, rank: int) -> None:
        """Count it, and say how many there were; a line for each would take longer than refusing."""
        self._observer.overloaded(error.because or "backend", CLASSES[rank])
        self._refused += 1
        now = time.monotonic()
        if error.because == "gateway_full" and now >= self._press_at and rank != BATCH:
            self._press_at = now + _PRESS_EVERY_S
            self.permits.press((one for endpoint in self._filling() for one in endpoint.pressure), now)
        if now >= self._tell_at:
            self._tell_at = now + _TELL_EVERY_S
            _log.info(
                "refused %d requests for want of room", self._refused,
                extra={"code": Overloaded.kind, "refused": self._refused, "in_flight": self.permits.in_flight},
            )  # fmt: skip
            self._refused = 0

    def _filling(self) -> list[Endpoint]:
        """Return who fills this process: who has an eighth of what is in flight, or most of it if nobody has that."""
        endpoints = self._table.current.endpoints.values()
        least = min(self.permits.in_flight / SHARE, max((one.leases for one in endpoints), default=0))
        return [one for one in endpoints if one.leases >= least]

    def fell_back(self, trace: Trace, error: GatewayError, stable: Endpoint) -> None:
        """See ``Ledger.fell_back``."""
        self._observer.fell_back(trace.endpoint, trace.version, error.kind)
        _log.info(
            "request fell back to %s", stable.identity.url,
            extra={"request_id": trace.request_id, "url": trace.url, "code": error.kind, "reason": str(error)[:300]},
        )  # fmt: skip


class _Unrecorded:
    """A ledger for requests that are nobody's: trials of a version and shadows are counted where they are made."""

    keeps_pieces = False

    def __init__(self) -> None:
        self.deadlines = Deadlines(short=math.inf)

    def record(self, trace: Trace) -> None:
        """See ``Ledger.record``."""

    def fell_back(self, trace: Trace, error: GatewayError, stable: Endpoint) -> None:
        """See ``Ledger.fell_back``."""


async def ask_version(endpoint: Endpoint, body: object, timeout: float, trace: Trace) -> object:
    """Return the answer of exactly this version, published or not, to ``body``; counted nowhere.

    Raises ``GatewayError``.
    """
    nobody = _Unrecorded()

    def begin(done: Done) -> InFlight:
        flight = InFlight(Ask(endpoint.identity.url, body), trace, done, nobody, nobody.deadlines)
        flight.begin(endpoint, _PINNED, None, timeout)
        return flight

    flight = await _until_end(begin)
    if flight.error is not None:
        raise flight.error
    return flight.reply


async def _until_end(begin: Callable[[Done], InFlight], watch: Watch | None = None) -> InFlight:
    """Begin a flight and return it when it has ended; who is cancelled while waiting cancels it."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_flight: InFlight) -> None:
        if not ended.done():
            ended.set_result(None)

    flight = begin(wake)
    if flight.state is ENDED:
        return flight
    stop = None if watch is None else watch(flight)
    try:
        await ended
    except asyncio.CancelledError:
        flight.cancel()
        raise
    finally:
        if stop is not None:
            stop()
    return flight


def _nobody(_flight: InFlight) -> None:
    pass


def _write_log(trace: Trace) -> None:
    error = trace.error
    # A caller's mistake is the caller's news; what needs an operator is a warning. gRPC has no status as HTTP has.
    is_news = error is None or 0 < trace.status < 500 or trace.outcome in OF_CALLERS
    level = logging.INFO if is_news else logging.WARNING
    _log.log(
        level,
        "request %s", trace.outcome,
        extra={
            "request_id": trace.request_id, "url": trace.url, "route": trace.route, "status": trace.status,
            **({"trace_id": trace.trace_id} if trace.trace_id else {}),
            "endpoint": trace.endpoint, "version": trace.version, "model_id": trace.model_id, "code": trace.outcome,
            **{f"{stage}_ms": round(getattr(trace, f"{stage}_ns") / 1e6, 3) for stage in _TIMES},
            "reason": "" if error is None else str(error)[:300],
        },
    )  # fmt: skip
