"""Spans over the wire: a real OTLP receiver gets the gateway's, and real Triton's as a part of the same trace."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb

from deploy.sync.client import AdminClient
from deploy.sync.repository import ModelRepository
from gateway.app import Gateway
from gateway.settings import Settings
from gateway.spans import exporting
from gateway.spec import decode, triton_model_name
from gateway.triton.backend import TritonBackend
from tests.core_client import CoreTransport
from tests.fakes import FakeRegistry
from tests.integration.conftest import place
from tests.sites import Asked, site
from tests.tiny import counting_bundle
from tests.triton_server import TritonServer
from tests.waiting import LIMIT_S, soon

pytestmark = pytest.mark.integration

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Receiver:
    """Keeps every span it is sent, as (service, span)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []

    def take(self, request: pb.ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            names = {a.key: a.value.string_value for a in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans += [(names.get("service.name", ""), span) for span in scope.spans]

    def of(self, service: str, caller: str) -> dict[str, Any]:
        """A service's spans of the trace of ``caller`` by name; Triton also traces the calls that warm a version up."""
        trace = caller[3:35]
        return {span.name: span for name, span in list(self.spans) if name == service and span.trace_id.hex() == trace}

    def has(self, service: str, caller: str, names: set[str]) -> bool:
        return names <= self.of(service, caller).keys()


def _from_json(body: bytes) -> pb.ExportTraceServiceRequest:
    """OTLP's JSON form, which Triton sends: ids are in hexadecimal, where protobuf's own JSON has base64."""
    content = json.loads(body)
    for group in content["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    span[name] = base64.b64encode(bytes.fromhex(span.get(name, ""))).decode()
    return json_format.ParseDict(content, pb.ExportTraceServiceRequest(), ignore_unknown_fields=True)


@pytest.fixture
def over_http() -> Iterator[tuple[Receiver, str]]:
    """OTLP over HTTP: `POST /v1/traces`, protobuf."""
    receiver = Receiver()

    def answer(asked: Asked) -> tuple[int, bytes]:
        if asked.path != "/v1/traces":
            return 404, b""
        is_json = asked.headers["content-type"] == "application/json"
        receiver.take(_from_json(asked.body) if is_json else pb.ExportTraceServiceRequest.FromString(asked.body))
        return 200, b""

    with site(answer) as address:
        yield receiver, address


async def test_gateway_and_triton_are_one_trace(
    over_http: tuple[Receiver, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's trace id on every span; Triton's request hangs below the gateway's `infer`, over gRPC."""
    receiver, address = over_http
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    bundle = counting_bundle(tmp_path / "bundle")
    registry = FakeRegistry()
    registry.add_model("m", Path(shutil.make_archive(str(bundle), "zip", bundle)), is_package=True)
    registry.add_endpoint("t", "m")
    spec = decode(registry.task()).endpoints["t"]
    name = triton_model_name(spec, registry.model("m"))
    repository = ModelRepository(tmp_path / "models")
    repository.open()
    arguments = [f"--trace-config={setting}" for setting in (
        "mode=opentelemetry", f"opentelemetry,url={address.removeprefix('http://')}/v1/traces", "rate=1",
        "opentelemetry,resource=service.name=triton", "level=TIMESTAMPS", "opentelemetry,bsp_schedule_delay=200",
    )]  # fmt: skip
    with TritonServer(tmp_path, repository.root, arguments=arguments) as server:
        place(repository, name, bundle, spec)
        admin = AdminClient(server.grpc, load_timeout_s=LIMIT_S)
        admin.load(name)
        gateway = Gateway(
            Settings(state_dir=tmp_path / "state", poll_frequency="1s", triton_grpc=server.grpc),
            registry=registry,
            make_backend=lambda address: TritonBackend(address, options=()),
            spans=exporting("http/protobuf", version="1", instance="test"),
        )
        async with gateway.running():
            client = httpx.AsyncClient(transport=CoreTransport(gateway), base_url="http://gateway")
            await soon(lambda: "t" in gateway.table.current.endpoints)
            sent: list[str] = []

            async def traced() -> str | None:  # Triton gives spans up that it cannot send at once, on a busy machine
                sent.append(f"{CALLER[:32]}{len(sent):03x}{CALLER[35:]}")
                reply = await client.post("/serve/t", json={"text": "good film"}, headers={"traceparent": sent[-1]})
                assert 200 == reply.status_code, reply.text
                await asyncio.sleep(1)
                return next((one for one in sent if receiver.has("triton", one, {"InferRequest", "compute"})), None)

            async with asyncio.timeout(LIMIT_S):
                while (caller := await traced()) is None:
                    continue
            await client.aclose()
        admin.close()  # closing the gateway flushed its own
    repository.close()
    ours, theirs = receiver.of("triton-gateway", caller), receiver.of("triton", caller)
    assert {"POST t", "prepare", "queue", "infer", "finish"} == set(ours)
    assert caller[36:52] == ours["POST t"].parent_span_id.hex()
    assert ours["infer"].span_id == theirs["InferRequest"].parent_span_id
    spans = [span for _, span in receiver.spans if span.trace_id.hex() == caller[3:35]]
    ids = {span.span_id for span in spans} | {bytes.fromhex(caller[36:52])}
    assert [] == [span.name for span in spans if span.parent_span_id not in ids]
