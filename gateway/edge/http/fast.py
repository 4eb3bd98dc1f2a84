"""The fast path: three shortcuts for the inference route; ``TRITON_GATEWAY_FAST_PATH=false`` switches all of them off.

1. **A request without a task.** The common inference request (small, plain, whole in one read) is handed to the
   application's ``lane`` (see ``routes.Lane``), queued for the next call to Triton, and answered from the callback of
   that call: no task, no scope, no messages.
2. **Known heads.** A client's requests differ in their bodies and their lengths; the rest of the head is the same bytes
   again. What was made of those bytes is remembered (see ``Heads``) and not made again.
3. **An answer in one piece.** The ASGI extension ``gateway.reply`` in a request's scope writes head and body at once;
   uvicorn checks every header against two regular expressions and writes them apart.

A head is taken only if it is in a small, strict part of HTTP that everybody reads alike (see ``read_head``). Everything
else, and whatever the lane leaves, goes the ordinary way as if nothing of this were here:
``tests/unit/gateway/edge/http/test_streams.py`` shows that both answer alike.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.edge.http.protocol import BETWEEN, GatewayProtocol, HeaderList

EXTENSION: Final = "gateway.reply"
CARRIED: Final = "gateway.carried"
"""The ASGI extension that holds what the lane found out about a request before it left it to the application."""

Reply = Callable[[int, HeaderList, bytes], bool]
"""``reply(status, headers, body)``; False when it could not be used now and the messages must be sent instead.

``content-length`` must be among the headers.
"""

_MAX_HEAD_BYTES: Final = 4096
_HEAD: Final = re.compile(
    rb"POST (/[A-Za-z0-9/._~:-]*) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [!-~](?:[ -~]*[!-~])?\r\n)+)\r\n"
).match
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,9})\r\n").search
_NOT_PLAIN: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"proxy-connection", b"content-length"})
"""Headers that say how the request or the connection goes on; a second content-length among them."""
_NAMES_ITS_REQUEST: Final = frozenset({b"x-request-id"})


class LaneLike(Protocol):
    """What an application offers to answer requests without a task."""

    prefix: bytes
    """Paths that may be taken start so."""
    most_bytes: int
    """Bodies that may be taken are at most so long."""
    heads: Heads
    """Heads of requests that were taken."""

    def read(self, path: str, headers: HeaderList) -> object | None:
        """Return what the lane has to know of a request's head, and nothing else of it; None when it is not for it."""
        ...

    def take(self, flight: Flight, plain: Any, body: bytes) -> bool:
        """Answer through ``flight.reply``, now or later; False, and nothing done, when it is not for the lane.

        ``plain`` is what ``read`` has returned for this head, or for an equal one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request for the lane: what it says, and what the lane made of it."""

    url: bytes
    headers: HeaderList
    plain: object


