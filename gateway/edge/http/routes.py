"""``POST /serve/…`` as a bare ASGI callable: the cheapest way uvicorn can call us.

FastAPI documents this route (``ops.py`` writes it into the OpenAPI document) but does not stand in its way: a routed,
validated FastAPI handler costs several times what tokenizing a short text does (measured in the project's notes on
HTTP servers).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qs

from gateway.dataplane.submit import FALLS_BACK, Drawn, Pipeline
from gateway.edge.http import body as bodies
from gateway.edge.http.edge import (
    NO_EXTENSIONS,
    Guard,
    Receive,
    Scope,
    Send,
    clean_id,
    dumps,
    head_of,
    labels,
    render,
    served_by,
    timeout_of,
)
from gateway.edge.http.fast import CARRIED, EXTENSION, Flight, Heads
from gateway.edge.http.problems import Headers, problem
from gateway.edge.http.protocol import HeaderList
from gateway.edge.http.sse import own_form, send_events, wants_stream
from gateway.endpoints.endpoint import Endpoint
from gateway.errors import ClientGone, GatewayError, MethodNotAllowed
from gateway.protocols import huggingface
from gateway.spec import normalize_url
from gateway.trace import CANARY, DIRECT, FALLBACK, STABLE, TRACEPARENT, Trace, parse_traceparent

_LANE_BYTES: Final = 64 << 10
CHAT: Final = "/v1/chat/completions"
"""What huggingface_hub puts behind an endpoint's address to chat with it."""
_NOT_FOR_THE_LANE: Final = frozenset({b"content-encoding", b"x-request-timeout-ms", b"traceparent", b"x-route-to"})
_PIN: Final = b"x-route-to"
_SPLIT: Final = (CANARY, STABLE)


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
                request_id = clean_id(value)
            elif name == key_header:
                key = value.decode("latin-1")
            elif name == b"x-request-timeout-ms":
                timeout_ms = value
            elif name == b"traceparent":
                parent = parse_traceparent(value)
            elif name == pin_header:
                pin = value
        extensions = scope.get("extensions", NO_EXTENSIONS)
        drawn: Drawn | None = extensions.get(CARRIED)
        TRACEPARENT.set(parent)  # always: a server may answer several requests in one context
        pipeline = self._pipeline
        trace = pipeline.new_trace(request_id or f"{random.getrandbits(64):016x}", parent)
        pipeline.started()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        guard = Guard(receive, self._loop)
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} is not how an endpoint is called", hint="use POST")
            timeout = timeout_of(timeout_ms, self._timeout) if timeout_ms else self._timeout
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
                raw = await bodies.unpacked(raw, encoding, limit=self._max_body_bytes)
            body = bodies.decode(raw, content_type, takes_bytes=endpoint.takes_bytes)
            if self._key_field and not key and trace.route in _SPLIT and (key := _key_of(body, self._key_field)):
                endpoint = pipeline.resolve(self._path(scope), trace, key)
            convert = None
            if endpoint.task and huggingface.is_form(body):
                body, convert = huggingface.read(endpoint.task, cast("dict[str, object]", body))
            if endpoint.stream is not None and wants_stream(endpoint, body):
                form = own_form if convert is None else huggingface.GenerationEvents()
                await send_events(send, pipeline, endpoint, body, trace, deadline, guard, form=form)
                return
            answer = await pipeline.answer(endpoint, body, trace, deadline, None if drawn is None else drawn.error)
            status, headers, content = render(answer if convert is None else convert(answer))
            trace.status = status
            trace.close()
            headers += endpoint.headers if trace.route != FALLBACK else trace.fallback.headers
            headers += labels(trace)
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


class Plain(NamedTuple):
    """What the lane has to know of a request's head."""

    url: str
    request_id: str
    key: str | None
    content_type: bytes
    is_chat: bool
    """Whether the path ends as that of a chat with the endpoint in front of it does."""


class Lane:
    """Takes the common request without a task of its own; see ``protocol``. The same answers as ``ServeRoute``, which
    gets everything that is not plain: encoded bodies, deadlines of the caller's, hooks, large inputs, failed canaries.
    """

    def __init__(self, pipeline: Pipeline, *, prefix: str, timeout: float, key_header: str) -> None:
        self.prefix = prefix.encode()
        self._key_header = key_header.lower().encode()
        self.most_bytes = _LANE_BYTES
        self.heads = Heads()
        self._pipeline = pipeline
        self._prefix_length = len(prefix)
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    def read(self, path: str, headers: HeaderList) -> Plain | None:
        """See ``protocol.LaneLike``."""
        request_id = key = ""
        content_type = b""
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"x-request-id":
                request_id = clean_id(value)
            elif name == self._key_header:
                key = value.decode("latin-1")
            elif name in _NOT_FOR_THE_LANE:
                return None
        url = normalize_url(path[self._prefix_length :], None)
        return Plain(url, request_id, key or None, content_type, path.endswith(CHAT))

    def take(self, flight: Flight, plain: Plain, body: bytes) -> bool:
        """See ``protocol.LaneLike``."""
        pipeline = self._pipeline
        trace = pipeline.new_trace(plain.request_id or f"{random.getrandbits(64):016x}")
        try:
            endpoint = pipeline.resolve(plain.url, trace, plain.key)
            if endpoint.begin is None:
                flight.carried = _drawn(endpoint, trace)
                return False
            content = bodies.decode(body, plain.content_type, takes_bytes=False)
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            convert = None
            if type(content) is dict and "inputs" in content and huggingface.is_form(content):
                content, convert = huggingface.read(endpoint.task, cast("dict[str, object]", content))
            done = partial(self._done, flight, endpoint, trace, convert)
            give_up = pipeline.begin(endpoint, content, trace, self._loop.time() + self._timeout, done)
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes an answer
            if plain.is_chat:
                return False  # not an endpoint of that name, but a chat with the one in front of it
            pipeline.started()
            self._fail(flight, trace, error)
            return True
        if give_up is None:
            flight.carried = _drawn(endpoint, trace)
            return False
        pipeline.started()
        flight.give_up = partial(self._left, trace, give_up)
        return True

    def _done(
        self,
        flight: Flight,
        endpoint: Endpoint,
        trace: Trace,
        convert: huggingface.Convert | None,
        answer: object,
        error: Exception | None,
    ) -> None:
        # Called for every request of a batch in turn: nothing that goes wrong with one may reach the next.
        try:
            if error is not None:
                if trace.fallback is not None and isinstance(error, FALLS_BACK):
                    # What a failed canary means is decided in one place, the pipeline's `answer`.
                    self._pipeline.unstarted()
                    flight.replay(_drawn(endpoint, trace, error))
                else:
                    self._fail(flight, trace, error)
                return
            if convert is not None:
                answer = convert(answer)
            content = dumps(answer)
            trace.status = 200
            trace.close()
            head = head_of(trace, endpoint.head, len(content))
            self._pipeline.finished(trace)
            flight.send(head, content)
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
    if trace.route == DIRECT:
        return None
    return Drawn(endpoint, trace.route, trace.fallback, trace.started_ns, error)


def _key_of(body: object, field: list[str]) -> str:
    for name in field:
        if not isinstance(body, dict):
            return ""
        body = body.get(name)
    return str(body) if isinstance(body, str | int) else ""


def _problem(error: GatewayError, trace: Trace) -> tuple[int, Headers, bytes]:
    status, headers, content = problem(error, trace.request_id)
    trace.status = status
    headers.append((b"x-request-id", trace.request_id.encode()))
    headers += served_by(trace)
    headers.append((b"content-length", str(len(content)).encode()))
    return status, headers, content
