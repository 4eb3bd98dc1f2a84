"""What happens while the gateway is full: refused connections rest, and others are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.http.connections import Connections
from gateway.http.exchange import Exchange
from tests.core_client import in_memory
from tests.unit.gateway.http.serving import Port, Serve, post
from tests.waiting import LIMIT_S


async def busy(port: Port) -> Any:
    """Take the only permit, until the model may answer."""
    port.stack.backend.hold = asyncio.Event()
    wire = await port.connect()
    wire.send(post())
    await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 1)
    return wire


async def test_a_refused_connection_is_refused_again_as_long_as_there_is_no_room(serve: Serve) -> None:
    """It is told for how long it rests, and is answered when there is room. Each refusal is counted once."""
    async with serve(max_in_flight=1) as port:
        first = await busy(port)
        second = await port.connect()
        for _ in range(2):
            status, headers, body = await second.ask(post())
            assert (429, "overloaded", "1") == (status, body["code"], headers["retry-after"])
        text = (await port.stack.client.get("/metrics")).text
        assert 'gateway_requests_total{endpoint="e",outcome="overloaded",route="",version=""} 2.0' in text
        port.stack.backend.hold.set()
        assert 200 == (await first.answer())[0]
        await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 0)
        assert 200 == (await second.ask(post()))[0]
        assert 0 == port.stack.gateway.connections.resting


@pytest.mark.looptime
async def test_the_rest_is_as_long_as_the_retry_after() -> None:
    """To the second; and longer if many rest, so that those who retry at once get a bounded share of the process."""
    loop, times = asyncio.get_running_loop(), list[float]()

    async def answer(exchange: Exchange) -> None:
        times.append(loop.time())
        exchange.rest_s = 3.0
        exchange.reply(429, [], b"")

    ear, connection = in_memory(answer, limits := Connections())
    connection.data_received(post() * 3)
    await asyncio.sleep(7)
    assert (True, 1) == (ear.is_paused, limits.resting)
    await asyncio.sleep(3)
    assert [0.0, 3.0, 6.0] == [pytest.approx(at - times[0]) for at in times]
    assert (False, 0, 1.0) == (ear.is_paused, limits.resting, limits.retry_after())
    limits.resting = 8192
    assert 8 < limits.retry_after() < 9


async def test_resting_connections_are_answered_when_the_process_leaves(serve: Serve) -> None:
    """They do not wait for the end of their rest, and are told to go elsewhere. Health is answered while it is full."""
    async with serve(max_in_flight=1) as port:
        await busy(port)
        port.stack.gateway.permits.retry_after = lambda: 2 * LIMIT_S
        wire, other = await port.connect(), await port.connect()
        assert 429 == (await wire.ask(post()))[0]
        assert 200 == (await other.ask(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"))[0]
        wire.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        port.stack.gateway.leave()
        status, headers, _ = await wire.answer()
        assert (200, "close") == (status, headers["connection"])
