"""Every address × every kind of credentials, over HTTP and over gRPC.

The addresses are taken from the application: one that is added without a rule fails here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from starlette.routing import Mount
from tritonclient.grpc import service_pb2 as pb

from gateway.callers.keys import new_key, written
from gateway.callers.rights import OPERATIONS
from gateway.path.rights import OPEN, rule_of
from gateway.protocols.tei import ROUTES
from tests.unit.gateway.grpc.test_server import Caller as Client
from tests.unit.gateway.grpc.test_server import channel_to, texts
from tests.unit.gateway.http.serving import made_key, write_keys

TEXT = {"text": "good"}
TENSORS = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["good"]}]}
RANK = {"query": "good", "documents": ["bad"]}
CHAT = {"model": "e", "messages": [{"role": "user", "content": "good"}]}
INFERENCE = {
    "/serve/e": TEXT,
    "/serve/e/v1/chat/completions": CHAT,
    "/v1/models/e:predict": {"instances": ["good"]},
    "/v2/models/e/infer": TENSORS,
    "/v1/embeddings": {"model": "e", "input": "good"},
    "/v1/completions": {"model": "e", "prompt": "good"},
    "/v1/chat/completions": CHAT,
    "/serve/e/pipeline/text-classification": {"inputs": "good"},
    "/tei/e": {"inputs": "good"},
    **{f"/tei/e{route}": {"inputs": "good"} for route in ROUTES},
    "/tei/e/v1/embeddings": {"input": "good"},
    "/tei/e/v1/rerank": RANK,
    "/tei/e/v2/rerank": RANK,
    "/v1/rerank": {"model": "e", **RANK},
    "/v2/rerank": {"model": "e", **RANK},
}
"""Every form in which the endpoint `e` is asked, by address; it does not do what all of them want."""
MODELS = {
    "/v1/models": 200, "/v1/models/e": 200, "/v2/models/e": 200, "/v2/models/e/ready": 200,
    "/v2/models/e/config": 200, "/v2/models/e/stats": 200, "/tei/e/info": 200, "/v2/models/stats": 200,
    "/v2/repository/index": 200, "/v2/repository/models/e/load": 422,
}  # fmt: skip
OPEN_PATHS = {"/livez", "/readyz", "/healthz", "/v2/health/live", "/v2/health/ready"}
WRONG = {
    "none": "no_credentials", "wrong": "unknown_key", "expired": "expired", "revoked": "revoked",
}  # fmt: skip
"""Credentials that nobody is known by."""


class Keyring:
    """A file with one key for each kind of credentials."""

    def __init__(self, folder: Path) -> None:
        every = {"operations": tuple(OPERATIONS)}
        made = {
            "good": made_key("good", **every), "revoked": made_key("revoked", **every),
            "expired": made_key("expired", **every, expires="2020-01-01"),
            "others": made_key("others", **every, endpoints=("other",)),
            "infers": made_key("infers", operations=("infer",)),
            "reads": made_key("reads", operations=("metadata",), endpoints=("e",)),
        }  # fmt: skip
        self.texts = {"wrong": new_key()[0], **{name: text for name, (text, _) in made.items()}}
        self._keys = {name: key for name, (_, key) in made.items()}
        self.path = write_keys(folder, *self._keys.values())

    def end(self, name: str) -> None:
        self._keys[name] = replace(self._keys[name], revoked=written(1))
        write_keys(self.path.parent, *self._keys.values())

    def shown(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return credentials as headers, or as metadata."""
        return (("authorization", f"Bearer {self.texts[name]}"),) if name in self.texts else ()


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    """See the class."""
    return Keyring(tmp_path)


@pytest.fixture
async def keyed(keyring: Keyring, make_stack: Callable[..., Any]) -> AsyncIterator[Any]:
    """A gateway with keys and the endpoints `e` and `other`."""
    stack = make_stack(keys_file=str(keyring.path))
    async with stack.gateway.running(), stack.client:
        stack.deploy("e")
        stack.deploy("other")
        await stack.served("e", "other")
        yield stack


async def ask(stack: Any, method: str, path: str, body: object, shown: Any = ()) -> tuple[int, httpx.Headers, bytes]:
    """Return status, headers and body of the answer."""
    reply = await stack.client.request(method, path, json=body, headers=list(shown))
    return reply.status_code, reply.headers, reply.content


