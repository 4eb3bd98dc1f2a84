"""A gateway's own HTTP core on a free port of this machine, and httpx to it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from gateway.http.connections import Connections
from gateway.http.core import Answer, Connection
from gateway.http.server import listen, stop
from tests.waiting import soon, until


@asynccontextmanager
async def listening(served: Any, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve a gateway that runs, or a stand-in for one; yields the port. Its connections are dropped at the end."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port, server = int(listener.getsockname()[1]), await listen(served, listener, tls)
    try:
        yield port
    finally:
        server.close()
        listener.close()
        await accepted_connections()
        for connection in tuple(served.connections.open):
            if port_of(connection) == port:
                connection.abort()
        await soon(lambda: port not in map(port_of, served.connections.open))


def port_of(connection: Connection) -> int:
    """Return the port that a connection was accepted at."""
    return int(connection.transport.get_extra_info("sockname")[1])


@contextmanager
def in_a_thread(gateway: Any) -> Iterator[int]:
    """Run a gateway on a loop of its own, for tests that block; yields its HTTP port."""
    ports: list[int] = []
    ends = threading.Event()

    async def serve() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        async with gateway.running():
            server = await listen(gateway, listener)
            ports.append(int(listener.getsockname()[1]))
            await asyncio.to_thread(ends.wait)
            await stop(gateway, server, listener, 5)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: asyncio.run(serve()))
        try:
            until(lambda: ports or running.done(), what="a gateway that listens")
            if not ports:
                running.result()
            yield ports[0]
        finally:
            ends.set()
        running.result()


async def accepted_connections() -> None:
    """Let the loop finish what it has begun with connections: one that it accepts becomes known a few steps later."""
    for _ in range(6):
        await asyncio.sleep(0)


class CoreTransport(httpx.AsyncBaseTransport):
    """Starts to listen with the first request, and stops when its client closes."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._starting = asyncio.Lock()
        self._serving: Any = None
        self._port = 0
        self._to = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request, with the ``Host`` of its address."""
        async with self._starting:
            if self._serving is None:
                self._serving = listening(self._gateway)
                self._port = await self._serving.__aenter__()
        request.url = request.url.copy_with(host="127.0.0.1", port=self._port)
        return await self._to.handle_async_request(request)

    async def aclose(self) -> None:
        """Stop."""
        await self._to.aclose()
        if self._serving is not None:
            await self._serving.__aexit__(None, None, None)
            self._serving = None


class Ear(asyncio.Transport):
    """A transport in memory: keeps what is written, and whether it is read and open."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.heard = b""
        self.is_closed = self.is_paused = False

    def write(self, data: Any) -> None:
        """Keep it, unless the connection is closed."""
        if not self.is_closed:
            self.heard += bytes(data)

    def close(self) -> None:
        """End the connection."""
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        """See ``asyncio.Transport``, as for the others."""
        return self.is_closed

    def can_write_eof(self) -> bool:
        """False: the connection ends at once, without lingering."""
        return False

    def get_write_buffer_size(self) -> int:
        """Everything is read at once."""
        return 0

    def pause_reading(self) -> None:
        """Hold back further bytes."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Deliver them again."""
        self.is_paused = False


def in_memory(answer: Answer, limits: Connections | None = None) -> tuple[Ear, Connection]:
    """Open a connection of the core whose requests ``answer`` answers."""
    ear, connection = Ear(), Connection(answer, limits or Connections())
    connection.connection_made(ear)
    return ear, connection
