"""uvicorn's HTTP/1.1 protocol with limits: what a connection may send, how long it may take, and how it ends.

uvicorn parses (with httptools) and runs the application; its protocol has no limit on a head, waits for ever for what
does not come, and forgets a client that has ended its sending side. Here

- a head has a size, a number of lines and a time; a body has a time; a connection has a place (see ``connections``);
- a refusal (400, 408, 414, 431, 503) is JSON like every other, comes after the answers to what was asked before it, and
  is the last thing on its connection;
- a client that ends its sending side behind a whole request is answered (see ``_Begun`` for one that has left);
- what follows a declined upgrade, and what nobody waited for (``expect: 100-continue``), is never taken for something
  else.

``fast.FastProtocol`` adds to this, and can be switched off. Chosen in ``gateway.__main__``.
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
from gateway.edge.http.problems import problem
from gateway.edge.http.turns import MAX_HELD_BYTES, NEW_COUNTS
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
"""What the parser is in the middle of."""

TAKEN: Final = "gateway.taken"
"""The ASGI extension ``await taken()``: returns when the client has taken so much of the answer that there is room for
more, or has left.
"""

NAMES: Final = "gateway.names"
"""The ASGI extension with what the client is called by its certificate (``callers.access.Names``), if it shows one."""

REST: Final = "gateway.rest"
"""The ASGI extension ``rest(is_full)``: this request was refused for want of room, so the next one of its connection is
not read at once (see ``turns``), unless ``is_full()`` is no longer so.
"""

HeaderList = Sequence[tuple[bytes, bytes]]

_MAX_URL_BYTES: Final = 65_535
"""httptools counts the places in an address with 16 bits."""
_MAX_PIPELINED: Final = 64
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1 << 20
_FIRST_LOOK_S: Final = 0.01
_LAST_LOOK_S: Final = 0.25
_BEGINNING: Final = b"HTTP/1.1 "
"""How every answer begins."""


class _Refused(Exception):
    """Raised out of a callback of the parser: the connection ends with this refusal."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(error.message)
        self.error = error


