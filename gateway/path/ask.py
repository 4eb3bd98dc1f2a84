"""``Ask``: the one object of a request, and what drives its coroutine (``serve``).

A transport makes one (``http.exchange``, ``grpc.server``; ``InternalAsk`` for the gateway's own requests). It is what
handlers fill and metrics read (``Trace``), its permit, the holder of its version, and its place on the connection.

The coroutine awaits only outcomes (see ``gateway.outcome``), so no task is needed: whoever sets an outcome runs the
coroutine until the next one. A client that leaves and a deadline that passes are thrown into it where it waits; what it
waited for is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from gateway.callers.access import Access, Names
from gateway.callers.rights import Caller
from gateway.errors import ClientGone, DeadlineExceeded, GatewayError
from gateway.handlers.endpoint import Endpoint, Event
from gateway.outcome import Outcome
from gateway.path.admission import Permit, Permits
from gateway.path.call import Call, InternalCall, Route
from gateway.trace import TRACEPARENT, Trace

_log = logging.getLogger("triton_gateway.request")

MAX_INLINE_BYTES: Final = 256 << 10
"""Work on at most this many bytes takes a few milliseconds and runs on the event loop."""
BODY_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="bodies")
"""Threads for larger bodies: unpacking, and reading tensors.

Code that runs here must let other threads run, as zlib and Python loops do. orjson holds the interpreter's lock:
parsing 10 MB of texts stops every thread for 20 ms, here as well as on the event loop.
"""

Serving = Coroutine[Any, Any, None]
"""The coroutine that serves a request; it awaits nothing but outcomes."""


class Ask(Trace, Permit):
    """One request, from its head to its last byte. A transport subclasses it."""

    __slots__ = (
        "_coroutine", "_waits", "by_name", "call", "ends", "has_begun", "has_left", "held_bytes", "is_over",
        "permits", "rendered", "spare", "timeout", "with_version",
    )  # fmt: skip

    can_stream = False
    """Whether the transport sends an answer in pieces."""
    is_unread = False
    """Whether ``drained`` must be awaited after an answer."""

    def __init__(self, request_id: str = "", parent: str = "") -> None:
        super().__init__(request_id, parent)
        self.by_name: Mapping[bytes, bytes] = {}
        """The headers by name, in lower case."""
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
        self.has_left = False
        """Whether the client has left."""
        self.is_over = False
        """Whether nothing works on it any more."""
        self.ends: Outcome[None] | None = None
        self._coroutine: Serving | None = None
        self._waits: Outcome[Any] | None = None

    # --- what a transport does ----------------------------------------------------------------------------------------

    @property
    def names(self) -> Names:
        """The names in the client's certificate."""
        return ()

    def open(self) -> None:
        """Set ``by_name``, ``request_id`` and ``traceparent`` from what came with the transport."""

    def check(self, timeout: float) -> float:
        """Return the seconds that the request may take, at most ``timeout``. Raises ``RequestError`` (a wrong head)."""
        return timeout

    def repeated(self) -> list[bytes]:
        """Return the names of the headers, if one came twice."""
        return []

    def caller_of(self, access: Access, *, is_read: bool = False) -> Caller:
        """Return the caller; see ``Access.caller_of``. Raises ``NotAuthenticated``, also for credentials sent twice."""
        if repeated := self.repeated():
            access.check_once(repeated)
        return access.caller_of(self.by_name, self.names, is_read=is_read)

    def whole(self, route: Route) -> Call | None:
        """Return the call if its body is here and can be parsed at once. Raises ``GatewayError``."""
        del route
        return None

    async def read(self, route: Route) -> Call:
        """Return the call once its body has arrived. Raises ``GatewayError``."""
        raise NotImplementedError

    def late(self) -> GatewayError:
        """Return the error of a request whose time is over."""
        return too_late(self.timeout)

    def respond(self, reply: Any) -> None:
        """Write the answer; if pieces of it were sent, its end."""
        raise NotImplementedError

    def refuse(self, error: GatewayError, route: Route) -> None:
        """Write the refusal."""
        raise NotImplementedError

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

    # --- the coroutine ------------------------------------------------------------------------------------------------

    def run(self, serving: Serving) -> None:
        """Drive the coroutine from now on."""
        self._coroutine = serving
        self.go_on()

    def go_on(self, error: BaseException | None = None) -> None:
        """Run the coroutine until it waits or ends."""
        coroutine = self._coroutine
        if coroutine is None:
            return
        self._waits = None
        try:
            waits: Any = coroutine.send(None) if error is None else coroutine.throw(error)
            while self.has_left or not isinstance(waits, Outcome):
                foreign = RuntimeError(f"a request awaits {type(waits).__name__}, which needs a task: see `in_task`")
                waits = coroutine.throw(gone() if isinstance(waits, Outcome) else foreign)
        except (StopIteration, ClientGone):
            self.over()
        except BaseException as failure:  # noqa: BLE001 - a bug: this request fails, and no other
            self.over(failure)
        else:
            self._waits = waits
            waits.waiter = self

    def throw(self, error: BaseException) -> bool:
        """Throw an error into the coroutine, in place of what it waits for; return whether it waited."""
        waits, self._waits = self._waits, None
        if waits is None:
            return False
        waits.waiter = None
        self.go_on(error)
        return True

    def leave(self) -> None:
        """The client has left: what it waits for is given up, and nothing is written any more."""
        self.has_left = True
        self.throw(gone())

    def expire(self) -> None:
        """The deadline has passed (see ``deadlines``)."""
        self.throw(self.late())

    def over(self, failure: BaseException | None = None) -> None:
        """Nothing works on it any more; ``failure``: a bug, after which nothing was answered."""
        self._coroutine = None
        self.is_over = True
        if failure is not None and isinstance(failure, Exception):
            _log.error("unexpected error", exc_info=failure)
        ends, self.ends = self.ends, None
        if ends is not None:
            ends.set_result(None)

    def served(self, serving: Serving) -> Outcome[None]:
        """Drive the coroutine; a task may await its end. A task that is cancelled there leaves the request."""
        ends = self.ends = _End(self)
        self.run(serving)
        return ends


class _End(Outcome[None]):
    """The end of a request, for a task that waits for it."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask = ask

    def give_up(self) -> None:
        self._ask.leave()


class InternalAsk(Ask):
    """A request of the gateway's own: a hook's ``send_request``, a shadow, a trial. It has no caller and no permit."""

    __slots__ = ("reply",)

    def __init__(self, call: InternalCall, request_id: str = "") -> None:
        super().__init__(request_id, TRACEPARENT.get())
        self.call = call
        self.reply: Any = None

    def respond(self, reply: Any) -> None:
        """Keep the answer."""
        self.reply = reply

    def refuse(self, error: GatewayError, route: Route) -> None:
        """Keep the error."""
        del route
        self.error = error


def too_late(timeout: float) -> DeadlineExceeded:
    """Return the error of a request that was not answered within ``timeout`` seconds."""
    return DeadlineExceeded(f"no answer within {timeout:g} s", hint="raise x-request-timeout-ms or send less at once")


def gone() -> ClientGone:
    """Return the error of a request whose client has left."""
    return ClientGone("the client left before the answer was ready")
