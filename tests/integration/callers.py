"""Typical clients: they keep connections, obey ``connection: close``, and never retry.

``Callers`` are a fixed number that share a rate; ``Strict`` sends at its rate whether answers come or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.integration.service import Loop
from tests.processes import LOOPBACK

PATIENCE_S = 10.0
"""Seconds that ``Strict`` waits for one answer."""


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes) -> tuple[int, bool]:
    """Send a request and read its answer; return the status and whether the server closes the connection."""
    writer.write(raw)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return int(head.split(b" ", 2)[1]), b"\r\nconnection: close\r\n" in head


@dataclass
class Seen:
    """What callers saw. ``failures`` are (seconds since the start, what)."""

    requests: int = 0
    latencies: list[float] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    connections: int = 0

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "requests": self.requests, "failed": len(self.failures), "first_failures": self.failures[:5],
            "connections": self.connections,
            "max_ms": round(max(self.latencies, default=0.0) * 1e3, 1),
        }  # fmt: skip


class Callers:
    """``count`` clients that send ``rate`` requests per second together until they are told to stop."""

    def __init__(
        self, loop: Loop, port: int, path: str, body: bytes, *, count: int, rate: float, tls: Any = None
    ) -> None:
        self._raw = _request(path, body)
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
                    status, is_last = await _ask(*connection, self._raw)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self._failed(f"{type(error).__name__}: {error}")
                is_last = True
            else:
                if status == 200:
                    self.seen.requests += 1
                    self.seen.latencies.append(loop.time() - began)
                else:
                    self._failed(f"status {status}")
            if is_last and connection is not None:
                connection[1].close()
                connection = None
        if connection is not None:
            connection[1].close()

    def _failed(self, what: str) -> None:
        self.seen.failures.append((round(time.monotonic() - self._began, 2), what))


@dataclass
class Strict:
    """An open loop that never repeats a request: ``(sent, ended, problem)`` of each, in seconds of one clock."""

    host: str
    port: int
    path: str
    body: bytes
    rate: float
    seen: list[tuple[float, float, str]] = field(default_factory=list)
    _raw: bytes = b""
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the request once."""
        self._raw = _request(self.path, self.body)

    async def run(self, until: Callable[[], bool]) -> None:
        """Send until ``until()``."""
        due = time.monotonic()
        running: set[asyncio.Task[None]] = set()
        while not until():
            task = asyncio.create_task(self.once())
            running.add(task)
            task.add_done_callback(running.discard)
            due += 1 / self.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*running)

    async def once(self) -> tuple[float, float, str]:
        """Send one request; return what to add to ``seen``."""
        sent, problem = time.monotonic(), ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                status = await self._ask()
            problem = "" if status == 200 else str(status)
        except TimeoutError:
            problem = "no answer"
        except (OSError, EOFError, ValueError) as error:
            problem = type(error).__name__
        self.seen.append((sent, time.monotonic(), problem))
        return self.seen[-1]

    async def _ask(self) -> int:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():  # closed while idle: not a failure
                break
        else:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            status, is_last = await _ask(reader, writer, self._raw)
        except BaseException:
            writer.close()
            raise
        if is_last:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return status
