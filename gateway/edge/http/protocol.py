"""uvicorn's HTTP/1.1 protocol with three additions for the inference route; everything else goes uvicorn's way.

1. **An answer known whole is written in one piece.** uvicorn checks every header of every answer against two regular
   expressions and writes head and body apart; with the headers of an inference answer that costs about as much as
   tokenizing a short text. The ASGI extension ``gateway.reply`` in a request's scope writes head and body at once.
2. **The lane.** The common inference request (small, whole in one read, a text task) needs no task of its own: it is
   parsed, queued for the next call to Triton, and answered from the callback of that call. The application offers a
   ``lane`` (see ``routes.Lane``) that takes such requests or leaves them.
3. **Known heads.** A client's requests differ in their bodies and their lengths; the rest of the head is the same bytes
   again. What the parser and the lane made of those bytes is remembered (see ``Heads``) and not made again.

Connections end between answers: after an age, and when the process is about to stop (see ``Connections``).

What the lane does not take (other methods and paths, bodies that arrive in parts, pipelined requests, clients that do
not read) is handled by uvicorn as if there were no lane. Chosen in ``gateway.__main__``; any other ASGI server works
without them.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

EXTENSION: Final = "gateway.reply"
CARRIED: Final = "gateway.carried"
"""The ASGI extension that holds what the lane found out about a request before it left it to the application."""

HeaderList = Sequence[tuple[bytes, bytes]]
Reply = Callable[[int, HeaderList, bytes], bool]
"""``reply(status, headers, body)``; False when it could not be used now and the messages must be sent instead.

Header names and values must be free of control characters, and ``content-length`` must be among them.
"""


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
    """The head of a request that was taken by the lane: what the parser made of it, and what the lane did."""

    url: bytes
    headers: HeaderList
    plain: object


class Heads:
    """Heads by their bytes, without the digits of their content-length.

    Only those that the parser accepted, that let the connection live on, and whose content-length told what the parser
    took for the body: equal bytes then mean an equal request, with a body of the length that they tell. Heads that name
    their request are not worth a place. Bounded: when it is full it starts from nothing.
    """

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._known: dict[bytes, Head] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return the head and the body of a request that ``data`` is exactly; None where that is not known."""
        end = data.find(b"\r\n\r\n") + 4
        found = _LENGTH(data, 0, end)
        if found is None:
            return None
        start, stop = found.span(1)
        head = self._known.get(data[:start] + data[stop:end])
        if head is None or int(data[start:stop]) != len(data) - end:
            return None
        return head, data[end:]

    def remember(self, data: bytes, head: Head, body: bytes) -> None:
        """Keep the head of a request that ``data`` may be exactly: the parser took ``body`` out of it."""
        end = data.find(b"\r\n\r\n") + 4
        found = _LENGTH(data, 0, end)
        if found is None or end > _LONGEST_HEAD or int(found[1]) != len(body) or data[end:] != body:
            return
        if any(name in _NAMES_ITS_REQUEST for name, _ in head.headers):
            return
        if len(self._known) >= self._most:
            self._known.clear()
        start, stop = found.span(1)
        self._known[data[:start] + data[stop:end]] = head


_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,9})\r\n").search
# Two lines of this kind are refused by the parser, so that the one that is found is the one that counts.
_LONGEST_HEAD: Final = 4096
_NAMES_ITS_REQUEST: Final = frozenset({b"x-request-id"})


class Connections:
    """What the application decides about connections, and those that are open. ``age`` in seconds, 0 for no end."""

    def __init__(self, *, age: float = 0.0) -> None:
        self.age = age
        self.is_leaving = False
        self.open: Iterable[object] = ()

    def leave(self) -> None:
        """Make every answer from now on the last one on its connection, on those to come too."""
        self.is_leaving = True
        for connection in self.open:
            if isinstance(connection, GatewayProtocol):
                connection.leave()


class Flight:
    """One request in the lane; stands where uvicorn keeps the cycle of the connection's current request."""

    __slots__ = (
        "_protocol", "body", "carried", "disconnected", "give_up", "head", "keep_alive", "message_event",
        "response_complete",
    )  # fmt: skip

    def __init__(self, protocol: GatewayProtocol, head: Head, body: bytes, *, keep_alive: bool) -> None:
        self._protocol = protocol
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
        _write(self._protocol.transport, status, headers, body, keep_alive=self.keep_alive)
        self._protocol.on_response_complete()

    def send(self, head: bytes, body: bytes) -> None:
        """Write an answer whose head is complete, save for how the connection goes on; else as ``reply``."""
        if self.disconnected or self.response_complete:
            return
        self.response_complete = True
        self.forget()
        protocol = self._protocol
        if self.keep_alive:
            protocol.transport.write(b"%b\r\n%b" % (head, body))
        else:
            protocol.transport.write(b"%bconnection: close\r\n\r\n%b" % (head, body))
            protocol.transport.close()
        protocol.on_response_complete()

    def forget(self) -> None:
        """Drop what refers back to this request, so that it is freed without the garbage collector."""
        self.give_up = None


class _Nobody:
    """An event nobody waits for."""

    def set(self) -> None:
        pass


_NOBODY: Final = _Nobody()


