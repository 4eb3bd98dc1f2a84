"""Invalid requests, their refusals, and the release of all that a request holds."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.edge.http.addresses import Reading
from gateway.edge.http.problems import problem
from gateway.edge.http.routes import InferRoute, Limits
from gateway.edge.http.sse import EventSender
from gateway.endpoints.endpoint import Event
from gateway.errors import (
    BackendGarbage,
    BackendRefused,
    BackendUnavailable,
    DeadlineExceeded,
    HookFailed,
    MalformedBody,
    Overloaded,
)
from tests.unit.gateway.dataplane.flights import Echo
from tests.unit.gateway.dataplane.test_submit import Plane

GOOD = json.dumps({"text": "good"}).encode()
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", JSON, 400, "malformed_body"),
        (b"", JSON, 400, "malformed_body"),
        (b'{"text": "\xff"}', JSON, 400, "malformed_body"),
        (b'{"text": "\\ud800"}', JSON, 400, "malformed_body"),
        (b'{"text": NaN}', JSON, 400, "malformed_body"),
        (b"[" * 100_000, JSON, 400, "malformed_body"),
        (b"not gzip", {**JSON, "content-encoding": "gzip"}, 400, "malformed_body"),
        (gzip.compress(GOOD, mtime=0)[:-8], {**JSON, "content-encoding": "gzip"}, 400, "malformed_body"),
        (GOOD, {**JSON, "content-encoding": "br"}, 415, "unsupported_media"),
        (GOOD, {"content-type": "text/plain"}, 415, "unsupported_media"),
        (GOOD, {"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media"),
        (GOOD, {"content-type": "application/json; charset=latin-1"}, 415, "unsupported_media"),
        (b"[]", JSON, 422, "input_refused"),
        (b"null", JSON, 422, "input_refused"),
        (b'"text"', JSON, 422, "input_refused"),
        (b"{}", JSON, 422, "input_refused"),
        (b'{"text": 5}', JSON, 422, "input_refused"),
        (b'{"text": null}', JSON, 422, "input_refused"),
        (b'{"text": ""}', JSON, 422, "input_refused"),
        (b'{"text": "  \\n"}', JSON, 422, "input_refused"),
        (b'{"text": []}', JSON, 422, "input_refused"),
        (b'{"text": ["good", 1]}', JSON, 422, "input_refused"),
        (b'{"text": "good", "nonsense": 1}', JSON, 422, "input_refused"),
        (GOOD, {**JSON, "x-request-timeout-ms": "soon"}, 400, "bad_request"),
        (GOOD, {**JSON, "x-request-timeout-ms": "-5"}, 400, "bad_request"),
        (GOOD, {**JSON, "x-request-timeout-ms": "9" * 400}, 400, "bad_request"),
    ],
)
async def test_each_invalid_request_gets_a_4xx_with_a_hint(
    stack: Any, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    """As a JSON body without a traceback."""
    stack.deploy("e")
    await stack.served("e")
    reply = await stack.client.post("/serve/e", content=content, headers=headers)
    body = reply.json()
    assert (status, code) == (reply.status_code, body["code"])
    assert body["request_id"] == reply.headers["x-request-id"]
    assert "Traceback" not in reply.text
    assert body["error"]


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (GOOD, {}),
        (GOOD, {"content-type": "application/json; charset=utf-8"}),
        (GOOD, {"content-type": "application/vnd.api+json"}),
        (gzip.compress(GOOD, mtime=0), {**JSON, "content-encoding": "gzip"}),
        (gzip.compress(GOOD[:5], mtime=0) + gzip.compress(GOOD[5:], mtime=0), {**JSON, "content-encoding": "gzip"}),
    ],
)
async def test_valid_requests_are_accepted_in_every_form(stack: Any, content: bytes, headers: dict[str, str]) -> None:
    """JSON with and without content type, plain or gzip, also with several members."""
    stack.deploy("e")
    await stack.served("e")
    assert 200 == (await stack.client.post("/serve/e", content=content, headers=headers)).status_code


async def test_large_bodies_are_refused_compressed_or_not(make_stack: Any) -> None:
    """The limit applies to the received and the unpacked bytes: unpacking a zip bomb stops at the limit."""
    stack = make_stack(max_body_bytes=10_000)
    async with stack.gateway.running(), stack.client:
        stack.deploy("e")
        await stack.served("e")
        plain = await stack.client.post("/serve/e", content=b"x" * 10_001, headers=JSON)
        bomb = gzip.compress(b"x" * 50_000_000, mtime=0)[:9000]
        packed = await stack.client.post("/serve/e", content=bomb, headers={**JSON, "content-encoding": "gzip"})

        async def endless() -> Any:
            for _ in range(100):
                yield b"x" * 1000

        streamed = await stack.client.post("/serve/e", content=endless(), headers=JSON)
    assert [413, 413, 413] == [plain.status_code, packed.status_code, streamed.status_code]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_other_methods_get_405(stack: Any, method: str) -> None:
    """With Allow, in the usual form."""
    reply = await stack.client.request(method, "/serve/e")
    assert (405, "POST", "method_not_allowed") == (
        reply.status_code, reply.headers["allow"], reply.json()["code"],
    )  # fmt: skip


async def test_unknown_endpoint_and_version_say_what_exists(stack: Any) -> None:
    """The 404 names the deployed alternatives."""
    stack.deploy("e", version="1")
    await stack.served("e/1")
    unknown = (await stack.client.post("/serve/x", json={})).json()
    version = (await stack.client.post("/serve/e/9", json={})).json()
    bare = (await stack.client.post("/serve/e", json={})).json()
    assert ["endpoint_not_found", "version_not_found", "version_not_found"] == [
        unknown["code"], version["code"], bare["code"],
    ]  # fmt: skip
    assert ["e/1" in answer["hint"] for answer in (unknown, version, bare)] == [True, True, True]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (BackendUnavailable("gone"), 503),
        (Overloaded("full"), 429),
        (DeadlineExceeded("late"), 504),
        (BackendGarbage("odd"), 502),
        (BackendRefused("no"), 502),
    ],
)
async def test_backend_failures_have_their_status(stack: Any, failure: Any, status: int) -> None:
    """For a text task, an error of Triton is never a 4xx (except 429, contention) and never a 500."""
    stack.deploy("e")
    await stack.served("e")
    stack.backend.fail_with = failure
    reply = await stack.client.post("/serve/e", json={"text": "good"})
    assert status == reply.status_code


async def test_answers_that_are_not_numbers_are_refused(stack: Any) -> None:
    """NaN from the model is the backend's error and not a JSON null."""
    import numpy as np

    stack.deploy("e")
    await stack.served("e")
    stack.load("e", lambda inputs: {"logits": np.full((len(inputs["input_ids"]), 2), np.nan, dtype=np.float32)})
    reply = await stack.client.post("/serve/e", json={"text": "good"})
    assert (502, "backend_garbage") == (reply.status_code, reply.json()["code"])


