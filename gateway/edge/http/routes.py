"""Inference over HTTP, for every protocol: bytes to a ``Call``, the data plane's answer to bytes.

``InferRoute`` is a bare ASGI callable. FastAPI only documents these routes (``ops.py``): a routed, validated FastAPI
handler costs several times as much as tokenizing a short text. ``FastPath`` does the same without a task, for requests
that were received in one read and need nothing special.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from gateway.admission import Permit
from gateway.call import Call, Refuse
from gateway.callers.access import Access, Names
from gateway.callers.quotas import Quota
from gateway.callers.rights import INFER, PINS, Caller
from gateway.dataplane.inflight import ENDED, InFlight, too_late
from gateway.dataplane.submit import DataPlane
from gateway.edge.http import body as bodies
from gateway.edge.http.addresses import Addresses, Reading
from gateway.edge.http.edge import (
    DisconnectWatch,
    Receive,
    Scope,
    Send,
    clean_id,
    drained,
    head_of,
    names_of,
    pause,
    reply_of,
    send_reply,
    timeout_of,
)
from gateway.edge.http.fast import HeadCache, PendingReply, checked
from gateway.edge.http.gate import Gate
from gateway.edge.http.protocol import HeaderList
from gateway.edge.http.sse import EventSender
from gateway.edge.priority import HEADER, flow_of
from gateway.edge.quotas import admit, grow, hold
from gateway.edge.rules import redacting
from gateway.edge.threads import MAX_INLINE_BYTES, in_thread
from gateway.errors import (
    BodyTimeout,
    ClientGone,
    MethodNotAllowed,
    NotAuthenticated,
    NotPermitted,
    Overloaded,
    RequestError,
)
from gateway.spec import normalize_url
from gateway.trace import CRITICAL, TRACEPARENT, Flow, new_id, parse_traceparent

_FAST_BYTES: Final = 64 << 10
_NOT_FAST: Final = frozenset({b"content-encoding", b"x-request-timeout-ms", b"traceparent", b"x-route-to"})
_HEADS_OF_CLIENT: Final = 32
"""Heads that are cached for each client certificate. It is small because there may be thousands of clients."""
_MAY_STREAM: Final = b'"stream"'
_ID_PLACEHOLDER: Final = b"@" * len(new_id())
"""Stands for the request id in a rendered refusal."""
_MAX_REFUSALS: Final = 64


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send, reading: Reading) -> None:
        """Answer one HTTP request: every outcome is an answer, and is counted once."""
        refuse, path = reading.refuse, reading.path
        headers = dict(scope["headers"])
        parent = parse_traceparent(headers[b"traceparent"]) if b"traceparent" in headers else ""
        TRACEPARENT.set(parent)  # always: a server may answer several requests in one context
        plane = self._plane
        request_id = clean_id(headers.get(b"x-request-id", b"")) or new_id()
        trace = plane.open(request_id, parent)
        permit: Permit | None = None
        pieces = EventSender(send)
        try:
            try:
                caller = trace.caller = None
                if self._access is not None:
                    if len(headers) != len(scope["headers"]):
                        self._access.check_once(name for name, _ in scope["headers"])
                    caller = self._access.recent(headers) or await self._access.caller(headers, names_of(scope))
                    trace.caller = caller
                    refuse = redacting(refuse, caller)
                    self._access.require(caller, INFER, path)
                if scope["method"] != "POST":
                    raise MethodNotAllowed(f"{scope['method']} is not how an endpoint is called", allow="POST")
                timeout = timeout_of(headers.get(b"x-request-timeout-ms"), self._limits.timeout)
                trace.flow = flow = flow_of(headers.get(HEADER, b""), caller)
                permit = plane.permit(0, path, *flow)
                if path is not None and b"x-route-to" not in headers:
                    plane.expect(path)
                if caller is not None and self._access is not None:
                    announced = headers.get(b"content-length", b"")
                    await admit(trace, self._access, caller, int(announced) if announced.isdigit() else 0)
                call = await self._read(receive, headers, permit, timeout, reading)
                trace.body_bytes = permit.size
                grow(trace, permit.size)
                self._address(call, headers, timeout)
                if caller is not None:
                    self._check(call, caller, path)
                if call.path != path:
                    path = call.path
                    plane.admission.check(path, *flow)
            except asyncio.CancelledError as error:
                plane.refuse(trace, error)
                raise
            except Exception as error:  # noqa: BLE001 - the edge: every failure becomes an answer
                flight = plane.refuse(trace, error, refuse, path)
            else:
                call.refuse = refuse
                flight = await plane.ask(call, trace, pieces, lambda flight: DisconnectWatch(receive, flight).stop)
            if flight.error is not None and permit is not None:
                permit.release()  # its body is dropped: do not hold room while the client reads its refusal
            if isinstance(flight.error, Overloaded):
                pause(scope, partial(plane.admission.is_full, path, *trace.flow))
            if not isinstance(flight.error, ClientGone):
                await (pieces.end(flight) if pieces.has_begun else send_reply(scope, send, *reply_of(flight)))
                await drained(scope)
        finally:
            if permit is not None:
                permit.release()

    async def _read(
        self, receive: Receive, headers: Mapping[bytes, bytes], permit: Permit, timeout: float, reading: Reading
    ) -> Call:
        """Read and parse the body, a large one in a thread."""
        limit = self._limits.max_body_bytes or reading.max_bytes(headers.get(b"content-type", b""))
        raw: bytes | None = None
        try:
            async with asyncio.timeout(timeout):
                raw = await bodies.read(
                    receive, limit=limit, announced=headers.get(b"content-length", b""), hold=permit.hold
                )
                encoding = headers.get(b"content-encoding", b"")
                if encoding:
                    raw = await bodies.unpacked(raw, encoding, limit=limit)
                    permit.hold(len(raw))
                if len(raw) > MAX_INLINE_BYTES:
                    return await in_thread(reading.parse, raw, headers)
        except TimeoutError:
            if raw is not None:
                raise too_late(timeout) from None
            raise BodyTimeout(f"the body did not arrive within {timeout:g} s") from None
        return reading.parse(raw, headers)

    def _address(self, call: Call, headers: Mapping[bytes, bytes], timeout: float) -> None:
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


class ParsedHead(NamedTuple):
    """A request's head as the fast path needs it."""

    reading: Reading
    request_id: str
    key: str | None
    headers: Mapping[bytes, bytes]
    caller: Caller | None
    quota: Quota | None
    flow: Flow


