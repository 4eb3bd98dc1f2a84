"""Bodies: their sizes, unpacking and parsing, in a thread if they are large, and what they hold meanwhile."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError, HookFailed, MalformedBody, PayloadTooLarge, UnsupportedMedia
from gateway.http import body
from gateway.http.exchange import Exchange
from gateway.http.problems import problem
from gateway.path.call import Route
from gateway.path.serve import serve
from tests.core_client import in_memory
from tests.unit.gateway.http.serving import post
from tests.unit.gateway.path.asks import Echo, Plane
from tests.waiting import soon

PACKED = gzip.compress(b'{"text": "good"}', mtime=0)
BOMB = gzip.compress(b"x" * 10_000, mtime=0)
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("packed", "encoding", "error"),
    [
        (b"not gzip", b"gzip", MalformedBody), (b"", b"gzip", MalformedBody), (PACKED[:-1], b"x-gzip", MalformedBody),
        (PACKED[:-8] + b"\0" * 8, b"gzip", MalformedBody), (PACKED + b"\0", b"gzip", MalformedBody),
        (PACKED + PACKED, b"gzip", MalformedBody), (PACKED, b"br", UnsupportedMedia),
        (gzip.compress(b"x" * 101), b"gzip", PayloadTooLarge),
        (BOMB, b"gzip", PayloadTooLarge),
    ],
    ids=["no gzip", "empty", "cut short", "wrong sum", "a byte behind it", "two members", "br", "101 bytes", "a bomb"],
)  # fmt: skip
def test_a_faulty_body_is_refused(packed: bytes, encoding: bytes, error: type[GatewayError]) -> None:
    """Nothing is dropped silently, and unpacking stops at the limit; up to it a body is unpacked."""
    with pytest.raises(error):
        body.unpack(packed, encoding, limit=100)
    assert b"x" * 100 == body.unpack(gzip.compress(b"x" * 100), b" GZIP ", limit=100)
    assert packed == body.unpack(packed, b"identity", limit=1)


async def test_bodies_are_unpacked_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may unpack to megabytes. What comes and what it unpacks to count as held."""
    threads: list[str] = []
    read: list[object] = []
    unpack = body.unpack

    def recorded(*given: Any, **named: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return unpack(*given, **named)

    async def answer(exchange: Exchange) -> None:
        exchange.open()
        read.append(await exchange.read_body(100, read.append))
        exchange.reply(200, [], b"")

    monkeypatch.setattr(body, "unpack", recorded)
    ear, connection = in_memory(answer)
    connection.data_received(post(PACKED, "/", "content-encoding: gzip"))
    await soon(lambda: ear.heard)
    assert [len(PACKED), 16, b'{"text": "good"}'] == read
    assert [True] == [name.startswith("bodies") for name in threads]


@pytest.mark.parametrize(
    "sent",
    [post(b"x" * 101)[:-101], CHUNKED + b"65\r\n%b\r\n" % (b"x" * 101), post(BOMB, "/", "content-encoding: gzip")],
    ids=["announced", "in chunks", "unpacked"],
)  # fmt: skip
async def test_large_bodies_are_refused_compressed_or_not(sent: bytes) -> None:
    """As soon as that is known."""
    found: list[object] = []

    async def answer(exchange: Exchange) -> None:
        exchange.open()
        try:
            await exchange.read_body(100, lambda _size: None)
        except PayloadTooLarge as error:
            found.append(error.kind)

    _, connection = in_memory(answer)
    connection.data_received(sent)
    await soon(lambda: found)


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

    sent = (b"x" * 100, b"x" * 300_000, b"no" + b"x" * 300_000)
    assert [200, 200, 400] == [await _ask(made, parse, one) for one in sent]
    assert threading.main_thread().name == names[0]
    assert all(name.startswith("bodies") for name in names[1:])
    assert (0, 0, 3) == (made.permits.in_flight, made.permits.held_bytes, len(made.ended))


async def test_a_body_whose_parsing_takes_too_long_is_504() -> None:
    """Not 408, as if a part of it has not come. A cancelled request holds nothing either."""
    made = Plane("e", max_bytes=1 << 20)
    goes_on = threading.Event()

    def parse(_raw: bytes, _headers: Any) -> Any:
        goes_on.wait(60)
        return Echo("e")

    large = b"x" * 300_000
    try:
        made.plane.timeout = 0.05
        assert [504, 408] == [await _ask(made, parse, large), await _ask(made, parse, large, missing=1)]
        made.plane.timeout = 5.0
        _, connection = in_memory(lambda exchange: serve(exchange, Route(parse, problem), made.plane))
        connection.data_received(post(large, "/"))
        assert 1 == made.permits.in_flight
        connection.connection_lost(None)
    finally:
        goes_on.set()
    assert ["deadline_exceeded", "body_timeout", "client_gone"] == [trace.outcome for trace in made.ended]
    assert (0, 0) == (made.permits.in_flight, made.permits.held_bytes)


async def _ask(made: Plane, parse: Any, sent: bytes, missing: int = 0) -> int:
    """Send one request over a connection in memory, but for its last bytes. Return its status."""
    ear, connection = in_memory(lambda exchange: serve(exchange, Route(parse, problem), made.plane))
    whole = post(sent, "/")
    connection.data_received(whole[: len(whole) - missing])
    await soon(lambda: bool(ear.heard))
    connection.connection_lost(None)
    return int(ear.heard.split()[1])


def test_every_error_message_can_be_encoded() -> None:
    """User code may raise errors with file names that are not valid Unicode."""
    content = problem(HookFailed("no file \udc80", hint="look for \udc81"), "r").content
    assert {"error": "no file ?", "hint": "look for ?"}.items() <= json.loads(content).items()
