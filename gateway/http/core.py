"""One HTTP/1.1 connection: llhttp (``httptools``) parses, one request at a time is answered.

Limits (see ``connections``): the size, lines and time of a head, the time of a body, the requests sent ahead, the
number of connections. A refusal of the core itself (400, 408, 414, 431, 503) is JSON like every other; it follows the
answers to earlier requests and ends the connection.

- A request starts when the bytes that brought its head are parsed, so most have their whole body by then. Requests
  sent ahead wait, and the connection is not read meanwhile.
- A client's end of file means that it has left, as in Go's server: a request that is being answered is given up.
- A connection whose request was refused for want of room rests: what it sends is not read for the seconds of its
  ``Retry-After``. This is all the protection from floods.
- The offer of another protocol (``upgrade``) is dropped, and what follows is read as HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from math import inf
from time import perf_counter_ns
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools

from gateway.callers.access import Names
from gateway.errors import (
    BodyTimeout,
    GatewayError,
    HeadTimeout,
    HeadTooLarge,
    MalformedRequest,
    MethodNotAllowed,
    Overloaded,
    Unavailable,
)
from gateway.http.certificates import names_of_peer
from gateway.http.connections import NO_ROOM, NOT_READ, NOTHING_ASKED, Connections, TimeoutQueue
from gateway.http.exchange import Exchange, head_of
from gateway.http.problems import problem
from gateway.outcome import Outcome, Serving
from gateway.trace import new_id

Answer = Callable[[Exchange], Serving]
"""Returns the coroutine that answers a request."""

_MAX_PIPELINED: Final = 64
_MAX_RECENT: Final = 256
"""Addresses that are remembered as they are read: at most as many bytes as their heads, 16 MiB."""
_LAST_HEAD_S: Final = 1.0
"""How long a server that stops waits for a request's head."""
_LINGER_S: Final = 2.0