class FastPath:
    """Answers the common request of every protocol without a task; see ``fast``.

    It gives the same answers as ``InferRoute``, which handles all other requests: bodies in parts or encoded, a
    caller's time-out, traces, pins, streams.
    """

    def __init__(
        self,
        plane: DataPlane,
        limits: Limits,
        addresses: Addresses,
        access: Access | None = None,
        *,
        gate: Gate,
    ) -> None:
        self.prefixes = tuple(b"POST " + start for start in addresses.starts)
        self.max_bytes = min(_FAST_BYTES, limits.max_body_bytes or _FAST_BYTES)
        self.heads = HeadCache()
        self.admin_port = gate.admin_port
        self._gate = gate
        self._heads_of: WeakValueDictionary[Names, HeadCache] = WeakValueDictionary()
        self._access = access
        self._refusals: dict[tuple[Refuse, str, float | None], tuple[bytes, bytes]] = {}
        """Rendered refusals by protocol, message and ``Retry-After``."""
        if access is not None:
            # A cached head includes its caller, so that checking the key again costs next to nothing.
            access.on_change(self._forget)
        self._permits = plane.permits
        self._plane = plane
        self._addresses = addresses
        self._key_header = limits.key_header.lower().encode()

    def cache_for(self, names: Names) -> HeadCache:
        """See ``fast.FastPathLike``."""
        found = self._heads_of.get(names)
        if found is None:
            found = self._heads_of[names] = HeadCache(_HEADS_OF_CLIENT)  # lives as long as a connection uses it
        return found

    def _forget(self) -> None:
        for heads in (self.heads, *self._heads_of.values()):
            heads.clear()

    def parse_head(self, path: str, headers: HeaderList, names: Names = ()) -> ParsedHead | None:
        """See ``fast.FastPathLike``."""
        by_name = dict(headers)
        reading = self._addresses.at(path)
        if reading is None or not _NOT_FAST.isdisjoint(by_name) or not self._gate.is_for_us(headers):
            return None
        caller = quota = None
        if self._access is not None:
            try:
                if len(by_name) != len(headers):
                    self._access.check_once((name for name, _ in headers), counts=False)
                caller = self._access.caller_of(by_name, names, counts=False)
                caller.require(INFER, reading.path)
            except (NotAuthenticated, NotPermitted):
                return None  # the ordinary path refuses and counts it
            reading = reading._replace(refuse=redacting(reading.refuse, caller))
            quota = self._access.quota_of(caller)
            if quota is not None and self._access.shared_quotas is not None:
                return None  # the store must be asked
        try:
            flow = flow_of(by_name.get(HEADER, b""), caller)
        except RequestError:
            return None  # as above
        key = by_name.get(self._key_header, b"").decode("latin-1")
        return ParsedHead(
            reading, clean_id(by_name.get(b"x-request-id", b"")), key or None, by_name, caller, quota, flow
        )

    def is_full(self, plain: ParsedHead) -> bool:
        """See ``fast.FastPathLike``."""
        permits = self._permits
        return permits.in_flight >= permits.easy[plain.flow.rank] and self._plane.admission.is_full(
            plain.reading.path, *plain.flow
        )

    def is_urgent(self, plain: ParsedHead) -> bool:
        """See ``fast.FastPathLike``."""
        return plain.flow.rank == CRITICAL

    def refusal(self, plain: ParsedHead, seconds: float) -> tuple[bytes, bytes] | None:
        """See ``fast.FastPathLike``."""
        plane, refuse = self._plane, plain.reading.refuse
        if plain.request_id or not plane.is_quiet:
            return None
        rank = plain.flow.rank
        error = plane.admission.refusal(plain.reading.path, rank)
        key = (refuse, error.message, error.retry_after)
        made = self._refusals.get(key)
        if made is None:
            if len(self._refusals) >= _MAX_REFUSALS:
                self._refusals.clear()
            made = self._refusals[key] = _refusal(refuse, error)
        plane.admission.refused(error, rank, plain.reading.path, seconds)
        head, body = made
        request_id = new_id().encode()
        return head.replace(_ID_PLACEHOLDER, request_id), body.replace(_ID_PLACEHOLDER, request_id)

    def try_answer(self, pending: PendingReply, plain: ParsedHead, body: bytes) -> bool:
        """See ``fast.FastPathLike``."""
        if _MAY_STREAM in body:
            return False
        plane = self._plane
        reading, request_id, key, headers, caller, quota, flow = plain
        refuse, path = reading.refuse, reading.path
        trace = plane.open(request_id or new_id())
        try:
            trace.body_bytes = size = len(body)
            trace.flow = flow
            pending.permit = plane.permit(size, None, flow.rank)
            trace.caller = caller
            if quota is not None:
                hold(trace, quota, size)
            call = reading.parse(body, headers)
            if caller is not None and not caller.reaches(call.path):  # the body may name it
                self._access.require(caller, INFER, call.path)  # type: ignore[union-attr]
            if call.path != path:  # the body names it, so `is_full` did not know it
                path = call.path
                if self._permits.in_flight >= self._permits.easy[flow.rank]:
                    plane.admission.check(path, *flow)
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes an answer
            if isinstance(error, Overloaded):
                pending.pause(partial(plane.admission.is_full, path, *trace.flow))
            pending.reply(*reply_of(plane.refuse(trace, error, refuse, path)))
            return True
        call.key = key
        call.refuse = refuse
        if call.timeout > plane.timeout:
            call.timeout = plane.timeout
        flight = plane.submit(call, partial(_write, pending, plane, call.path), trace)
        if flight.state is not ENDED:
            pending.give_up = flight.cancel
        return True


def _refusal(refuse: Refuse, error: Overloaded) -> tuple[bytes, bytes]:
    """Return head and body of a refusal with ``_ID_PLACEHOLDER`` as request id."""
    status, headers, content = refuse(error, _ID_PLACEHOLDER.decode())
    length = (b"content-length", str(len(content)).encode())
    return checked(status, [*headers, (b"x-request-id", _ID_PLACEHOLDER), length], content)


def _write(pending: PendingReply, plane: DataPlane, path: str, flight: InFlight) -> None:
    content, endpoint = flight.reply, flight.endpoint
    try:
        if type(content) is bytes and endpoint is not None:
            pending.send(head_of(flight.trace, endpoint.head, len(content)), content)
        else:
            if isinstance(flight.error, Overloaded):
                pending.pause(partial(plane.admission.is_full, path, *flight.trace.flow))
            pending.reply(*reply_of(flight))
    except BaseException:
        pending.abort()
        raise
