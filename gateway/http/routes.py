"""Inference over HTTP, for every protocol: bytes to a ``Call``, the data plane's answer to bytes.

FastAPI only documents these routes (``ops.py``): a routed, validated FastAPI handler costs several times as much as
tokenizing a short text.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.admission import Permit
from gateway.call import Call
from gateway.callers.access import Access, ByName
from gateway.callers.rights import INFER, PINS, Caller
from gateway.edge.priority import HEADER, flow_of
from gateway.edge.quotas import admit, grow, hold
from gateway.edge.rules import redacting
from gateway.edge.threads import MAX_INLINE_BYTES, in_thread
from gateway.errors import BodyTimeout, ClientGone, MethodNotAllowed, NotAuthenticated, Overloaded
from gateway.http import body as bodies
from gateway.http.addresses import Reading
from gateway.http.browsers import as_page, wants_page
from gateway.http.exchange import Exchange, Outcome, outcome_of
from gateway.http.replies import clean_id, head_of, reply_of, timeout_of
from gateway.http.sse import EventSender
from gateway.path.inflight import ENDED, InFlight, too_late
from gateway.path.submit import DataPlane
from gateway.spec import normalize_url
from gateway.trace import TRACEPARENT, Trace, new_id, parse_traceparent


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that the edge needs; ``timeout`` in seconds. ``max_body_bytes`` 0: the limits of the addresses."""

    max_body_bytes: int
    timeout: float
    key_header: str = "x-routing-key"
    allows_pins: bool = False


