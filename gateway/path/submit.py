"""THE HOT PATH. If you read one file, read this one, and then ``inflight.py``.

An edge has read a request and a protocol has made a ``Call`` of it. ``submit`` takes the call to the endpoint version
that answers it: it chooses and leases the version in one step, sets the deadline and starts the endpoint. ``done`` is
called exactly once. This is the same for every protocol and transport. A coroutine (ASGI, gRPC, a hook that calls
another endpoint) uses ``ask``, which is ``submit`` and a future.

Before that, the edge takes a permit. It does so before it reads the body, and returns the permit after the last byte
of the reply (``admission`` decides who is refused). After that, ``InFlight`` owns the one end of a request and the
fallback of a failed canary, and ``records`` records it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.admission import Permit, Permits
from gateway.call import Call, InternalCall, Refuse
from gateway.errors import Draining, Overloaded
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.path.admission import AdmissionControl
from gateway.path.coroutines import PINNED, Watch, wait_until_ended
from gateway.path.deadlines import Deadlines
from gateway.path.inflight import Done, InFlight, Send
from gateway.path.records import Records
from gateway.path.routing.snapshot import not_read_yet
from gateway.path.routing.table import RoutingTable
from gateway.trace import DEFAULT, TRACEPARENT, Trace


class RequestSpans(Protocol):
    """Makes spans of requests; see ``spans``."""

    def begin(self, request_id: str, parent: str = "") -> Trace:
        """Open a request's trace."""
        ...

    def finished(self, trace: Trace) -> None:
        """Export a request that has ended."""
        ...


class DataPlane:
    """Answers calls from the current snapshot. One per event loop. Only the deadlines refer to requests.

    ``timeout``: seconds that a request may take if its caller sets no limit.
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
        self.admission = AdmissionControl(table, permits, observer)
        self.records = Records(observer, self.admission, access_log=access_log)
        self.new_trace: Callable[..., Trace] = Trace if spans is None else spans.begin
        """Opens a request's trace: ``new_trace(request_id, traceparent)``."""
        if spans is not None:
            self.records.subscribe(spans.finished)
        self._table = table
        self._observer = observer
        self._health = health
        self._deadlines = Deadlines()

    # --- at the edge: before the body is read -------------------------------------------------------------------------

    def open(self, request_id: str, parent: str = "") -> Trace:
        """Count a new request and return its trace; ``submit`` or ``refuse`` must follow."""
        self._observer.started()
        return self.new_trace(request_id, parent)

    def permit(self, size: int = 0, path: str | None = None, rank: int = DEFAULT, tenant: str = "") -> Permit:
        """Admit a request before its body is read; ``size`` is the body's bytes, as far as they are known.

        ``path``: the endpoint, if the address names it. Raises ``Draining``, ``Unavailable`` or ``Overloaded``.
        """
        health = self._health
        if health.is_draining:
            raise Draining("this gateway is shutting down", hint="send the request to another one", retry_after=1)
        if not health.first_sync_done:
            raise not_read_yet()
        if path is not None:
            self.admission.check(path, rank, tenant)
        return self.permits.take(size, rank)

    def expect(self, path: str) -> None:
        """Raise the error of a call for ``path`` if nothing is served there. Chooses no version."""
        snapshot = self._table.current
        if path not in snapshot.endpoints and path not in snapshot.canaries:
            snapshot.resolve(path)

    def refuse(
        self, trace: Trace, error: BaseException, refuse: Refuse | None = None, path: str | None = None
    ) -> InFlight:
        """End a request that never became a call, e.g. one without a permit. ``reply`` is set at once.

        ``path``: the endpoint, if it is known.
        """
        if isinstance(error, Overloaded):
            trace.endpoint = self.admission.endpoint_at(path)
        call = Call()
        call.refuse = refuse
        flight = InFlight(call, trace, _do_nothing, self.records, self._deadlines)
        flight.failed(error)
        return flight

    # --- after the body was read --------------------------------------------------------------------------------------

    def submit(self, call: Call, done: Done, trace: Trace | None = None, send: Send | None = None) -> InFlight:
        """Start to answer ``call``; ``done`` gets what is returned, when it has ended. Never awaits, never raises.

        ``send`` gets the pieces of an answer, if the caller wants them (``call.streams``) and the endpoint can stream.
        Call ``cancel()`` of what is returned if the caller leaves.
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
        except Exception as error:  # noqa: BLE001 - every failure becomes a reply
            flight.failed(error)
        else:
            # No code may run between the choice and the lease in ``begin``: a version that is replaced in between
            # would be closed.
            flight.begin(endpoint, route, fallback, call.timeout or self.timeout)
        return flight

    async def ask(
        self, call: Call, trace: Trace | None = None, send: Send | None = None, watch: Watch | None = None
    ) -> InFlight:
        """Submit a call and return the request when it has ended; cancelling this coroutine cancels the request."""
        return await wait_until_ended(lambda done: self.submit(call, done, trace, send), watch)

    async def call(self, path: str, body: object, timeout: float) -> object:
        """Answer a hook's ``send_request`` in this process, counted like any request. Raises ``GatewayError``.

        It needs no permit, because the request that the hook works on has one.
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


def _do_nothing(_flight: InFlight) -> None:
    pass
