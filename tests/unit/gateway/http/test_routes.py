"""Invalid requests, their refusals, and the release of all that a request holds."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import (
    BackendGarbage,
    BackendRefused,
    BackendUnavailable,
    DeadlineExceeded,
    HookFailed,
    MalformedBody,
    Overloaded,
)
from gateway.http.addresses import Reading
from gateway.http.problems import problem
from gateway.path.serve import serve
from tests.core_client import in_memory
from tests.unit.gateway.path.asks import Echo, Plane
from tests.waiting import soon

GOOD = json.dumps({"text": "good"}).encode()
JSON = {"content-type": "application/json"}


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
async def test_backend_failures_have_their_status(served: Any, failure: Any, status: int) -> None:
    """For a text task, an error of Triton is never a 4xx (except 429, contention) and never a 500."""
    served.backend.fail_with = failure
    reply = await served.client.post("/serve/e", json={"text": "good"})
    assert (status, status in (429, 503, 504)) == (reply.status_code, "retry-after" in reply.headers)


async def test_request_id_is_echoed_when_it_is_printable(stack: Any) -> None:
    """An id that could break a header or a log line is replaced."""
    mine = await stack.client.post("/serve/x", json={}, headers={"x-request-id": "abc-123"})
    long = await stack.client.post("/serve/x", json={}, headers={"x-request-id": "a" * 500})
    assert "abc-123" == mine.headers["x-request-id"]
    assert 16 == len(long.headers["x-request-id"])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=200), kind=st.sampled_from(["application/json", "text/plain", "", "a/b;charset=x"]))
async def test_no_bytes_cause_a_server_error(served: Any, content: bytes, kind: str) -> None:
    """The answer is a 4xx in the usual form, or 200 for a valid text."""
    reply = await served.client.post("/serve/e", content=content, headers={"content-type": kind})
    assert reply.status_code in (200, 400, 415, 422)
    reply.json()


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

    statuses = []
    for start, size in ((b"", 100), (b"", 300_000), (b"no", 300_000)):
        body = start + b"x" * size
        statuses.append(await _ask(made, parse, body))
    assert [200, 200, 400] == statuses
    assert threading.main_thread().name == names[0]
    assert all(name.startswith("bodies") for name in names[1:])
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
        made.plane.timeout = 0.05
        assert 504 == await _ask(made, parse, body)
        made.plane.timeout = 5.0
        _, connection = in_memory(lambda exchange: serve(exchange, Reading(parse, problem), made.plane))
        connection.data_received(_request(body))
        assert 1 == made.permits.in_flight
        connection.connection_lost(None)
    finally:
        goes_on.set()
    assert ["deadline_exceeded", "client_gone"] == [trace.outcome for trace in made.ended]
    assert (0, 0) == (made.permits.in_flight, made.permits.held_bytes)


def _request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def _ask(made: Plane, parse: Any, body: bytes) -> int:
    """Send one request over a connection in memory. Return its status."""
    ear, connection = in_memory(lambda exchange: serve(exchange, Reading(parse, problem), made.plane))
    connection.data_received(_request(body))
    await soon(lambda: bool(ear.heard))
    connection.connection_lost(None)
    return int(ear.heard.split()[1])


def test_every_error_message_can_be_encoded() -> None:
    """User code may raise errors with file names that are not valid Unicode."""
    content = problem(HookFailed("no file \udc80", hint="look for \udc81"), "r").content
    assert {"error": "no file ?", "hint": "look for ?"}.items() <= json.loads(content).items()
