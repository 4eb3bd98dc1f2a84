"""Connections end with an answer, never with a request in transit."""

from __future__ import annotations

import asyncio

from gateway.http.exchange import Exchange
from tests.core_client import in_memory
from tests.unit.gateway.http.serving import GOOD, Serve, Wire, post
from tests.waiting import LIMIT_S, soon


async def ask(wire: Wire, raw: bytes = b"") -> tuple[int, bool]:
    """Send a request. Return the status of its answer, and whether that closes the connection."""
    status, headers, _ = await wire.ask(raw or post())
    return status, headers.get("connection") == "close"


async def test_a_draining_gateway_answers_and_closes_each_connection(serve: Serve) -> None:
    """Open and new ones, and a request in flight. Readiness fails at once, liveness does not."""
    status = b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serve() as port:
        stack = port.stack
        old, other, busy = [await port.connect() for _ in range(3)]
        assert (200, False) == await ask(old)
        assert (200, False) == await ask(other, status)
        stack.backend.hold = asyncio.Event()
        in_flight = asyncio.create_task(ask(busy))
        await stack.until(lambda: stack.gateway.permits.in_flight)
        assert [] == stack.gateway.health.reasons()
        stack.gateway.leave()
        assert ["shutting down"] == stack.gateway.health.reasons()
        stack.backend.hold.set()
        assert (200, True) == await in_flight
        for wire, raw in (
            (old, b""), (other, status), (await port.connect(), status),
            (await port.connect(), post(path="/serve/e?a=")),
        ):  # fmt: skip
            assert (200, True) == await ask(wire, raw)
            assert b"" == await wire.rest()
        assert b"" == await busy.rest()


async def test_an_old_connection_ends_with_an_answer(serve: Serve) -> None:
    """It is not closed while idle, because a request might be in transit."""
    async with serve({"age": 1.0}) as port:
        wire = await port.connect()
        async with asyncio.timeout(LIMIT_S):
            while (200, False) == (last := await ask(wire)):
                await asyncio.sleep(0.02)
        assert (200, True) == last
        assert b"" == await wire.rest()


async def test_a_refused_request_whose_body_is_still_to_come_does_not_silence_its_connection() -> None:
    """The connection is to end, and its client was not told so yet: what it asks next is answered, and ends it."""

    async def answer(exchange: Exchange) -> None:
        exchange.reply(404, [], b"")

    ear, connection = in_memory(answer)
    connection.data_received(post()[: -len(GOOD)])
    connection._limits.leave()
    connection.data_received(GOOD)
    await soon(lambda: connection._current is None)
    assert (1, 0) == (ear.heard.count(b"404"), ear.heard.count(b"connection: close"))
    connection.data_received(post() * 2)
    await soon(lambda: ear.is_closed)
    assert (3, 1) == (ear.heard.count(b"404"), ear.heard.count(b"connection: close"))
