"""One request in flight: its states, and the one place where it ends.

::

    admitted ──► prepared ──► queued ──► sent ──► ended
        ▲            │           │         │
        └────────────┴───────────┴─────────┘  the canary failed: once more, with the stable version

A request ends exactly once: answered, failed, cancelled by its caller, or at its deadline. The first of these counts,
and later ones do nothing. Only ``_end`` returns the leases, forgets the deadline, writes the record and calls ``done``.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns
from typing import Any, Final, Protocol

from gateway.call import Call, Reply
from gateway.errors import (
    BackendGarbage,
    ClientGone,
    DeadlineExceeded,
    GatewayError,
    HookFailed,
    InternalError,
    ModelFailed,
    Overloaded,
    Unavailable,
    forget_frames,
)
from gateway.handlers.endpoint import Endpoint, Event, in_pieces
from gateway.path.deadlines import Alarm, Deadlines
from gateway.trace import FALLBACK, TRACEPARENT, Trace

_log = logging.getLogger("triton_gateway.request")


class State(enum.IntEnum):
    """The state of a request; an integer, because a string enum takes longer to look up."""

    ADMITTED = 0
    """Its endpoint is chosen and leased; the request is being parsed and prepared."""
    PREPARED = 1
    """It is ready for the backend."""
    QUEUED = 2
    """A batcher has it: it is queued for a call to the backend, or in one."""
    SENT = 3
    """A task of its own works on it: it calls the backend, or runs user code."""
    ENDED = 4
    """Answered or not, it holds no lease and no deadline any more."""


ADMITTED, PREPARED, QUEUED, SENT, ENDED = State

MOVES: Final[Mapping[State, frozenset[State]]] = {
    ADMITTED: frozenset({PREPARED, QUEUED, SENT, ADMITTED, ENDED}),
    PREPARED: frozenset({QUEUED, SENT, ADMITTED, ENDED}),
    QUEUED: frozenset({SENT, ADMITTED, ENDED}),
    SENT: frozenset({ADMITTED, ENDED}),
    ENDED: frozenset(),
}
"""The states that may follow each state. Only the fallback of a failed canary leads back to ``ADMITTED``."""

FALLS_BACK: Final = (Unavailable, Overloaded, ModelFailed, BackendGarbage, HookFailed, InternalError)
"""Failures of a version, not of the request: another version may answer it."""

Done = Callable[["InFlight"], None]
Send = Callable[["InFlight", Event], Awaitable[None]]
"""Sends one piece of an answer; returns when the connection can take the next."""


class Ledger(Protocol):
    """Records how requests ended."""

    keeps_pieces: bool
    """Whether the trace should keep the pieces of a streamed answer."""

    def record(self, trace: Trace) -> None:
        """Record a request that has ended."""
        ...

    def fell_back(self, trace: Trace, error: GatewayError, stable: Endpoint) -> None:
        """Record that ``stable`` answers for a version that failed."""
        ...


def too_late(timeout: float) -> DeadlineExceeded:
    """Return the error of a request that was not answered within ``timeout`` seconds."""
    return DeadlineExceeded(f"no answer within {timeout:g} s", hint="raise x-request-timeout-ms or send less at once")


def as_known(error: BaseException, trace: Trace) -> GatewayError:
    """Return ``error`` as a ``GatewayError``. Any other exception is a bug of the gateway, and logged."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return ClientGone("the client left before the answer was ready")
    _log.error("unexpected error", exc_info=error, extra={"request_id": trace.request_id, "url": trace.url})
    return InternalError("the gateway failed on this request", hint="see its log for the request id")


