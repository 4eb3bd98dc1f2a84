"""Limits of a connection: the size and lines of a head, time and number; and the answers when they are exceeded."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from gateway.http.connections import Connections
from gateway.http.core import Connection
from gateway.http.exchange import Exchange
from gateway.outcome import Outcome
from tests.core_client import Ear, in_memory
from tests.unit.gateway.http.serving import GOOD, Serve, post
from tests.unit.gateway.http.test_streams import answers
from tests.waiting import soon


async def ok(exchange: Exchange) -> None:
    """Answer every request at once."""
    exchange.reply(200, [], b"")


async def reads(exchange: Exchange) -> None:
    """Answer every request when its body has come, but for ``/skip``."""
    exchange.open()
    if exchange.path != "/skip":
        await exchange.read_body(1 << 20, lambda _size: None)
    await ok(exchange)


# --- heads ------------------------------------------------------------------------------------------------------------

CHUNKED = b"POST /serve/e HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n10\r\n" + GOOD + b"\r\n"


async def heard(sent: bytes, cut: int) -> tuple[list[tuple[int, str]], bool]:
    """Send bytes in pieces over a connection in memory; return status and code of each answer, and whether it ended."""
    ear, connection = in_memory(reads, Connections(max_head_bytes=4096, max_headers=50))
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
        (CHUNKED + b"0\r\n" + b"x: y\r\n" * 1000, TOO_LARGE),
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
    ("sent", "answered", "counted"),
    [
        ([b""], [], ["nothing_asked"]), ([b"\r\n\r\n"], [], ["nothing_asked"]),
        ([b"POST /ser"], [b"408"], ["head_timeout"]), ([post(), post()[:60]], [b"200", b"408"], ["head_timeout"]),
        ([bytes([byte]) for byte in post()[:6]], [b"408"], ["head_timeout"]),  # a new byte does not restart the time
        ([post()[:-1]], [b"408"], ["body_timeout"]), ([post(path="/skip")[:-1]], [b"200"], ["body_timeout"]),
        ([post()], [b"200"], []),
    ],
    ids=["nothing", "lines", "address", "a second head", "slow", "body", "a body that nobody reads", "idle"],
)  # fmt: skip
async def test_connections_that_are_ended_are_counted_by_reason(
    sent: list[bytes], answered: list[bytes], counted: list[str]
) -> None:
    """Not those that end because they were idle. A partial head or body gets 408 first."""
    found: list[str] = []
    ear, connection = in_memory(reads, Connections(head_timeout=5, keep_alive=5, body_timeout=5, count=found.append))
    for part in sent:
        connection.data_received(part)
        await asyncio.sleep(4.8 / len(sent) if len(sent) > 2 else 0)
    await asyncio.sleep(0 if len(sent) > 2 else 4.8)
    assert not ear.is_closed
    await asyncio.sleep(0.3)
    assert (True, counted) == (ear.is_closed, found)
    assert answered == re.findall(rb"HTTP/1.1 (\d+)", ear.heard)


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


@pytest.mark.looptime
@pytest.mark.parametrize(("reads_in_time", "ended"), [(True, []), (False, ["not_read"])])
async def test_a_client_that_does_not_read_is_disconnected(reads_in_time: bool, ended: list[str]) -> None:
    """After a while, because its answers pile up."""
    found: list[str] = []
    ear, connection = in_memory(ok, Connections(body_timeout=5, count=found.append))
    connection.data_received(post())
    connection.pause_writing()
    await asyncio.sleep(4.9)
    assert not ear.is_closed
    if reads_in_time:
        connection.resume_writing()
    await asyncio.sleep(0.2)
    assert (not reads_in_time, ended) == (ear.is_closed, found)


# --- places -----------------------------------------------------------------------------------------------------------


async def test_at_the_limit_the_longest_idle_connection_is_closed() -> None:
    """Silent, half-sent and idle ones alike; they are counted. If all have a request, a new one gets 503."""
    found: list[str] = []
    wires: dict[Ear, Connection] = {}
    never = Outcome[None]()

    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/busy":
            await never
        await ok(exchange)

    limits = Connections(max_open=4, count=found.append)

    def come(sent: bytes = post(path="/busy")) -> Ear:
        ear, connection = in_memory(answer, limits)
        connection.data_received(sent)
        wires[ear] = connection
        return ear

    come()
    for longest in (come(b""), come(b"POST /ser"), come(post())):
        assert not longest.is_closed
        come()
        assert longest.is_closed
        wires.pop(longest).connection_lost(None)
    late = come()
    assert (True, b"503", True) == (late.is_closed, late.heard[9:12], b"retry-after: " in late.heard)
    assert [*["made_room"] * 3, "no_room"] == found
    assert not any(ear.is_closed for ear in wires if ear is not late)


async def test_a_body_that_its_request_does_not_read_yet_is_held_back() -> None:
    """Whoever waits for something else, as the store of quotas, holds what one read brings."""
    taken: list[int] = []
    goes_on = Outcome[None]()

    async def answer(exchange: Exchange) -> None:
        await goes_on
        exchange.open()
        await exchange.read_body(1 << 20, taken.append)
        exchange.reply(200, [], b"")

    ear, connection = in_memory(answer)
    connection.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    connection.data_received(piece := b"9c40\r\n%b\r\n" % (b"x" * 40_000))
    assert (True, []) == (ear.is_paused, taken)
    goes_on.set_result(None)
    connection.data_received(piece)
    assert (False, [0, 40_000, 40_000]) == (ear.is_paused, taken)
    connection.data_received(b"0\r\n\r\n")
    assert ear.heard.startswith(b"HTTP/1.1 200")


async def test_requests_that_are_sent_ahead_are_answered_in_turn_and_bounded() -> None:
    """Then comes the refusal of what cannot be read, or of too many."""
    assert ([(200, "")] * 2 + [MALFORMED], True) == await heard(post() + post() + b"this is no request\r\n\r\n", 1000)
    ear, connection = in_memory(ok)
    connection.data_received(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 5000)
    await soon(lambda: ear.is_closed)
    *answered, last = [one.status for one in answers(ear.heard)]
    assert ({200}, 429, True) == (set(answered), last, 60 < len(answered) < 200)


async def test_an_upgrade_offer_is_ignored() -> None:
    """Java's client sends one with its first request. Further requests in the same read are served too."""
    offer = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk")
    sent = post(GOOD, "/serve/e", *offer) + post() + post(b"", "/serve/e", *offer) + post()
    for cut in (len(sent), 100):
        assert ([(200, "")] * 4, False) == await heard(sent, cut)


async def test_a_client_that_waits_before_its_body_is_told_to_go_on_or_refused() -> None:
    """If it is refused, its body may still come and must not be read as a request: the connection ends."""
    for path, first, after in (
        ("/", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("/skip", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", b""),
    ):
        ear, connection = in_memory(reads)
        sent = post(GOOD, path, "expect: 100-continue")
        connection.data_received(sent[: -len(GOOD)])
        assert first == ear.heard
        connection.data_received(GOOD)
        assert (first + after, path == "/skip") == (ear.heard, ear.is_closed)


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


# --- headers that others set ------------------------------------------------------------------------------------------


async def test_unchecked_headers_are_not_written() -> None:
    """The client gets one error, never an injected line or answer."""

    async def answer(exchange: Exchange) -> None:
        exchange.reply(200, [(b"x-mine", b"a\r\nx-theirs: b\r\n\r\nHTTP/1.1 200 OK")], b"")

    ear, connection = in_memory(answer)
    connection.data_received(post())
    assert ear.heard.startswith(b"HTTP/1.1 500")
    assert (1, False) == (ear.heard.count(b"HTTP/1.1"), b"x-theirs" in ear.heard)
