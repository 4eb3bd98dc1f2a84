"""One request on a connection and its answer, and the coroutine that makes the answer, driven without a task.

An asyncio task for each request would cost as much as parsing it. So the coroutine waits only for an ``Outcome``, which
is set from a callback of the event loop, and the exchange runs the coroutine until the next one. A client that leaves
is thrown into it as ``ClientGone``. Awaiting anything else there (a future, ``asyncio.sleep``) is an error;
``outcome_of`` makes an outcome of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gateway.errors import ClientGone, InternalError
from gateway.http.problems import problem
from gateway.trace import new_id

if TYPE_CHECKING:
    from gateway.http.core import Connection

_log = logging.getLogger("triton_gateway.http")

T = TypeVar("T")

HeaderList = Sequence[tuple[bytes, bytes]]
Answering = Coroutine["Outcome[Any]", None, None]
"""The coroutine that answers a request; it awaits nothing but outcomes."""

STATUS_LINES: Final = {
    **{status: b"HTTP/1.1 %d \r\n" % status for status in range(200, 600)},
    **{status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus},
}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_SEPARATE_BYTES: Final = 64 << 10
"""A larger body is written beside its head instead of being copied behind it."""


class Outcome(Generic[T]):
    """What the coroutine of a request waits for; set once. It has the names of a future, and needs no task."""

    __slots__ = ("_error", "_is_set", "_value", "exchange")

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        """The request that waits for it."""
        self._is_set = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set_result(self, value: T) -> None:
        """Set it, and run the coroutine that waits for it."""
        self._value = value
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        """Set it to an error, which the coroutine that waits for it gets."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._is_set = True
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.go_on()

    def __await__(self) -> Generator[Outcome[T], None, T]:
        if not self._is_set:
            yield self
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value


def outcome_of(work: Awaitable[T]) -> Outcome[T]:
    """Return the outcome of work that needs a task. It goes on if the request's client leaves."""
    outcome: Outcome[T] = Outcome()

    def ended(task: asyncio.Future[T]) -> None:
        if task.cancelled():
            outcome.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())

    asyncio.ensure_future(work).add_done_callback(ended)
    return outcome


Waiter = Outcome[None] | asyncio.Future[None]


