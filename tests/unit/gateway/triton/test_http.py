"""Calls over HTTP: the choice of a server, valid answers, and errors after which a call may be repeated."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from gateway.errors import (
    BackendGarbage,
    BackendRefused,
    BackendUnavailable,
    DeadlineExceeded,
    GatewayError,
    ModelFailed,
    ModelNotReady,
)
from gateway.triton.addresses import http_beside
from gateway.triton.errors import TransportError
from gateway.triton.http import HttpTransport
from tests.waiting import LIMIT_S, soon

from .servers import HttpServer, reply, tensors_reply


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    """One server."""
    made = HttpServer()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def calls(server: HttpServer) -> AsyncIterator[HttpTransport]:
    """Return a transport to that server, after a health check."""
    made = HttpTransport(server.address)
    assert await made.is_live()
    assert made.is_open
    yield made
    await made.close()


async def infer(calls: HttpTransport, *ids: int, timeout: float = LIMIT_S, parent: str = "") -> Any:
    """Call with one row."""
    inputs = {"input_ids": np.array([ids], np.int64)}
    return (await calls.infer("m", inputs, ["out"], timeout=timeout, parent=parent))["out"]


@pytest.mark.parametrize(
    ("target", "setting", "address"),
    [
        ("triton:8001", "auto", ("triton", 8000)), ("[::1]:8001", "auto", ("::1", 8000)),
        ("triton:9001", "auto", None), ("triton:9001", "9000", ("triton", 9000)), ("triton:8001", "off", None),
        ("unix:/run/triton", "8000", None),
    ],
)  # fmt: skip
def test_http_is_on_the_host_of_grpc(target: str, setting: str, address: tuple[str, int] | None) -> None:
    """`auto` applies only to Triton's default ports."""
    assert address == http_beside(setting)(target)


async def test_calls_one_after_another_share_a_connection(server: HttpServer, calls: HttpTransport) -> None:
    """The trace header is sent only if there is a trace."""
    for i in range(5):
        assert [[2 * i, 8]] == (await infer(calls, i, 4)).tolist()
    await infer(calls, 1, parent="00-aa-bb-01")
    assert 1 == server.connections
    assert [False] * 5 + [True] == [b"traceparent: 00-aa-bb-01\r\n" in head for head, _ in server.calls]


async def test_a_pause_of_the_gateway_does_not_count_as_the_servers(calls: HttpTransport) -> None:
    """The process stops for longer than a connection may take while it opens many."""
    running = [asyncio.create_task(infer(calls, i)) for i in range(40)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, 1.5)
    assert [[[2 * i]] for i in range(40)] == [answer.tolist() for answer in await asyncio.gather(*running)]
    asyncio.get_running_loop().call_soon(time.sleep, 2.5)
    assert await calls.is_live()


async def test_calls_get_their_own_rows_while_others_are_cancelled(server: HttpServer, calls: HttpTransport) -> None:
    """Callers leave, time out or are disconnected at any moment, and nothing of them remains."""
    chance = random.Random(0)
    normal = server.answer

    async def moody(head: bytes, body: bytes) -> bytes | None:
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.01, 0.05)))
        return None if chance.random() < 0.05 else await normal(head, body)

    server.answer = moody
    running = []
    for number in range(600):
        running.append(asyncio.create_task(infer(calls, number, timeout=chance.choice((0, 0.002, 0.02, 60, 60, 60)))))
        if chance.random() < 0.3:
            asyncio.get_running_loop().call_later(chance.random() * 0.03, running[-1].cancel)
        if chance.random() < 0.1:
            await asyncio.sleep(0.005)
    found = await asyncio.gather(*running, return_exceptions=True)
    answered = {number: one.tolist() for number, one in enumerate(found) if isinstance(one, np.ndarray)}
    assert {number: [[2 * number]] for number in answered} == answered
    rest = {type(one) for one in found} - {np.ndarray}
    assert rest <= {asyncio.CancelledError, DeadlineExceeded, TransportError}
    assert len(answered) > 150
    server.answer = normal
    assert [[8]] == (await infer(calls, 4)).tolist()
    assert not calls._busy


