"""A server that stops answers every client that is connected, whether it was accepted yet or not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.http import core, server
from gateway.http.server import Listening
from tests.waiting import LIMIT_S

BODY = b'{"text": "good"}'
REQUEST = (
    b"POST /serve/e HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)  # fmt: skip
CLIENTS = 20


class Port:
    """A stack's gateway on a listening socket, as ``gateway.__main__`` serves it."""

    def __init__(self, stack: Any) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.server = Listening(stack.gateway, self.listener)
        self.connections = stack.gateway.connections.open
        self.address = self.listener.getsockname()

    async def start(self) -> None:
        """Listen."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop listening, and return when every connection has ended."""
        async with asyncio.timeout(LIMIT_S):
            await self.server.stop(LIMIT_S)

    @contextlib.contextmanager
    def clients(self) -> Iterator[list[socket.socket]]:
        """Connected clients. The kernel has connected them; the server has not run since."""
        made = [socket.create_connection(self.address) for _ in range(CLIENTS)]
        for client in made:
            client.setblocking(False)
        yield made
        for client in made:
            client.close()

    def is_listening(self) -> bool:
        """Whether a new connection is possible."""
        with contextlib.suppress(ConnectionError), socket.create_connection(self.address):
            return True
        return False


async def answer(client: socket.socket) -> bytes:
    """Return everything that a client gets until the server closes the connection."""
    loop, found = asyncio.get_running_loop(), b""
    async with asyncio.timeout(LIMIT_S):
        while part := await loop.sock_recv(client, 4096):
            found += part
    return found


@pytest.fixture
async def port(stack: Any, monkeypatch: pytest.MonkeyPatch) -> Port:
    """A port that serves the endpoint ``e``. It accepts however long that takes."""
    monkeypatch.setattr(server, "_QUEUE_S", LIMIT_S)
    stack.deploy("e")
    await stack.served("e")
    made = Port(stack)
    await made.start()
    return made


async def test_what_waits_in_the_listen_queue_is_answered(port: Port) -> None:
    """These clients are connected and have sent their requests. A socket that closes would reset them."""
    with port.clients() as clients:
        for client in clients:
            client.sendall(REQUEST)
        stopping = asyncio.create_task(port.stop())  # runs before the loop can accept
        answers = await asyncio.gather(*map(answer, clients))
        await stopping
    assert [b"HTTP/1.1 200 OK"] * CLIENTS == [text.partition(b"\r\n")[0] for text in answers]
    assert all(b"connection: close" in text for text in answers)


async def test_a_connection_that_was_just_opened_may_send_its_request(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way. New connections are refused meanwhile."""
    monkeypatch.setattr(core, "_LAST_HEAD_S", LIMIT_S)
    with port.clients() as clients:
        while len(port.connections) < CLIENTS:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(port.stop())
        while port.listener.fileno() != -1:
            await asyncio.sleep(0)
        for client in clients:
            client.sendall(REQUEST)
        assert not port.is_listening()
        answers = await asyncio.gather(*map(answer, clients))
        await stopping
    assert [b"HTTP/1.1 200 OK"] * CLIENTS == [text.partition(b"\r\n")[0] for text in answers]


async def test_clients_that_ask_nothing_do_not_keep_the_server(port: Port) -> None:
    """Their connections are closed a moment later."""
    with port.clients() as clients:
        while len(port.connections) < CLIENTS:
            await asyncio.sleep(0)
        await port.stop()
        assert [b""] * CLIENTS == await asyncio.gather(*map(answer, clients))