def read_head(data: bytes, max_headers: int) -> tuple[bytes, list[tuple[bytes, bytes]], int] | None:
    """Return address, headers (names in lower case) and length of the head of a plain POST that ``data`` is exactly.

    Plain: HTTP/1.1 in visible ASCII, ``Name: value`` lines, an address without query, escapes or anything else that is
    taken apart, one content-length, a connection that lives on. None for everything else, which says nothing about it.
    """
    found = _HEAD(data, 0, _MAX_HEAD_BYTES)
    if found is None:
        return None
    headers = []
    length = b""
    for line in found[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name == b"content-length" and not length:
            length = value
        elif name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        headers.append((name, value))
    end = found.end()
    if not length.isdigit() or len(length) > 9 or int(length) != len(data) - end or len(headers) > max_headers:
        return None
    return found[1], headers, end


class Heads:
    """Heads of requests that were taken, by their bytes without the digits of their content-length.

    Each was read by ``read_head``: equal bytes mean an equal request, with a body of the length that they tell. Heads
    that name their request are not worth a place. Bounded: when it is full it starts from nothing.
    """

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._known: dict[bytes, Head] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return the head and the body of a request that ``data`` is exactly; None if that is not known."""
        end = data.find(b"\r\n\r\n") + 4
        found = _LENGTH(data, 0, end)
        if found is None:
            return None
        start, stop = found.span(1)
        head = self._known.get(data[:start] + data[stop:end])
        if head is None or int(data[start:stop]) != len(data) - end:
            return None
        return head, data[end:]

    def remember(self, data: bytes, head: Head, end: int) -> None:
        """Keep the head, the first ``end`` bytes of ``data``."""
        found = _LENGTH(data, 0, end)
        if found is None or any(name in _NAMES_ITS_REQUEST for name, _ in head.headers):
            return
        if len(self._known) >= self._most:
            self._known.clear()
        start, stop = found.span(1)
        self._known[data[:start] + data[stop:end]] = head


class Flight:
    """One request in the lane; stands where uvicorn keeps the cycle of the connection's current request."""

    __slots__ = (
        "_protocol", "body", "carried", "disconnected", "give_up", "head", "keep_alive", "message_event",
        "response_complete", "transport",
    )  # fmt: skip
    response_started = False

    def __init__(self, protocol: FastProtocol, head: Head, body: bytes, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self.transport = protocol.transport
        self.head = head
        self.body = body
        self.keep_alive = keep_alive
        self.give_up: Callable[[], None] | None = None
        """Called when the client leaves first."""
        self.carried: object = None
        """Given to the application with a request that is not taken."""
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NOBODY

    def replay(self, carried: object) -> None:
        """Hand the request to the application, as uvicorn would have done; not to ``reply``."""
        if not self.disconnected:
            self.forget()
            self._protocol.replay(self, carried)

    def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Write the answer, unless the client has left."""
        if self.disconnected or self.response_complete:
            return
        self.response_complete = True
        self.forget()
        _write(self.transport, status, headers, body, keep_alive=self.keep_alive)
        self._protocol.on_response_complete()

    def send(self, head: bytes, body: bytes) -> None:
        """Write an answer whose head is complete, save for how the connection goes on; else as ``reply``."""
        if self.disconnected or self.response_complete:
            return
        self.response_complete = True
        self.forget()
        transport = self.transport
        if self.keep_alive:
            transport.write(b"%b\r\n%b" % (head, body))
        else:
            transport.write(b"%bconnection: close\r\n\r\n%b" % (head, body))
            transport.close()
        self._protocol.on_response_complete()

    def forget(self) -> None:
        """Drop what refers back to this request, so that it is freed without the garbage collector."""
        self.give_up = None


class _Nobody:
    """An event nobody waits for."""

    def set(self) -> None:
        pass


_NOBODY: Final = _Nobody()


class FastProtocol(GatewayProtocol):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lane: LaneLike | None = getattr(self.config.loaded_app, "lane", None)
        self._carried: object = None

    def data_received(self, data: bytes) -> None:
        """Offer a whole, plain request to the lane; the rest, and what it leaves, goes the ordinary way."""
        lane = self._lane
        if lane is not None and self._phase == BETWEEN and self._is_free():
            known = lane.heads.find(data)
            if known is not None:
                if self._is_taken(lane, *known):
                    return
            elif data.startswith(b"POST %b" % lane.prefix):
                found = read_head(data, self._room.max_headers)
                if found is not None and found[2] <= self._room.max_head_bytes:
                    url, headers, end = found
                    plain = lane.read(url.decode("ascii"), headers)
                    if plain is not None:
                        head = Head(url, headers, plain)
                        if self._is_taken(lane, head, data[end:]):
                            lane.heads.remember(data, head, end)
                            return
        super().data_received(data)

    def _is_free(self) -> bool:
        """Return whether no other request is under way on the connection, and its client reads."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not (
            self.flow.write_paused or self._is_deaf or self.transport.is_closing()
        )

    def _is_taken(self, lane: LaneLike, head: Head, body: bytes) -> bool:
        """Offer a request to the lane; what that finds out about one it leaves is carried to the application."""
        if len(body) > lane.most_bytes:
            return False
        before = self.cycle
        flight = Flight(self, head, body, keep_alive=self._stays)
        self._wait_in(None)
        self.cycle = self._running = flight  # type: ignore[assignment]  # it has what is read of a cycle
        if lane.take(flight, head.plain, body):
            return True
        self.cycle, self._running = before, None
        self._carried = flight.carried
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what the client no longer waits for."""
        flight = self._running
        if isinstance(flight, Flight) and not flight.response_complete:
            flight.disconnected = True
            if flight.give_up is not None:
                flight.give_up()
            flight.forget()
        super().connection_lost(exc)

    def replay(self, flight: Flight, carried: object) -> None:
        """Start uvicorn's cycle for a request that the lane had taken; the parser may be further by now."""
        url, body = flight.head.url, flight.body
        length = str(len(body)).encode()
        headers = [(name, length if name == b"content-length" else value) for name, value in flight.head.headers]
        path = url.decode("ascii")
        scope: Any = {
            "type": "http", "asgi": {"version": self.asgi_version, "spec_version": "2.3"}, "http_version": "1.1",
            "server": self.server, "client": self.client, "scheme": self.scheme, "root_path": self.root_path,
            "headers": headers, "state": self.app_state.copy(), "method": "POST", "path": path, "raw_path": url,
            "query_string": b"",
        }  # fmt: skip
        cycle = RequestResponseCycle(
            scope=scope,
            transport=flight.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=flight.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.body += body
        cycle.more_body = False
        cycle.message_event.set()
        current: Any = self.cycle
        if current is flight:  # no other request has come on the connection meanwhile
            self.cycle = cycle
        self._carried = carried
        self._start_asgi_task(cycle, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        extensions: dict[str, Any] = {EXTENSION: partial(_reply, cycle)}
        if self._carried is not None:
            extensions[CARRIED], self._carried = self._carried, None
        cycle.scope["extensions"] = extensions
        super()._start_asgi_task(cycle, app)


def http_protocol(*, fast_path: bool) -> type[GatewayProtocol]:
    """Return the protocol that a server is given, with the fast path or without."""
    return FastProtocol if fast_path else GatewayProtocol


def _reply(cycle: RequestResponseCycle, status: int, headers: HeaderList, body: bytes) -> bool:
    if cycle.flow.write_paused or cycle.response_started or cycle.waiting_for_100_continue:
        return False
    if cycle.disconnected:
        return True
    cycle.response_started = cycle.response_complete = True
    if cycle.scope["method"] == "HEAD":
        body = b""
    _write(cycle.transport, status, headers, body, keep_alive=cycle.keep_alive)
    cycle.message_event.set()
    cycle.on_response()
    return True


def _write(transport: Any, status: int, headers: HeaderList, body: bytes, *, keep_alive: bool) -> None:
    parts = [STATUS_LINE[status]]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    if not keep_alive:
        parts.append(b"connection: close\r\n")
    parts += (b"\r\n", body)
    transport.write(b"".join(parts))
    if not keep_alive:
        transport.close()