async def test_request_ends_at_its_deadline(stack: Any) -> None:
    """x-request-timeout-ms limits the time. The endpoint is free again afterwards."""
    stack.deploy("e")
    await stack.served("e")
    stack.backend.hold = asyncio.Event()
    reply = await stack.client.post("/serve/e", json={"text": "good"}, headers={"x-request-timeout-ms": "50"})
    assert (504, "deadline_exceeded") == (reply.status_code, reply.json()["code"])
    stack.backend.hold.set()
    assert 200 == (await stack.client.post("/serve/e", json={"text": "good"})).status_code


async def test_client_that_leaves_is_dropped_and_counted(stack: Any) -> None:
    """A disconnect cancels the work and is counted as an outcome."""
    stack.deploy("e")
    await stack.served("e")
    stack.backend.hold = asyncio.Event()
    sent: list[Any] = []
    left = asyncio.Event()
    messages = iter([{"type": "http.request", "body": GOOD, "more_body": False}])

    async def receive() -> Any:
        message = next(messages, None)
        if message is None:
            await left.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/serve/e", "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    call = asyncio.create_task(stack.gateway(scope, receive, send))
    await stack.until(lambda: stack.gateway.permits.in_flight == 1)
    left.set()
    await call
    assert [] == sent
    text = (await stack.client.get("/metrics")).text
    assert 'gateway_requests_total{endpoint="e",outcome="client_gone",route="direct",version=""} 1.0' in text
    assert "gateway_requests_in_flight 0.0" in text
    stack.backend.hold.set()


async def test_request_id_is_echoed_when_it_is_printable(stack: Any) -> None:
    """An id that could break a header or a log line is replaced."""
    mine = await stack.client.post("/serve/x", json={}, headers={"x-request-id": "abc-123"})
    long = await stack.client.post("/serve/x", json={}, headers={"x-request-id": "a" * 500})
    assert "abc-123" == mine.headers["x-request-id"]
    assert 16 == len(long.headers["x-request-id"])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=200), kind=st.sampled_from(["application/json", "text/plain", "", "a/b;charset=x"]))