class GatewayProtocol(HttpToolsProtocol):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        app = self.config.loaded_app
        self._lane: LaneLike | None = getattr(app, "lane", None)
        self._stays = True
        self._age: asyncio.TimerHandle | None = None
        connections: Connections | None = getattr(app, "connections", None)
        if connections is not None:
            connections.open = self.connections
            self._stays = not connections.is_leaving
            if connections.age:
                # Spread out, so that what connected together does not come back together.
                age = connections.age * random.uniform(0.9, 1.1)  # noqa: S311 - not a secret
                self._age = self.loop.call_later(age, self.leave)
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] | None = None
        self._between = True
        self._whole: bytes | None = None
        self._is_declined = False
        self._flight: Flight | None = None
        self._idle_since: float | None = None
        self._carried: object = None

    def leave(self) -> None:
        """Let the next answer (or the one that is being made) be the last one on this connection."""
        self._stays = False
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it is known; a body that did not come whole is uvicorn's."""
        if self._between:
            lane = self._lane
            if lane is not None and self._is_free():
                found = lane.heads.find(data)
                if found is not None:
                    self._idle_since = None
                    if self._is_taken(lane, *found, keep_alive=self._stays):
                        return
                    self._is_declined = True  # by the lane: the parser gets it for uvicorn
            self._whole = data
        super().data_received(data)
        self._whole = None
        if self._parts is not None:
            parts, self._parts = self._parts, None
            self._to_uvicorn()
            for part in parts:
                super().on_body(part)

    def _is_free(self) -> bool:
        """Say that no other request is under way on the connection, and that its client reads."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def _is_taken(self, lane: LaneLike, head: Head, body: bytes, *, keep_alive: bool) -> bool:
        """Offer a request to the lane; what that finds out about one it leaves is carried to the application."""
        if len(body) > lane.most_bytes:
            return False
        before = self.cycle
        flight = Flight(self, head, body, keep_alive=keep_alive)
        self._flight = flight
        self.cycle = flight  # type: ignore[assignment]  # it has what this class and its base read of a cycle
        if lane.take(flight, head.plain, body):
            return True
        self._flight = None
        self.cycle = before
        self._carried = flight.carried
        return False

    def on_message_begin(self) -> None:
        """Make the scope only for what becomes uvicorn's: see ``_to_uvicorn``."""
        self._between = False
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def _scope_for(self, headers: list[tuple[bytes, bytes]]) -> Any:
        """Return the scope uvicorn would have made when the message began."""
        url, expect, mine = self.url, self.expect_100_continue, self.headers
        super().on_message_begin()
        self.url, self.expect_100_continue, self.headers = url, expect, mine
        self.scope["headers"] = headers
        return self.scope

    def _to_uvicorn(self) -> None:
        self._scope_for(self.headers)
        super().on_headers_complete()

    def on_headers_complete(self) -> None:
        """Hold a request that may be for the lane until its body is there."""
        lane = self._lane
        if self._is_declined:
            self._is_declined = False
        elif (
            lane is not None
            and self.url.startswith(lane.prefix)
            and self._is_free()
            and self.parser.get_method() == b"POST"
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and b"?" not in self.url
            and b"%" not in self.url
        ):
            self._parts = []
            return
        self._to_uvicorn()

    def on_body(self, body: bytes) -> None:
        """Collect the body of a held request."""
        if self._parts is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Offer a held request to the lane."""
        self._between = True
        whole, self._whole = self._whole, None
        if self._parts is None:
            super().on_message_complete()
            return
        parts, self._parts = self._parts, None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        lane = self._lane
        lives_on = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        plain = lane.read(self.url.decode("ascii", "replace"), self.headers) if lane is not None else None
        if lane is not None and plain is not None:
            head = Head(self.url, self.headers, plain)
            if self._is_taken(lane, head, body, keep_alive=self._stays and lives_on):
                if lives_on and whole is not None:
                    lane.heads.remember(whole, head, body)
                return
        self._to_uvicorn()
        super().on_body(body)
        super().on_message_complete()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_response_complete(self) -> None:
        """As uvicorn, with one timer per connection that looks again, instead of one per answer that is cancelled."""
        if self.pipeline:
            super().on_response_complete()
            self._end_timer()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for long enough."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # busy: the answer starts the timer again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)

    def _end_timer(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what the client no longer waits for."""
        self._end_timer()
        if self._age is not None:
            self._age.cancel()
        flight = self._flight
        if flight is not None and not flight.response_complete:
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
        path = url.decode("ascii", "replace")
        current_scope = getattr(self, "scope", None)
        scope = self._scope_for(headers)
        self.scope = current_scope  # type: ignore[assignment]
        scope.update(method="POST", path=path, raw_path=url, query_string=b"")
        cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
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
        self._flight = None
        self._start_asgi_task(cycle, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if not self._stays:
            cycle.keep_alive = False
        extensions: dict[str, Any] = {EXTENSION: partial(_reply, cycle)}
        if self._carried is not None:
            extensions[CARRIED], self._carried = self._carried, None
        cycle.scope["extensions"] = extensions
        super()._start_asgi_task(cycle, app)


def _reply(cycle: RequestResponseCycle, status: int, headers: HeaderList, body: bytes) -> bool:
    if cycle.flow.write_paused or cycle.response_started:
        return False
    if cycle.disconnected:
        return True
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
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