def everything(keyed: Any) -> list[tuple[str, str, object]]:
    """Return method, address and body of one request to every address."""
    found: list[tuple[str, str, object]] = [("POST", path, body) for path, body in INFERENCE.items()]
    found += [("POST" if "repository" in path else "GET", path, None) for path in MODELS]
    for route in keyed.gateway._ops.routes:
        if isinstance(route, Mount):
            found.append(("GET", f"{route.path}/swagger-ui.css", None))
        else:
            found.append(("GET", route.path.replace("{url:path}", "e"), None))
    return found


async def test_every_route_of_the_application_has_a_rule(keyed: Any) -> None:
    """Only the health probes need no right."""
    paths = {path for method, path, _ in everything(keyed) if path not in INFERENCE}
    assert not [path for path in paths if rule_of(path) is None]
    assert {path for path in paths if (rule := rule_of(path)) and rule.operation == OPEN} == OPEN_PATHS
    assert set(INFERENCE) == {path for path in INFERENCE if keyed.gateway._addresses.at(path) is not None}


def test_every_documented_address_is_tested_here() -> None:
    """Except those that name no endpoint; they have their own tests below."""
    page = (Path(__file__).parents[4] / "docs" / "http-api.md").read_text()
    table = page.partition("| protocol | `POST` |")[2].partition("\n\n")[0]
    named = {path.format(endpoint="e", task="text-classification") for path in re.findall("`(/[^`]+)`", table)}
    assert named - {"/predict", *ROUTES} == set(INFERENCE)


async def test_bare_routes_do_not_reveal_endpoints(make_stack: Any, keyring: Keyring) -> None:
    """TEI's bare routes call the only endpoint. A caller without its right does not learn its name."""
    stack = make_stack(keys_file=str(keyring.path))
    async with stack.gateway.running(), stack.client:
        stack.deploy("secret")
        await stack.served("secret")
        bodies: dict[str, object] = {
            **{route: {"inputs": "good"} for route in ROUTES}, "/decode": {"ids": [2]}, "/v1/rerank": RANK,
            "/rerank": {"query": "a", "texts": ["b"]}, "/v2/rerank": RANK,
            "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
        }  # fmt: skip
        for path, body in bodies.items():
            for _ in range(2):
                assert 401 == (await ask(stack, "POST", path, body))[0], path
                status, headers, content = await ask(stack, "POST", path, body, keyring.shown("others"))
                assert (403, "endpoint_not_permitted") == (status, headers["x-refused-because"]), path
                assert b"secret" not in content
                assert 403 != (await ask(stack, "POST", path, body, keyring.shown("good")))[0], path
        assert 404 == (await ask(stack, "GET", "/info", None, keyring.shown("others")))[0]
        assert 200 == (await ask(stack, "GET", "/info", None, keyring.shown("good")))[0]


def form_of(path: str) -> str:
    """Return in which form an address refuses."""
    if path.endswith(("/v1/rerank", "/v2/rerank")):
        return "detail id message"
    if path == "/info" or (path.startswith("/tei/") and not path.endswith("/embeddings")):
        return "error error_type"
    openai = path.startswith("/v1/models") or path.endswith(("/completions", "/embeddings"))
    if path.startswith("/v2/") or path == "/v2" or path.endswith(":predict"):
        return "code error"
    return "error" if openai else "code error hint request_id"


async def test_every_address_checks_credentials(keyed: Any, keyring: Keyring) -> None:
    """None and wrong ones are refused everywhere but for health, before the body is read; a key with all rights
    nowhere; and one of another tenant gets no answer, description or name.
    """
    keyring.end("revoked")
    await keyed.gateway._callers.look()
    calls = len(keyed.backend.calls)
    for method, path, body in everything(keyed):
        for name, because in WRONG.items():
            status, headers, content = await ask(keyed, method, path, body, keyring.shown(name))
            if path in OPEN_PATHS:
                assert 200 == status, path
                continue
            assert (401, because) == (status, headers["x-refused-because"]), (path, name)
            assert headers["www-authenticate"].startswith("Bearer")
            assert form_of(path) == " ".join(sorted(json.loads(content))), path
    assert calls == len(keyed.backend.calls)
    for method, path, body in everything(keyed):
        names_it = path in INFERENCE or path.endswith(("/e/lineage", "/e/learned")) or "/models/e" in path
        for _ in range(2):  # the second time its caller is remembered
            status, headers, _ = await ask(keyed, method, path, body, keyring.shown("good"))
            assert status not in (401, 403, 404), path
            assert "x-refused-because" not in headers
            assert status in (MODELS.get(path, status), 400), path
            status, headers, content = await ask(keyed, method, path, body, keyring.shown("others"))
            if names_it and "repository" not in path:
                assert (403, "endpoint_not_permitted") == (status, headers["x-refused-because"]), path
            assert status < 500, path
            if path in ("/v1/models", "/v2/repository/index", "/v2/models/stats"):
                found = json.loads(content)
                rows = found if isinstance(found, list) else found.get("data") or found.get("model_stats")
                names = {row.get("id") or row["name"] for row in rows}
                assert {"other"} == names or (path.endswith("stats") and not names), path


