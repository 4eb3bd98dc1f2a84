"""The fast path: three shortcuts for inference routes; ``TRITON_GATEWAY_FAST_PATH=false`` switches all of them off.

1. **A request without a task.** The common inference request (small, plain, whole in one read) is handed to the
   application's ``fast_path`` (see ``routes.FastPath``), queued for the next call to Triton, and answered from the
   callback of that call: no task, no scope, no messages.
2. **Known heads.** A client's requests differ in their bodies and their lengths; the rest of the head is the same bytes
   again. What was made of those bytes is remembered (see ``HeadCache``) and not made again.
3. **An answer in one piece.** The ASGI extension ``gateway.reply`` in a request's scope writes head and body at once;
   uvicorn checks every header against two regular expressions and writes them apart.

A head is taken only if it is in a small, strict part of HTTP that everybody reads alike (see ``read_head``). Everything
else, and whatever the application leaves, goes the ordinary way as if nothing of this were here:
``tests/unit/gateway/edge/http/test_streams.py`` shows that both answer alike.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.callers.access import Names
from gateway.edge.http.problems import problem
from gateway.edge.http.protocol import BETWEEN, GatewayProtocol, HeaderList
from gateway.errors import InternalError
from gateway.trace import new_id

_log = logging.getLogger("triton_gateway.http")

EXTENSION: Final = "gateway.reply"

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
_LONG_S: Final = 0.25
"""Who has waited for longer until it was looked at is refused."""
_LENGTHS_PER_HEAD: Final = 4
"""Heads are kept with so many lengths each, on average."""
_NAMES_ITS_REQUEST: Final = frozenset({b"x-request-id"})


class FastPathLike(Protocol):
    """What an application offers to answer requests without a task."""

    starts: tuple[bytes, ...]
    """Requests that may be taken start with one of these: method and path."""
    max_bytes: int
    """Bodies that may be taken are at most so long."""
    heads: HeadCache
    """Heads of requests that were taken."""
    admin_port: int
    """The port on which nothing is taken; 0 for none."""

    def heads_of(self, names: Names) -> HeadCache:
        """Return those that were taken on connections whose client has these names by its certificate."""
        ...

    def read(self, path: str, headers: HeaderList, names: Names = ()) -> object | None:
        """Return all that is needed of a request's head; None if the request is not for the fast path."""
        ...

    def is_full(self, plain: Any) -> bool:
        """Return whether a request with such a head would be refused now for want of room."""
        ...

    def is_urgent(self, plain: Any) -> bool:
        """Return whether a request with such a head is of the most important class."""
        ...

    def refusal(self, plain: Any, seconds: float) -> tuple[bytes, bytes] | None:
        """Count a refusal for want of room, ``seconds`` after the request came, and return its head and body, as they
        were made for others before; None if it has to be made, by ``take``.
        """
        ...

    def take(self, pending: PendingReply, plain: Any, body: bytes) -> bool:
        """Answer through ``pending``, now or later; False, and nothing done, if it is not for the fast path.

        ``plain`` is what ``read`` has returned for this head, or for an equal one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request that the fast path took: what it says, and what the fast path made of it."""

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


class HeadCache:
    """Heads of requests that were taken, by their bytes without the digits of their content-length; and, for a quicker
    look, by all of their bytes.

    Each was read by ``read_head``: equal bytes mean an equal request, with a body of the length that they tell. Heads
    that name their request are not worth a place. Bounded: what is full starts from nothing.
    """

    def __init__(self, max_heads: int = 512) -> None:
        self._max_heads = max_heads
        self._known: dict[bytes, Head] = {}
        self._whole: dict[bytes, tuple[Head, int]] = {}
        """By all bytes: the head, and the length that it tells."""

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget every head: one may mean something else from now on."""
        self._known.clear()
        self._whole.clear()

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return the head and the body of a request that ``data`` is exactly; None if that is not known."""
        end = data.find(b"\r\n\r\n") + 4
        whole = self._whole.get(data[:end]) or self._look(data[:end])
        if whole is None or whole[1] != len(data) - end:
            return None
        return whole[0], data[end:]

    def _look(self, lines: bytes) -> tuple[Head, int] | None:
        found = _LENGTH(lines)
        if found is None:
            return None
        start, stop = found.span(1)
        head = self._known.get(lines[:start] + lines[stop:])
        if head is None:
            return None
        if len(self._whole) >= _LENGTHS_PER_HEAD * self._max_heads:
            self._whole.clear()
        whole = self._whole[lines] = head, int(found[1])
        return whole

    def remember(self, data: bytes, head: Head, end: int) -> None:
        """Keep the head, the first ``end`` bytes of ``data``."""
        found = _LENGTH(data, 0, end)
        if found is None or any(name in _NAMES_ITS_REQUEST for name, _ in head.headers):
            return
        if len(self._known) >= self._max_heads:
            self.clear()
        start, stop = found.span(1)
        self._known[data[:start] + data[stop:end]] = head


