"""A TCP proxy with a list of ready endpoints: what a Kubernetes Service does to connections, on one machine.

A new connection goes to the next endpoint in turn. As with kube-proxy, an open connection stays where it is: removing
an endpoint from the list moves no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.processes import LOOPBACK

T = TypeVar("T")


class Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, within: float = 120.0) -> T:
        """Run a coroutine in the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within)

    def close(self) -> None:
        """End every task and the thread."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with contextlib.suppress(TimeoutError):
            self.run(end(), within=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


class Service:
    """The proxy; ``port`` is where it listens. ``add`` and ``remove`` endpoints (ports) from any thread."""

    def __init__(self, loop: Loop) -> None:
        self._endpoints: list[int] = []
        self._turn = 0
        self._loop = loop
        self._server = loop.run(self._listen())
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.opened: Counter[int] = Counter()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, LOOPBACK, 0, backlog=1024)

    def add(self, port: int) -> None:
        """Send new connections to this port too."""
        self._endpoints = [*self._endpoints, port]

    def remove(self, port: int) -> None:
        """Send no new connections to this port."""
        self._endpoints = [p for p in self._endpoints if p != port]

    def close(self) -> None:
        """Stop listening."""

        async def close() -> None:
            self._server.close()

        self._loop.run(close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoints = self._endpoints
        if not endpoints:
            writer.transport.abort()
            return
        self._turn += 1
        port = endpoints[self._turn % len(endpoints)]
        self.opened[port] += 1
        try:
            back_reader, back_writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, back_writer), _pump(back_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()