async def test_answer_may_come_in_pieces_and_in_chunks(server: HttpServer, calls: HttpTransport) -> None:
    """The client accepts all of HTTP, not only the form that Triton writes today."""
    head, _, body = tensors_reply(np.array([[7]], np.int64)).partition(b"\r\n\r\n")
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:], b""))
    size = b"inference-header-content-length: " + head.rsplit(b" ", 1)[1]
    server.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + size + b"\r\n\r\n" + pieces)
    for _ in range(2):
        assert [[7]] == (await infer(calls, 1)).tolist()


def refusal(status: int, text: str) -> bytes:
    """Return Triton's answer to a call that fails."""
    return reply(status, json.dumps({"error": text}).encode())


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (refusal(400, "unexpected shape"), BackendRefused, "unexpected shape"),
        (refusal(404, "Request for unknown model: 'm' is not found"), ModelNotReady, "unknown model"),
        (refusal(500, "index out of range"), ModelFailed, "index out"),
        (refusal(503, "Request for unknown model: 'm' has no available versions, not ready"), ModelNotReady, "m"),
        (reply(418, b"a teapot\nand more"), BackendUnavailable, "418: a teapot$"),
        (reply(200, b"not json", "Inference-Header-Content-Length: 8"), BackendGarbage, "cannot be read"),
        (reply(200, b'{"outputs": [{"name": "out"}]}'), BackendGarbage, "cannot be read"),
        (b"what?\r\n\r\n", BackendGarbage, "not HTTP"),
    ],
)
async def test_an_error_or_an_invalid_answer_fails_only_its_call(
    server: HttpServer, calls: HttpTransport, answer: bytes, error: type[GatewayError], said: str
) -> None:
    """Errors are those of gRPC, with Triton's reason. Nothing becomes a wrong answer or a hang."""
    normal = server.answer
    server.says(answer)
    with pytest.raises(error, match=said):
        await infer(calls, 1)
    server.answer = normal
    assert [[2]] == (await infer(calls, 1)).tolist()
    assert (2 if answer[:4] == b"what" else 1) == server.connections


@pytest.mark.parametrize("timeout", [0.2, 3600])
async def test_a_call_that_is_late_or_left_closes_its_connection(
    server: HttpServer, calls: HttpTransport, timeout: float
) -> None:
    """Otherwise its answer could go to another call, and a server that never answers would keep it open."""
    await infer(calls, 1)
    server.is_stopped = True
    left = asyncio.create_task(infer(calls, 1, timeout=timeout))
    await asyncio.sleep(0)  # its first step sends it, as a connection is open
    [connection] = calls._busy
    if timeout > 60:
        left.cancel()
    [why] = await asyncio.gather(left, return_exceptions=True)
    assert isinstance(why, DeadlineExceeded | asyncio.CancelledError)
    assert not connection.is_open
    server.is_stopped = False
    assert [[6]] == (await infer(calls, 3)).tolist()


async def test_an_answer_that_nobody_asked_for_is_nobodys(server: HttpServer, calls: HttpTransport) -> None:
    """It begins before the next call is sent there, and ends after it."""
    normal, more = server.answer, tensors_reply(np.array([[7]], np.int64))

    async def chatty(head: bytes, body: bytes) -> bytes | None:
        answer = await normal(head, body) or b""
        if len(server.calls) == 1:
            return answer + more[:20]
        return more[20:] + answer if server.connections == 1 else answer

    server.answer = chatty
    assert [[[2]], [[6]]] == [(await infer(calls, number)).tolist() for number in (1, 3)]


async def test_connection_that_was_closed_while_idle_is_not_used(server: HttpServer, calls: HttpTransport) -> None:
    """A restarted server closes its connections; the next call opens a new one. While the port belongs to another
    program, or Triton is starting, none is sent there.
    """
    await infer(calls, 1)
    address = server.address
    await server.stop()
    await soon(lambda: not any(one.is_open for one in calls._idle))
    await server.start(address[1])
    assert [[2]] == (await infer(calls, 1)).tolist()
    server.is_alive = False
    assert not await calls.is_live()
    assert not calls.is_open
