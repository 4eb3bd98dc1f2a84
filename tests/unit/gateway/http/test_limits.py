"""Limits of a connection: the size and lines of a head, time and number; and the answers when they are exceeded."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from gateway.http.connections import Connections
from gateway.http.exchange import Exchange
from gateway.outcome import Outcome
from tests.core_client import in_memory
from tests.unit.gateway.http.http_readers import answers
from tests.unit.gateway.http.serving import GOOD, Serve, post

HOOK = """
class Preprocess:
    def process(self, data, state, collect_custom_statistics_fn=None):
        from starlette.responses import Response
        answer = Response(content=data.get("content", "{}"), status_code=data.get("status", 200))
        answer.raw_headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in data["headers"]]
        return answer
"""


async def ok(exchange: Exchange) -> None:
    """Answer every request at once."""
    exchange.reply(200, [], b"")


# --- heads ------------------------------------------------------------------------------------------------------------

CHUNKED = b"POST /serve/e HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n10\r\n" + GOOD + b"\r\n"


async def heard(sent: bytes, cut: int) -> tuple[list[tuple[int, str]], bool]:
    """Send bytes in pieces over a connection in memory; return status and code of each answer, and whether it ended."""

    async def answer(exchange: Exchange) -> None:
        exchange.open()
        await exchange.read_body(1 << 20, lambda _size: None)
        await ok(exchange)

    ear, connection = in_memory(answer, Connections(max_head_bytes=4096, max_headers=50))
    for at in range(0, len(sent), cut):
        if not ear.is_closed:
            connection.data_received(sent[at : at + cut])
        for _ in range(3):
            await asyncio.sleep(0)
    found = answers(ear.heard)
    assert all(b"close" == answer.headers.get(b"connection") for answer in found if answer.status != 200)
    return [(one.status, json.loads(one.body)["code"] if one.body else "") for one in found], ear.is_closed


TOO_LARGE = (431, "head_too_large")
MALFORMED = (400, "malformed_request")


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (b"POST /serve/e HTTP/1.1\r\n" + b"x: " + b"y" * 200_000, TOO_LARGE),
        (b"POST /serve/e HTTP/1.1\r\n" + b"z" * 200_000, TOO_LARGE),
        (b"GET /" + b"e" * 70_000 + b" HTTP/1.1\r\n\r\n", TOO_LARGE),
        (post(GOOD, "/serve/e", *(f"x{n}: {'y' * 200}" for n in range(30))), TOO_LARGE),
        (post(GOOD, "/serve/e", *(f"x{n}: y" for n in range(48))), TOO_LARGE),
        (CHUNKED + b"0\r\n" + b"x: y\r\n" * 100, TOO_LARGE),
        (CHUNKED + b"0\r\nx: " + b"y" * 200_000, TOO_LARGE),
        (CHUNKED + b"1;" + b"x" * 200_000, TOO_LARGE),
        (b"\x16\x03\x01", MALFORMED),
        (b"this is no request\r\n\r\n", MALFORMED),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", (405, "method_not_allowed")),
        (b"GET / HTTP/2.0\r\n\r\n", MALFORMED),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n", MALFORMED),
    ],
    ids=["line", "name", "address", "bytes", "lines", "trailers", "trailer", "extension", "tls", "no request",
         "connect", "http/2", "coding"],
)  # fmt: skip
async def test_a_head_beyond_a_limit_is_refused_and_ends_the_connection(sent: bytes, refused: tuple[int, str]) -> None:
    """Before it is complete, in one piece or many. Trailers and chunk extensions count as head."""
    for cut in (len(sent), 1000):
        if cut == 1000 or not sent.startswith(CHUNKED):
            assert ([refused], True) == await heard(sent, cut)


async def test_heads_below_the_limits_are_read() -> None:
    """With as many lines as are allowed, and with trailers."""
    sent = post(GOOD, "/serve/e", *(f"x{n}: y" for n in range(47))) + CHUNKED + b"0\r\nx-sum: 5\r\n\r\n" + post()
    for cut in (len(sent), 300):
        assert ([(200, "")] * 3, False) == await heard(sent, cut)


# --- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("sent", "refused", "counted"),
    [
        (b"", b"", ["nothing_asked"]), (b"\r\n\r\n", b"", ["nothing_asked"]),
        (b"POST /ser", b"408", ["head_timeout"]), (post()[:60], b"408", ["head_timeout"]), (post(), b"200", []),
    ],
    ids=["nothing", "lines", "address", "head", "idle"],
)  # fmt: skip
async def test_connections_that_are_ended_are_counted_by_reason(
    sent: bytes, refused: bytes, counted: list[str]
) -> None:
    """Not those that end because they were idle. A partial head gets 408 first."""
    found: list[str] = []
    ear, connection = in_memory(ok, Connections(head_timeout=5, keep_alive=5, count=found.append))
    connection.data_received(sent)
    await asyncio.sleep(4.9)
    assert not ear.is_closed
    await asyncio.sleep(0.2)
    assert (True, counted) == (ear.is_closed, found)
    assert refused == ear.heard[9:12]


async def ended_connections(stack: Any) -> dict[str, float]:
    """Return the numbers of closed connections by reason."""
    text = (await stack.client.get("/metrics")).text
    found = re.findall(r'gateway_ended_connections_total\{reason="(\w+)"\} (\S+)', text)
    return {reason: float(number) for reason, number in found}


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_a_slow_head_times_out_like_a_stalled_one() -> None:
    """A new byte does not restart the time. A second request has the same time as the first."""
    ear, connection = in_memory(ok, Connections(head_timeout=5))
    connection.data_received(post())
    assert ear.heard.startswith(b"HTTP/1.1 200 ")
    for byte in post()[:6]:
        assert not ear.is_closed
        connection.data_received(bytes([byte]))
        await asyncio.sleep(0.9)
    assert ear.is_closed
    assert b"HTTP/1.1 408 " in ear.heard


async def test_a_body_that_never_comes_ends_its_request_and_its_connection(serve: Serve) -> None:
    """Also if the answer did not need the body, or no route reads it."""
    head = b"%b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"
    async with serve(request_timeout="4s") as served:

        async def ends(line: bytes, expected: int) -> None:
            wire = await served.connect()
            assert expected == (await wire.ask(head % line))[0]
            assert b"" == await wire.rest(), line

        await asyncio.gather(ends(b"POST /serve/e", 408), ends(b"POST /serve/none", 404), ends(b"GET /v1/status", 200))


async def test_a_client_that_does_not_read_is_disconnected(serve: Serve) -> None:
    """After a while, because its answers pile up."""
    async with serve(keep_alive="200ms", request_timeout="400ms") as served:
        wire = await served.connect()
        wire._reader._transport.pause_reading()  # type: ignore[attr-defined]
        connections = served.stack.gateway.connections.open
        await served.stack.until(lambda: len(connections) == 1)
        for _ in range(400):
            wire.send(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
        await served.stack.until(lambda: not connections)


@pytest.mark.looptime
async def test_idle_connections_end_after_keep_alive() -> None:
    """Each request restarts the time."""
    ear, connection = in_memory(ok, Connections(keep_alive=10))
    for _ in range(3):
        connection.data_received(post())
        await asyncio.sleep(9)
        assert not ear.is_closed
    await asyncio.sleep(1.1)
    assert ear.is_closed


# --- places -----------------------------------------------------------------------------------------------------------


async def test_at_the_limit_the_longest_idle_connection_is_closed(serve: Serve) -> None:
    """Silent, half-sent and idle ones alike; they are counted. Connections with a request are answered."""
    async with serve(max_connections=6) as served:
        used = await served.connect()
        assert 200 == (await used.ask(post()))[0]
        silent = [await served.connect() for _ in range(5)]
        for wire in silent[:2]:
            wire.send(b"POST /serve/e")
        await served.stack.until(lambda: len(served.stack.gateway.connections.open) == 6)
        first = await served.connect()
        assert 200 == (await first.ask(post()))[0]
        assert b"" == await used.rest(), "idle for longest"
        assert {"made_room": 2} == await ended_connections(served.stack), "the client that asks is another one"
        for _ in range(20):
            wire = await served.connect()
            assert 200 == (await wire.ask(post()))[0]
        for wire in silent:
            assert b"" == await wire.rest()


async def test_if_all_connections_are_busy_a_new_one_gets_503(serve: Serve) -> None:
    """With Retry-After. The busy ones are answered."""
    async with serve(max_connections=3) as served:
        served.stack.backend.hold = asyncio.Event()
        busy = [await served.connect() for _ in range(3)]
        for wire in busy:
            wire.send(post())
        await served.stack.until(lambda: served.stack.gateway.permits.in_flight == 3)
        late = await served.connect()
        status, headers, body = await late.answer()
        assert (503, "close", "unavailable") == (status, headers["connection"], body["code"])
        assert "retry-after" in headers
        assert "3 connections" in body["error"]
        served.stack.backend.hold.set()
        assert [200] * 3 == [(await wire.answer())[0] for wire in busy]


async def test_a_body_that_its_request_does_not_read_yet_is_held_back() -> None:
    """Whoever waits for something else, as the store of quotas, holds 64 KiB and what one read brings."""
    taken: list[int] = []
    goes_on = Outcome[None]()

    async def answer(exchange: Exchange) -> None:
        await goes_on
        exchange.open()
        await exchange.read_body(1 << 20, taken.append)
        exchange.reply(200, [], b"")

    ear, connection = in_memory(answer)
    connection.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(2):
        assert not ear.is_paused
        connection.data_received(b"9c40\r\n%b\r\n" % (b"x" * 40_000))
    assert (True, []) == (ear.is_paused, taken)
    goes_on.set_result(None)
    assert (False, [80_000]) == (ear.is_paused, taken)
    connection.data_received(b"0\r\n\r\n")
    assert ear.heard.startswith(b"HTTP/1.1 200")


async def test_pipelined_requests_are_bounded(serve: Serve) -> None:
    """Of thousands of tiny requests in one read, the first are answered, then the connection is closed."""
    async with serve() as served:
        wire = await served.connect()
        wire.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 5000)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", await wire.rest())
        assert {b"200", b"429"} == set(statuses)
        assert statuses.index(b"429") == len(statuses) - 1
        assert len(statuses) < 200


# --- answers ----------------------------------------------------------------------------------------------------------


async def test_the_answer_to_head_has_the_head_of_get_and_no_body(serve: Serve) -> None:
    """The next answer follows directly after the head."""
    async with serve() as served:
        wire = await served.connect()
        for path in ("/serve/e", "/livez", "/metrics", "/", "/v1/status", "/v1/models", "/v2", "/nothing"):
            found = []
            for method in ("GET", "HEAD"):
                wire.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-request-id: i\r\n\r\n".encode())
                status, headers = await wire.head()
                found.append((status, headers["content-type"], headers.get("allow")))
                if method == "GET":
                    await wire._reader.readexactly(int(headers["content-length"]))
            assert found[0] == found[1]
            assert 200 == (await wire.ask(post()))[0]


async def test_the_end_of_what_a_client_sends_means_that_it_has_left(serve: Serve) -> None:
    """As in Go's server: what is answered by then has its answer, and a request in progress is given up."""
    async with serve() as served:
        stack = served.stack
        stack.backend.hold = asyncio.Event()
        wire = await served.connect()
        assert 404 == (await wire.ask(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"))[0]
        wire.send(post())
        await stack.until(lambda: stack.gateway.permits.in_flight == 1)
        wire.half_close()
        await stack.until(lambda: stack.gateway.permits.in_flight == 0)
        assert b"" == await wire.rest()
        for at in (10, 50, -3):  # half a head, half a body
            wire = await served.connect()
            wire.send(post()[:at])
            wire.half_close()
            assert b"" == await wire.rest()


async def test_requests_before_an_unreadable_one_are_answered_first(serve: Serve) -> None:
    """In order, then the refusal."""
    async with serve() as served:
        served.stack.backend.hold = asyncio.Event()
        wire = await served.connect()
        wire.send(post() + post() + b"this is no request\r\n\r\n")
        await served.stack.until(lambda: served.stack.gateway.permits.in_flight)
        served.stack.backend.hold.set()
        found = [await wire.answer() for _ in range(3)]
        assert [200, 200, 400] == [status for status, _, _ in found]
        assert ("close", "malformed_request") == (found[2][1]["connection"], found[2][2]["code"])
        assert b"" == await wire.rest()


async def test_a_refused_request_with_expect_100_closes_the_connection(serve: Serve) -> None:
    """Its body may still come and must not be read as a request."""
    async with serve() as served:
        wire = await served.connect()
        status, headers, _ = await wire.ask(post(GOOD, "/serve/none", "expect: 100-continue")[: -len(GOOD)])
        assert (404, "close") == (status, headers["connection"])
        assert b"" == await wire.rest()
        wire = await served.connect()
        request = post(GOOD, "/serve/e", "expect: 100-continue")
        wire.send(request[: -len(GOOD)])
        assert 100 == (await wire.head())[0]
        status, headers, _ = await wire.ask(GOOD)
        assert (200, False) == (status, "connection" in headers)


async def test_an_upgrade_offer_is_ignored(serve: Serve) -> None:
    """Java's client sends one with its first request. Further requests in the same read are served too."""
    async with serve() as served:
        wire = await served.connect()
        asking = post(
            GOOD, "/serve/e", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk"
        )
        wire.send(
            asking + post() + b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" + post()
        )
        assert [200, 200, 200, 200] == [(await wire.answer())[0] for _ in range(4)]


# --- headers that others set ------------------------------------------------------------------------------------------


async def test_unchecked_headers_are_not_written() -> None:
    """The client gets one error, never an injected line or answer."""

    async def answer(exchange: Exchange) -> None:
        exchange.reply(200, [(b"x-mine", b"a\r\nx-theirs: b\r\n\r\nHTTP/1.1 200 OK")], b"")

    ear, connection = in_memory(answer)
    connection.data_received(post())
    assert ear.heard.startswith(b"HTTP/1.1 500")
    assert (1, False) == (ear.heard.count(b"HTTP/1.1"), b"x-theirs" in ear.heard)


async def test_a_hook_may_choose_status_and_headers(serve: Serve) -> None:
    """Statuses without a body have none, and the next request is answered."""
    async with serve() as served:
        served.stack.add_hook("h", HOOK)
        await served.stack.served("e", "h")
        wire = await served.connect()
        for status in (201, 204, 304, 404):
            content = "" if status in (204, 304) else '{"a": 1}'
            headers = [["x-mine", "a"], ["set-cookie", "a=b"]]
            asked = json.dumps({"headers": headers, "status": status, "content": content}).encode()
            wire.send(post(asked, "/serve/h"))
            found, told = await wire.head()
            assert (status, "a", "a=b") == (found, told["x-mine"], told["set-cookie"])
            assert content.encode() == await wire._reader.readexactly(int(told.get("content-length", "0")))
            assert 200 == (await wire.ask(post()))[0]