async def test_no_bytes_cause_a_server_error(stack: Any, content: bytes, kind: str) -> None:
    """The answer is a 4xx in the usual form, or 200 for a valid text."""
    if not stack.gateway.table.current.endpoints:
        stack.deploy("e")
        await stack.served("e")
    reply = await stack.client.post("/serve/e", content=content, headers={"content-type": kind})
    assert reply.status_code in (200, 400, 415, 422)
    reply.json()


_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.just("text"), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=_JSON_VALUES | st.builds(lambda v: {"text": v}, _JSON_VALUES))
async def test_no_json_causes_a_server_error(stack: Any, body: Any) -> None:
    """Any JSON value gets an answer or a 4xx."""
    if not stack.gateway.table.current.endpoints:
        stack.deploy("e")
        await stack.served("e")
    reply = await stack.client.post("/serve/e", content=json.dumps(body).encode(), headers=JSON)
    assert reply.status_code in (200, 400, 422)
    reply.json()


async def test_body_that_does_not_arrive_in_time_is_refused(stack: Any) -> None:
    """A client that sends its body byte by byte gets 408 at its deadline."""
    stack.deploy("e")
    await stack.served("e")
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "POST", "path": "/serve/e", "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"x-request-timeout-ms", b"150")],
    }  # fmt: skip

    async def receive() -> Any:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    await stack.gateway(scope, receive, send)
    assert 408 == sent[0]["status"]
    assert "body_timeout" == json.loads(sent[1]["body"])["code"]


async def test_large_bodies_are_parsed_in_a_thread() -> None:
    """Parsing a million tensor elements takes a second; other requests are answered meanwhile. Small ones stay."""
    made = Plane("e", max_bytes=1 << 20)
    handler: Any = made.endpoints["e"].handler
    handler._begin = lambda job: job.answered("yes")
    names: list[str] = []

    def parse(raw: bytes, _headers: Any) -> Any:
        names.append(threading.current_thread().name)
        if raw.startswith(b"no"):
            raise MalformedBody("no")
        return Echo("e")

    route, statuses = InferRoute(made.plane, Limits(1 << 20, 5.0)), []
    for start, size in ((b"", 100), (b"", 300_000), (b"no", 300_000)):
        body = start + b"x" * size
        statuses.append(await _ask(route, Reading(parse, problem), body))
    assert [200, 200, 400] == statuses
    assert threading.main_thread().name == names[0]
    assert all(name.startswith("edge") for name in names[1:])
    assert (0, 0, 3) == (made.permits.in_flight, made.permits.held_bytes, len(made.ended))


async def test_a_body_whose_parsing_takes_too_long_is_504() -> None:
    """Not 408, because the caller has sent all of it. A cancelled request holds nothing either."""
    made = Plane("e", max_bytes=1 << 20)
    goes_on = threading.Event()

    def parse(_raw: bytes, _headers: Any) -> Any:
        goes_on.wait(60)
        return Echo("e")

    body = b"x" * 300_000
    try:
        route = InferRoute(made.plane, Limits(1 << 20, 0.05))
        assert 504 == await _ask(route, Reading(parse, problem), body)
        route = InferRoute(made.plane, Limits(1 << 20, 5.0))
        asking = asyncio.create_task(_ask(route, Reading(parse, problem), body))
        while not made.permits.in_flight:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    finally:
        goes_on.set()
    assert ["deadline_exceeded", "client_gone"] == [trace.outcome for trace in made.ended]
    assert (0, 0) == (made.permits.in_flight, made.permits.held_bytes)


async def _ask(route: InferRoute, reading: Reading, body: bytes) -> int:
    """Send one request directly to the application, without a server. Return its status."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", str(len(body)).encode())]}
    await route(scope, receive, send, reading)
    return int(sent[0]["status"])


async def test_a_stream_that_fails_before_its_head_is_sent_gets_a_whole_answer() -> None:
    """Its first piece waited behind an earlier answer, so no stream has begun on the wire."""
    room = asyncio.Event()

    async def send(_message: Any) -> None:
        await room.wait()

    made = Plane("e")
    flight, _ = made.submit(Echo())
    pieces = EventSender(send)
    sending = asyncio.create_task(pieces(flight, Event("x", (), None, 1, 1)))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert not pieces.has_begun


def test_every_error_message_can_be_encoded() -> None:
    """User code may raise errors with file names that are not valid Unicode."""
    content = problem(HookFailed("no file \udc80", hint="look for \udc81"), "r").content
    assert {"error": "no file ?", "hint": "look for ?"}.items() <= json.loads(content).items()
