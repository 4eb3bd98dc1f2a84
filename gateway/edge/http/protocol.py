"""uvicorn's HTTP/1.1 protocol with limits: what a connection may send, how long it may take, and how it ends.

uvicorn parses (with httptools) and runs the application. Its protocol has no limit on a request's head, waits forever
for bytes that do not come, and drops a client that has closed its sending side. This protocol differs:

- A head has limits of size, lines and time, a body has a limit of time, and the number of connections is limited (see
  ``connections``).
- A refusal (400, 408, 414, 431, 503) is JSON like every other. It follows the answers to earlier requests and ends the
  connection.
- A client that closes its sending side after a whole request is answered (``_StartedAnswer`` detects one that has
  left).
- Bytes after a declined upgrade are read as HTTP/1.1. A body that a client holds back (``expect: 100-continue``) is
  never mistaken for the next request.

``fast.FastProtocol`` extends it and can be switched off. ``gateway.__main__`` chooses.
"""

from __future__ import annotations

import asyncio
import random
import select
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.callers.access import Names
from gateway.edge.http.certificates import names_of_peer
from gateway.edge.http.connections import NO_ROOM, NOT_READ, NOTHING_ASKED, Connections
from gateway.edge.http.pacing import MAX_BUFFERED_BYTES, NEW_CONNECTION_COST
from gateway.edge.http.problems import problem
from gateway.errors import (
    AddressTooLong,
    BodyTimeout,
    GatewayError,
    HeadTimeout,
    HeadTooLarge,
    MalformedRequest,
    MethodNotAllowed,
    Overloaded,
    Unavailable,
)
from gateway.trace import new_id

BETWEEN, HEAD, BODY = range(3)
"""What the parser reads: nothing yet, a head, or a body."""

DRAINED: Final = "gateway.drained"
"""The ASGI extension ``await drained()``: returns when the write buffer has room again, or the client has left."""

NAMES: Final = "gateway.names"
"""The ASGI extension with the names in the client's certificate (``callers.access.Names``), if it shows one."""

PAUSE: Final = "gateway.pause"
"""The ASGI extension ``pause(is_full)``: call it for a request that was refused for want of room. The connection's next
request is read later (see ``pacing``), or as soon as ``is_full()`` is false.
"""

HeaderList = Sequence[tuple[bytes, bytes]]

_MAX_URL_BYTES: Final = 65_535
"""httptools stores positions in an address in 16 bits."""
_MAX_PIPELINED: Final = 64
_LAST_HEAD_S: Final = 1.0
"""How long a server that stops waits for a request's head."""
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1 << 20
_FIRST_LOOK_S: Final = 0.01
_LAST_LOOK_S: Final = 0.25
_BEGINNING: Final = b"HTTP/1.1 "
"""The first bytes of every answer."""


