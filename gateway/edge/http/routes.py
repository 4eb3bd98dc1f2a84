"""Inference over HTTP, for every protocol: bytes to a ``Call``, the data plane's answer to bytes.

``InferRoute`` is the whole of it as a bare ASGI callable; FastAPI documents these routes (``ops.py``) but does not
stand in their way: a routed, validated FastAPI handler costs several times what tokenizing a short text does.
``FastPath`` is the same without a task for requests that came whole and need nothing special.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from gateway.admission import Permit
from gateway.call import Call, Refuse
from gateway.dataplane.inflight import ENDED, InFlight
from gateway.dataplane.submit import DataPlane
from gateway.edge.http import body as bodies
from gateway.edge.http.edge import (
    NO_EXTENSIONS,
    Departure,
    Receive,
    Scope,
    Send,
    clean_id,
    head_of,
    reply_of,
    timeout_of,
)
from gateway.edge.http.fast import EXTENSION, Heads, PendingReply
from gateway.edge.http.problems import problem
from gateway.edge.http.protocol import HeaderList
from gateway.edge.http.sse import EventSender
from gateway.errors import BodyTimeout, ClientGone, MethodNotAllowed
from gateway.protocols.serve import ServeCall
from gateway.spec import normalize_url
from gateway.trace import TRACEPARENT, parse_traceparent

Parse = Callable[[bytes, Mapping[bytes, bytes]], Call]
"""``parse(body, headers)``: a protocol's reading of a request. Raises ``GatewayError``."""

CHAT: Final = "/v1/chat/completions"
"""What huggingface_hub puts behind an endpoint's address to chat with it."""

_FAST_BYTES: Final = 64 << 10
_NOT_FAST: Final = frozenset({b"content-encoding", b"x-request-timeout-ms", b"traceparent", b"x-route-to"})
_MAY_STREAM: Final = b'"stream"'


@dataclass(frozen=True, slots=True)
class Limits:
    """What the edge needs of the settings; ``timeout`` in seconds. ``key_field``: where a body has a routing key."""

    max_body_bytes: int
    timeout: float
    key_header: str = "x-routing-key"
    key_field: str = ""
    allows_pins: bool = False


class InferRoute:
    """Answers inference requests; which protocol they are in, the caller says."""

    def __init__(self, plane: DataPlane, limits: Limits) -> None:
        self._plane = plane
        self._limits = limits
        self._key_header = limits.key_header.lower().encode()

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, parse: Parse, refuse: Refuse, path: str | None = None
    ) -> None:
        """Answer one HTTP request: every outcome is an answer, and is counted once.

        ``path``: who is asked, if the address says so: if there is nobody, nothing is read.
        """
        headers = dict(scope["headers"])
        parent = parse_traceparent(headers[b"traceparent"]) if b"traceparent" in headers else ""
        TRACEPARENT.set(parent)  # always: a server may answer several requests in one context
        plane = self._plane
        request_id = clean_id(headers.get(b"x-request-id", b"")) or f"{random.getrandbits(64):016x}"
        trace = plane.open(request_id, parent)
        permit: Permit | None = None
        pieces = EventSender(send)
        try:
            try:
                if scope["method"] != "POST":
                    raise MethodNotAllowed(f"{scope['method']} is not how an endpoint is called", hint="use POST")
                timeout = timeout_of(headers.get(b"x-request-timeout-ms"), self._limits.timeout)
                permit = plane.permit()
                if path is not None and b"x-route-to" not in headers:
                    plane.expect(path)
                raw = await self._read(receive, headers, permit, timeout)
                call = parse(raw, headers)
                self._address(call, headers, timeout)
            except asyncio.CancelledError as error:
                plane.refuse(trace, error)
                raise
            except Exception as error:  # noqa: BLE001 - the edge: every failure becomes an answer
                flight = plane.refuse(trace, error, refuse)
            else:
                del raw
                call.refuse = refuse
                flight = await plane.ask(call, trace, pieces, lambda flight: Departure(receive, flight).stop)
            if not isinstance(flight.error, ClientGone):
                await (pieces.end(flight) if pieces.has_begun else _send(scope, send, flight))
        finally:
            if permit is not None:
                permit.release()

    async def _read(self, receive: Receive, headers: Mapping[bytes, bytes], permit: Permit, timeout: float) -> bytes:
        limit = self._limits.max_body_bytes
        try:
            async with asyncio.timeout(timeout):
                raw = await bodies.read(
                    receive, limit=limit, announced=headers.get(b"content-length", b""), hold=permit.hold
                )
                encoding = headers.get(b"content-encoding", b"")
                if encoding:
                    raw = await bodies.unpacked(raw, encoding, limit=limit)
                    permit.hold(len(raw))
                return raw
        except TimeoutError:
            raise BodyTimeout(f"the body did not arrive within {timeout:g} s") from None

    def _address(self, call: Call, headers: Mapping[bytes, bytes], timeout: float) -> None:
        call.timeout = min(call.timeout or timeout, timeout)
        key = headers.get(self._key_header)
        if key:
            call.key = key.decode("latin-1")
        if self._limits.allows_pins and b"x-route-to" in headers:
            call.pin = normalize_url(headers[b"x-route-to"].decode("latin-1"), None)


