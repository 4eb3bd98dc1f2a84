"""``POST /serve/…`` as a bare ASGI callable: the cheapest way uvicorn can call us.

FastAPI documents this route (``ops.py`` writes it into the OpenAPI document) but does not stand in its way: a routed,
validated FastAPI handler costs several times what tokenizing a short text does (measured in the project's notes on
HTTP servers).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, quote

import orjson

from gateway.endpoint import Endpoint
from gateway.errors import BodyTimeout, ClientGone, GatewayError, HookFailed, MethodNotAllowed, RequestError
from gateway.http import body as bodies
from gateway.http.problems import Headers, problem
from gateway.http.protocol import CARRIED, EXTENSION, Flight, HeaderList
from gateway.pipeline import FALLS_BACK, Drawn, Pipeline, too_late
from gateway.spec import normalize_url
from gateway.trace import TRACEPARENT, Trace, parse_traceparent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_NO_EXTENSIONS: Final[dict[str, Any]] = {}
_LANE_BYTES: Final = 64 << 10
_NOT_FOR_THE_LANE: Final = frozenset({b"content-encoding", b"x-request-timeout-ms", b"traceparent", b"x-route-to"})
_PIN: Final = b"x-route-to"
_SPLIT: Final = ("canary", "stable")
_WATCH_AFTER_S: Final = 0.1
"""Most requests are answered sooner, so that watching for the client's departure costs them one timer."""


class ServeRoute:
    """The inference route under one prefix (``/serve/``)."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        prefix: str,
        max_body_bytes: int,
        timeout: float,
        key_header: str = "x-routing-key",
        key_field: str = "",
        allows_pins: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._prefix_length = len(prefix)
        self._max_body_bytes = max_body_bytes
        self._timeout = timeout
        self._key_header = key_header.lower().encode()
        self._key_field = key_field.split(".") if key_field else []
        self._pin_header = _PIN if allows_pins else b""
        # Looking the running loop up costs a system call each time on Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; every outcome is an answer and is counted once."""
        request_id = key = parent = ""
        content_type = encoding = length = timeout_ms = pin = b""
        key_header, pin_header = self._key_header, self._pin_header
        for name, value in scope["headers"]:
            if name == b"content-type":
                content_type = value
            elif name == b"content-length":
                length = value
            elif name == b"content-encoding":
                encoding = value
            elif name == b"x-request-id":
                request_id = _clean_id(value)
            elif name == key_header:
                key = value.decode("latin-1")
            elif name == b"x-request-timeout-ms":
                timeout_ms = value
            elif name == b"traceparent":
                parent = parse_traceparent(value)
            elif name == pin_header:
                pin = value
        trace = Trace(request_id or f"{random.getrandbits(64):016x}")
        trace.trace_id = parent[3:35]
        extensions = scope.get("extensions", _NO_EXTENSIONS)
        drawn: Drawn | None = extensions.get(CARRIED)
        TRACEPARENT.set(parent)  # always: a server may answer several requests in one context
        pipeline = self._pipeline
        pipeline.started()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        guard = _Guard(receive, self._loop)
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} is not how an endpoint is called", hint="use POST")
            timeout = _timeout(timeout_ms, self._timeout) if timeout_ms else self._timeout
            if pin:
                endpoint = pipeline.pin(normalize_url(pin.decode("latin-1"), None), trace)
            else:
                endpoint = pipeline.resolve(self._path(scope), trace, key or None, drawn)
            if drawn is not None:
                timeout -= (trace.started_ns - drawn.started_ns) * 1e-9
                trace.started_ns = drawn.started_ns
            deadline = guard.start(timeout)
            raw = await bodies.read(receive, limit=self._max_body_bytes, announced=length)
            guard.has_body = True
            if encoding:
                raw = bodies.unpack(raw, encoding, limit=self._max_body_bytes)
            body = bodies.decode(raw, content_type, takes_bytes=endpoint.takes_bytes)
            if self._key_field and not key and trace.route in _SPLIT and (key := _key_of(body, self._key_field)):
                endpoint = pipeline.resolve(self._path(scope), trace, key)
            answer = await pipeline.answer(endpoint, body, trace, deadline, None if drawn is None else drawn.error)
            status, headers, content = _render(answer)
            trace.status = status
            trace.close()
            headers += endpoint.headers if trace.route != "fallback" else trace.fallback.headers
            headers += _labels(trace)
            headers.append((b"content-length", str(len(content)).encode()))
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not guard.ended_it():
                pipeline.failed(trace, error)
                raise  # the server is stopping; uvicorn ends the connection
            known = pipeline.failed(trace, guard.reason or error)
            status, headers, content = _problem(known, trace)
        finally:
            guard.stop()
            pipeline.finished(trace)
        if guard.client_left:
            return
        reply = extensions.get(EXTENSION)
        if reply is not None and reply(status, headers, content):
            return
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _path(self, scope: Scope) -> str:
        query = scope["query_string"]
        version = None
        if query:
            version = parse_qs(query.decode("latin-1")).get("version", [None])[0]
        return normalize_url(scope["path"][self._prefix_length :], version)


