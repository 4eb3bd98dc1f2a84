"""The fast path: three shortcuts for inference routes; ``TRITON_GATEWAY_FAST_PATH=false`` switches all of them off.

1. **A request without a task.** The common inference request (small, plain, received in one read) goes to the
   application's ``fast_path`` (see ``routes.FastPath``), is queued for the next call to Triton, and is answered from
   the callback of that call. It needs no task, no ASGI scope and no ASGI messages.
2. **Known heads.** Requests of one client usually differ only in their bodies and content lengths. ``HeadCache`` keeps
   the parsed form of each head, so that equal bytes are parsed once.
3. **An answer in one write.** The ASGI extension ``gateway.reply`` in a request's scope writes head and body together.
   uvicorn checks every header against two regular expressions and writes head and body separately.

The fast path reads only a small, strict subset of HTTP, on which all parsers agree (see ``read_head``). All other
requests take the ordinary path. ``tests/unit/gateway/edge/http/test_streams.py`` shows that both paths give the same
answers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import weakref
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
"""Key of ``reply(status, headers, body)``, which writes an answer. It returns False if the ASGI messages must be sent
instead.

The headers must include ``content-length``.
"""

_MAX_HEAD_BYTES: Final = 4096
_HEAD: Final = re.compile(
    rb"POST (/[A-Za-z0-9/._~:-]*) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [!-~](?:[ -~]*[!-~])?\r\n)+)\r\n"
).match
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,9})\r\n").search
_NOT_PLAIN: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"proxy-connection", b"content-length"})
"""Headers that change how a request or a connection is read. A second content-length is one of them."""
_MAX_WAIT_S: Final = 0.25
"""A request that has waited for longer before it was read is refused."""
_LENGTHS_PER_HEAD: Final = 4
"""Content lengths that are kept for each head, on average."""
_UNIQUE_HEADERS: Final = frozenset({b"x-request-id"})


class FastPathLike(Protocol):
    """The part of an application that answers requests without a task."""

    prefixes: tuple[bytes, ...]
    """First bytes (method and path) of the requests that it may answer."""
    max_bytes: int
    """Longest body that it answers."""
    heads: HeadCache
    """Heads of requests that it has answered."""
    admin_port: int
    """The operators' port, on which it answers nothing; 0 for none."""

    def cache_for(self, names: Names) -> HeadCache:
        """Return the head cache for clients with these certificate names."""
        ...

    def parse_head(self, path: str, headers: HeaderList, names: Names = ()) -> object | None:
        """Return the parsed head of a request; None if the request is not for the fast path."""
        ...

    def is_full(self, plain: Any) -> bool:
        """Return whether a request with this head would be refused now for want of room."""
        ...

    def is_urgent(self, plain: Any) -> bool:
        """Return whether a request with this head is of class critical."""
        ...

    def refusal(self, plain: Any, seconds: float) -> tuple[bytes, bytes] | None:
        """Count a refusal for want of room, ``seconds`` after the request came, and return the head and body of its
        answer, rendered earlier; None if ``try_answer`` must make it.
        """
        ...

    def try_answer(self, pending: PendingReply, plain: Any, body: bytes) -> bool:
        """Answer through ``pending``, now or later; return False, with nothing done, if it is not for the fast path.

        ``plain``: the result of ``parse_head`` for this head or an equal one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request that the fast path answered: its headers, and the result of ``parse_head``."""

    headers: HeaderList
    plain: object


