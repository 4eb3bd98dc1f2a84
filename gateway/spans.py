"""OpenTelemetry: a span for each request and for each of its stages, exported over OTLP.

The only file of the gateway that imports ``opentelemetry``. It is imported only if an ``OTEL_*`` endpoint is set
(``settings.trace_protocol``); without one, requests have no spans.

Spans are created when a request is over, from the times in its ``Trace``. Only their ids exist from the start, because
the call to Triton carries the id of the stage ``infer`` as its parent. The trace holds the duration of each stage but
not its start, so stages are placed one after another up to the request's end.
"""

from __future__ import annotations

import importlib
import random
from time import time_ns
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from gateway.errors import OF_CALLERS, MethodNotAllowed
from gateway.trace import STAGES, Trace

_OK: Final = Status()
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)


class _Span:
    """The ids of a request's spans, and the wall clock at its start (ns since 1970)."""

    __slots__ = ("above", "began_ns", "context", "infer")

    def __init__(self, context: SpanContext, above: SpanContext | None, infer: int) -> None:
        self.began_ns = time_ns()
        self.context = context
        self.above = above
        self.infer = infer


class Spans:
    """Gives requests their ids and passes their spans to ``processor``. For use by one event loop.

    The sampler follows ``OTEL_TRACES_SAMPLER``; the resource follows ``OTEL_SERVICE_NAME`` and
    ``OTEL_RESOURCE_ATTRIBUTES``.
    """

    def __init__(self, processor: SpanProcessor, *, version: str, instance: str) -> None:
        self._processor = processor
        named = Resource.create({SERVICE_VERSION: version, SERVICE_INSTANCE_ID: instance})
        if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            named = named.merge(Resource({SERVICE_NAME: "triton-gateway"}))
        self._resource = named
        self._scope = InstrumentationScope("triton-gateway", version)
        # The provider is used only to read the sampler's variables.
        self._sampler = TracerProvider(resource=named, shutdown_on_exit=False).sampler

    def begin(self, trace: Trace) -> None:
        """Give a request its ids, under its ``traceparent`` if it has one, and the context of its calls."""
        parent = trace.traceparent
        above: SpanContext | None = None
        inherited: Context | None = None
        if parent:
            trace_id = int(parent[3:35], 16)
            flags = _SAMPLED if int(parent[53:55], 16) & 1 else _NOT_SAMPLED
            above = SpanContext(trace_id, int(parent[36:52], 16), is_remote=True, trace_flags=flags)
            inherited = set_span_in_context(NonRecordingSpan(above))
        else:
            trace_id = random.getrandbits(128) or 1
        decision = self._sampler.should_sample(inherited, trace_id, "POST", SpanKind.SERVER).decision
        flags = _NOT_SAMPLED if decision is Decision.DROP else _SAMPLED
        infer = _span_id()
        context = SpanContext(trace_id, _span_id(), is_remote=False, trace_flags=flags)
        trace.span = _Span(context, above, infer)
        trace.trace_id = f"{trace_id:032x}"
        trace.traceparent = f"00-{trace_id:032x}-{infer:016x}-{flags:02x}"
        trace.is_recorded = bool(flags.sampled)

    def finished(self, trace: Trace) -> None:
        """Pass on the spans of a closed trace if it was sampled."""
        span = trace.span
        if not isinstance(span, _Span) or not span.context.trace_flags.sampled:
            return
        began, ended = span.began_ns, span.began_ns + trace.total_ns
        failed = Status(StatusCode.ERROR, str(trace.error)[:300] or trace.outcome) if trace.error is not None else _OK
        # Each stage ends where the next begins, and the last one with the request. A failed request's last stage is the
        # one that failed; it takes all time that the other stages do not account for.
        lengths = {stage: int(getattr(trace, f"{stage}_ns")) for stage in STAGES}
        if trace.error is not None and lengths["prepare"]:
            at = began + max(0, trace.total_ns - sum(lengths.values()) - 1) if lengths["infer"] else began
            unfinished = "finish" if lengths["infer"] else "infer"
            lengths[unfinished] = max(1, trace.total_ns - sum(lengths.values()))
        else:
            at, unfinished = max(began, ended - sum(lengths.values())), ""
        for stage in STAGES:
            if lengths[stage]:
                self._emit(
                    span, stage, at, min(at + lengths[stage], ended), failed if stage == unfinished else _OK,
                    {"gateway.model_id": trace.model_id} if stage == "infer" else {},
                    span_id=span.infer if stage == "infer" else _span_id(), above=span.context,
                    kind=SpanKind.CLIENT if stage == "infer" else SpanKind.INTERNAL,
                )  # fmt: skip
                at += lengths[stage]
        attributes: dict[str, Any] = {
            "http.request.method": "_OTHER" if trace.outcome == MethodNotAllowed.kind else "POST",
            "http.response.status_code": trace.status,
            "gateway.request_id": trace.request_id, "gateway.endpoint": trace.endpoint,
            "gateway.version": trace.version, "gateway.route": trace.route, "gateway.outcome": trace.outcome,
            "gateway.rows": trace.rows, "gateway.tokens": trace.tokens,
        }  # fmt: skip
        if trace.error is not None:
            attributes["error.type"] = trace.outcome
        # By OpenTelemetry's conventions a caller's mistake is not a server error. gRPC requests have no HTTP status.
        is_ours = trace.status >= 500 or (trace.status == 0 and trace.outcome not in OF_CALLERS)
        self._emit(
            span, f"POST {trace.url}".strip(), began, ended, failed if is_ours else _OK, attributes,
            span_id=span.context.span_id, above=span.above, kind=SpanKind.SERVER,
        )  # fmt: skip

    def close(self) -> None:
        """Send pending spans and stop. Blocks, at most for the exporter's timeout."""
        self._processor.shutdown()

    def _emit(
        self,
        span: _Span,
        name: str,
        start: int,
        end: int,
        status: Status,
        attributes: dict[str, Any],
        *,
        span_id: int,
        above: SpanContext | None,
        kind: SpanKind,
    ) -> None:
        context = SpanContext(
            span.context.trace_id, span_id, is_remote=False, trace_flags=span.context.trace_flags
        )  # fmt: skip
        self._processor.on_end(
            ReadableSpan(
                name, context, above, self._resource, attributes, kind=kind, status=status, start_time=start,
                end_time=end, instrumentation_scope=self._scope,
            )
        )  # fmt: skip


def exporting(protocol: str, *, version: str, instance: str) -> Spans:
    """Return spans that are exported over OTLP (``grpc`` or ``http/protobuf``) as the ``OTEL_*`` variables say.

    Raises ``ModuleNotFoundError`` if the exporter of that protocol is not installed.
    """
    return Spans(BatchSpanProcessor(exporter(protocol)()), version=version, instance=instance)


def exporter(protocol: str) -> type[SpanExporter]:
    """Return the class that exports. Raises ``ModuleNotFoundError``."""
    form = "grpc" if protocol == "grpc" else "http"
    found: type[SpanExporter] = importlib.import_module(
        f"opentelemetry.exporter.otlp.proto.{form}.trace_exporter"
    ).OTLPSpanExporter
    return found


def _span_id() -> int:
    return random.getrandbits(64) or 1