class ServeRoute:
    """``POST /serve/{endpoint}`` under one prefix (``/serve/``)."""

    def __init__(self, route: InferRoute, limits: Limits, *, prefix: str) -> None:
        self._route = route
        self._prefix_length = len(prefix)
        self._key_field = _names(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        query, version = scope["query_string"], None
        if query:
            version = parse_qs(query.decode("latin-1")).get("version", [None])[0]
        path = normalize_url(scope["path"][self._prefix_length :], version)
        key_field = self._key_field

        def parse(raw: bytes, headers: Mapping[bytes, bytes]) -> Call:
            return ServeCall(path, raw, headers.get(b"content-type", b""), key_field)

        await self._route.answer(scope, receive, send, parse, problem, path)


class Plain(NamedTuple):
    """What the fast path has to know of a request's head."""

    url: str
    request_id: str
    key: str | None
    content_type: bytes


class FastPath:
    """Takes the common request without a task of its own; see ``fast``. The same answers as ``ServeRoute``, which
    gets what is not plain: bodies in parts or encoded, time-outs of the caller's, traces, pins, streams.
    """

    def __init__(self, plane: DataPlane, limits: Limits, *, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.most_bytes = min(_FAST_BYTES, limits.max_body_bytes)
        self.heads = Heads()
        self._plane = plane
        self._prefix_length = len(prefix)
        self._key_header = limits.key_header.lower().encode()
        self._key_field = _names(limits)

    def read(self, path: str, headers: HeaderList) -> Plain | None:
        """See ``fast.FastPathLike``."""
        request_id = key = ""
        content_type = b""
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"x-request-id":
                request_id = clean_id(value)
            elif name == self._key_header:
                key = value.decode("latin-1")
            elif name in _NOT_FAST:
                return None
        if path.endswith(CHAT):
            return None
        return Plain(normalize_url(path[self._prefix_length :], None), request_id, key or None, content_type)

    def take(self, pending: PendingReply, plain: Plain, body: bytes) -> bool:
        """See ``fast.FastPathLike``."""
        if _MAY_STREAM in body:
            return False
        plane = self._plane
        trace = plane.open(plain.request_id or f"{random.getrandbits(64):016x}")
        try:
            pending.permit = plane.permit(len(body))
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes an answer
            pending.reply(*reply_of(plane.refuse(trace, error, problem)))
            return True
        call = ServeCall(plain.url, body, plain.content_type, self._key_field)
        call.key = plain.key
        call.refuse = problem
        flight = plane.submit(call, partial(_write, pending), trace)
        if flight.state is not ENDED:
            pending.give_up = flight.cancel
        return True


def _write(pending: PendingReply, flight: InFlight) -> None:
    content, endpoint = flight.reply, flight.endpoint
    try:
        if type(content) is bytes and endpoint is not None:
            pending.send(head_of(flight.trace, endpoint.head, len(content)), content)
        else:
            pending.reply(*reply_of(flight))
    except BaseException:
        pending.abort()
        raise


def _names(limits: Limits) -> list[str]:
    return limits.key_field.split(".") if limits.key_field else []


async def _send(scope: Scope, send: Send, flight: InFlight) -> None:
    status, headers, content = reply_of(flight)
    reply = scope.get("extensions", NO_EXTENSIONS).get(EXTENSION)
    if reply is not None and reply(status, headers, content):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
