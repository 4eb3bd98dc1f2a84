"""Shared by all inference routes at the HTTP edge: detecting that a client has left, and the headers of answers.

It has no routing, protocols or endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import quote

from gateway.call import Headers, Reply
from gateway.callers.access import Names
from gateway.dataplane.inflight import InFlight
from gateway.edge.http.fast import EXTENSION
from gateway.edge.http.protocol import DRAINED, NAMES, PAUSE
from gateway.edge.quotas import quota_head, quota_left
from gateway.errors import RequestError
from gateway.trace import Trace

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NO_EXTENSIONS: Final[dict[str, Any]] = {}

_JSON: Final = (b"content-type", b"application/json")
_WATCH_AFTER_S: Final = 0.1
"""Seconds before the watch for a disconnect starts. Most requests are answered sooner and cost only the timer."""


class DisconnectWatch:
    """Cancels a request if its client disconnects; see ``asking.Watch``. ``receive``: the request's ASGI channel."""

    __slots__ = ("_flight", "_listener", "_receive", "_timer")

    def __init__(self, receive: Receive, flight: InFlight) -> None:
        self._receive = receive
        self._flight: InFlight | None = flight
        self._listener: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._listen)

    def stop(self) -> None:
        """End the watch."""
        self._timer.cancel()
        self._flight = None
        # The task of a cancelled listener refers to this object: without the reference to it, both are freed at once.
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()

    def _listen(self) -> None:
        self._listener = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._flight is not None:
            self._flight.cancel()


def reply_of(flight: InFlight) -> tuple[int, Headers, bytes]:
    """Return status, headers and body for a request that has ended."""
    trace, reply = flight.trace, flight.reply
    status, headers, content = reply if type(reply) is Reply else (200, [_JSON], reply)
    if flight.error is not None or flight.endpoint is None:
        own: Headers = [(b"x-request-id", trace.request_id.encode()), *served_by(trace)]
    else:
        own = [*flight.endpoint.headers, *labels(trace)]
    if trace.quota is not None:
        own += quota_left(trace)
    return status, [*headers, *own, (b"content-length", str(len(content)).encode())], content


async def send_reply(scope: Scope, send: Send, status: int, headers: Headers, content: bytes) -> None:
    """Send a whole answer, in one write if the server can; the headers must include ``content-length``."""
    at_once = scope.get("extensions", _NO_EXTENSIONS).get(EXTENSION)
    if at_once is not None and at_once(status, headers, content):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def drained(scope: Scope) -> None:
    """Return when the write buffer has room again, or the client has left."""
    wait = scope.get("extensions", _NO_EXTENSIONS).get(DRAINED)
    if wait is not None:
        await wait()


def pause(scope: Scope, is_full: Callable[[], bool]) -> None:
    """Pause the connection of a request that is refused for want of room, until ``is_full()`` is false."""
    begin = scope.get("extensions", _NO_EXTENSIONS).get(PAUSE)
    if begin is not None:
        begin(is_full)


def names_of(scope: Scope) -> Names:
    """Return the names in the client's certificate; empty if it has shown none."""
    found: Names = scope.get("extensions", _NO_EXTENSIONS).get(NAMES, ())
    return found


def served_by(trace: Trace) -> Headers:
    """Return the headers of a refusal that name the chosen version; none if no version was chosen."""
    if not trace.url:
        return []
    return [
        (b"x-served-by", quote(trace.url, safe="/").encode()),
        (b"x-model-id", trace.model_id.encode("unicode_escape")),  # a user chose it: escape line breaks
        (b"x-route", trace.route.encode()),
    ]


def labels(trace: Trace) -> Headers:
    """Return the headers that describe a request in every answer: id, route and stage times in milliseconds."""
    return [
        (b"x-request-id", trace.request_id.encode()),
        (b"x-route", trace.route.encode()),
        (b"x-total-time", _ms(trace.total_ns)),
        (b"x-tokenization-time", _ms(trace.prepare_ns)),
        (b"x-queue-time", _ms(trace.queue_ns)),
        (b"x-inference-time", _ms(trace.infer_ns)),
        (b"x-compute-time", _ms(trace.prepare_ns + trace.infer_ns + trace.finish_ns)),
    ]


_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bx-request-id: %b\r\nx-route: %b\r\nx-total-time: %.3f\r\n"
    b"x-tokenization-time: %.3f\r\nx-queue-time: %.3f\r\nx-inference-time: %.3f\r\nx-compute-time: %.3f\r\n"
    b"content-length: %d\r\n"
)


def head_of(trace: Trace, endpoint_head: bytes, length: int) -> bytes:
    """Return the whole head of a JSON answer as bytes, without the empty line that ends it."""
    if trace.quota is not None:
        endpoint_head += quota_head(trace)
    prepare, infer = trace.prepare_ns, trace.infer_ns
    return _HEAD % (
        endpoint_head, trace.request_id.encode(), trace.route.encode(), trace.total_ns * 1e-6, prepare * 1e-6,
        trace.queue_ns * 1e-6, infer * 1e-6, (prepare + infer + trace.finish_ns) * 1e-6, length,
    )  # fmt: skip


def _ms(ns: int) -> bytes:
    return b"%.3f" % (ns * 1e-6)


def clean_id(value: bytes) -> str:
    """Return a caller's request id, or an empty text if it cannot be used."""
    # The id is repeated in headers and logs, so it must be printable and short.
    if 0 < len(value) <= 128 and value.isascii():
        text = value.decode("ascii")
        if text.isprintable():
            return text
    return ""


def timeout_of(header: bytes | None, limit: float) -> float:
    """Return the caller's time-out in seconds, at most ``limit``. Raises ``RequestError``."""
    if not header:
        return limit
    try:
        wanted = int(header) / 1000
    except (ValueError, OverflowError):
        wanted = 0.0
    if wanted <= 0:
        raise RequestError("x-request-timeout-ms must be a whole number of milliseconds above 0")
    return min(wanted, limit)
