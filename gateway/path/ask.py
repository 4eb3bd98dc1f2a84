"""``Ask``: the one object of a request.

A transport makes one (``http.exchange``, ``grpc.server``; a hook's ``send_request`` has a plain one). It is what
handlers fill and metrics read (``Trace``), its permit, the holder of its version, its place on the connection, and what
drives its coroutine (``outcome.Driven``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from gateway.callers.access import Access, Names
from gateway.callers.rights import Caller
from gateway.errors import DeadlineExceeded, GatewayError
from gateway.handlers.endpoint import Endpoint, Event
from gateway.outcome import Driven, Outcome, Serving
from gateway.path.admission import Permit, Permits
from gateway.path.call import Call, Route
from gateway.trace import Trace, clean_id, new_id, parse_traceparent

MAX_INLINE_BYTES: Final = 256 << 10
"""Work on at most this many bytes takes a few milliseconds and runs on the event loop."""
BODY_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="bodies")
"""Threads for larger bodies: unpacking, and reading tensors.

Code that runs here must let other threads run, as zlib and Python loops do. orjson holds the interpreter's lock:
parsing 10 MB of texts stops every thread for 20 ms, here as well as on the event loop.
"""
NO_HEADERS: Final[Mapping[bytes, bytes]] = {}


class Ask(Trace, Permit, Driven):
    """One request, from its head to its last byte. A transport subclasses it."""

    __slots__ = (
        "_coroutine", "_waits", "by_name", "call", "has_begun", "has_left", "headers", "held_bytes", "is_over",
        "permits", "rendered", "spare", "timeout", "with_version",
    )  # fmt: skip

    can_stream = False
    """Whether the transport sends an answer in pieces."""
    is_unread = False
    """Whether ``drained`` must be awaited after an answer."""

    def __init__(self, request_id: str = "", parent: str = "") -> None:
        super().__init__(request_id, parent)
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        """Names in lower case, in the order in which they came."""
        self.by_name: Mapping[bytes, bytes] = NO_HEADERS
        """The headers by name; of one that was sent twice the last."""
        self.call: Call | None = None
        """What is asked, once it was read."""
        self.with_version: Endpoint | None = None
        """The version that answers; held until the request ends."""
        self.spare: Endpoint | None = None
        """The stable version behind a canary; held as well."""
        self.rendered: Any = None
        """The reply, if a thread has written it."""
        self.permits: Permits | None = None
        self.held_bytes = 0
        self.timeout = 0.0
        self.has_begun = False
        """Whether a part of the answer was sent: no other version can answer any more."""
        self.is_over = self.has_left = False
        self._coroutine: Serving | None = None
        self._waits: Outcome[Any] | None = None

    # --- what a transport does ----------------------------------------------------------------------------------------

    @property
    def names(self) -> Names:
        """The names in the client's certificate."""
        return ()

    def open(self) -> None:
        """Read the request's ids from its headers."""
        headers = self.by_name
        given = headers.get(b"x-request-id")
        self.request_id = (given is not None and clean_id(given)) or self.request_id or new_id()
        if b"traceparent" in headers and (parent := parse_traceparent(headers[b"traceparent"])):
            self.traceparent, self.trace_id = parent, parent[3:35]

    def check(self, timeout: float) -> float:
        """Return the seconds that the request may take, at most ``timeout``. Raises ``RequestError`` (a wrong head)."""
        return timeout

    def caller_of(self, access: Access, *, is_read: bool = False) -> Caller:
        """Return the caller; see ``Access.caller_of``. Raises ``NotAuthenticated``, also for credentials sent twice."""
        if len(self.by_name) != len(self.headers):
            access.check_once(name for name, _ in self.headers)
        return access.caller_of(self.by_name, self.names, is_read=is_read)

    async def read(self, route: Route) -> Call:
        """Return the call once its body has arrived. Raises ``GatewayError``."""
        raise NotImplementedError

    def late(self) -> GatewayError:
        """Return the error of a request whose time is over."""
        message = f"no answer within {self.timeout:g} s"
        return DeadlineExceeded(message, hint="raise x-request-timeout-ms or send less at once")

    def expire(self) -> None:
        """The deadline has passed (see ``deadlines``)."""
        self.throw(self.late())

    def respond(self, reply: Any) -> None:
        """Write the answer; if pieces of it were sent, its end."""

    def refuse(self, error: GatewayError, route: Route) -> None:
        """Write the refusal."""

    async def send(self, event: Event) -> None:
        """Send one piece of the answer, from a task; return when there is room for the next."""
        raise NotImplementedError

    async def drained(self) -> None:
        """Return when the client has taken the answer, or has left."""

    # --- for handlers -------------------------------------------------------------------------------------------------

    def render(self, answer: object) -> object:
        """See ``Trace.render``."""
        version = self.with_version
        if version is not None and self.call is not None:
            self.rendered = self.call.render(answer, version, self)
        return answer
