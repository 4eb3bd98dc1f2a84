"""One request on a connection and its answer (``core.Connection`` makes it): its body, its reply, its pieces.

``serve`` answers requests for inference; a task answers others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import BodyTimeout, GatewayError, InternalError, MethodNotAllowed, Overloaded, RequestError
from gateway.handlers.endpoint import Event
from gateway.http import body as bodies
from gateway.http.problems import problem
from gateway.outcome import Outcome, in_thread
from gateway.path.ask import BODY_THREADS, MAX_INLINE_BYTES, Ask
from gateway.path.call import Call, Headers, Route, labels
from gateway.protocols.json_body import is_json
from gateway.trace import new_id

if TYPE_CHECKING:
    from gateway.http.core import Connection

_log = logging.getLogger("triton_gateway.http")

_STATUS_LINES: Final = {
    **{status: b"HTTP/1.1 %d \r\n" % status for status in range(200, 600)},
    **{status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus},
}
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bx-request-id: %b\r\nx-route: %b\r\nx-total-time: %.3f\r\n"
    b"x-tokenization-time: %.3f\r\nx-queue-time: %.3f\r\nx-inference-time: %.3f\r\nx-compute-time: %.3f\r\n"
    b"content-length: %d\r\n"
)
"""The head of a JSON answer, as ``head_of`` and ``path.call.labels`` would make it in several times as long."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_SEPARATE_BYTES: Final = 64 << 10
"""A larger body is written beside its head instead of being copied behind it."""
_EVENT_STREAM: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def head_of(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an answer without its ``connection`` header and last empty line. Raises ``InternalError``."""
    head = b"".join([_STATUS_LINES[status], *[b"%b: %b\r\n" % line for line in headers]])
    lines = len(headers) + 1
    if head.count(b"\n") != lines or head.count(b"\r") != lines:
        # Headers are checked at their source. This keeps one that was not from splitting the answer.
        _log.error("an answer of status %d was not sent: a header of it has a line break", status)
        raise InternalError("the answer had a header that cannot be sent")
    return head


class Exchange(Ask):
    """One request and its answer. Made by ``core.Connection`` when the head is complete."""

    __slots__ = (
        "_parts", "_size", "_wants_body", "connection", "expects_continue", "has_ended", "is_http10", "is_whole",
        "keep_alive", "method", "path", "query", "rest_s",
    )  # fmt: skip

    can_stream = True

    def __init__(
        self,
        connection: Connection,
        method: str,
        path: str,
        query: bytes,
        headers: Headers,
        by_name: Mapping[bytes, bytes],
    ) -> None:
        """``path``: without escapes. ``headers``, ``by_name``: see ``Ask``."""
        super().__init__()
        self.connection = connection
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.by_name = by_name
        self.is_http10 = False
        self.keep_alive = True
        """Whether the connection goes on after this answer."""
        self.expects_continue = b"expect" in by_name
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        self.is_whole = False
        """Whether the whole body was received."""
        self.has_ended = False
        """Whether the whole answer was written, or will never be."""
        self.rest_s = 0.0
        """Seconds for which the connection is not read after this answer: the request was refused for want of room."""
        self._parts: list[bytes] = []
        self._size = 0
        self._wants_body: Outcome[None] | None = None

    # --- the connection -----------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the client's certificate."""
        return self.connection.names

    # --- the body -----------------------------------------------------------------------------------------------------

    def add(self, part: bytes) -> None:
        """Add a part of the body; called while the connection's bytes are parsed."""
        if not self.has_ended:
            self._parts.append(part)
            self._size += len(part)

    def offer(self) -> None:
        """Wake who waits for more of the body."""
        waiter, self._wants_body = self._wants_body, None
        if waiter is not None:
            waiter.set_result(None)

    @property
    def leaves_body(self) -> bool:
        """Whether more of the body would come than anybody reads now."""
        return not (self.is_whole or self.has_ended) and self._wants_body is None

    async def read_body(self, limit: int, hold: Callable[[int], None]) -> bytes:
        """Return the whole body without its content encoding. The caller limits the time.

        ``hold(bytes)`` is called before bytes are read, and raises if there is no room for them. Raises
        ``PayloadTooLarge`` beyond ``limit`` bytes, and what ``body.unpack`` raises.
        """
        held = int(self.by_name.get(b"content-length") or 0)
        if held > limit:
            raise bodies.too_large(limit)
        hold(held)
        if self.expects_continue and not (self._parts or self.is_whole):
            self.expects_continue = False
            self.connection.write(_CONTINUE)
        while True:
            size = self._size
            if size > limit:
                raise bodies.too_large(limit)
            if size > held:  # its length was not announced
                hold(size - held)
                held = size
            if self.is_whole:
                break
            self.connection.read_on()
            wants = self._wants_body = Outcome[None]()
            await wants
        raw = b"".join(self._parts)
        self._parts.clear()
        encoding = self.by_name.get(b"content-encoding", b"")
        if encoding:
            raw = await in_thread(BODY_THREADS, bodies.unpack, raw, encoding, limit=limit)
            hold(len(raw))
        return raw

    # --- the answer ---------------------------------------------------------------------------------------------------

    def reply(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer, with its length."""
        self._write(head_of(status, [*headers, (b"content-length", b"%d" % len(body))]), body)

    def _write(self, head: bytes, body: bytes) -> None:
        if self.has_ended or self.has_left:
            return
        head += self._last_line()
        self.has_begun = self.has_ended = True
        if self.method == "HEAD":
            body = b""
        if len(body) > _SEPARATE_BYTES:
            self.connection.write(head)
            self.connection.write(body)
        else:
            self.connection.write(head + body)
        self.connection.wrote(self)

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Write the head of an answer in parts, which follow."""
        if not self.has_left:
            chunked = () if self.is_http10 else ((b"transfer-encoding", b"chunked"),)
            head = head_of(status, [*headers, *chunked])
            self.has_begun = True
            self.connection.write(head + self._last_line())

    def piece(self, content: bytes) -> None:
        """Write a part of the body; wait for ``drained`` before the next one."""
        if content and not (self.has_left or self.has_ended):
            self.connection.write(content if self.is_http10 else b"%x\r\n%b\r\n" % (len(content), content))

    def end(self, last: bytes = b"") -> None:
        """Write the last part, and end the answer."""
        self.piece(last)
        if self.has_left or self.has_ended:
            return
        self.has_ended = True
        if not self.is_http10:
            self.connection.write(b"0\r\n\r\n")
        self.connection.wrote(self)

    def _last_line(self) -> bytes:
        """Return the end of a head, which says whether the connection goes on."""
        # A client that waits before it sends the body may or may not send it now.
        if (self.expects_continue and not self.is_whole) or self.connection.is_last(self):
            self.keep_alive = False
        return b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"

    @property
    def is_unread(self) -> bool:  # type: ignore[override]  # a constant in the base class
        """Whether the client reads more slowly than it is answered."""
        return self.connection.is_unread and not self.has_left

    async def drained(self) -> None:
        """Return when the client has read enough for the next part to be written, or has left."""
        if self.is_unread:
            await self.connection.until_read()

    # --- the path of a request (see ``Ask``) --------------------------------------------------------------------------

    def check(self, timeout: float) -> float:
        """See ``Ask.check``."""
        if self.method != "POST":
            raise MethodNotAllowed(f"{self.method} is not how an endpoint is called", allow="POST")
        asked = self.by_name.get(b"x-request-timeout-ms")
        if not asked:
            return timeout
        try:
            wanted = int(asked) / 1000
        except (ValueError, OverflowError):
            wanted = 0.0
        if wanted <= 0:
            raise RequestError("x-request-timeout-ms must be a whole number of milliseconds above 0")
        return min(wanted, timeout)

    async def read(self, route: Route) -> Call:
        """See ``Ask.read``: a large body is parsed in a thread."""
        headers = self.by_name
        is_other = route.max_other and not is_json(headers.get(b"content-type", b""))
        raw = await self.read_body(route.max_other if is_other else route.max_json, self.hold)
        if len(raw) > MAX_INLINE_BYTES:
            return await in_thread(BODY_THREADS, route.parse, raw, headers)
        return route.parse(raw, headers)

    def late(self) -> GatewayError:
        """See ``Ask.late``."""
        if not self.is_whole:
            return BodyTimeout(f"the body did not arrive within {self.timeout:g} s")
        return super().late()

    def respond(self, reply: Any) -> None:
        """See ``Ask.respond``."""
        version = self.with_version
        assert version is not None and self.call is not None  # noqa: S101, PT018 - it has answered
        if self.has_begun:
            self.end(self.call.end)
        elif type(reply) is bytes:
            prepare, infer = self.prepare_ns, self.infer_ns
            head = _ANSWER % (
                version.head, self.request_id.encode(), self.route.encode(), self.total_ns * 1e-6, prepare * 1e-6,
                self.queue_ns * 1e-6, infer * 1e-6, (prepare + infer + self.finish_ns) * 1e-6, len(reply),
            )  # fmt: skip
            self._write(head, reply)
        else:
            status, headers, content = reply
            self.reply(status, [*headers, *version.headers, *labels(self)], content)

    def refuse(self, error: GatewayError, route: Route) -> None:
        """See ``Ask.refuse``. The error of a stream that has begun is an event of its own, ``event: error``."""
        if self.has_begun:
            self.status = 200
            self.end(b"event: error\ndata: " + problem(error, self.request_id).content + b"\n\n")
            return
        self.status, headers, content = route.refuse(error, self.request_id)
        if isinstance(error, Overloaded):
            self.rest_s = error.retry_after or 1.0
        if self.has_left:
            return
        version = self.with_version
        served = () if version is None else (*version.headers, (b"x-route", self.route.encode()))
        self.reply(self.status, [*headers, (b"x-request-id", self.request_id.encode()), *served], content)

    async def send(self, event: Event) -> None:
        """See ``Ask.send``: a server-sent event."""
        version, call = self.with_version, self.call
        assert version is not None and call is not None  # noqa: S101, PT018 - it answers
        if not self.has_begun:
            self.begin(200, [*_EVENT_STREAM, *version.headers, *labels(self)[:2]])
        self.piece(call.piece(event))
        await self.drained()

    # --- its end ------------------------------------------------------------------------------------------------------

    def over(self, failure: BaseException | None = None) -> None:
        """End the exchange: nothing works on it any more. An answer that was not finished closes the connection."""
        super().over(failure)
        self._parts.clear()
        self.headers = ()
        if not (self.has_ended or self.has_left):
            if self.has_begun:
                self.connection.abort()
            else:
                self.reply(*problem(InternalError("the gateway failed on this request"), new_id()))
        self.connection.next(self)