class InferRoute:
    """Answers inference requests; the address decides the protocol. ``access`` None: every caller may ask."""

    def __init__(self, plane: DataPlane, limits: Limits, access: Access | None = None) -> None:
        self._plane = plane
        self._access = access
        self._limits = limits
        self._key_header = limits.key_header.lower().encode()

    async def __call__(self, exchange: Exchange, reading: Reading) -> None:
        """Answer one HTTP request: every outcome is an answer, and is counted once. Awaits nothing but outcomes."""
        refuse, path = reading.refuse, reading.path
        headers = dict(exchange.headers)
        parent = parse_traceparent(headers[b"traceparent"]) if b"traceparent" in headers else ""
        TRACEPARENT.set(parent)  # always: all requests of a connection share one context
        plane = self._plane
        trace = plane.open(clean_id(headers.get(b"x-request-id", b"")) or new_id(), parent)
        around = TRACEPARENT.get()
        permit: Permit | None = None
        pieces = EventSender(exchange)
        try:
            try:
                caller = None
                if self._access is not None:
                    caller = trace.caller = await self._caller(self._access, exchange, headers)
                    refuse = redacting(refuse, caller)
                    self._access.require(caller, INFER, path)
                if exchange.method != "POST":
                    raise MethodNotAllowed(f"{exchange.method} is not how an endpoint is called", allow="POST")
                timeout = timeout_of(headers.get(b"x-request-timeout-ms"), self._limits.timeout)
                trace.flow = flow = flow_of(headers.get(HEADER, b""), caller)
                permit = plane.permit(0, path, *flow)
                if path is not None and b"x-route-to" not in headers:
                    plane.expect(path)
                if caller is not None and self._access is not None:
                    await self._admit(trace, self._access, caller, headers)
                call = await self._read(exchange, headers, permit, timeout, reading)
                trace.body_bytes = permit.size
                grow(trace, permit.size)
                self._address(call, headers, timeout)
                if caller is not None:
                    self._check(call, caller, path)
                if call.path != path:
                    path = call.path
                    plane.admission.check(path, *flow)
            except Exception as error:  # noqa: BLE001 - the edge: every failure becomes an answer
                flight = plane.refuse(trace, error, refuse, path)
            else:
                call.refuse = refuse
                TRACEPARENT.set(around)
                ended: Outcome[None] = Outcome()
                flight = plane.submit(call, lambda _: ended.set_result(None), trace, pieces)
                if flight.state is not ENDED:
                    try:
                        await ended
                    except ClientGone:
                        flight.cancel()
            if flight.error is not None and permit is not None:
                permit.release()  # its body is dropped: do not hold room while the client reads its refusal
            if isinstance(flight.error, Overloaded):
                exchange.rest_s = flight.error.retry_after or 1.0
            if pieces.has_begun:
                pieces.end(flight)
            else:
                _write(exchange, flight)
            await exchange.drained()
        finally:
            if permit is not None:
                permit.release()

    async def _read(
        self, exchange: Exchange, headers: ByName, permit: Permit, timeout: float, reading: Reading
    ) -> Call:
        """Read and parse the body, a large one in a thread."""
        limit = self._limits.max_body_bytes or reading.max_bytes(headers.get(b"content-type", b""))
        encoding = headers.get(b"content-encoding", b"")
        if exchange.is_whole and not encoding and exchange.buffered() <= min(limit, MAX_INLINE_BYTES):
            whole = exchange.take()
            permit.hold(len(whole))
            return reading.parse(whole, headers)
        raw: bytes | None = None
        timer = asyncio.get_running_loop().call_later(timeout, exchange.throw, TimeoutError())
        try:
            raw = await bodies.read(
                exchange.receive, limit=limit, announced=headers.get(b"content-length", b""), hold=permit.hold
            )
            if encoding:
                raw = await outcome_of(bodies.unpacked(raw, encoding, limit=limit))
                permit.hold(len(raw))
            if len(raw) > MAX_INLINE_BYTES:
                return await outcome_of(in_thread(reading.parse, raw, headers))
        except TimeoutError:
            if raw is not None:
                raise too_late(timeout) from None
            raise BodyTimeout(f"the body did not arrive within {timeout:g} s") from None
        finally:
            timer.cancel()
        return reading.parse(raw, headers)

    async def _caller(self, access: Access, exchange: Exchange, headers: ByName) -> Caller:
        if len(headers) != len(exchange.headers):
            access.check_once(name for name, _ in exchange.headers)
        try:
            return access.caller_of(headers, exchange.names)
        except NotAuthenticated as error:  # an issuer's keys may have changed
            if not error.ask_again or access.renew is None or not await outcome_of(access.renew(error.ask_again)):
                raise
        return access.caller_of(headers, exchange.names)

    async def _admit(self, trace: Trace, access: Access, caller: Caller, headers: ByName) -> None:
        announced = headers.get(b"content-length", b"")
        size = int(announced) if announced.isdigit() else 0
        quota = access.quota_of(caller)
        if access.shared_quotas is None:
            hold(trace, quota, size)
        elif quota is not None:
            await outcome_of(admit(trace, access, caller, size))

    def _address(self, call: Call, headers: ByName, timeout: float) -> None:
        call.timeout = min(call.timeout or timeout, timeout)
        key = headers.get(self._key_header)
        if key:
            call.key = key.decode("latin-1")
        if self._limits.allows_pins and b"x-route-to" in headers:
            call.pin = normalize_url(headers[b"x-route-to"].decode("latin-1"), None)

    def _check(self, call: Call, caller: Caller, path: str | None) -> None:
        """Raise ``NotPermitted`` if the body or a pin names an endpoint that the caller may not use."""
        if self._access is not None:
            if call.path != path:
                self._access.require(caller, INFER, call.path)
            if call.pin:
                self._access.require(caller, PINS, call.pin)


def _write(exchange: Exchange, flight: InFlight) -> None:
    """Write a whole answer, or a refusal."""
    content, endpoint = flight.reply, flight.endpoint
    if type(content) is bytes and endpoint is not None:
        exchange.write(head_of(flight.trace, endpoint.head, len(content)), content)
    elif not exchange.has_left:
        status, lines, content = reply_of(flight)
        if flight.error is not None and exchange.method != "POST" and wants_page(exchange.headers):
            lines, content = as_page(status, lines, content)
        exchange.reply(status, lines, content)