class Connection(asyncio.Protocol):
    """See the module. While the gateway waits for the client, the connection is in a queue of ``Connections``."""

    transport: asyncio.Transport

    def __init__(self, answer: Answer, limits: Connections) -> None:
        self._answer = answer
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.names: Names = ()
        """The names in the client's certificate."""
        self._queue: TimeoutQueue | None = None
        self._current: Exchange | None = None
        """The request that is being answered, or whose body is still coming."""
        self._incoming: Exchange | None = None
        """The request whose body is still coming."""
        self._waiting: deque[Exchange] = deque()
        """Requests that were sent ahead."""
        self._unparsed = 0
        """Bytes received since the parser last completed a part of a request."""
        self._is_in_head = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._refusal: GatewayError | None = None
        self._ignores_input = False
        self._is_paused = False
        self._rest: asyncio.TimerHandle | None = None
        """Ends the rest of a refused connection."""
        self._old_ns = inf
        """When it is old: its next answer is the last one."""
        self.is_unread = False
        """Whether the client reads more slowly than it is answered."""
        self._until_read: Outcome[None] | None = None
        self._parser = self._new_parser()

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is ignored here
        return parser

    # --- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first head, or refuse the connection if there are too many."""
        self.transport, limits = cast("asyncio.Transport", transport), self._limits
        limits.open.add(self)
        self.names = names_of_peer(transport)
        if limits.age:
            # Spread, so that clients that connected together do not reconnect together.
            self._old_ns = perf_counter_ns() + limits.age * random.uniform(0.9e9, 1.1e9)  # noqa: S311 - not a secret
        if limits.has_room():
            self._enter(limits.heads)
        else:
            limits.count(NO_ROOM)
            full = f"this process has all of its {limits.max_open} connections in use"
            self._ignores_input = True
            hint = "try again in a second, or raise TRITON_GATEWAY_MAX_CONNECTIONS"
            self._write_refusal(Unavailable(full, hint=hint), lingers=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that its client has left, and cancel its rest."""
        del exc
        self._limits.open.discard(self)
        self._enter(None)
        if self._rest is not None:
            self._rest.cancel()
            self._limits.resting -= 1
            self._rest = None
        current, self._current, self._incoming = self._current, None, None
        self._waiting.clear()
        self._parser = None  # it refers back to this connection, and full collections are rare (see `app`)
        if current is not None:
            current.leave()
        self.resume_writing()

    def eof_received(self) -> None:
        """The client has left: the transport closes."""

    def is_last(self, exchange: Exchange) -> bool:
        """Return whether the connection ends with this answer, as its client is told."""
        is_over = self._limits.is_leaving or exchange.started_ns >= self._old_ns
        return not exchange.keep_alive or (is_over and not self._waiting)

    def leave(self) -> None:
        """End a rest: the gateway leaves, and ends each connection with an answer."""
        if self._rest is not None:
            self._rest.cancel()
            self._rested()

    def shutdown(self) -> None:
        """End the connection, after its current answer. A first request may be on its way: it is awaited for a moment.

        One that was idle after an answer is closed at once.
        """
        self._loop.call_later(_LAST_HEAD_S if self._queue is self._limits.heads else 0, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._current is None:
            self.transport.close()

    def _enter(self, queue: TimeoutQueue | None) -> None:
        if queue is not self._queue:
            if self._queue is not None:
                self._queue.leave(self)
            self._queue = queue
        if queue is not None:
            queue.enter(self, self._loop)

    def _settle(self) -> None:
        """Enter the queue that fits the state of the connection; none while the client waits for the gateway."""
        limits = self._limits
        if self._ignores_input and self._current is None:
            return  # it ends
        if self._incoming is not None:
            self._enter(None if self._waiting else limits.bodies)
        elif self._current is not None:
            self._enter(None)
        elif self._is_in_head:
            self._enter(limits.heads)
        elif self._queue is None:
            self._enter(limits.idle)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and start the request that they bring."""
        if self._ignores_input:
            return
        before = self._current
        self._unparsed += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if isinstance(cause := error.__context__, GatewayError):
                self._refuse(cause.with_traceback(None))  # its frames would keep this connection in memory
            else:
                self._refuse(MalformedRequest(_reason(error, data)))
        else:
            if self._unparsed > self._limits.max_head_bytes:
                self._refuse(self._too_large())
        current = self._current
        if current is not None and current is not before:
            self._start(current)
            return
        if current is not None:
            current.offer()
            self._hold_back()
        self._settle()

    def _start(self, exchange: Exchange) -> None:
        self._settle()
        try:
            coroutine = self._answer(exchange)
        except Exception as error:  # noqa: BLE001 - a bug: this request fails, and no other
            exchange.over(error)
        else:
            exchange.run(coroutine)
        self._hold_back()

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                # httptools would take what follows for the other protocol: a new parser reads the head without the
                # offer, and what follows as HTTP/1.1.
                method, version = self._parser.get_method(), self._parser.get_http_version().encode()
                lines = b"".join([b"%b: %b\r\n" % line for line in self._headers if line[0] != b"upgrade"])
                self._parser = self._new_parser()
                data = b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, self._url, version, lines, data[stop.args[0] :])
            else:
                return

    def _hold_back(self) -> None:
        """Read no more while requests wait, or while a request does not read its body; read on otherwise."""
        current = self._current
        if self._waiting or (current is not None and current.leaves_body):
            self._pause()
        else:
            self.read_on()

    def _pause(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Receive more, unless requests wait or the connection rests."""
        if self._is_paused and not self._waiting and self._rest is None and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    # --- callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._is_in_head = True
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Add a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers after a chunked body are dropped."""
        if self._is_in_head:
            self._headers.append((name.lower(), value))

    def _too_large(self) -> HeadTooLarge:
        limit = f"the request's head is larger than {self._limits.max_head_bytes} bytes"
        return HeadTooLarge(limit, hint="send fewer or shorter headers")

    def on_headers_complete(self) -> None:
        """Make the request, behind earlier ones of its connection."""
        parser, headers, limits = self._parser, self._headers, self._limits
        size = len(self._url) + 4 * len(headers) + sum(map(len, chain.from_iterable(headers)))
        if size > limits.max_head_bytes:
            raise self._too_large()
        if len(headers) > limits.max_headers:
            limit = f"the request's head has more than {limits.max_headers} lines"
            raise HeadTooLarge(limit, hint="send fewer headers")
        by_name = dict(headers)
        if b"transfer-encoding" in by_name and any(
            name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers
        ):
            raise MalformedRequest("the only transfer-encoding that is read is chunked")
        method = parser.get_method()
        if method == b"CONNECT":
            raise MethodNotAllowed(
                "CONNECT is not possible here: this is no proxy",
                hint="send the request itself, and set NO_PROXY if a proxy is configured for this address",
            )
        if parser.should_upgrade():
            return  # the head is read again without the offer: see `_feed`
        if len(self._waiting) >= _MAX_PIPELINED:
            waiting = f"more than {_MAX_PIPELINED} requests were sent ahead on one connection"
            raise Overloaded(waiting, hint="wait for answers, or use more connections")
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise MalformedRequest(f"this is HTTP/{version}, and this port speaks HTTP/1.1")
        path, query = _address(self._url)
        exchange = self._incoming = Exchange(self, method.decode("ascii"), path, query, headers, by_name)
        exchange.is_http10 = version == "1.0"
        exchange.keep_alive = not exchange.is_http10 and parser.should_keep_alive()
        if self._current is None:
            self._current = exchange
        else:
            self._waiting.append(exchange)
        self._is_in_head = False
        self._unparsed = 0

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._unparsed = 0
        if self._incoming is not None:
            self._incoming.add(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        exchange, self._incoming = self._incoming, None
        if exchange is None:
            return  # its head is read again: see `_feed`
        self._unparsed = 0
        exchange.is_whole = True
        if not exchange.keep_alive:
            self._ignores_input = True  # nothing after it is answered
        if exchange is self._current and exchange.is_over:
            self._loop.call_soon(self.next, exchange)

    # --- what goes ----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write bytes of the current answer."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def wrote(self, exchange: Exchange) -> None:
        """Note that an answer is written to its end."""
        if self.is_last(exchange):
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self._limits.unread.enter(self, self._loop)

    def abort(self) -> None:
        """Drop the connection: its answer cannot be finished."""
        self.transport.abort()

    def next(self, exchange: Exchange) -> None:
        """Go on after an exchange has ended, when its body has come: the next request, a refusal, or the client."""
        if exchange is not self._current or self.transport.is_closing():
            return
        if not exchange.is_whole:
            self.read_on()  # what is left of the body is dropped
            self._settle()
            return
        self._current = None
        if exchange.rest_s:
            self._limits.resting += 1
            self._rest = self._loop.call_later(exchange.rest_s, self._rested)
            self._pause()
            self._settle()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Answer the next request that was sent ahead, write the refusal of what follows it, or read on."""
        if self._waiting:
            self._current = self._waiting.popleft()
            self._loop.call_soon(self._start_next, self._current)
        elif self._refusal is not None:
            self._write_refusal(self._refusal)
        else:
            self.read_on()
        self._settle()

    def _start_next(self, exchange: Exchange) -> None:
        if exchange is self._current:
            exchange.started_ns = exchange.ready_ns = perf_counter_ns()  # not the time behind earlier ones
            self._start(exchange)

    def _rested(self) -> None:
        self._limits.resting -= 1
        self._rest = None
        if not self.transport.is_closing():
            self._go_on()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than it is answered."""
        self.is_unread = True
        self._limits.unread.enter(self, self._loop)

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self.is_unread = False
        self._limits.unread.leave(self)
        waiter, self._until_read = self._until_read, None
        if waiter is not None:
            waiter.set_result(None)

    def until_read(self) -> Outcome[None]:
        """Return what is set when the client has read, or has left; its current request waits for it."""
        waiter = self._until_read = Outcome[None]()
        return waiter

    # --- refusals of the connection -----------------------------------------------------------------------------------

    def _refuse(self, error: GatewayError) -> None:
        """End the connection with a refusal, after the answers to earlier requests."""
        self._limits.count(error.kind)
        self._ignores_input = True
        self._enter(None)
        cut, self._incoming = self._incoming, None
        if cut is not None:
            if self._waiting:
                self._waiting.pop()
            elif cut.has_begun:  # an answer, or a part of it, is written already
                self.transport.close()
                return
            else:
                self._current = None
                cut.leave()
        if self._current is None and self._rest is None:
            self._write_refusal(error)
        else:
            self._refusal = error

    def _write_refusal(self, error: GatewayError, *, lingers: bool = True) -> None:
        status, headers, content = problem(error, new_id())
        transport = self.transport
        if transport.is_closing():
            return
        head = head_of(status, [*headers, (b"content-length", b"%d" % len(content)), (b"connection", b"close")])
        transport.write(head + b"\r\n" + content)
        # Read for a moment what the client still sends: closing earlier would reset the connection and lose the answer.
        if lingers and transport.can_write_eof():
            transport.write_eof()
            self.read_on()
            self._loop.call_later(_LINGER_S, transport.abort)
        else:
            transport.close()

    # --- time limits (see ``connections``) ----------------------------------------------------------------------------

    def head_is_late(self) -> None:
        """End it: no head came in time."""
        if self._is_in_head:
            late = f"the request's head did not arrive within {self._limits.heads.timeout:g} s"
            self._refuse(HeadTimeout(late))
        else:
            self._limits.count(NOTHING_ASKED)
            self.transport.close()

    def body_is_late(self) -> None:
        """End it: the body did not come in time."""
        self._refuse(BodyTimeout(f"the body did not arrive within {self._limits.bodies.timeout:g} s"))

    def is_idle_too_long(self) -> None:
        """End it: it was idle for too long, or its place is needed."""
        self._enter(None)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def is_not_read(self) -> None:
        """Drop it: its client does not read."""
        self._limits.count(NOT_READ)
        self.transport.abort()


@lru_cache(_MAX_RECENT)
def _address(url: bytes) -> tuple[str, bytes]:
    """Return the path, without escapes, and the query of a request's address. Raises if it is none."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.query or b""


def _reason(error: Exception, data: bytes) -> str:
    if data.startswith(b"\x16\x03"):
        return "this is TLS, and this port speaks plain HTTP"
    if isinstance(error, httptools.HttpParserCallbackError):
        return "the request's address cannot be read"
    return f"this is not an HTTP/1.1 request: {ascii(str(error))[1:-1]}"
