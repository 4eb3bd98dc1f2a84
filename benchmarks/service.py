"""What a Kubernetes Service does to connections, on one machine: a TCP proxy with a list of ready endpoints.

A new connection goes to the next endpoint in turn. A connection that is open stays where it is whatever happens to the
list, as with kube-proxy: taking an endpoint off the list moves nobody. ``Callers`` are clients as they are found in
the wild: they keep connections, do what ``connection: close`` says, and never try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.load import percentile
from benchmarks.servers import LOOPBACK

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, within: float = 120.0) -> T:
        """Run a coroutine there and return what it returns."""
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
        """Let new connections go there, too."""
        self._endpoints = [*self._endpoints, port]

    def remove(self, port: int) -> None:
        """Let no new connection go there."""
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


@dataclass
class Seen:
    """What callers saw. ``failures`` are (seconds since the start, what)."""

    requests: int = 0
    latencies: list[float] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    connections: int = 0

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        ordered = sorted(self.latencies)
        return {
            "requests": self.requests, "failed": len(self.failures), "first_failures": self.failures[:5],
            "connections": self.connections, "p50_ms": round(percentile(ordered, 50) * 1e3, 1),
            "p99_ms": round(percentile(ordered, 99) * 1e3, 1), "max_ms": round((ordered or [0])[-1] * 1e3, 1),
        }  # fmt: skip


class Callers:
    """``count`` clients that send ``rate`` requests per second together until they are told to stop."""

    def __init__(
        self, loop: Loop, port: int, path: str, body: bytes, *, count: int, rate: float, tls: Any = None
    ) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._raw = head.encode() + body
        self._loop, self._port, self._count, self._pause, self._tls = loop, port, count, count / rate, tls
        self._stopping = False
        self._began = time.monotonic()
        self.seen = Seen()

    @contextlib.contextmanager
    def calling(self) -> Iterator[Seen]:
        """Send while the context is open."""
        self._began = time.monotonic()

        async def begin() -> list[asyncio.Task[None]]:
            return [asyncio.create_task(self._call(number)) for number in range(self._count)]

        tasks = self._loop.run(begin())
        try:
            yield self.seen
        finally:
            self._stopping = True

            async def end() -> None:
                await asyncio.gather(*tasks)

            self._loop.run(end())

    async def _call(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._pause * number / self._count
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while not self._stopping:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + self._pause, loop.time() - 1)
            began = loop.time()
            try:
                async with asyncio.timeout(30):
                    if connection is None:
                        connection = await asyncio.open_connection(
                            LOOPBACK, self._port, ssl=self._tls, server_hostname="gateway" if self._tls else None
                        )
                        self.seen.connections += 1
                    status, is_last = await self._ask(*connection)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self._failed(f"{type(error).__name__}: {error}")
                is_last = True
            else:
                if status == b"200":
                    self.seen.requests += 1
                    self.seen.latencies.append(loop.time() - began)
                else:
                    self._failed(f"status {status.decode()}")
            if is_last and connection is not None:
                connection[1].close()
                connection = None
        if connection is not None:
            connection[1].close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bool]:
        writer.write(self._raw)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        return head.split()[1], b"\r\nconnection: close\r\n" in head

    def _failed(self, what: str) -> None:
        self.seen.failures.append((round(time.monotonic() - self._began, 2), what))