class PendingReply:
    """The reply that a connection waits for; stands where uvicorn keeps the cycle of the current request.

    The request's ``permit`` is given back when the reply was written and the client has taken so much of it that there
    is room for more, or has left.
    """

    __slots__ = (
        "_protocol", "disconnected", "give_up", "keep_alive", "message_event", "permit", "response_complete",
        "transport",
    )  # fmt: skip
    response_started = False

    def __init__(self, protocol: FastProtocol, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self.transport = protocol.transport
        self.keep_alive = keep_alive
        self.give_up: Callable[[], None] | None = None
        """Called when the client leaves first."""
        self.permit: Releasable | None = None
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NOBODY

    def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Write the answer, unless the client has left."""
        self.send(*checked(status, headers, body))

    def send(self, head: bytes, body: bytes) -> None:
        """Write an answer whose head is complete, save for how the connection goes on; else as ``reply``."""
        self.give_up = None  # it refers back to this request
        permit = self.permit
        if self.response_complete or self.disconnected:
            if permit is not None:
                permit.release()
            return
        self.response_complete = True
        _write(self.transport, head, body, keep_alive=self.keep_alive)
        protocol = self._protocol
        if permit is not None:
            if protocol.flow.write_paused:
                protocol.unread.append(permit)
            else:
                permit.release()
        protocol.on_response_complete()

    def rest(self, is_full: Callable[[], bool]) -> None:
        """See ``GatewayProtocol.rest``."""
        self._protocol.rest(is_full)

    def abort(self) -> None:
        """Close the connection: there is no answer that could be written."""
        if not self.response_complete:
            self.transport.close()
            self.disconnected = True
            self.send(b"", b"")  # nobody gets it, and nothing is held for it any more

    def lost(self) -> None:
        """Say that the client has left."""
        if self.response_complete:
            return
        self.disconnected = True
        give_up, self.give_up = self.give_up, None
        if give_up is not None:
            give_up()


class Releasable(Protocol):
    """What is held until an answer was written."""

    def release(self) -> None:
        """Let it go; a second call does nothing."""
        ...


class _Nobody:
    """An event nobody waits for."""

    def set(self) -> None:
        pass


_NOBODY: Final = _Nobody()


class FastProtocol(GatewayProtocol):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fast_path: FastPathLike | None = getattr(self.config.loaded_app, "fast_path", None)
        self._turns = self._room.turns
        self._own_heads: HeadCache | None = None
        """Heads of clients with this one's certificate: who has sent a head is known with it."""
        self.unread: list[Releasable] = []
        """What answers hold that the client has not read yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``GatewayProtocol``."""
        super().connection_made(transport)
        fast_path = self._fast_path
        if fast_path is None:
            return
        if fast_path.admin_port and self.server is not None and self.server[1] == fast_path.admin_port:
            self._fast_path = None
        elif self.names:
            self._own_heads = fast_path.heads_of(self.names)

    def data_received(self, data: bytes) -> None:
        """Offer a whole, plain request to the fast path; the rest, and what it leaves, goes the ordinary way."""
        fast_path, cycle = self._fast_path, self.cycle
        if (
            fast_path is not None
            and self._phase == BETWEEN
            # No other request is under way on the connection, and its client reads.
            and (cycle is None or cycle.response_complete)
            and not (self.flow.write_paused or self._is_deaf or self.transport.is_closing())
        ):
            if (self._rests_until or self._turns.is_over) and self._must_wait(data):
                return
            heads = fast_path.heads if self._own_heads is None else self._own_heads
            known = heads.find(data)
            if known is not None:
                head, body = known
                if self._is_taken(fast_path, head, body):
                    return
            elif data.startswith(fast_path.starts):
                found = read_head(data, self._room.max_headers)
                if found is not None and found[2] <= self._room.max_head_bytes:
                    url, headers, end = found
                    plain = fast_path.read(url.decode("ascii"), headers, self.names)
                    if plain is not None:
                        head = Head(headers, plain)
                        if self._is_taken(fast_path, head, data[end:]):
                            heads.remember(data, head, end)
                            return
        super().data_received(data)

    def _is_taken(self, fast_path: FastPathLike, head: Head, body: bytes) -> bool:
        if len(body) > fast_path.max_bytes:
            return False
        if fast_path.is_full(head.plain) and self._is_refused(fast_path, head, self._came or self.loop.time()):
            return True
        before = self.cycle
        pending = PendingReply(self, keep_alive=self._stays)
        line = self._line
        if line is not None:
            self._line = None
            line.leave(self)
        self.cycle = self._running = pending  # type: ignore[assignment]  # it has what is read of a cycle
        if fast_path.take(pending, head.plain, body):
            return True
        self.cycle, self._running = before, None
        return False

    def _known(self, data: bytes) -> Head | None:
        fast_path = self._fast_path
        if fast_path is None:
            return None
        found = (fast_path.heads if self._own_heads is None else self._own_heads).find(data)
        return None if found is None else found[0]

    def _goes_first(self, data: bytes) -> bool:
        """See ``GatewayProtocol``: who would be let in is not refused, and does not wait for it."""
        head, fast_path = self._known(data), self._fast_path
        if head is None or fast_path is None:
            return super()._goes_first(data)
        return not fast_path.is_full(head.plain)

    def go_on(self) -> bool:
        """See ``turns.Rests``. Who waited for long is refused, room or not: those who have just come are answered
        quickly, and under a flood they need all the room there is.
        """
        since, head, fast_path = self._waits_since, self._known(self._held), self._fast_path
        if (
            since
            and head is not None
            and fast_path is not None
            and self.loop.time() - since > _LONG_S
            and not (self.transport.is_closing() or self._room.is_leaving or fast_path.is_urgent(head.plain))
        ):
            held = self._take_held()
            if not self._is_refused(fast_path, head, since):
                self.data_received(held)
            return True
        return super().go_on()

    def _is_refused(self, fast_path: FastPathLike, head: Head, since: float) -> bool:
        """Refuse for want of room in microseconds and let the connection rest; False if there is more to be done.

        ``since``: loop time when the request came. That of libuv stands still while it works through what is ready, so
        what the request has waited behind others is counted, too.
        """
        self._is_counted = False
        made = fast_path.refusal(head.plain, max(time.monotonic() - since, 0.0))
        if made is None:
            return False
        self.server_state.total_requests += 1
        _write(self.transport, *made, keep_alive=self._stays)
        if self._stays:
            self._wait_in(self._room.idle)
        self.rest(partial(fast_path.is_full, head.plain))
        return True

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """See ``GatewayProtocol``: who ends its sending side while it waits has left, mostly, and is told at once."""
        if self._held and self.scheme != "https" and self._known(self._held) is not None:
            self.has_no_turn()
            return None
        return super().eof_received()

    def has_no_turn(self) -> None:
        """See ``connections.Connection``: it is told so, if that takes microseconds."""
        since, head, fast_path = self._waits_since, self._known(self._held), self._fast_path
        self._stays = False
        if head is not None and fast_path is not None:
            self._is_refused(fast_path, head, since)
        super().has_no_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what the client no longer waits for."""
        pending = self._running
        if isinstance(pending, PendingReply):
            pending.lost()
        self._let_go()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Go on: the client has read what there was."""
        super().resume_writing()
        self._let_go()

    def _let_go(self) -> None:
        for permit in self.unread:
            permit.release()
        self.unread.clear()

    def _extensions(self, cycle: RequestResponseCycle) -> dict[str, Any]:
        return {**super()._extensions(cycle), EXTENSION: partial(_reply, cycle)}


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
    _write(cycle.transport, *checked(status, headers, body), keep_alive=cycle.keep_alive)
    cycle.message_event.set()
    cycle.on_response()
    return True


def checked(status: int, headers: HeaderList, body: bytes) -> tuple[bytes, bytes]:
    """Return head and body of an answer as ``PendingReply.send`` takes them."""
    parts = [STATUS_LINE[status]]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    head = b"".join(parts)
    lines = len(headers) + 1
    if head.count(b"\n") != lines or head.count(b"\r") != lines:
        # Headers are checked where they come from; one that was not must not become two, or another answer.
        _log.error("an answer of status %d was not sent: a header of it has a line break", status)
        broken = InternalError("the answer had a header that cannot be sent")
        _, headers, body = problem(broken, new_id())
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n" % (STATUS_LINE[500], len(body))
    return head, body


def _write(transport: Any, head: bytes, body: bytes, *, keep_alive: bool) -> None:
    if keep_alive:
        transport.write(b"%b\r\n%b" % (head, body))
    else:
        transport.write(b"%bconnection: close\r\n\r\n%b" % (head, body))
        transport.close()
