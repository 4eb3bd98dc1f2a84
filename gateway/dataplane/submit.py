"""THE HOT PATH. If you read one file, read this one.

``http/routes.py`` has decoded a body; this takes it to the right endpoint version and back: route, admit, lease,
answer. Whatever happens, the trace is closed and counted exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from gateway.admission import Limiter
from gateway.dataplane.routing.table import RoutingTable
from gateway.endpoints.endpoint import Done, Endpoint, Event
from gateway.errors import (
    BackendGarbage,
    ClientGone,
    DeadlineExceeded,
    Draining,
    GatewayError,
    HookFailed,
    InputRefused,
    InternalError,
    ModelFailed,
    Overloaded,
    Unavailable,
)
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.trace import FALLBACK, TRACEPARENT, Trace

_log = logging.getLogger("triton_gateway.request")


_TIMES: Final = ("total", "prepare", "queue", "infer", "finish")
FALLS_BACK: Final = (Unavailable, Overloaded, ModelFailed, BackendGarbage, HookFailed, InternalError)
"""Failures of a version, not of the request: another version may well answer it."""


Via = Callable[[Endpoint, Trace, float], Awaitable[object]]
"""``via(endpoint, trace, deadline)``: what a request form does with the endpoint that was chosen."""


class RequestSpans(Protocol):
    """What makes spans of requests; see ``spans``."""

    def begin(self, request_id: str, parent: str = "") -> Trace:
        """Open a request's record."""
        ...

    def finished(self, trace: Trace) -> None:
        """Export what became of it."""
        ...


def too_late(timeout: float) -> DeadlineExceeded:
    """Return the error of a request whose ``timeout`` seconds are over."""
    return DeadlineExceeded(f"no answer within {timeout:g} s", hint="raise x-request-timeout-ms or send less at once")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A canary's side that was drawn for a request, and what became of it; ``started_ns`` is the request's start.

    A side is drawn once. A request that is handled again keeps its own: a share that comes back would be drawn again,
    and a canary would lose part of its share and of its failures.
    """

    endpoint: Endpoint
    route: str
    fallback: Endpoint | None
    started_ns: int
    error: GatewayError | None = None
    """The version's failure, which the stable version is to answer for."""


