"""THE HOT PATH. If you read one file, read this one, and then ``inflight.py``.

An edge has read a request and a protocol has made a ``Call`` of it; ``submit`` takes it to the endpoint version that
answers. The version is chosen and held in one step, the deadline is armed, the endpoint starts, and ``done`` is called
exactly once. That is the same for every protocol and every transport; a coroutine (ASGI, gRPC, a hook that calls
another endpoint) uses ``ask``, which is ``submit`` and a future.

What comes before belongs to the edge: a permit, taken before the body is read and given back after the last byte was
written (``room`` says who is refused). What comes after is in ``InFlight``: the one end of a request, and the fallback
of a failed canary; ``records`` writes it down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.admission import Permit, Permits
from gateway.call import Call, InternalCall, Refuse
from gateway.dataplane.admission import AdmissionControl
from gateway.dataplane.coroutines import PINNED, Watch, wait_until_ended
from gateway.dataplane.deadlines import Deadlines
from gateway.dataplane.inflight import Done, InFlight, Send
from gateway.dataplane.records import Records
from gateway.dataplane.routing.table import RoutingTable
from gateway.errors import Draining, Overloaded, Unavailable
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.trace import DEFAULT, TRACEPARENT, Trace


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
        self.admission = AdmissionControl(table, permits, observer, health)
        self.records = Records(observer, self.admission, access_log=access_log)
        self.is_quiet = spans is None and not access_log
        """Whether a request that is refused at once leaves nothing but a number."""
        self.new_trace: Callable[..., Trace] = Trace if spans is None else spans.begin
        """Opens a request's record: ``new_trace(request_id, traceparent)``."""
        if spans is not None:
            self.records.subscribe(spans.finished)
        self._table = table
        self._observer = observer
        self._health = health
        self._deadlines = Deadlines()

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
            self.admission.check(path, rank, tenant)
        return self.permits.take(size, rank)

    def expect(self, path: str) -> None:
        """Raise at once what a call for ``path`` would be refused with, if there is nothing there; chooses nothing."""
        snapshot = self._table.current
        if path not in snapshot.endpoints and path not in snapshot.canaries:
            snapshot.resolve(path)

    def refuse(
        self, trace: Trace, error: BaseException, refuse: Refuse | None = None, path: str | None = None
    ) -> InFlight:
        """End a request that never became a call: no permit, a body that cannot be read. ``reply`` is there at once.

        ``path``: who was asked, if that is known.
        """
        if isinstance(error, Overloaded):
            trace.endpoint = self.admission.endpoint_at(path)
        call = Call()
        call.refuse = refuse
        flight = InFlight(call, trace, _nobody, self.records, self._deadlines)
        flight.failed(error)
        return flight

    # --- the way through ----------------------------------------------------------------------------------------------

    def submit(self, call: Call, done: Done, trace: Trace | None = None, send: Send | None = None) -> InFlight:
        """Start to answer ``call``; ``done`` is called with the flight when it has ended. Never awaits, never raises.

        ``send`` takes the pieces of an answer, if the caller wants pieces (``call.streams``) and the endpoint can.
        ``flight.cancel()`` says that nobody waits any more.
        """
        if trace is None:
            trace = self.open("")
        flight = InFlight(call, trace, done, self.records, self._deadlines, send)
        try:
            snapshot = self._table.current
            if call.pin:
                endpoint, route, fallback = snapshot.pinned(call.pin), PINNED, None
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
        return await wait_until_ended(lambda done: self.submit(call, done, trace, send), watch)

    async def call(self, path: str, body: object, timeout: float) -> object:
        """Answer a hook's ``send_request`` in process, counted like any other request; raises ``GatewayError``.

        It needs no permit: the request whose hook calls has one.
        """
        around = TRACEPARENT.get()
        question = InternalCall(path, body)
        question.timeout = timeout
        try:
            flight = await self.ask(question, self.open("", around))
        finally:
            TRACEPARENT.set(around)
        if flight.error is not None:
            raise flight.error
        return flight.reply


def _nobody(_flight: InFlight) -> None:
    pass
