"""Records requests that have ended: in metrics, in the log, and with listeners (spans, shadow traffic)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from gateway.errors import OF_CALLERS, DeadlineExceeded, GatewayError, Overloaded
from gateway.handlers.endpoint import Endpoint
from gateway.metrics import catalog
from gateway.metrics.observer import Observer
from gateway.path.admission import AdmissionControl
from gateway.trace import CLASSES, Trace

_log = logging.getLogger("triton_gateway.request")

_TIMES: Final = ("total", "prepare", "queue", "infer", "finish")

Listener = Callable[[Trace], None]


class Records:
    """Records the requests of one event loop; ``admission`` counts its refusals."""

    def __init__(self, observer: Observer, admission: AdmissionControl, *, access_log: bool = False) -> None:
        self._observer = observer
        self._admission = admission
        self._access_log = access_log
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with the trace of every request that ends."""
        self._listeners = (*self._listeners, listener)

    def record(self, trace: Trace) -> None:
        """Record a request that has ended."""
        self._observer.finished(trace)
        for listener in self._listeners:
            listener(trace)
        error = trace.error
        if error is None:
            if self._access_log:
                _write_log(trace)
        elif isinstance(error, Overloaded):
            self._admission.count(error, trace.flow.rank)
            if self._access_log:
                _write_log(trace)
        else:
            if isinstance(error, DeadlineExceeded) and error.because:
                self._observer.count(catalog.REFUSED, error.because, CLASSES[trace.flow.rank])
            _write_log(trace)

    def fell_back(self, trace: Trace, error: GatewayError, stable: Endpoint) -> None:
        """Record that ``stable`` answers for a version that failed."""
        self._observer.count(catalog.FALLBACKS, trace.endpoint, trace.version, error.kind)
        _log.info(
            "request fell back to %s", stable.identity.url,
            extra={"request_id": trace.request_id, "url": trace.url, "code": error.kind, "reason": str(error)[:300]},
        )  # fmt: skip


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
