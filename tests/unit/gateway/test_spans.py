"""Spans of requests: W3C ids, times of the stages, and sampling. Without an OTLP endpoint there are none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from gateway.errors import ClientGone, GatewayError, InputRefused, ModelFailed
from gateway.path.call import InternalCall
from gateway.settings import trace_protocol
from gateway.spans import Spans

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Kept(SpanProcessor):
    """An exporter that keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def named(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.spans}


class Spanned:
    """A gateway with spans, over the stack's fakes."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack
        self.kept = Kept()
        self.gateway = stack.gateway = stack.new_gateway(spans=Spans(self.kept, version="1", instance="here"))
        self.client = stack.new_client(self.gateway)

    async def post(self, body: Any, path: str = "e", **headers: str) -> httpx.Response:
        return await self.client.post(f"/serve/{path}", json=body, headers=headers)


@pytest.fixture
async def spanned(make_stack: Any) -> AsyncIterator[Spanned]:
    """A running one, with the text endpoint `e`."""
    made = Spanned(make_stack())
    async with made.gateway.running(), made.client:
        made.stack.deploy("e")
        await made.stack.served("e")
        yield made


async def test_request_is_a_span_and_so_are_its_stages(spanned: Spanned) -> None:
    """Children in order, without gaps between them, within the request's own time."""
    reply = await spanned.post({"text": "good film"}, **{"x-request-id": "mine"})
    found = spanned.kept.named()
    assert {"POST e", "prepare", "queue", "infer", "finish"} == set(found)
    root = found["POST e"]
    assert (SpanKind.SERVER, None, StatusCode.UNSET) == (root.kind, root.parent, root.status.status_code)
    assert root.attributes is not None
    assert ("mine", 200, "ok") == tuple(
        root.attributes[n] for n in ("gateway.request_id", "http.response.status_code", "gateway.outcome")
    )
    assert "triton-gateway" == root.resource.attributes["service.name"]
    stages = [found[n] for n in ("prepare", "queue", "infer", "finish")]
    assert {root.context.span_id} == {s.parent.span_id for s in stages if s.parent}
    assert {root.context.trace_id} == {s.context.trace_id for s in spanned.kept.spans}
    times = [(s.start_time or 0, s.end_time or 0) for s in stages]
    assert all(start < end for start, end in times)
    assert all(before[1] == after[0] for before, after in pairwise(times))
    assert (root.start_time or 0) <= times[0][0] <= times[-1][1] <= (root.end_time or 0)
    infer_ms = ((found["infer"].end_time or 0) - (found["infer"].start_time or 0)) / 1e6
    assert float(reply.headers["x-inference-time"]) == pytest.approx(infer_ms, abs=0.001)


async def test_a_callers_trace_continues_through_the_infer_span_to_triton(spanned: Spanned) -> None:
    """The request's parent is the caller's span. Triton gets the id of the span `infer`; of an unsampled trace, which
    is not exported, the caller's id and the flag 00.
    """
    await spanned.post({"text": "good"}, traceparent=CALLER)
    found = spanned.kept.named()
    parent = found["POST e"].parent
    assert parent is not None
    assert (CALLER[3:35], CALLER[36:52]) == (f"{parent.trace_id:032x}", f"{parent.span_id:016x}")
    assert [f"00-{CALLER[3:35]}-{found['infer'].context.span_id:016x}-01"] == spanned.stack.backend.parents[-1:]
    spanned.kept.spans.clear()
    await spanned.post({"text": "good"}, traceparent=CALLER[:-1] + "0")
    carried = spanned.stack.backend.parents[-1]
    assert ([], CALLER[3:35], "00") == (spanned.kept.spans, carried[3:35], carried[-2:])


async def test_failure_is_on_the_stage_that_failed(spanned: Spanned) -> None:
    """A model failure ends the span `infer` with the error. Triton has that span as parent."""
    spanned.stack.backend.fail_with = ModelFailed("the model failed: boom")
    assert 500 <= (await spanned.post({"text": "good"})).status_code
    found = spanned.kept.named()
    assert {"POST e", "prepare", "infer"} == set(found)
    assert [StatusCode.ERROR] * 2 == [found[n].status.status_code for n in ("POST e", "infer")]
    assert "boom" in (found["infer"].status.description or "")
    assert f"{found['infer'].context.span_id:016x}" == spanned.stack.backend.parents[-1][36:52]
    assert "model_failed" == (found["POST e"].attributes or {})["error.type"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputRefused("text is empty"), StatusCode.UNSET), (ClientGone("it left"), StatusCode.UNSET),
     (ModelFailed("boom"), StatusCode.ERROR)],
    ids=lambda value: value.name if isinstance(value, StatusCode) else value.kind,
)  # fmt: skip
async def test_a_client_error_has_no_error_status(spanned: Spanned, error: GatewayError, code: StatusCode) -> None:
    """By OpenTelemetry's conventions a 4xx is not the server's error. Without an HTTP status, its kind decides."""
    call = InternalCall("e", {})
    call.question = Mock(side_effect=error)  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        await spanned.gateway.plane.call(call)
    (span,) = spanned.kept.spans
    attributes = span.attributes or {}
    assert (code, 0, error.kind) == (
        span.status.status_code, attributes["http.response.status_code"], attributes["error.type"],
    )  # fmt: skip


async def test_hooks_request_to_another_endpoint_is_a_part_of_its_trace(spanned: Spanned) -> None:
    """With send_request in the process, the inner request is a child span with its own call to Triton."""
    spanned.stack.add_hook("outer", """
class Preprocess:
    async def process(self, body, state, collect_custom_statistics_fn=None):
        return await self.send_request("e", data=body)
""")  # fmt: skip
    await spanned.stack.served("e", "outer")
    assert 200 == (await spanned.post({"text": "good"}, "outer")).status_code
    found = spanned.kept.named()
    inner = found["POST e"]
    assert found["POST outer"].context.trace_id == inner.context.trace_id
    assert inner.parent is not None
    outers = [s for s in spanned.kept.spans if s.parent and s.parent.span_id == found["POST outer"].context.span_id]
    assert inner.parent.span_id in {s.context.span_id for s in outers if s.name == "infer"}


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""), ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""), (ENDPOINT, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317/"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, "http/protobuf"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, ""), ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)  # fmt: skip
def test_standard_variables_switch_spans_on(environ: dict[str, str], expected: str) -> None:
    """An OTLP endpoint does. The standard's variables can switch them off again. Other protocols are refused."""
    assert expected == trace_protocol(environ)
    with pytest.raises(ValueError, match="grpc or http/protobuf"):
        trace_protocol({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