async def test_unknown_and_forbidden_endpoints_get_the_same_answer(keyed: Any, keyring: Keyring) -> None:
    """So a caller cannot find out which endpoints exist. Hints do not name others' endpoints."""
    shown = keyring.shown("others")
    for method, path, body in (
        ("POST", "/v2/models/{}/versions/1/infer", TENSORS), ("GET", "/v2/models/{}/versions/1", None),
    ):  # fmt: skip
        known, unknown = [await ask(keyed, method, path.format(name), body, shown) for name in ("e", "none")]
        assert (403, 403, known[2]) == (known[0], unknown[0], unknown[2])
    for path in ("/serve/other/9", "/predict"):
        status, _, content = await ask(keyed, "POST", path, TEXT, shown)
        assert (404, False, False) == (status, "hint" in json.loads(content), b"/serve/e" in content)


@pytest.mark.parametrize(
    ("name", "lacks", "paths"),
    [
        ("infers", "metrics", ["/metrics"]), ("infers", "metadata", ["/v1/models"]),
        ("infers", "status", ["/v1/status", "/openapi.json", "/v1/endpoints/e/lineage", "/v1/endpoints/e/learned"]),
        ("reads", "infer", ["/serve/e", "/v1/embeddings"]), ("reads", "status", ["/"]),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_missing_right(
    keyed: Any, keyring: Keyring, caplog: pytest.LogCaptureFixture, name: str, lacks: str, paths: list[str]
) -> None:
    """In the form of the address's protocol. It is counted by reason, and the key is neither told nor logged."""
    for path in paths:
        method = "POST" if path in INFERENCE else "GET"
        status, headers, content = await ask(keyed, method, path, INFERENCE.get(path), keyring.shown(name))
        assert (403, "operation_not_permitted") == (status, headers["x-refused-because"])
        assert f"lacks the right {lacks}" in content.decode()
        assert keyring.texts[name] not in content.decode()
    await ask(keyed, "POST", "/serve/e", TEXT, keyring.shown("wrong"))
    text = (await ask(keyed, "GET", "/metrics", None, keyring.shown("good")))[2].decode()
    for reason, number in (("operation_not_permitted", len(paths)), ("unknown_key", 1)):
        assert f'gateway_refused_callers_total{{reason="{reason}"}} {number}' in text
    assert re.search(r'gateway_requests_total\{[^}]*outcome="unauthenticated"[^}]*\} 1', text)
    logged = "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert not [name for name, key in keyring.texts.items() if key in logged]


async def test_a_revoked_key_is_refused_soon_after_its_file_was_replaced(keyed: Any, keyring: Keyring) -> None:
    """Also one that was used before."""
    assert 200 == (await ask(keyed, "POST", "/serve/e", TEXT, keyring.shown("revoked")))[0]
    keyring.end("revoked")
    while (answer := await ask(keyed, "POST", "/serve/e", TEXT, keyring.shown("revoked")))[0] == 200:
        await asyncio.sleep(0.05)
    assert (401, "revoked") == (answer[0], answer[1]["x-refused-because"])


async def test_a_caller_without_rights_does_not_learn_that_an_endpoint_is_busy(keyed: Any, keyring: Keyring) -> None:
    """Where the body names the endpoint, the check of rights comes after the body."""
    endpoint, permits = keyed.gateway.table.current.endpoints["e"], keyed.gateway.permits
    permits.in_flight = permits.ceilings[1] - 1
    endpoint._leases += 10
    for name, status in (("others", 403), ("good", 429)):
        body = {"model": "e", "input": "good"}
        assert status == (await ask(keyed, "POST", "/v1/embeddings", body, keyring.shown(name)))[0]
    endpoint._leases -= 10
    permits.in_flight = 0


# --- gRPC -------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def rpc(keyed: Any) -> AsyncIterator[Any]:
    """A client of its gRPC service, and the stack."""
    async with channel_to(keyed) as channel:
        yield Client(channel), keyed


REQUESTS: dict[str, Any] = {
    "ServerLive": (pb.ServerLiveRequest(), pb.ServerLiveResponse),
    "ServerReady": (pb.ServerReadyRequest(), pb.ServerReadyResponse),
    "ServerMetadata": (pb.ServerMetadataRequest(), pb.ServerMetadataResponse),
    "ModelReady": (pb.ModelReadyRequest(name="e"), pb.ModelReadyResponse),
    "ModelMetadata": (pb.ModelMetadataRequest(name="e"), pb.ModelMetadataResponse),
    "ModelConfig": (pb.ModelConfigRequest(name="e"), pb.ModelConfigResponse),
    "ModelStatistics": (pb.ModelStatisticsRequest(name="e"), pb.ModelStatisticsResponse),
    "RepositoryIndex": (pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse),
    "ModelInfer": (texts("e", "good"), pb.ModelInferResponse),
    "ModelStreamInfer": (texts("e", "good"), pb.ModelStreamInferResponse),
}


async def call(rpc: Any, method: str, metadata: tuple[tuple[str, str], ...]) -> tuple[str, str, Any]:
    """Return code, reason and answer of one call."""
    client, _ = rpc
    request, response = REQUESTS[method]
    try:
        if method == "ModelStreamInfer":
            [answer] = [one async for one in client.stream(request, metadata=metadata)]
            return "OK", answer.error_message, answer
        return "OK", "", await client.call(method, request, response, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name, dict(error.trailing_metadata() or ()).get("x-refused-because", ""), None


async def test_every_method_checks_credentials(rpc: Any, keyring: Keyring) -> None:
    """For each kind of credentials, with gRPC's codes."""
    keyring.end("revoked")
    await rpc[1].gateway._callers.look()
    for method in REQUESTS:
        for name, because in WRONG.items():
            wanted = ("OK", "") if method in ("ServerLive", "ServerReady") else ("UNAUTHENTICATED", because)
            assert wanted == (await call(rpc, method, keyring.shown(name)))[:2], (method, name)
        assert ("OK", "") == (await call(rpc, method, keyring.shown("good")))[:2], method
        assert "OK" == (await call(rpc, method, (("x-api-key", keyring.texts["good"]),)))[0]
        code, because, answer = await call(rpc, method, keyring.shown("others"))
        if method == "RepositoryIndex":
            assert ["other"] == [model.name for model in answer.models]
        elif method == "ModelStreamInfer":  # what is wrong with one message is told in the stream
            assert "does not cover this endpoint" in because
        elif not method.startswith("Server"):
            assert ("PERMISSION_DENIED", "endpoint_not_permitted") == (code, because), method
    assert "PERMISSION_DENIED" == (await call(rpc, "ModelMetadata", keyring.shown("infers")))[0]
    assert "PERMISSION_DENIED" == (await call(rpc, "ModelInfer", keyring.shown("reads")))[0]
    twice = (*keyring.shown("wrong"), *keyring.shown("good"))
    assert ("UNAUTHENTICATED", "ambiguous_credentials") == (await call(rpc, "ModelInfer", twice))[:2]


async def test_a_stream_ends_with_its_callers_key(rpc: Any, keyring: Keyring) -> None:
    """At the next message after the key ends."""
    client, stack = rpc
    stream = client.stream(metadata=keyring.shown("revoked"))
    await stream.write(texts("e", "good"))
    assert not (await stream.read()).error_message
    keyring.end("revoked")
    await stack.gateway._callers.look()
    await stream.write(texts("e", "good"))
    assert grpc.StatusCode.UNAUTHENTICATED is await stream.code()


async def test_duplicate_credentials_are_refused(keyed: Any, keyring: Keyring) -> None:
    """A proxy in front of the gateway may have checked the other ones."""
    (good,), (wrong,) = keyring.shown("good"), keyring.shown("wrong")
    keys = [("x-api-key", keyring.texts["wrong"]), ("X-Api-Key", keyring.texts["good"])]
    for shown in ([wrong, good], [good, ("Authorization", good[1])], keys):
        for method, path in (("POST", "/serve/e"), ("GET", "/v1/models")):
            status, headers, _ = await ask(keyed, method, path, TEXT if method == "POST" else None, shown)
            assert (401, "ambiguous_credentials") == (status, headers["x-refused-because"])
    assert 200 == (await ask(keyed, "POST", "/serve/e", TEXT, [("x-a", "1"), ("x-a", "2"), good]))[0]