class Lane:
    """Takes the common request without a task of its own; see ``protocol``. The same answers as ``ServeRoute``, which
    gets everything that is not plain: encoded bodies, deadlines of the caller's, hooks, large inputs, failed canaries.
    """

    def __init__(self, pipeline: Pipeline, *, prefix: str, timeout: float, key_header: str) -> None:
        self.prefix = prefix.encode()
        self._key_header = key_header.lower().encode()
        self.most_bytes = _LANE_BYTES
        self._pipeline = pipeline
        self._prefix_length = len(prefix)
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self, flight: Flight, path: str, headers: HeaderList, body: bytes) -> bool:
        """See ``protocol.LaneLike``."""
        request_id = key = ""
        content_type = b""
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"x-request-id":
                request_id = _clean_id(value)
            elif name == self._key_header:
                key = value.decode("latin-1")
            elif name in _NOT_FOR_THE_LANE:
                return False
        trace = Trace(request_id or f"{random.getrandbits(64):016x}")
        pipeline = self._pipeline
        try:
            endpoint = pipeline.resolve(normalize_url(path[self._prefix_length :], None), trace, key or None)
            if endpoint.begin is None:
                flight.carried = _drawn(endpoint, trace)
                return False
            content = bodies.decode(body, content_type, takes_bytes=False)
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            done = partial(self._done, flight, endpoint, trace)
            give_up = pipeline.begin(endpoint, content, trace, self._loop.time() + self._timeout, done)
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes an answer
            pipeline.started()
            self._fail(flight, trace, error)
            return True
        if give_up is None:
            flight.carried = _drawn(endpoint, trace)
            return False
        pipeline.started()
        flight.give_up = partial(self._left, trace, give_up)
        return True

    def _done(self, flight: Flight, endpoint: Endpoint, trace: Trace, answer: object, error: Exception | None) -> None:
        # Called for every request of a batch in turn: nothing that goes wrong with one may reach the next.
        try:
            if error is not None:
                if trace.fallback is not None and isinstance(error, FALLS_BACK):
                    # What a failed canary means is decided in one place, the pipeline's `answer`.
                    self._pipeline.unstarted()
                    flight.replay(_drawn(endpoint, trace, error))
                    flight.forget()
                else:
                    self._fail(flight, trace, error)
                return
            status, headers, content = _render(answer)
            trace.status = status
            trace.close()
            headers += endpoint.headers
            headers += _labels(trace)
            headers.append((b"content-length", str(len(content)).encode()))
            self._pipeline.finished(trace)
            flight.reply(status, headers, content)
        except Exception as unexpected:  # noqa: BLE001 - as above
            self._fail(flight, trace, unexpected)

    def _fail(self, flight: Flight, trace: Trace, error: BaseException) -> None:
        known = self._pipeline.failed(trace, error)
        status, headers, content = _problem(known, trace)
        self._pipeline.finished(trace)
        flight.reply(status, headers, content)

    def _left(self, trace: Trace, give_up: Callable[[], None]) -> None:
        give_up()
        self._pipeline.failed(trace, ClientGone("the client left before the answer was ready"))
        self._pipeline.finished(trace)


def _drawn(endpoint: Endpoint, trace: Trace, error: GatewayError | None = None) -> Drawn | None:
    if trace.route == "direct":
        return None
    return Drawn(endpoint, trace.route, trace.fallback, trace.started_ns, error)


class _Guard:
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


def _key_of(body: object, field: list[str]) -> str:
    for name in field:
        if not isinstance(body, dict):
            return ""
        body = body.get(name)
    return str(body) if isinstance(body, str | int) else ""


def _body_too_slow(timeout: float) -> BodyTimeout:
    return BodyTimeout(f"the body did not arrive within {timeout:g} s")


def _problem(error: GatewayError, trace: Trace) -> tuple[int, Headers, bytes]:
    status, headers, content = problem(error, trace.request_id)
    trace.status = status
    headers.append((b"x-request-id", trace.request_id.encode()))
    if trace.url:
        headers.append((b"x-served-by", quote(trace.url, safe="/").encode()))
    headers.append((b"content-length", str(len(content)).encode()))
    return status, headers, content


def _render(answer: object) -> tuple[int, Headers, bytes]:
    if isinstance(answer, bytes | bytearray | memoryview):
        return 200, [_BINARY], bytes(answer)
    content = getattr(answer, "body", None)
    status = getattr(answer, "status_code", None)
    if isinstance(content, bytes) and isinstance(status, int):
        # A hook may answer with a Starlette response of its own, as it may in clearml-serving.
        raw = getattr(answer, "raw_headers", [])
        return status, [(k, v) for k, v in raw if k.lower() != b"content-length"], content
    try:
        return 200, [_JSON], orjson.dumps(answer, default=_plain, option=_OPTIONS)
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


def _labels(trace: Trace) -> Headers:
    return [
        (b"x-request-id", trace.request_id.encode()),
        (b"x-route", trace.route.encode()),
        (b"x-total-time", _ms(trace.total_ns)),
        (b"x-tokenization-time", _ms(trace.prepare_ns)),
        (b"x-queue-time", _ms(trace.queue_ns)),
        (b"x-inference-time", _ms(trace.infer_ns)),
        (b"x-compute-time", _ms(trace.prepare_ns + trace.infer_ns + trace.finish_ns)),
    ]


def _ms(ns: int) -> bytes:
    return b"%.3f" % (ns * 1e-6)


def _clean_id(value: bytes) -> str:
    # The id is echoed in headers and logs: only what is printable and short is taken over.
    if 0 < len(value) <= 128 and value.isascii():
        text = value.decode("ascii")
        if text.isprintable():
            return text
    return ""


def _timeout(header: bytes, most: float) -> float:
    try:
        wanted = int(header) / 1000
    except ValueError:
        wanted = 0.0
    if wanted <= 0:
        raise RequestError("x-request-timeout-ms must be a whole number of milliseconds above 0")
    return min(wanted, most)
