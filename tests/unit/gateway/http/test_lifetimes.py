"""A request's version, permit and deadline, over a real port."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from gateway.handlers.cache import size_of
from gateway.http.exchange import Exchange
from gateway.http.problems import problem
from gateway.path.call import Route
from gateway.path.serve import serve as serving
from tests.core_client import in_memory
from tests.unit.gateway.conftest import answering
from tests.unit.gateway.http.serving import Serve, post
from tests.unit.gateway.path.asks import Echo, Plane
from tests.waiting import soon

HOOK = answering("{'says': %r}") + "    def unload(self):\n        self.process = None\n"


async def test_a_body_that_arrives_across_a_redeploy_of_its_hook_is_answered(serve: Serve) -> None:
    """The version is chosen with the body. Chosen with the head, it could be closed before the body came (500)."""
    async with serve() as port:
        stack = port.stack
        stack.add_hook("h", HOOK % "old")
        await stack.served("e", "h")
        old = stack.gateway.table.current.endpoints["h"]
        request = post(b'{"x": 1}', "/serve/h")
        wire = await port.connect()
        await wire.send_slowly(request[:-4])
        stack.add_hook("h", HOOK % "new")
        await stack.until(lambda: stack.gateway.table.current.endpoints["h"] is not old)
        await stack.until(lambda: old._retired)
        status, _, body = await wire.ask(request[-4:])
        assert (200, {"says": "new"}) == (status, body)


async def test_a_connection_that_has_ended_is_freed_without_a_collection() -> None:
    """Whether it was answered or refused, by its route or by the core. Full collections are rare, and thousands of
    connections may come.
    """

    async def answer(exchange: Exchange) -> None:
        exchange.open()
        await exchange.read_body(100, lambda _size: None)
        exchange.rest_s = 1.0 if exchange.path == "/rests" else 0.0
        exchange.reply(200, [], b"")

    def come(sent: bytes) -> weakref.ref[object]:
        _, connection = in_memory(answer)
        connection.data_received(sent)
        connection.connection_lost(None)
        return weakref.ref(connection)

    gc.collect()
    gc.disable()
    try:
        rests, not_read = post(path="/rests") * 2, b"GET / HTTP/2.0\r\n\r\n"
        for sent in (post(), post()[:-1], rests, post() + b"?", not_read, post() * 100):
            ended = come(sent)
            await soon(lambda ended=ended: ended() is None)
    finally:
        gc.enable()


async def test_a_client_that_leaves_releases_its_resources_and_is_counted(serve: Serve) -> None:
    """Permit, bytes and lease; by its end, or by the end of what it sends, as in Go's server."""
    async with serve() as port:
        stack = port.stack
        stack.backend.hold = asyncio.Event()
        permits, endpoint = stack.gateway.permits, stack.gateway.table.current.endpoints["e"]
        for leave in ("abort", "half_close"):
            wire = await port.connect()
            assert 404 == (await wire.ask(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"))[0]
            wire.send(post())
            await stack.until(lambda: (permits.in_flight, endpoint._leases) == (1, 1))
            assert permits.held_bytes > 0
            getattr(wire, leave)()
            await stack.until(lambda: (permits.in_flight, permits.held_bytes, endpoint._leases) == (0, 0, 0))
        assert b"" == await wire.rest()
        stack.backend.hold.set()
        text = (await stack.client.get("/metrics")).text
        assert 'outcome="client_gone",route="direct",version=""} 2.0' in text
        assert "gateway_requests_in_flight 0.0" in text
        for at in (10, 50, -3):  # half a head, half a body
            wire = await port.connect()
            wire.send(post()[:at])
            wire.half_close()
            assert b"" == await wire.rest()


async def test_a_permit_is_taken_before_the_body_is_read(serve: Serve) -> None:
    """Above the limit, a head alone gets 429, while the first request still sends its body."""
    async with serve(max_in_flight=1) as port:
        first, second = await port.connect(), await port.connect()
        await first.send_slowly(post()[:-3])
        await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 1)
        await second.send_slowly(post()[:-3])
        status, headers, body = await second.answer()
        assert (429, "overloaded") == (status, body["code"])
        assert "retry-after" in headers
        assert 200 == (await first.ask(post()[-3:]))[0]
        await port.stack.until(lambda: port.stack.gateway.permits.in_flight == 0)


@pytest.mark.parametrize("end", ["resume_writing", "connection_lost"])
async def test_a_permit_is_held_until_the_client_has_read_its_answer(end: str) -> None:
    """Unread answers take memory too, so they count until the client reads or leaves."""
    made = Plane("e", max_bytes=1 << 20)
    endpoint: Any = made.endpoints["e"]
    endpoint.handler._begin = lambda job: job.answered("yes")
    route = Route(lambda _raw, _headers: Echo("e"), problem)
    ear, connection = in_memory(lambda exchange: serving(exchange, route, made.plane))
    connection.pause_writing()
    connection.data_received(post())
    assert (True, 1, 0) == (ear.heard.startswith(b"HTTP/1.1 200"), made.permits.in_flight, endpoint.released)
    getattr(connection, end)(*[None] * (end == "connection_lost"))
    assert (0, 1) == (made.permits.in_flight, endpoint.released)


async def test_the_response_cache_keeps_its_limit_on_bytes(stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used go first. An answer above the limit is not cached, and what an array refers to counts."""
    monkeypatch.setattr("gateway.handlers.cache.MAX_BYTES", 8192)
    stack.deploy("c", auxiliary_cfg={"gateway": {"response_cache": "1000"}})
    await stack.served("c")
    handler = stack.gateway.table.current.endpoints["c"].handler
    for text in (*(f"good {number}" for number in range(60)), "good " * 5000):
        assert 200 == (await stack.client.post("/serve/c", json={"text": text})).status_code
        assert sum(size for _, _, size in handler._answers.values()) == handler.held_bytes <= 8192
    assert 0 < len(handler._answers) < 60
    batch = np.zeros((64, 384), dtype=np.float32)
    assert size_of({"embedding": batch[0]}) >= batch.nbytes
    assert size_of({"scores": {"a": 0.5}}) < 1000 < 10_000 <= size_of(["x" * 1000] * 10)