class Exchange:
    """One request and its answer. Made by ``core.Connection`` when the head is complete."""

    __slots__ = (
        "_connection", "_coroutine", "_is_chunked", "_is_read", "_parts", "_waits", "_wants_body", "expects_continue",
        "has_begun", "has_ended", "has_left", "headers", "is_http10", "is_over", "is_started", "is_whole", "keep_alive",
        "method", "path", "query", "raw_path", "rest_s",
    )  # fmt: skip

    def __init__(self, connection: Connection, method: str, headers: list[tuple[bytes, bytes]]) -> None:
        self._connection = connection
        self.method = method
        self.headers = headers
        """Names in lower case, in the order in which they came."""
        self.path = ""
        """Without escapes; ``raw_path`` has them."""
        self.raw_path = self.query = b""
        self.is_http10 = False
        self.keep_alive = True
        """Whether the connection goes on after this answer."""
        self.expects_continue = False
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        self.is_started = False
        self.is_whole = False
        """Whether the whole body was received."""
        self.has_begun = False
        """Whether a part of the answer was written."""
        self.has_ended = False
        """Whether the whole answer was written, or will never be."""
        self.has_left = False
        """Whether the client has left."""
        self.is_over = False
        """Whether nothing works on it any more."""
        self.rest_s = 0.0
        """Seconds for which the connection is not read after this answer: the request was refused for want of room."""
        self._is_read = False
        """Whether the last part of the body was returned."""
        self._parts: list[bytes] = []
        self._wants_body: Waiter | None = None
        self._is_chunked = False
        self._coroutine: Answering | None = None
        self._waits: Outcome[Any] | None = None

    # --- the connection -----------------------------------------------------------------------------------------------

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return self._connection.scheme

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the client's certificate."""
        return self._connection.names

    @property
    def port(self) -> int:
        """The port of this server; 0 if it does not listen on one."""
        return self._connection.port

    @property
    def client(self) -> tuple[str, int] | None:
        """Address and port of the client."""
        return self._connection.client

    # --- the body -----------------------------------------------------------------------------------------------------

    def add(self, part: bytes) -> None:
        """Add a part of the body; called while the connection's bytes are parsed."""
        if not self.has_ended:
            self._parts.append(part)

    def buffered(self) -> int:
        """Return how many received bytes of the body were not taken yet."""
        return sum(map(len, self._parts))

    def take(self) -> bytes:
        """Return the received part of the body that was not taken before."""
        parts = self._parts
        if len(parts) == 1:
            return parts.pop()
        taken = b"".join(parts)
        parts.clear()
        return taken

    def offer(self) -> None:
        """Wake who waits for the body, if more of it has come."""
        waiter = self._wants_body
        if waiter is not None and (self._parts or (self.is_whole and not self._is_read) or self.has_left):
            self._wants_body = None
            if not waiter.done():
                waiter.set_result(None)

    async def receive(self, waiter: Callable[[], Waiter] = Outcome) -> MutableMapping[str, Any]:
        """Return the next part of the body as ASGI has it; after the last one, wait until the client leaves.

        ``waiter`` makes what is waited for: a task needs a future.
        """
        if self.expects_continue and not (self._parts or self.is_whole or self.has_left):
            self.expects_continue = False
            self._connection.write(_CONTINUE)
        while not (self.has_left or self._parts or (self.is_whole and not self._is_read)):
            self._connection.read_on()
            wants = self._wants_body = waiter()
            await wants
        if self.has_left:
            return {"type": "http.disconnect"}
        self._is_read = self.is_whole
        return {"type": "http.request", "body": self.take(), "more_body": not self.is_whole}

    # --- the answer ---------------------------------------------------------------------------------------------------

    def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Write a whole answer; the headers must have its ``content-length``."""
        self.write(self._head(status, headers), body)

    def write(self, head: bytes, body: bytes) -> None:
        """Write an answer whose head is complete but for the ``connection`` header and its last empty line."""
        if self.has_ended or self.has_left:
            return
        self.has_begun = self.has_ended = True
        if self.method == "HEAD":
            body = b""
        close = b"" if self._stays() else b"connection: close\r\n"
        if len(body) > _SEPARATE_BYTES:
            self._connection.write(b"%b%b\r\n" % (head, close))
            self._connection.write(body)
        else:
            self._connection.write(b"%b%b\r\n%b" % (head, close, body))
        self._connection.wrote(self)

    def begin(self, status: int, headers: HeaderList) -> None:
        """Write the head of an answer whose parts follow; without ``content-length`` they are chunked."""
        if self.has_left:
            return
        self.has_begun = True
        has_length = any(name == b"content-length" for name, _ in headers)
        has_no_body = status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
        self._is_chunked = not (has_length or self.is_http10 or has_no_body or self.method == "HEAD")
        if self.is_http10 and not has_length:
            self.keep_alive = False
        head = self._head(status, [*headers, (b"transfer-encoding", b"chunked")] if self._is_chunked else headers)
        close = b"" if self._stays() else b"connection: close\r\n"
        self._connection.write(b"%b%b\r\n" % (head, close))

    def piece(self, content: bytes) -> None:
        """Write a part of the body; wait for ``drained`` before the next one."""
        if content and not (self.has_left or self.has_ended or self.method == "HEAD"):
            self._connection.write(b"%x\r\n%b\r\n" % (len(content), content) if self._is_chunked else content)

    def end(self, last: bytes = b"") -> None:
        """Write the last part, and end the answer."""
        self.piece(last)
        if self.has_left or self.has_ended:
            return
        self.has_ended = True
        if self._is_chunked:
            self._connection.write(b"0\r\n\r\n")
        self._connection.wrote(self)

    async def drained(self, waiter: Callable[[], Waiter] = Outcome) -> None:
        """Return when the client has read enough for the next part to be written, or has left."""
        if self._connection.is_unread and not self.has_left:
            await self._connection.until_read(waiter())

    def _stays(self) -> bool:
        """Return whether the connection goes on after this answer, and decide it."""
        if self.expects_continue and not self.is_whole:  # its client may or may not send the body now
            self.keep_alive = False
        return self.keep_alive

    def _head(self, status: int, headers: HeaderList) -> bytes:
        parts = [STATUS_LINES[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        head = b"".join(parts)
        lines = len(headers) + 1
        if head.count(b"\n") != lines or head.count(b"\r") != lines:
            # Headers are checked at their source. This keeps one that was not from splitting the answer.
            _log.error("an answer of status %d was not sent: a header of it has a line break", status)
            raise InternalError("the answer had a header that cannot be sent")
        return head

    # --- the coroutine ------------------------------------------------------------------------------------------------

    def run(self, coroutine: Answering) -> None:
        """Answer with this coroutine."""
        self._coroutine = coroutine
        self.go_on()

    def go_on(self, error: BaseException | None = None) -> None:
        """Run the coroutine until it waits or ends."""
        coroutine = self._coroutine
        if coroutine is None:
            return
        self._waits = None
        try:
            waits: Any = coroutine.send(None) if error is None else coroutine.throw(error)
            while type(waits) is not Outcome or self.has_left:
                foreign = RuntimeError(f"a request awaits {type(waits).__name__}, which needs a task: see `outcome_of`")
                waits = coroutine.throw(gone() if type(waits) is Outcome else foreign)
        except StopIteration:
            self.over()
        except ClientGone:
            self.over()
        except BaseException as failure:  # noqa: BLE001 - a bug: this request fails, and no other
            self.over(failure)
        else:
            self._waits = waits
            waits.exchange = self

    def leave(self) -> None:
        """Tell the coroutine that its client has left."""
        self.has_left = True
        if not self.throw(gone()):
            self.offer()

    def throw(self, error: BaseException) -> bool:
        """Throw an error into the coroutine, in place of what it waits for; return whether it waited."""
        waits, self._waits = self._waits, None
        if waits is None:
            return False
        waits.exchange = None
        self.go_on(error)
        return True

    def over(self, failure: BaseException | None = None) -> None:
        """End the exchange: nothing works on it any more. An answer that was not finished closes the connection."""
        self._coroutine = None
        self.is_over = True
        self._parts.clear()
        if failure is not None:
            _log.error("unexpected error", exc_info=failure)
        if not (self.has_ended or self.has_left):
            if self.has_begun:
                self._connection.abort()
            else:
                _, headers, content = problem(InternalError("the gateway failed on this request"), new_id())
                self.reply(500, [*headers, (b"content-length", b"%d" % len(content))], content)
        self._connection.next(self)


def gone() -> ClientGone:
    """Return the error of a request whose client has left."""
    return ClientGone("the client left before the answer was ready")
