"""What every inference route at the HTTP edge shares: the guard over time and departure, headers, and JSON.

Used by ``routes`` (our own form) and ``forms`` (the others); no routing and no endpoints here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import quote

import orjson

from gateway.dataplane.submit import too_late
from gateway.edge.http.headers import header_value, response_of_hook
from gateway.edge.http.problems import Headers
from gateway.errors import BodyTimeout, ClientGone, GatewayError, HookFailed, RequestError
from gateway.trace import Trace

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

NO_EXTENSIONS: Final[dict[str, Any]] = {}

_JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_WATCH_AFTER_S: Final = 0.1
"""Most requests are answered sooner, so that watching for the client's departure costs them one timer."""


class Guard:
    """Ends a request whose time is over or whose client has left, by cancelling its task.

    One timer per request; only a request that takes longer than ``_WATCH_AFTER_S`` pays for more: then its client is
    listened to, and a second timer waits for the deadline.
    """

    __slots__ = ("_deadline", "_listener", "_loop", "_receive", "_task", "_timeout", "_timer", "has_body", "reason")

    def __init__(self, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        self._receive = receive
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None
        self.has_body = False
        self.reason: GatewayError | None = None

    @property
    def client_left(self) -> bool:
        """True when nobody waits for the answer any more."""
        return isinstance(self.reason, ClientGone)

    def start(self, timeout: float) -> float:
        """Begin; returns the deadline in loop time."""
        loop = self._loop
        self._task = asyncio.current_task(loop)
        self._timeout = timeout
        self._deadline = loop.time() + timeout
        self._timer = loop.call_later(min(timeout, _WATCH_AFTER_S), self._wake)
        return self._deadline

    def stop(self) -> None:
        """End the watch; the answer is ready."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # it refers back to this guard
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None
        self._task = None

    def ended_it(self) -> bool:
        """True when a cancellation of the request's task was ours; it is then taken back."""
        if self.reason is None or self._task is None:
            return False
        self._task.uncancel()
        return True

    def _wake(self) -> None:
        left = self._deadline - self._loop.time()
        if left <= 0.001:
            self._end(too_late(self._timeout) if self.has_body else _body_too_slow(self._timeout))
            return
        # Before the body is complete the route itself listens.
        if self.has_body and self._listener is None:
            self._listener = self._loop.create_task(self._until_gone())
        self._timer = self._loop.call_later(left if self.has_body else min(left, _WATCH_AFTER_S), self._wake)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGone("the client left before the answer was ready"))

    def _end(self, reason: GatewayError) -> None:
        self.reason = reason
        if self._task is not None:
            self._task.cancel()


def _body_too_slow(timeout: float) -> BodyTimeout:
    return BodyTimeout(f"the body did not arrive within {timeout:g} s")


def render(answer: object) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of an endpoint's answer. Raises ``HookFailed`` where it has no JSON form."""
    if isinstance(answer, bytes | bytearray | memoryview):
        return 200, [_BINARY], bytes(answer)
    content = getattr(answer, "body", None)
    status = getattr(answer, "status_code", None)
    if isinstance(content, bytes) and isinstance(status, int):
        # A hook may answer with a Starlette response of its own, as it may in clearml-serving.
        return response_of_hook(status, getattr(answer, "raw_headers", []), content)
    return 200, [_JSON], dumps(answer)


def dumps(answer: object) -> bytes:
    """Return an answer as JSON. Raises ``HookFailed`` where it has no JSON form."""
    try:
        return orjson.dumps(answer, default=_plain, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError) as error:
        raise HookFailed(
            f"the answer cannot be written as JSON: {error}", hint="return dicts, lists, strings, numbers or arrays"
        ) from error


def _plain(value: object) -> object:
    # What orjson does not know but numpy and hooks produce: non-contiguous arrays, tuples' cousins, numpy scalars.
    for method in ("tolist", "model_dump"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def served_by(trace: Trace) -> Headers:
    """Return the headers of a refusal that name the version that was chosen; none where none was."""
    if not trace.url:
        return []
    return [
        (b"x-served-by", quote(trace.url, safe="/").encode()),
        (b"x-model-id", header_value(trace.model_id)),
        (b"x-route", trace.route.encode()),
    ]


def labels(trace: Trace) -> Headers:
    """Return the headers of every answer that tell about the request: id, route and stage times in milliseconds."""
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
    """Return the head of a JSON answer as bytes, without its last empty line: ``labels`` and the rest in one go."""
    prepare, infer = trace.prepare_ns, trace.infer_ns
    return _HEAD % (
        endpoint_head, trace.request_id.encode(), trace.route.encode(), trace.total_ns * 1e-6, prepare * 1e-6,
        trace.queue_ns * 1e-6, infer * 1e-6, (prepare + infer + trace.finish_ns) * 1e-6, length,
    )  # fmt: skip


def _ms(ns: int) -> bytes:
    return b"%.3f" % (ns * 1e-6)


def clean_id(value: bytes) -> str:
    """Return a caller's request id, or nothing where it cannot be used."""
    # The id is echoed in headers and logs: only what is printable and short is taken over.
    if 0 < len(value) <= 128 and value.isascii():
        text = value.decode("ascii")
        if text.isprintable():
            return text
    return ""


def timeout_of(header: bytes, most: float) -> float:
    """Return the seconds a caller is willing to wait, at most ``most``. Raises ``RequestError``."""
    try:
        wanted = int(header) / 1000
    except ValueError:
        wanted = 0.0
    if wanted <= 0:
        raise RequestError("x-request-timeout-ms must be a whole number of milliseconds above 0")
    return min(wanted, most)