class InFlight:
    """One request: made by ``submit``, answered by an endpoint's handler, which sees it as a ``Job``.

    ``done(request)`` is called exactly once, from the event loop, however the request ends; possibly before ``submit``
    returns. ``reply`` then holds the rendered reply, and ``error`` the reason if there is no answer.
    """

    __slots__ = (
        "_done", "_fallback", "_ledger", "_parent", "_pieces", "_rendered", "_send", "alarm", "call", "deadline",
        "deadlines", "endpoint", "error", "give_up", "outputs", "question", "remember", "reply", "state", "timeout",
        "trace",
    )  # fmt: skip

    def __init__(
        self, call: Call, trace: Trace, done: Done, ledger: Ledger, deadlines: Deadlines, send: Send | None = None
    ) -> None:
        self.call = call
        self.trace = trace
        self.state = ADMITTED
        self.endpoint: Endpoint | None = None
        """The version that answers; leased until the request ends."""
        self.question: Any = None
        self.outputs: Mapping[str, Any] | None = None
        self.reply: Any = None
        self.error: GatewayError | None = None
        self.give_up: Callable[[], object] | None = None
        self.remember: Callable[[object], None] | None = None
        self.deadlines = deadlines
        self.deadline = self.timeout = 0.0
        self.alarm: Alarm = None
        self._done = done
        self._send = send
        self._ledger = ledger
        self._pieces = 0
        self._rendered: Any = None
        self._fallback: Endpoint | None = None

    @property
    def needs_outputs(self) -> bool:
        """See ``Job.needs_outputs``."""
        return self.call.needs_outputs

    # --- on the way to the endpoint -----------------------------------------------------------------------------------

    def begin(self, endpoint: Endpoint, route: str, fallback: Endpoint | None, timeout: float) -> None:
        """Lease the chosen version (and the fallback), set the deadline, and start. Never raises."""
        endpoint.lease()
        self.endpoint = endpoint
        if fallback is not None:
            fallback.lease()
            self._fallback = fallback
            self._parent = TRACEPARENT.get()
        trace = self.trace
        trace.route = route
        self._label(endpoint)
        # The time-out counts from the request's first byte, before it was read.
        passed = (perf_counter_ns() - trace.started_ns) * 1e-9
        if passed >= timeout:
            self.failed(too_late(timeout))
            return
        self.deadlines.due(self, timeout, passed)
        try:
            self.question = self.call.question(endpoint)
        except Exception as error:  # noqa: BLE001 - every failure becomes a reply
            self.failed(error)
        else:
            self._start(endpoint)

    def _label(self, endpoint: Endpoint) -> None:
        identity, trace = endpoint.identity, self.trace
        trace.url, trace.endpoint, trace.version = identity.url, identity.endpoint, identity.version
        trace.model_id = identity.model_id

    def _start(self, endpoint: Endpoint) -> None:
        try:
            if self._send is not None and self.call.streams and endpoint.stream is not None:
                in_pieces(self, endpoint.stream, self._send_piece)
            else:
                endpoint.start(self)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)
        # A queue may keep the deadline (see ``queued``). Otherwise it is watched here.
        if self.alarm is None and self.state is not QUEUED and self.state is not ENDED:
            self.deadlines.watch(self)

    async def _send_piece(self, event: Event) -> None:
        self._pieces += 1
        trace = self.trace
        trace.generated_tokens = event.generated_tokens
        if self._ledger.keeps_pieces:
            if trace.pieces is None:
                trace.pieces = []
            trace.pieces.append(event)
        if self._send is not None:
            await self._send(self, event)

    def prepared(self) -> None:
        """See ``Job.prepared``."""
        self._move(PREPARED)

    def queued(self, leave: Callable[[], object], *, is_watched: bool = False) -> None:
        """See ``Job.queued``."""
        if self.state is ADMITTED:  # the common case
            self.state = QUEUED
        elif not self._move(QUEUED):
            return
        self.give_up = leave
        if not is_watched:
            self.deadlines.watch(self)

    def sent(self, give_up: Callable[[], object]) -> None:
        """See ``Job.sent``."""
        if self._move(SENT):
            self.works(give_up)

    def works(self, give_up: Callable[[], object]) -> None:
        """See ``Job.works``; the deadline is watched here from now on."""
        self.give_up = give_up
        self.deadlines.watch(self)

    def _move(self, state: State) -> bool:
        if self.state is ENDED:
            return False
        if state not in MOVES[self.state]:
            raise InternalError(f"a request cannot be {state.name} after it was {self.state.name}")
        self.state = state
        return True

    # --- the ends -----------------------------------------------------------------------------------------------------

    def render(self, answer: object) -> object:
        """See ``Job.render``; may run in a thread, while the loop ends the request."""
        endpoint = self.endpoint
        if endpoint is not None:
            self._rendered = self.call.render(answer, endpoint, self.trace, self.outputs)
        return answer

    def answered(self, answer: object) -> None:
        """See ``Job.answered``: render the answer and end."""
        if self.state is ENDED:
            return
        trace, endpoint = self.trace, self.endpoint
        assert endpoint is not None  # noqa: S101 - only an endpoint answers
        try:
            if self.remember is not None:
                self.remember(answer)
            if not self._pieces:
                self.reply = self._rendered or self.call.render(answer, endpoint, trace, self.outputs)
        except Exception as error:  # noqa: BLE001 - as in `begin`
            self.failed(error)
            return
        trace.answer = answer
        trace.body = self.question
        reply = self.reply
        trace.status = reply.status if type(reply) is Reply else 200
        self._end()

    def failed(self, error: BaseException) -> None:
        """See ``Job.failed``. If a canary failed by itself and sent no piece, restart with the stable version."""
        if self.state is ENDED:
            return
        stable = self._fallback
        if stable is not None and isinstance(error, FALLS_BACK) and not self._pieces and self._restart(error, stable):
            return
        self.trace.error = error
        self.error = known = as_known(error, self.trace)
        forget_frames(error)
        self.trace.outcome = known.kind
        refuse = self.call.refuse
        if refuse is not None:
            self.reply = refuse(known, self.trace.request_id)
            self.trace.status = 200 if self._pieces else self.reply.status
        self._end()

    def cancel(self) -> None:
        """End because the caller has left; does nothing after the end."""
        self._abandon(ClientGone("the client left before the answer was ready"))

    def expire(self) -> None:
        """End because the deadline has passed; called by ``deadlines``."""
        self._abandon(too_late(self.timeout))

    def _abandon(self, reason: GatewayError) -> None:
        if self.state is ENDED:
            return
        give_up, self.give_up = self.give_up, None
        self.failed(reason)
        if give_up is not None:
            give_up()

    def _restart(self, error: GatewayError, stable: Endpoint) -> bool:
        canary, self._fallback = self.endpoint, None
        assert canary is not None  # noqa: S101 - it has failed
        try:
            self.question = self.call.question(stable)
        except Exception:  # noqa: BLE001 - the canary's failure stands
            stable.release()
            return False
        self._ledger.fell_back(self.trace, error, stable)
        self._move(ADMITTED)
        canary.release()
        self.endpoint = stable
        self.trace.route = FALLBACK
        self._label(stable)
        self.give_up = self.remember = self.outputs = self._rendered = None
        self.trace.forget_content()
        # This may run in the context of another request that shared the failed call.
        around = TRACEPARENT.set(self._parent)
        try:
            self._start(stable)
        finally:
            TRACEPARENT.reset(around)
        return True

    def _end(self) -> None:
        """Release everything and report; see the module."""
        self.state = ENDED
        if self.alarm is not None:
            self.deadlines.forget(self)
        if self.endpoint is not None:
            self.endpoint.release()
        if self._fallback is not None:
            self._fallback.release()
            self._fallback = None
        # These refer back to this request, and a cycle stays in memory until the garbage collector runs.
        self.give_up = self.remember = self._send = None
        trace = self.trace
        trace.close()
        done, self._done = self._done, _do_nothing
        try:
            done(self)
        except Exception:  # noqa: BLE001 - the next requests of the same call must get theirs
            _log.exception("writing an answer failed", extra={"request_id": trace.request_id, "url": trace.url})
        try:
            self._ledger.record(trace)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("recording a request failed", extra={"request_id": trace.request_id, "url": trace.url})


def _do_nothing(_flight: InFlight) -> None:
    pass