class _Begun:
    """A transport on which the beginning of the next answer is written already.

    A client that has left and one that has only ended its sending side look alike: the kernel says "no more bytes". The
    difference shows when something is written, because a client that has left answers it with a reset. What is written
    is what every answer begins with, so that the one that still reads notices nothing.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.write(_BEGINNING)

    def write(self, data: bytes) -> None:
        """Write the answer, and from then on whatever comes."""
        self._transport.write(data[len(_BEGINNING) :])
        self.write = self._transport.write  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class GatewayProtocol(HttpToolsProtocol):
    """See the module. What waits for the client is in one of the lines of ``Connections``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        connections = getattr(self.config.loaded_app, "connections", None)
        self._room: Connections = Connections() if connections is None else connections
        self._room.open = self.connections
        self.names: Names = ()
        """What the client is called by the certificate it has shown."""
        self._stays = not self._room.is_leaving
        self._age: asyncio.TimerHandle | None = None
        if self._room.age:
            # Spread out, so that what connected together does not come back together.
            age = self._room.age * random.uniform(0.9, 1.1)  # noqa: S311 - not a secret
            self._age = self.loop.call_later(age, self.leave)
        self._phase = BETWEEN
        self._line: Any = None
        self._running: Any = None
        """The cycle that is being answered; ``cycle`` is the newest."""
        self._unparsed = 0
        """Bytes that came since the parser last had something to show for them."""
        self._head_bytes = self._head_lines = 0
        self._refusal: GatewayError | None = None
        self._refuses_head = False
        """Whether the refusal answers a HEAD request: it then has no body."""
        self._is_deaf = False
        self._is_repeated = False
        self._look: asyncio.Handle | None = None
        self._is_full: Callable[[], bool] | None = None
        """What a request of this connection was refused by."""
        self._is_counted = False
        self._rests_until = 0.0
        """Loop time until which what comes is not looked at: a request was refused; see ``turns``. Infinite while it
        waits for its turn.
        """
        self._held = b""
        """What has come meanwhile."""
        self._is_ended = False
        """Whether its client has ended its sending side while it waited."""
        self._waits_since = 0.0
        """Loop time since when it waits to be looked at for the first time."""
        self._came = 0.0
        """The same of what is looked at now; 0 if it did not wait."""

    # --- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let the connection wait for its first head, if there is room for it."""
        super().connection_made(transport)
        if self.scheme == "https":
            self.names = names_of_peer(transport)
        if self._room.has_room():
            self._wait_in(self._room.heads)
        else:
            self._room.count(NO_ROOM)
            full = f"this process has all of its {self._room.max_open} connections in use"
            self._is_deaf = True
            hint = "try again in a second, or raise TRITON_GATEWAY_MAX_CONNECTIONS"
            self._write_refusal(Unavailable(full, hint=hint), lingers=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application, and leave no timer behind."""
        self._room.forget(self)
        if self._held:
            self._room.turns.forget(self, self._from())
            self._take_held()
        for timer in (self._age, self._look):
            if timer is not None:
                timer.cancel()
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn tells only the newest request
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Let the next answer (or the one that is being made) be the last one on this connection."""
        self._stays = False
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False

    def _is_busy(self) -> bool:
        """Return whether a request that was begun is still to be answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_in(self, line: Any) -> None:
        if line is not self._line:
            if self._line is not None:
                self._line.leave(self)
            self._line = line
        if line is not None:
            line.enter(self, self.loop)

    def _settle(self) -> None:
        """Wait in the line that fits what the parser is in the middle of; in none while the client waits for us."""
        room, cycle = self._room, self.cycle
        if self._phase == BODY:
            self._wait_in(None if self.pipeline else room.bodies)
        elif cycle is not None and not cycle.response_complete:
            self._wait_in(None)
        elif self._phase == HEAD:
            self._wait_in(room.heads)
        elif self._line is None:
            self._line = room.idle
            room.idle.enter(self, self.loop)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what came; what cannot be parsed, or is too much, ends the connection."""
        if self._phase == BETWEEN and not self._is_busy():
            turns = self._room.turns
            if (self._rests_until or turns.is_over) and self._must_wait(data):
                return
            self._is_counted = not turns.has_room()
            if self._is_counted:
                self._count_refusal()  # known now, before others are read
        self._unparsed += len(data)
        if self._is_deaf:
            if self._unparsed > _LINGER_BYTES and not self._is_busy():
                self.transport.abort()
            return
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.error if isinstance(cause, _Refused) else MalformedRequest(_reason(error, data)))
            return
        if self._phase == BETWEEN:
            self._unparsed = 0
        elif self._unparsed > self._room.max_head_bytes:
            self._refuse(self._too_large())
            return
        self._settle()

    # --- turns --------------------------------------------------------------------------------------------------------

    def rest(self, is_full: Callable[[], bool]) -> None:
        """Let what comes next rest for a while, as long as ``is_full()``: a request is refused for want of room."""
        if not self._is_counted:
            self._count_refusal()
        self._is_counted = False
        self._rests_until = self._room.turns.until(self.loop.time())
        self._is_full = is_full

    def has_room(self) -> bool:
        """See ``turns.Rests``."""
        return self._is_full is None or not self._is_full()

    def _count_refusal(self) -> None:
        self._room.refused(self.loop, NEW_COUNTS if self._is_full is None else 1.0)

    def _must_wait(self, data: bytes) -> bool:
        """Keep what came until it is this connection's turn; returns whether it has to wait, and there is room to."""
        room = self._room
        turns, until = room.turns, self._rests_until
        if self._held:
            self._hold(data)
            return True
        self._rests_until = 0.0
        if turns.held_bytes + len(data) > MAX_HELD_BYTES or self._is_deaf or room.is_leaving:
            return False
        now = self.loop.time()
        if self._goes_first(data) if turns.is_over else self.has_room() or now >= until:
            return False
        if self._is_full is not None:
            turns.rest(self, until)
            self.flow.pause_reading()
        else:
            # It is read on: whose client leaves meanwhile, as most do whom nobody tells anything, is not kept open.
            turns.wait(self, self._from())
            self._waits_since = self._came or now
        room.take_turns(self.loop)
        self._wait_in(None)  # it has asked: its place is not given to another
        self._rests_until = inf
        self._held = data
        turns.held_bytes += len(data)
        return True

    def _hold(self, data: bytes) -> None:
        """Keep more of one that waits, and read no further; what is too much to keep is not waited with."""
        turns = self._room.turns
        self._held += data
        turns.held_bytes += len(data)
        self.flow.pause_reading()
        if turns.held_bytes > MAX_HELD_BYTES:
            turns.forget(self, self._from())
            self.go_on()

    def _from(self) -> str:
        return "" if self.client is None else self.client[0]

    def _goes_first(self, data: bytes) -> bool:
        """Return whether what came is looked at although as many were refused as may be."""
        return self._room.turns.has_time_for_urgent() and self._room.is_urgent(data[: self._room.max_head_bytes])

    def go_on(self) -> bool:
        """See ``turns.Rests``."""
        if not self._held:
            return False
        self._came = self._waits_since
        held = self._take_held()
        if not self.transport.is_closing():
            self.data_received(held)
            if self._is_ended and not self._held and not self.eof_received():
                self.transport.close()
        self._came = 0.0
        return True

    def _take_held(self) -> bytes:
        held, self._held, self._waits_since, self._rests_until = self._held, b"", 0.0, 0.0
        self._room.turns.held_bytes -= len(held)
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
        """Go on in HTTP/1.1 behind the head of a request that offers another protocol, with its body or the next head.

        httptools takes what follows such a head for the other protocol. A parser that has read a head with the same
        lengths, and no offer, reads it as it was meant.
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
        """Begin to count a head."""
        if self._is_repeated:
            return
        self._phase = HEAD
        self._head_bytes = self._head_lines = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        if self._is_repeated:
            return
        self._count_head(len(url))
        self.url += url
        if len(self.url) > _MAX_URL_BYTES:
            raise _Refused(AddressTooLong(f"the address is longer than {_MAX_URL_BYTES} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a line of the head; those after a chunked body are counted and dropped."""
        if self._is_repeated:
            return
        self._head_lines += 1
        self._count_head(len(name) + len(value) + 4)
        if self._head_lines > self._room.max_headers:
            limit = f"the request's head has more than {self._room.max_headers} lines"
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
        if self._head_bytes > self._room.max_head_bytes:
            raise _Refused(self._too_large())

    def _too_large(self) -> HeadTooLarge:
        limit = f"the request's head is larger than {self._room.max_head_bytes} bytes"
        return HeadTooLarge(limit, hint="send fewer or shorter headers, or raise TRITON_GATEWAY_MAX_HEAD_BYTES")

    def on_headers_complete(self) -> None:
        """Start the request, or let it wait for the ones before it."""
        if self._is_repeated:
            return
        if len(self.pipeline) >= _MAX_PIPELINED:
            waiting = f"more than {_MAX_PIPELINED} requests were sent ahead on one connection"
            raise _Refused(Overloaded(waiting, hint="wait for answers, or use more connections"))
        if self.parser.get_method() == b"CONNECT":
            raise _Refused(MethodNotAllowed("CONNECT is not possible here: this is no proxy"))
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _Refused(MalformedRequest(f"this is HTTP/{version}, and this port speaks HTTP/1.1"))
        super().on_headers_complete()
        self._phase = BODY
        self._unparsed = 0
        self._wait_in(None)

    def on_body(self, body: bytes) -> None:
        """Hand a part of the body on."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.parser.should_upgrade() and self._lengths():
            return  # its body is still to come: see `_decline_upgrade`
        self._phase = BETWEEN
        self._unparsed = 0
        self._wait_in(None)
        super().on_message_complete()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the connection for the answers that are still to be given to whole requests; return whether it is."""
        if self._held and self.scheme != "https":
            self._is_ended = True  # and is looked at when it is its turn
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
            self._running.transport = self.transport = _Begun(self.transport)  # type: ignore[assignment]
        self._look = self.loop.call_soon(self._look_for_client, _FIRST_LOOK_S)
        return True

    def _look_for_client(self, wait: float) -> None:
        """Drop the connection if its client has reset it: nothing is read any more, so nobody else would tell."""
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
        if not self._stays:
            cycle.keep_alive = False
        cycle.scope["extensions"] = self._extensions(cycle)
        super()._start_asgi_task(cycle, _wary(cycle, app) if cycle.waiting_for_100_continue else app)

    def _extensions(self, _cycle: RequestResponseCycle) -> dict[str, Any]:
        """Return what the application may use beside ASGI's own messages."""
        found = {TAKEN: self.flow.drain, REST: self.rest}
        return {**found, NAMES: self.names} if self.names else found

    def on_response_complete(self) -> None:
        """Go on to the next request that waits, to a refusal that does, or to waiting for the client."""
        self._running = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._room.unread.enter(self, self.loop)
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
        """Do nothing: the lines have the timers."""

    def _refuse(self, error: GatewayError) -> None:
        """End the connection with a refusal, after the answers to the requests before it."""
        self._room.count(error.kind)
        self._is_deaf = True
        self._unparsed = 0
        self._refuses_head = self._phase != BETWEEN and self.parser.get_method() == b"HEAD"
        self._wait_in(None)
        if self._phase == BODY:
            cycle: Any = self.cycle
            if self.pipeline:
                self.pipeline.popleft()
                self.cycle = self.pipeline[0][0] if self.pipeline else self._running
            elif cycle.response_started:  # it has its answer, or a part of it
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
        # What the client is still sending is read for a moment: closing before it would drop the answer on its way.
        if lingers and transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            self._look = self.loop.call_later(_LINGER_S, transport.abort)
        else:
            transport.close()

    # --- what does not come (see ``connections``) ---------------------------------------------------------------------

    def head_is_late(self) -> None:
        """See ``connections.Connection``."""
        self._line = None
        if self._phase == HEAD:
            late = f"the request's head did not arrive within {self._room.heads.timeout:g} s"
            self._refuse(HeadTimeout(late))
        else:
            self._room.count(NOTHING_ASKED)
            self.transport.close()

    def body_is_late(self) -> None:
        """See ``connections.Connection``."""
        self._line = None
        self._refuse(BodyTimeout(f"the body did not arrive within {self._room.bodies.timeout:g} s"))

    def is_idle_too_long(self) -> None:
        """See ``connections.Connection``."""
        self._line = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def has_no_turn(self) -> None:
        """See ``connections.Connection``."""
        self._room.turns.forget(self, self._from())
        self._take_held()
        self.transport.close()

    def is_not_read(self) -> None:
        """See ``connections.Connection``."""
        self._room.count(NOT_READ)
        self.transport.abort()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._room.unread.enter(self, self.loop)

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._room.unread.leave(self)


def _wary(cycle: RequestResponseCycle, app: Any) -> Any:
    """Wrap ``app`` for a client that waits for ``100 Continue``: an answer that did not wait for the body is the last
    one, because nobody knows whether the body still comes.
    """

    async def run(scope: Any, receive: Any, send: Any) -> None:
        async def send_wary(message: Any) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_wary)

    return run


def _reason(error: Exception, data: bytes) -> str:
    if data.startswith(b"\x16\x03"):
        return "this is TLS, and this port speaks plain HTTP"
    if isinstance(error, httptools.HttpParserCallbackError):
        return "the request's address cannot be read"
    return f"this is not an HTTP/1.1 request: {ascii(str(error))[1:-1]}"