def read_head(data: bytes, max_headers: int) -> tuple[bytes, list[tuple[bytes, bytes]], int] | None:
    """Return address, headers (names in lower case) and length of the head if ``data`` is exactly one plain POST.

    Plain: HTTP/1.1 in visible ASCII, ``Name: value`` lines, an address without query or escapes, one content-length, a
    connection that stays open. Returns None for everything else, valid or not.
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
    """Heads of answered requests, by their bytes without the digits of the content-length.

    A second table finds them by all of their bytes, which is quicker. ``read_head`` has read each of them, so equal
    bytes mean an equal head. Heads with a request id are not kept: they do not come again. A full cache is cleared.
    """

    def __init__(self, max_heads: int = 512) -> None:
        self._max_heads = max_heads
        self._known: dict[bytes, Head] = {}
        self._whole: dict[bytes, tuple[Head, int]] = {}
        """By all bytes: the head, and its content-length."""

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget every head: keys or routes have changed."""
        self._known.clear()
        self._whole.clear()

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return head and body if ``data`` is exactly one request with a known head; else None."""
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
        if found is None or any(name in _UNIQUE_HEADERS for name, _ in head.headers):
            return
        if len(self._known) >= self._max_heads:
            self.clear()
        start, stop = found.span(1)
        self._known[data[:start] + data[stop:end]] = head


class PendingReply:
    """The reply to a request on the fast path; it takes the place of uvicorn's cycle of the current request.

    The request's ``permit`` is released when the reply is written and the write buffer has room again, or the client
    has left.
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
        self.message_event = _NO_EVENT

    def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Write the answer, unless the client has left."""
        self.send(*checked(status, headers, body))

    def send(self, head: bytes, body: bytes) -> None:
        """Write an answer whose head is complete but for the ``connection`` header and the last empty line."""
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

    def pause(self, is_full: Callable[[], bool]) -> None:
        """See ``GatewayProtocol.pause``."""
        self._protocol.pause(is_full)

    def abort(self) -> None:
        """Close the connection without an answer."""
        if not self.response_complete:
            self.transport.close()
            self.disconnected = True
            self.send(b"", b"")  # writes nothing, and releases the permit

    def lost(self) -> None:
        """Cancel the request: the client has left."""
        if self.response_complete:
            return
        self.disconnected = True
        give_up, self.give_up = self.give_up, None
        if give_up is not None:
            give_up()


class Releasable(Protocol):
    """Something that is held until an answer is written."""

    def release(self) -> None:
        """Release it; a second call does nothing."""
        ...


class _NoEvent:
    """An event that nothing waits for."""

    def set(self) -> None:
        pass


_NO_EVENT: Final = _NoEvent()


class FastProtocol(GatewayProtocol):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fast_path: FastPathLike | None = getattr(self.config.loaded_app, "fast_path", None)
        self._pacer = self._limits.pacer
        self._own_cache: HeadCache | None = None
        """Cache of heads for clients with the same certificate: a parsed head includes its caller."""
        self.unread: list[Releasable] = []
        """Permits of answers that the client has not read yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``GatewayProtocol``."""
        super().connection_made(transport)
        fast_path = self._fast_path
        if fast_path is None:
            return
        if fast_path.admin_port and self.server is not None and self.server[1] == fast_path.admin_port:
            self._fast_path = None
        elif self.names:
            self._own_cache = fast_path.cache_for(self.names)

    def data_received(self, data: bytes) -> None:
        """Offer a complete, plain request to the fast path; everything else takes the ordinary path."""
        fast_path, cycle = self._fast_path, self.cycle
        if (
            fast_path is not None
            and self._phase == BETWEEN
            # No other request of this connection is being answered, and its client reads its answers.
            and (cycle is None or cycle.response_complete)
            and not (self.flow.write_paused or self._ignores_input or self.transport.is_closing())
        ):
            if (self._paused_until or self._pacer.is_exhausted) and self._defer(data):
                return
            heads = fast_path.heads if self._own_cache is None else self._own_cache
            known = heads.find(data)
            if known is not None:
                head, body = known
                if self._try_fast_path(fast_path, head, body):
                    return
            elif data.startswith(fast_path.prefixes):
                found = read_head(data, self._limits.max_headers)
                if found is not None and found[2] <= self._limits.max_head_bytes:
                    url, headers, end = found
                    plain = fast_path.parse_head(url.decode("ascii"), headers, self.names)
                    if plain is not None:
                        head = Head(headers, plain)
                        if self._try_fast_path(fast_path, head, data[end:]):
                            heads.remember(data, head, end)
                            return
        super().data_received(data)

    def _try_fast_path(self, fast_path: FastPathLike, head: Head, body: bytes) -> bool:
        if len(body) > fast_path.max_bytes:
            return False
        if fast_path.is_full(head.plain) and self._refuse_cheaply(
            fast_path, head, self._arrived_at or self.loop.time()
        ):
            return True
        before = self.cycle
        pending = PendingReply(self, keep_alive=self._keeps_alive)
        line = self._queue
        if line is not None:
            self._queue = None
            line.leave(self)
        self.cycle = self._running = pending  # type: ignore[assignment]  # it has what is read of a cycle
        if fast_path.try_answer(pending, head.plain, body):
            return True
        self.cycle, self._running = before, None
        return False

    def _cached_head(self, data: bytes) -> Head | None:
        fast_path = self._fast_path
        if fast_path is None:
            return None
        found = (fast_path.heads if self._own_cache is None else self._own_cache).find(data)
        return None if found is None else found[0]

    def _may_pass(self, data: bytes) -> bool:
        """See ``GatewayProtocol``: a request that would be admitted does not wait."""
        head, fast_path = self._cached_head(data), self._fast_path
        if head is None or fast_path is None:
            return super()._may_pass(data)
        return not fast_path.is_full(head.plain)

    def resume(self) -> bool:
        """See ``pacing.PacedConnection``. A request that has waited for ``_MAX_WAIT_S`` is refused even if there is
        room by then: a newer request takes the room and gets a quick answer.
        """
        since, head, fast_path = self._deferred_since, self._cached_head(self._buffered), self._fast_path
        if (
            since
            and head is not None
            and fast_path is not None
            and self.loop.time() - since > _MAX_WAIT_S
            and not (self.transport.is_closing() or self._limits.is_leaving or fast_path.is_urgent(head.plain))
        ):
            held = self._take_buffered()
            if not self._refuse_cheaply(fast_path, head, since):
                self.data_received(held)
            return True
        return super().resume()

    def _refuse_cheaply(self, fast_path: FastPathLike, head: Head, since: float) -> bool:
        """Write a refusal that was rendered earlier and pause the connection; return False if there is none.

        ``since``: loop time when the request came. libuv's loop time stands still during one pass over ready sockets,
        so the refusal's duration includes the wait behind other connections in that pass.
        """
        self._is_counted = False
        made = fast_path.refusal(head.plain, max(time.monotonic() - since, 0.0))
        if made is None:
            return False
        self.server_state.total_requests += 1
        _write(self.transport, *made, keep_alive=self._keeps_alive)
        if self._keeps_alive:
            self._enter(self._limits.idle)
        self.pause(partial(fast_path.is_full, head.plain))
        return True

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """See ``GatewayProtocol``. A client that closes its sending side while it waits has usually left: refuse it at
        once.
        """
        if self._buffered and self.scheme != "https" and self._cached_head(self._buffered) is not None:
            self.evict()
            return None
        return super().eof_received()

    def evict(self) -> None:
        """See ``connections.Connection``; writes a refusal if one is rendered already."""
        since, head, fast_path = self._deferred_since, self._cached_head(self._buffered), self._fast_path
        self._keeps_alive = False
        if head is not None and fast_path is not None:
            self._refuse_cheaply(fast_path, head, since)
        super().evict()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request that is being answered."""
        pending = self._running
        if isinstance(pending, PendingReply):
            pending.lost()
        self._release_unread()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Release the permits of answers that the client has now read."""
        super().resume_writing()
        self._release_unread()

    def _release_unread(self) -> None:
        for permit in self.unread:
            permit.release()
        self.unread.clear()

    def _extensions(self, cycle: RequestResponseCycle) -> dict[str, Any]:
        return {**super()._extensions(cycle), EXTENSION: partial(_reply, weakref.ref(cycle))}


def http_protocol(*, fast_path: bool) -> type[GatewayProtocol]:
    """Return the protocol class for uvicorn, with the fast path or without."""
    return FastProtocol if fast_path else GatewayProtocol


def _reply(of: weakref.ref[RequestResponseCycle], status: int, headers: HeaderList, body: bytes) -> bool:
    cycle = of()  # its scope holds this function: a reference would keep both, and the connection, until a collection
    if cycle is None:
        return True
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
        # Headers are checked at their source. This keeps one that was not from splitting the answer.
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
