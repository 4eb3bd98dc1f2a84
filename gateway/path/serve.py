"""THE PATH OF A REQUEST. If you read one file, read this one, and then ``ask.py`` and ``gateway/outcome.py``.

Every request goes through ``serve``: over HTTP and gRPC, and of a hook that asks another endpoint (``DataPlane.call``).
It awaits only outcomes and needs no task (see ``outcome``). It ends once, at the end of ``serve``: answered, refused,
left by its client, or at its deadline. A client that leaves while its rows are in a call is thrown into ``serve`` where
it waits: at the batcher's entry, which takes the rows back (``Entry.give_up``). Shadows and trials of versions are not
requests of a caller: they ask one version (``handlers.endpoint.ask_version``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from gateway.callers.access import Access
from gateway.callers.quotas import Quota
from gateway.callers.rights import INFER
from gateway.errors import (
    OF_CALLERS,
    BackendGarbage,
    DeadlineExceeded,
    GatewayError,
    HookFailed,
    InternalError,
    ModelFailed,
    Overloaded,
    Unavailable,
    forget_frames,
)
from gateway.handlers.endpoint import Endpoint, Event, as_known
from gateway.health import Health
from gateway.metrics import catalog
from gateway.metrics.observer import Observer
from gateway.outcome import in_task
from gateway.path.admission import AdmissionControl, Permits, flow_of
from gateway.path.ask import NO_HEADERS, Ask
from gateway.path.call import UNADDRESSED, Call, Reply, Route
from gateway.path.deadlines import Deadlines
from gateway.path.rights import redacted_for
from gateway.path.routing import RoutingTable
from gateway.trace import CLASSES, FALLBACK, TRACEPARENT, Trace
from preprocessing.errors import PreprocessingError

if TYPE_CHECKING:
    from gateway.spans import Spans

_log = logging.getLogger("triton_gateway.request")

VERSION_FAULTS: Final = (Unavailable, Overloaded, ModelFailed, BackendGarbage, HookFailed, InternalError)
"""Failures of a version, not of the request: another version may answer it."""
Listener = Callable[[Trace], None]
_TIMES: Final = ("total", "prepare", "queue", "infer", "finish")
_PRIORITY: Final = b"x-priority"


async def serve(ask: Ask, route: Route, plane: DataPlane) -> None:
    """Answer or refuse one request. Awaits nothing but outcomes; raises nothing but a bug, or what ends its task."""
    try:
        plane.begin(ask)
        try:
            call = ask.call or await _admitted(ask, route, plane)
            version = plane.hold(ask, call)  # the choice and the lease in one step, and the deadline
            ask.body = question = call.question(version)
            while True:
                try:
                    if call.streams and ask.can_stream and version.stream is not None:
                        await in_task(_in_pieces(version.stream(question, ask), ask, plane), ask.traceparent)
                    else:
                        ask.answer = await version.answer(question, ask)
                    reply = None if ask.has_begun else ask.rendered or call.render(ask.answer, version, ask)
                    break
                except (PreprocessingError, *VERSION_FAULTS) as error:
                    version, question = plane.fall_back(ask, call, error)  # to the stable version, behind a canary
            plane.end(ask)
            ask.status = reply.status if type(reply) is Reply else 200
            ask.respond(reply)
        except BaseException as error:
            ask.refuse(plane.fail(ask, error, route), route)
            if not isinstance(error, Exception):
                raise
        if ask.is_unread:
            await ask.drained()
    finally:
        plane.leave(ask)


async def _admitted(ask: Ask, route: Route, plane: DataPlane) -> Call:
    """Return what is asked, once it is known who asks, that it may, that there is room, and what its body says."""
    access, headers, path = plane.access, ask.by_name, route.path
    if access is not None:
        ask.caller = ask.caller_of(access)
        access.require(ask.caller, INFER, path)
    ask.timeout = ask.check(plane.timeout)
    if access is not None or _PRIORITY in headers:
        ask.flow = flow_of(headers.get(_PRIORITY, b""), ask.caller)
    flow = ask.flow
    plane.admission.enter(ask, path, flow)
    if access is not None:
        await _charge(ask, access, headers.get(b"content-length", b""))
    plane.deadlines.watch(ask, ask.timeout)
    ask.call = call = await ask.read(route)
    ask.ready_ns = perf_counter_ns()
    ask.body_bytes = ask.held_bytes
    if isinstance(ask.quota, Quota):  # a body may be announced as smaller or not at all, or be packed
        ask.charged = ask.quota.grow(ask.charged, ask.held_bytes)
    if headers.get(plane.key_header):
        call.key = headers[plane.key_header].decode("latin-1")
    if call.path != path:  # only the body names the endpoint
        if access is not None:
            access.require(ask.caller, INFER, call.path)
        plane.admission.check(call.path, *flow)
    return call


async def _charge(ask: Ask, access: Access, announced: bytes) -> None:
    """Charge the tenant's quota with the size that is announced; the end of the request settles it.

    Raises ``QuotaExceeded``.
    """
    ask.quota = quota = access.quota_of(ask.caller)  # a refusal also reports what is left
    if quota is not None:
        size = int(announced) if announced.isdigit() else 0
        shared = access.shared_quotas
        if shared is None:
            ask.charged = quota.admit(size, time.monotonic())
        else:
            ask.charged = await in_task(shared.admit(quota, size))


async def _in_pieces(pieces: AsyncGenerator[Event, None], ask: Ask, plane: DataPlane) -> None:
    """Send every piece of an answer; each is sent before the next one is made."""
    async with aclosing(pieces):
        async for piece in pieces:
            ask.generated_tokens = piece.generated_tokens
            if plane.keeps_pieces:
                ask.pieces = [*(ask.pieces or ()), piece]
            await ask.send(piece)


class DataPlane:
    """What ``serve`` needs. One per event loop.

    ``timeout``: seconds that a request may take if its caller sets no limit. ``access`` None: every caller may ask.
    ``key_header`` names the header of routing keys.
    """

    def __init__(
        self,
        table: RoutingTable,
        permits: Permits,
        observer: Observer,
        health: Health,
        *,
        timeout: float,
        spans: Spans | None = None,
        access_log: bool = False,
        access: Access | None = None,
        key_header: str = "x-routing-key",
    ) -> None:
        self.timeout = timeout
        self.permits = permits
        self.access = access
        self.key_header = key_header.lower().encode()
        self.keeps_pieces = False
        """Whether traces keep the pieces of a streamed answer."""
        self.admission = AdmissionControl(table, permits, observer, health)
        self.deadlines = Deadlines()
        self._access_log = access_log
        self._listeners: list[Listener] = []
        self._spans = spans
        if spans is not None:
            self.subscribe(spans.finished)
        self._table = table
        self._observer = observer

    # --- the steps of `serve` -----------------------------------------------------------------------------------------

    def begin(self, ask: Ask) -> None:
        """Count a request, and give it its ids."""
        self._observer.started()
        ask.open()
        if self._spans is not None:
            self._spans.begin(ask)

    def hold(self, ask: Ask, call: Call) -> Endpoint:
        """Choose a version and hold it (and a spare one) until the request ends; from now on it has a deadline.

        Raises ``EndpointNotFound``, ``VersionNotFound`` or ``Unavailable``.
        """
        # Nothing may run between the choice and the leases: a version that is replaced in between would be closed.
        version, route, spare = self._table.current.resolve(call.path, call.key)
        version.lease()
        ask.with_version = version
        if spare is not None:
            spare.lease()
            ask.spare = spare
        ask.route = route
        if call.needs_outputs:
            ask.needs_outputs = True
        _label(ask, version)
        if call.timeout or not ask.timeout:  # else it is watched since its head was read
            timeout = ask.timeout or self.timeout
            self.deadlines.watch(ask, min(call.timeout or timeout, timeout))
        return version

    def fall_back(self, ask: Ask, call: Call, error: Exception) -> tuple[Endpoint, Any]:
        """Return the stable version and its question, in place of a canary that failed; else raise ``error``."""
        canary, stable, known = ask.with_version, ask.spare, as_known(error, ask)
        if stable is None or canary is None or ask.has_begun or not isinstance(known, VERSION_FAULTS):
            raise error
        try:
            question = call.question(stable)
        except Exception:  # noqa: BLE001 - the canary's failure stands
            raise error from None
        self._observer.count(catalog.FALLBACKS, ask.endpoint, ask.version, known.kind)
        _log.info(
            "request fell back to %s", stable.identity.url,
            extra={"request_id": ask.request_id, "url": ask.url, "code": known.kind, "reason": str(known)[:300]},
        )  # fmt: skip
        ask.with_version, ask.spare = stable, None
        canary.release()
        ask.route = FALLBACK
        _label(ask, stable)
        ask.rendered = None
        ask.finishes_ns = 0
        ask.ready_ns = perf_counter_ns()
        ask.forget_content()
        ask.body = question
        return stable, question

    def end(self, ask: Ask) -> None:
        """Stop the clock: nothing is left to do but to write the reply."""
        self.deadlines.forget(ask)
        ask.close()

    def fail(self, ask: Ask, error: BaseException, route: Route) -> GatewayError:
        """End a request with an error; returns what its caller may know of it."""
        self.end(ask)
        ask.release()  # its body is dropped: it holds no room while the client reads its refusal
        ask.error = known = as_known(error, ask)
        forget_frames(error)
        ask.outcome = known.kind
        if isinstance(known, Overloaded) and not ask.endpoint:  # the metrics of an endpoint count its refusals
            found = self._table.current.at((ask.call.path if ask.call is not None else route.path) or "")
            ask.endpoint = found[0].identity.endpoint if found else ""
        return redacted_for(ask.caller, known)

    def leave(self, ask: Ask) -> None:
        """Give back all that a request holds, and record it. The last that happens to it."""
        version, spare, ask.with_version, ask.spare = ask.with_version, ask.spare, None, None
        if version is not None:
            version.release()
        if spare is not None:
            spare.release()
        ask.release()
        # Counting keeps it for some milliseconds: without what nobody needs any more, its memory is used again at once.
        ask.call, ask.by_name = None, NO_HEADERS
        try:
            self.record(ask)
        except Exception:  # noqa: BLE001 - a fault in counting is no fault of the request
            _log.exception("recording a request failed", extra={"request_id": ask.request_id, "url": ask.url})

    def record(self, ask: Ask) -> None:
        """Count a request that has ended, tell who listens, and log it."""
        self._observer.finished(ask)
        for listener in self._listeners:
            listener(ask)
        error = ask.error
        if error is None or isinstance(error, Overloaded):
            if error is not None:
                self.admission.count(error, ask.flow.rank)
            if self._access_log:
                _write_log(ask)
        else:
            if isinstance(error, DeadlineExceeded) and error.because:
                self._observer.count(catalog.REFUSED, error.because, CLASSES[ask.flow.rank])
            _write_log(ask)

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with the trace of every request that ends."""
        self._listeners.append(listener)

    async def call(self, call: Call) -> Any:
        """Answer a hook's ``send_request`` in this process, counted like any request. Raises ``GatewayError``.

        It has no caller, and needs no permit, because the request that the hook works on has one.
        """
        ask = Ask(parent=TRACEPARENT.get())
        ask.call = call
        await ask.served(serve(ask, UNADDRESSED, self))
        if ask.error is not None:
            raise ask.error
        return ask.answer


def _label(ask: Ask, version: Endpoint) -> None:
    identity = version.identity
    ask.url, ask.endpoint, ask.version = identity.url, identity.endpoint, identity.version
    ask.model_id = identity.model_id


def _write_log(trace: Trace) -> None:
    error = trace.error
    # A caller's mistake is logged as information, a fault that needs an operator as a warning. gRPC sets no status.
    is_information = error is None or 0 < trace.status < 500 or trace.outcome in OF_CALLERS
    level = logging.INFO if is_information else logging.WARNING
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
