"""Typical clients: a fixed number that share a rate, keep connections, obey ``connection: close``, and never retry."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.integration.service import Loop
from tests.processes import LOOPBACK
from tests.waiting import LIMIT_S


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
    failures: list[tuple[float, str]] = field(default_factory=list)


class Callers:
    """``count`` clients that send ``rate`` requests per second together until they are told to stop."""

    def __init__(self, loop: Loop, port: int, path: str, body: bytes, *, count: int, rate: float) -> None:
        self._raw = _request(path, body)
        self._loop, self._port, self._count, self._pause = loop, port, count, count / rate
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
            try:
                async with asyncio.timeout(LIMIT_S):
                    if connection is None:
                        connection = await asyncio.open_connection(LOOPBACK, self._port)
                    status, is_last = await _ask(*connection, self._raw)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self._failed(f"{type(error).__name__}: {error}")
                is_last = True
            else:
                if status == 200:
                    self.seen.requests += 1
                else:
                    self._failed(f"status {status}")
            if is_last and connection is not None:
                connection[1].close()
                connection = None
        if connection is not None:
            connection[1].close()

    def _failed(self, what: str) -> None:
        self.seen.failures.append((round(time.monotonic() - self._began, 2), what))