class _Refused(Exception):
    """Raised from a callback of the parser: the connection ends with this refusal."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(error.message)
        self.error = error


class _StartedAnswer:
    """A transport that has already written the first bytes of the next answer.

    A client that has left and one that has only closed its sending side look alike: the kernel reports end of file. A
    write shows the difference, because a client that has left answers it with a reset. The bytes written here begin
    every answer, so a client that still reads gets a normal answer.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.write(_BEGINNING)

    def write(self, data: bytes) -> None:
        """Write the answer without its first bytes, and later writes unchanged."""
        self._transport.write(data[len(_BEGINNING) :])
        self.write = self._transport.write  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class GatewayProtocol(HttpToolsProtocol):
    """See the module. While the gateway waits for the client, the connection is in a queue of ``Connections``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        connections = getattr(self.config.loaded_app, "connections", None)
        self._limits: Connections = Connections() if connections is None else connections
        self._limits.open = self.connections
        self.names: Names = ()
        """The names in the client's certificate."""
        self._keeps_alive = not self._limits.is_leaving
        self._age: asyncio.TimerHandle | None = None
        if self._limits.age:
            # Spread, so that clients that connected together do not reconnect together.
            age = self._limits.age * random.uniform(0.9, 1.1)  # noqa: S311 - not a secret
            self._age = self.loop.call_later(age, self.leave)
        self._phase = BETWEEN
        self._queue: Any = None
        self._running: Any = None
        """The cycle (request and answer) that is being answered; ``cycle`` is the newest one."""
        self._unparsed = 0
        """Bytes received since the parser last completed a part of a request."""
        self._head_bytes = self._head_lines = 0
        self._refusal: GatewayError | None = None
        self._refuses_head = False
        """Whether the refusal answers a HEAD request: it then has no body."""
        self._ignores_input = False
        self._is_repeated = False
        self._look: asyncio.Handle | None = None
        self._is_full: Callable[[], bool] | None = None
        """Whether the last refused request of this connection would be refused again; None if none was."""
        self._is_counted = False
        self._paused_until = 0.0
        """Loop time until which this connection is not read after a refusal (see ``pacing``). Infinite while the pacer
        holds it.
        """
        self._buffered = b""
        """Bytes received while it is not read."""
        self._half_closed = False
        """Whether its client has closed its sending side while it waited."""
        self._deferred_since = 0.0
        """Loop time since when its first request waits to be read."""
        self._arrived_at = 0.0
        """``_deferred_since`` of the request that is being read; 0 if it did not wait."""

    # --- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head, or refuse the connection if there are too many."""
        super().connection_made(transport)
        if self.scheme == "https":
            self.names = names_of_peer(transport)
        if self._limits.has_room():
            self._enter(self._limits.heads)
        else:
            self._limits.count(NO_ROOM)
            full = f"this process has all of its {self._limits.max_open} connections in use"
            self._ignores_input = True
            hint = "try again in a second, or raise TRITON_GATEWAY_MAX_CONNECTIONS"
            self._write_refusal(Unavailable(full, hint=hint), lingers=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the disconnect to the application and cancel the timers."""
        self._limits.forget(self)
        if self._buffered:
            self._limits.pacer.forget(self, self._address())
            self._take_buffered()
        for timer in (self._age, self._look):
            if timer is not None:
                timer.cancel()
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn reports it to the newest request only
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)
        # Requests refer back to their connection, and full collections are rare (``app``). So the connection lets go of
        # them: after a flood of callers that leave at once, hundreds of megabytes would wait for a collection.
        self.cycle = self._running = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]
        self.pipeline.clear()

    def leave(self) -> None:
        """See ``connections.Connection``."""
        self._keeps_alive = False
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False

    def shutdown(self) -> None:
        """End the connection, after its current answer. A first request may be on its way: it is awaited for a moment.

        A connection that was idle after an answer has been told so (``leave``), and is closed at once.
        """
        self.leave()
        if self._queue is self._limits.heads:
            self.loop.call_later(_LAST_HEAD_S, super().shutdown)
        else:
            super().shutdown()

    def _is_busy(self) -> bool:
        """Return whether a request is being received or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _enter(self, line: Any) -> None:
        if line is not self._queue:
            if self._queue is not None:
                self._queue.leave(self)
            self._queue = line
        if line is not None:
            line.enter(self, self.loop)

    def _settle(self) -> None:
        """Enter the queue that fits the state of the connection; none while the client waits for the gateway."""
        room, cycle = self._limits, self.cycle
        if self._phase == BODY:
            self._enter(None if self.pipeline else room.bodies)
        elif cycle is not None and not cycle.response_complete:
            self._enter(None)
        elif self._phase == HEAD:
            self._enter(room.heads)
        elif self._queue is None:
            self._queue = room.idle
            room.idle.enter(self, self.loop)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the bytes; end the connection if they cannot be parsed or exceed a limit."""
        if self._phase == BETWEEN and not self._is_busy():
            pacer = self._limits.pacer
            if (self._paused_until or pacer.is_exhausted) and self._defer(data):
                return
            self._is_counted = not pacer.has_room()
            if self._is_counted:
                self._count_refusal()  # now, before other connections are read
        self._unparsed += len(data)
        if self._ignores_input:
            if self._unparsed > _LINGER_BYTES and not self._is_busy():
                self.transport.abort()
            return
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            has_method = not isinstance(error, httptools.HttpParserInvalidMethodError)
            refused = cause.error if isinstance(cause, _Refused) else MalformedRequest(_reason(error, data))
            self._refuse(refused, has_method=has_method)
            return
        if self._phase == BETWEEN:
            self._unparsed = 0
        elif self._unparsed > self._limits.max_head_bytes:
            self._refuse(self._too_large())
            return
        self._settle()

    # --- pacing -------------------------------------------------------------------------------------------------------

    def pause(self, is_full: Callable[[], bool]) -> None:
        """Do not read this connection for a while, or until ``is_full()`` is false: its request is refused for want of
        room.
        """
        if not self._is_counted:
            self._count_refusal()
        self._is_counted = False
        self._paused_until = self._limits.pacer.pause_until(self.loop.time())
        self._is_full = is_full

    def has_room(self) -> bool:
        """See ``pacing.PacedConnection``."""
        return self._is_full is None or not self._is_full()

    def _count_refusal(self) -> None:
        self._limits.refused(self.loop, NEW_CONNECTION_COST if self._is_full is None else 1.0)

    def _defer(self, data: bytes) -> bool:
        """Buffer the bytes and hand the connection to the pacer; return False if they must be read now."""
        room = self._limits
        pacer, until = room.pacer, self._paused_until
        if self._buffered:
            self._buffer(data)
            return True
        self._paused_until = 0.0
        if pacer.buffered_bytes + len(data) > MAX_BUFFERED_BYTES or self._ignores_input or room.is_leaving:
            return False
        now = self.loop.time()
        if self._may_pass(data) if pacer.is_exhausted else self.has_room() or now >= until:
            return False
        if self._is_full is not None:
            pacer.pause(self, until)
            self.flow.pause_reading()
        else:
            # Reading goes on, so that a client that gives up meanwhile is noticed and its connection closed.
            pacer.wait(self, self._address())
            self._deferred_since = self._arrived_at or now
        room.start_pacing(self.loop)
        self._enter(None)  # it has sent a request: it must not be closed as idle
        self._paused_until = inf
        self._buffered = data
        pacer.buffered_bytes += len(data)
        return True

    def _buffer(self, data: bytes) -> None:
        """Buffer more bytes of a held connection and stop reading it; resume it at once if the buffers are full."""
        pacer = self._limits.pacer
        self._buffered += data
        pacer.buffered_bytes += len(data)
        self.flow.pause_reading()
        if pacer.buffered_bytes > MAX_BUFFERED_BYTES:
            pacer.forget(self, self._address())
            self.resume()

    def _address(self) -> str:
        return "" if self.client is None else self.client[0]

    def _may_pass(self, data: bytes) -> bool:
        """Return whether these bytes are read although the budget for refusals is spent."""
        return self._limits.pacer.allows_urgent() and self._limits.is_urgent(data[: self._limits.max_head_bytes])

    def resume(self) -> bool:
        """See ``pacing.PacedConnection``."""
        if not self._buffered:
            return False
        self._arrived_at = self._deferred_since
        held = self._take_buffered()
        if not self.transport.is_closing():
            self.data_received(held)
            if self._half_closed and not self._buffered and not self.eof_received():
                self.transport.close()
        self._arrived_at = 0.0
        return True

    def _take_buffered(self) -> bytes:
        held, self._buffered, self._deferred_since, self._paused_until = self._buffered, b"", 0.0, 0.0
        self._limits.pacer.buffered_bytes -= len(held)
        if not self.transport.is_closing():
            self.flow.resume_reading()
        return held

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                self._decline_upgrade()
                data = data[stop.args[0] :]
            else:
                return

    def _decline_upgrade(self) -> None:
        """Ignore the offer of another protocol in a head, and read on in HTTP/1.1: its body, or the next head.

        httptools would take the following bytes for the other protocol. A new parser, which is fed a head with the same
        length headers and without the offer, reads them as HTTP/1.1.
        """
        lengths = self._lengths()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if lengths:
            self._is_repeated = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % line for line in lengths))
            self._is_repeated = False

    def _lengths(self) -> HeaderList:
        return [line for line in self.headers if line[0] in (b"content-length", b"transfer-encoding")]

    def on_message_begin(self) -> None:
        """Reset the counts of the head's bytes and lines."""
        if self._is_repeated:
            return
        self._phase = HEAD
        self._head_bytes = self._head_lines = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Add a part of the address. Refuses an address that is too long."""
        if self._is_repeated:
            return
        self._count_head(len(url))
        self.url += url
        if len(self.url) > _MAX_URL_BYTES:
            raise _Refused(AddressTooLong(f"the address is longer than {_MAX_URL_BYTES} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers after a chunked body are counted and dropped."""
        if self._is_repeated:
            return
        self._head_lines += 1
        self._count_head(len(name) + len(value) + 4)
        if self._head_lines > self._limits.max_headers:
            limit = f"the request's head has more than {self._limits.max_headers} lines"
            raise _Refused(HeadTooLarge(limit, hint="send fewer headers, or raise TRITON_GATEWAY_MAX_HEADERS"))
        if self._phase == HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise _Refused(MalformedRequest("the only transfer-encoding that is read is chunked"))
            self.headers.append((name, value))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.max_head_bytes:
            raise _Refused(self._too_large())

    def _too_large(self) -> HeadTooLarge:
        limit = f"the request's head is larger than {self._limits.max_head_bytes} bytes"
        return HeadTooLarge(limit, hint="send fewer or shorter headers, or raise TRITON_GATEWAY_MAX_HEAD_BYTES")

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the earlier ones of its connection."""
        if self._is_repeated:
            return
        if len(self.pipeline) >= _MAX_PIPELINED:
            waiting = f"more than {_MAX_PIPELINED} requests were sent ahead on one connection"
            raise _Refused(Overloaded(waiting, hint="wait for answers, or use more connections"))
        if self.parser.get_method() == b"CONNECT":
            raise _Refused(
                MethodNotAllowed(
                    "CONNECT is not possible here: this is no proxy",
                    hint="send the request itself, and set NO_PROXY if a proxy is configured for this address",
                )
            )
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _Refused(MalformedRequest(f"this is HTTP/{version}, and this port speaks HTTP/1.1"))
        super().on_headers_complete()
        self._phase = BODY
        self._unparsed = 0
        self._enter(None)

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        if self.parser.should_upgrade() and self._lengths():
            return  # its body is still to come: see `_decline_upgrade`
        self._phase = BETWEEN
        self._unparsed = 0
        self._enter(None)
        super().on_message_complete()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Return True if the connection stays open because complete requests are still to be answered."""
        if self._buffered and self.scheme != "https":
            self._half_closed = True  # handled when the pacer resumes it
            return True
        if self._phase == BODY and self._is_busy():
            if not self.pipeline:
                return None
            self.pipeline.popleft()  # the newest, which never becomes whole
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
            self._phase = BETWEEN
        # TLS ends both directions at once, whatever is returned here.
        if not self._is_busy() or self.scheme == "https":
            return None
        if self._refusal is None:
            self.cycle.keep_alive = False
        if not self._running.response_started:
            self._running.transport = self.transport = _StartedAnswer(self.transport)  # type: ignore[assignment]
        self._look = self.loop.call_soon(self._look_for_client, _FIRST_LOOK_S)
        return True

    def _look_for_client(self, wait: float) -> None:
        """Drop the connection if its client has reset it. After end of file nothing is read, so only this notices."""
        if self.transport.is_closing() or not self._is_busy():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):
            self.transport.abort()
        else:
            self._look = self.loop.call_later(wait, self._look_for_client, min(2 * wait, _LAST_LOOK_S))

    # --- what goes ----------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if not self._keeps_alive:
            cycle.keep_alive = False
        cycle.scope["extensions"] = self._extensions(cycle)
        super()._start_asgi_task(cycle, _last_if_unread(cycle, app) if cycle.waiting_for_100_continue else app)

    def _extensions(self, _cycle: RequestResponseCycle) -> dict[str, Any]:
        """Return the extensions of the request's ASGI scope."""
        found = {DRAINED: self.flow.drain, PAUSE: self.pause}
        return {**found, NAMES: self.names} if self.names else found

    def on_response_complete(self) -> None:
        """Answer the next pipelined request, write a pending refusal, or wait for the client."""
        self._running = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._limits.unread.enter(self, self.loop)
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._refusal is not None:
            self._write_refusal(self._refusal)
            return
        self._settle()

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: the queues of ``Connections`` have the timers."""

    def _refuse(self, error: GatewayError, *, has_method: bool = True) -> None:
        """End the connection with a refusal, after the answers to earlier requests.

        ``has_method``: the parser has read the request's method; else it still has that of an earlier request.
        """
        self._limits.count(error.kind)
        self._ignores_input = True
        self._unparsed = 0
        self._refuses_head = has_method and self._phase != BETWEEN and self.parser.get_method() == b"HEAD"
        self._enter(None)
        if self._phase == BODY:
            cycle: Any = self.cycle
            if self.pipeline:
                self.pipeline.popleft()
                self.cycle = self.pipeline[0][0] if self.pipeline else self._running
            elif cycle.response_started:  # an answer, or a part of it, is written already
                self.transport.close()
                return
            else:
                cycle.disconnected = True
                cycle.message_event.set()
                self._write_refusal(error)
                return
        if self._is_busy():
            self._refusal = error
        else:
            self._write_refusal(error)

    def _write_refusal(self, error: GatewayError, *, lingers: bool = True) -> None:
        status, headers, content = problem(error, new_id())
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(content))
        if not self._refuses_head:
            lines.append(content)
        transport = self.transport
        transport.write(b"".join(lines))
        # Read for a moment what the client still sends: closing earlier would reset the connection and lose the answer.
        if lingers and transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            self._look = self.loop.call_later(_LINGER_S, transport.abort)
        else:
            transport.close()

    # --- time limits (see ``connections``) ----------------------------------------------------------------------------

    def head_is_late(self) -> None:
        """See ``connections.Connection``."""
        self._queue = None
        if self._phase == HEAD:
            late = f"the request's head did not arrive within {self._limits.heads.timeout:g} s"
            self._refuse(HeadTimeout(late), has_method=bool(self.url))
        else:
            self._limits.count(NOTHING_ASKED)
            self.transport.close()

    def body_is_late(self) -> None:
        """See ``connections.Connection``."""
        self._queue = None
        self._refuse(BodyTimeout(f"the body did not arrive within {self._limits.bodies.timeout:g} s"))

    def is_idle_too_long(self) -> None:
        """See ``connections.Connection``."""
        self._queue = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def evict(self) -> None:
        """See ``connections.Connection``."""
        self._limits.pacer.forget(self, self._address())
        self._take_buffered()
        self.transport.close()

    def is_not_read(self) -> None:
        """See ``connections.Connection``."""
        self._limits.count(NOT_READ)
        self.transport.abort()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than it is answered."""
        super().pause_writing()
        self._limits.unread.enter(self, self.loop)

    def resume_writing(self) -> None:
        """Note that the client has read."""
        super().resume_writing()
        self._limits.unread.leave(self)


def _last_if_unread(cycle: RequestResponseCycle, app: Any) -> Any:
    """Wrap ``app`` for a request with ``expect: 100-continue``: close the connection after an answer that did not read
    the body, because the client may or may not still send it.
    """

    async def run(scope: Any, receive: Any, send: Any) -> None:
        async def send_last(message: Any) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_last)

    return run


def _reason(error: Exception, data: bytes) -> str:
    if data.startswith(b"\x16\x03"):
        return "this is TLS, and this port speaks plain HTTP"
    if isinstance(error, httptools.HttpParserCallbackError):
        return "the request's address cannot be read"
    return f"this is not an HTTP/1.1 request: {ascii(str(error))[1:-1]}"