class Pipeline:
    """Answers requests from the current snapshot. One per event loop; holds no request state."""

    def __init__(
        self, table: RoutingTable, limiter: Limiter, observer: Observer, health: Health, *, access_log: bool = False
    ) -> None:
        self._table = table
        self._limiter = limiter
        self._observer = observer
        self._health = health
        self._access_log = access_log
        self.new_trace: Callable[..., Trace] = Trace
        """Opens a request's record: ``new_trace(request_id, traceparent)``."""

    def resolve(self, path: str, trace: Trace, routing_key: str | None = None, drawn: Drawn | None = None) -> Endpoint:
        """Choose the endpoint version, unless one was ``drawn`` before, and label the trace with it.

        Raises as ``Snapshot.resolve`` does, or ``Unavailable`` while starting and stopping.
        """
        if self._health.is_draining:
            raise Draining("this gateway is shutting down", hint="send the request to another one", retry_after=1)
        if not self._health.first_sync_done:
            raise Unavailable("this gateway has not read its configuration yet", hint="try again", retry_after=1)
        if drawn is None:
            endpoint, trace.route, trace.fallback = self._table.current.resolve(path, routing_key)
        else:
            endpoint, trace.route, trace.fallback = drawn.endpoint, drawn.route, drawn.fallback
        _label(trace, endpoint)
        return endpoint

    def pin(self, url: str, trace: Trace) -> Endpoint:
        """Choose exactly the version ``url``; else like ``resolve``."""
        if self._health.is_draining or not self._health.first_sync_done:
            return self.resolve(url, trace)
        endpoint = self._table.current.pinned(url)
        trace.route, trace.fallback = "pinned", None
        _label(trace, endpoint)
        return endpoint

    async def answer(
        self,
        endpoint: Endpoint,
        body: object,
        trace: Trace,
        deadline: float,
        failed: GatewayError | None = None,
        via: Via | None = None,
    ) -> object:
        """Return the endpoint's answer; ``deadline`` (loop time) is kept by the caller, who cancels.

        A canary version that fails by itself is answered for by the stable version, once; ``trace`` then tells both.
        ``failed`` is what the endpoint has made of this request before; ``via`` asks the endpoint in another way than
        for its answer to ``body`` (tensors instead of text). Raises ``GatewayError``.
        """
        self._limiter.admit()
        endpoint.lease()
        try:
            if failed is not None:
                raise failed
            if via is None:
                answer = trace.answer = await endpoint.answer(body, trace, deadline)
            else:
                answer = trace.answer = await via(endpoint, trace, deadline)
            trace.body = body
        except FALLS_BACK as error:
            if trace.fallback is None:
                raise
            return await self._fall_back(error, body, trace, deadline, via)
        else:
            return answer
        finally:
            endpoint.release()
            self._limiter.release()

    async def stream(
        self, endpoint: Endpoint, body: object, trace: Trace, deadline: float
    ) -> AsyncGenerator[Event, None]:
        """Yield the endpoint's answer piece by piece; the last event has ``finish_reason``.

        Closing the generator (as a caller does whose client has left) ends the backend's work too. A canary that fails
        is not answered for by the stable version: part of its answer may be out. Raises ``GatewayError``.
        """
        if endpoint.stream is None:
            raise InputRefused("this endpoint does not answer in pieces", hint="leave stream out")
        self._limiter.admit()
        endpoint.lease()
        try:
            async with aclosing(endpoint.stream(body, trace, deadline)) as events:
                async for event in events:
                    yield event
            trace.body = body
        finally:
            endpoint.release()
            self._limiter.release()

    async def _fall_back(
        self, error: GatewayError, body: object, trace: Trace, deadline: float, via: Via | None
    ) -> object:
        stable: Endpoint = trace.fallback
        if isinstance(body, bytes) and not stable.takes_bytes:
            raise error
        self._observer.fell_back(trace.endpoint, trace.version, error.kind)
        _log.info(
            "request fell back to %s", stable.identity.url,
            extra={"request_id": trace.request_id, "url": trace.url, "code": error.kind, "reason": str(error)[:300]},
        )  # fmt: skip
        trace.route = FALLBACK
        _label(trace, stable)
        stable.lease()
        try:
            if via is None:
                answer = trace.answer = await stable.answer(body, trace, deadline)
            else:
                answer = trace.answer = await via(stable, trace, deadline)
            trace.body = body
            return answer
        finally:
            stable.release()

    def begin(
        self, endpoint: Endpoint, body: object, trace: Trace, deadline: float, done: Done
    ) -> Callable[[], None] | None:
        """Do what ``answer`` does without a coroutine, where the endpoint can; None, and nothing done, where not.

        ``done`` is called from the loop, once; the returned function gives the request up, and then it is not called.
        Raises ``GatewayError``.
        """
        if endpoint.begin is None:
            return None
        self._limiter.admit()
        endpoint.lease()

        def through(answer: object, error: Exception | None) -> None:
            endpoint.release()
            self._limiter.release()
            trace.answer, trace.body = answer, body
            done(answer, error)

        give_up = None
        try:
            give_up = endpoint.begin(body, trace, deadline, through)
        finally:
            if give_up is None:
                endpoint.release()
                self._limiter.release()
        if give_up is None:
            return None
        return partial(self._give_up, endpoint, give_up)

    def _give_up(self, endpoint: Endpoint, give_up: Callable[[], None]) -> None:
        give_up()
        endpoint.release()
        self._limiter.release()

    def started(self) -> None:
        """Count a request in; ``finished`` must follow."""
        self._observer.started()

    def unstarted(self) -> None:
        """Take ``started`` back: the request is counted again when it is handled again."""
        self._observer.unstarted()

    def finished(self, trace: Trace) -> None:
        """Close the trace and tell the observers: exactly once per request, whatever its outcome."""
        trace.close()
        self._observer.finished(trace)
        if trace.error is not None or self._access_log:
            self._write_log(trace)

    def tell(self, listener: Callable[[Trace], None] | None) -> None:
        """Call ``listener`` with every finished request from now on; None: nobody, which costs nothing."""
        self.__dict__.pop("finished", None)
        if listener is None:
            return
        finished = self.finished

        def finished_and_told(trace: Trace) -> None:
            finished(trace)
            listener(trace)

        self.finished = finished_and_told  # type: ignore[method-assign]  # only while somebody listens

    def failed(self, trace: Trace, error: BaseException) -> GatewayError:
        """Record ``error`` as the trace's outcome and return it as one of ours; a foreign exception is our bug."""
        if isinstance(error, asyncio.CancelledError):
            known: GatewayError = ClientGone("the client left before the answer was ready")
        elif isinstance(error, GatewayError):
            known = error
        else:
            known = InternalError("the gateway failed on this request", hint="see its log for the request id")
            _log.error("unexpected error", exc_info=error, extra={"request_id": trace.request_id, "url": trace.url})
        trace.outcome, trace.error = known.kind, error
        return known

    async def call(self, path: str, body: object, timeout: float) -> object:
        """Answer a hook's ``send_request`` in process, counted like any other request; raises ``GatewayError``."""
        trace = self.new_trace("", TRACEPARENT.get())
        self.started()
        try:
            endpoint = self.resolve(path, trace)
            async with asyncio.timeout(timeout) as limit:
                return await self.answer(endpoint, body, trace, limit.when() or 0.0)
        except TimeoutError:
            late = too_late(timeout)
            self.failed(trace, late)
            raise late from None
        except BaseException as error:
            self.failed(trace, error)
            raise
        finally:
            self.finished(trace)

    def _write_log(self, trace: Trace) -> None:
        error = trace.error
        # A caller's mistake is the caller's news; what needs an operator is a warning.
        level = logging.INFO if error is None or 0 < trace.status < 500 else logging.WARNING
        _log.log(
            level,
            "request %s", trace.outcome,
            extra={
                "request_id": trace.request_id, "url": trace.url, "route": trace.route, "status": trace.status,
                **({"trace_id": trace.trace_id} if trace.trace_id else {}),
                "endpoint": trace.endpoint, "version": trace.version, "model_id": trace.model_id, "code": trace.outcome,
                **{f"{stage}_ms": round(getattr(trace, f"{stage}_ns") / 1e6, 3) for stage in _TIMES},
                "reason": "" if error is None else str(error)[:300],
            },
        )  # fmt: skip


class SpannedPipeline(Pipeline):
    """A pipeline whose requests become spans of a distributed trace: a class of its own, so that others pay nothing."""

    def __init__(
        self,
        table: RoutingTable,
        limiter: Limiter,
        observer: Observer,
        health: Health,
        *,
        spans: RequestSpans,
        access_log: bool = False,
    ) -> None:
        super().__init__(table, limiter, observer, health, access_log=access_log)
        self._spans = spans
        self.new_trace = spans.begin

    def finished(self, trace: Trace) -> None:
        """See ``Pipeline.finished``."""
        super().finished(trace)
        self._spans.finished(trace)

    async def call(self, path: str, body: object, timeout: float) -> object:
        """See ``Pipeline.call``; a part of the trace of the request whose hook calls."""
        around = TRACEPARENT.get()
        try:
            return await super().call(path, body, timeout)
        finally:
            TRACEPARENT.set(around)


def _label(trace: Trace, endpoint: Endpoint) -> None:
    identity = endpoint.identity
    trace.url, trace.endpoint, trace.version = identity.url, identity.endpoint, identity.version
    trace.model_id = identity.model_id
