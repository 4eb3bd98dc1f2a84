"""A server that stops answers every client that is connected, whether it was accepted yet or not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from gateway.http import core, server
from tests.unit.gateway.http.serving import post
from tests.waiting import LIMIT_S

CLIENTS = 20


class Stand:
    """A gateway that listens, as ``gateway.__main__`` serves it, and clients that the kernel has connected."""

    def __init__(self, stack: Any) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.stop: Any = None
        self.connections = stack.gateway.connections.open
        self.clients: list[socket.socket] = []

    async def connect(self, *, accepted: bool) -> None:
        """Connect the clients. Unless they are to be accepted, the server has not run since."""
        self.clients = [socket.create_connection(self.listener.getsockname()) for _ in range(CLIENTS)]
        while accepted and len(self.connections) < CLIENTS:
            await asyncio.sleep(0)

    def ask(self) -> None:
        """Send a request from each."""
        for client in self.clients:
            client.sendall(post())

    async def answers(self) -> set[bytes]:
        """Return the first lines that clients get, each until its connection ends."""

        async def answer(client: socket.socket) -> bytes:
            reader, writer = await asyncio.open_connection(sock=client)
            found = await reader.read()
            writer.close()
            assert not found or b"connection: close" in found
            return found.partition(b"\r\n")[0]

        async with asyncio.timeout(LIMIT_S):
            return set(await asyncio.gather(*map(answer, self.clients)))


@pytest.fixture
async def stand(served: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    """It accepts however long that takes."""
    monkeypatch.setattr(server, "_QUEUE_S", LIMIT_S)
    made = Stand(served)
    listening = await server.listen(served.gateway, made.listener)
    made.stop = partial(server.stop, served.gateway, listening, made.listener, LIMIT_S)
    yield made
    for client in made.clients:
        client.close()


async def test_what_waits_in_the_listen_queue_is_answered(stand: Stand) -> None:
    """These clients are connected and have sent their requests. A socket that closes would reset them."""
    await stand.connect(accepted=False)
    stand.ask()
    stopping = asyncio.create_task(stand.stop())  # runs before the loop can accept
    assert {b"HTTP/1.1 200 OK"} == await stand.answers()
    await stopping


async def test_a_connection_that_was_just_opened_may_send_its_request(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way. New connections are refused meanwhile."""
    monkeypatch.setattr(core, "_LAST_HEAD_S", LIMIT_S)
    address = stand.listener.getsockname()
    await stand.connect(accepted=True)
    stopping = asyncio.create_task(stand.stop())
    while stand.listener.fileno() != -1:
        await asyncio.sleep(0)
    stand.ask()
    with pytest.raises(ConnectionError), contextlib.closing(socket.create_connection(address)):
        pass
    assert {b"HTTP/1.1 200 OK"} == await stand.answers()
    await stopping


async def test_clients_that_ask_nothing_do_not_keep_the_server(stand: Stand) -> None:
    """Their connections are closed a moment later."""
    await stand.connect(accepted=True)
    await stand.stop()
    assert {b""} == await stand.answers()
