"""A stack's gateway on a real port, and raw connections to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.callers.keys import Key, digest, new_key
from tests.core_client import listening
from tests.unit.gateway.callers.test_keys import written_file
from tests.waiting import LIMIT_S

GOOD = b'{"text": "good"}'


def post(body: bytes = GOOD, path: str = "/serve/e", *headers: str) -> bytes:
    """Return one request as bytes."""
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def made_key(tenant: str, **fields: Any) -> tuple[str, Key]:
    """Return a new key as its caller has it, and as a file has it."""
    text, name = new_key()
    return text, Key(name, digest(text.encode()).hex(), tenant, **fields)


def write_keys(folder: Path, *keys: Key, **fields: Any) -> Path:
    """Write a file of keys and certificates, in one step."""
    new = folder / "new"
    new.write_bytes(written_file(*keys, **fields))
    return new.replace(folder / "keys.json")


class Wire:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, *pieces: bytes) -> None:
        """Write without waiting."""
        self._writer.writelines(pieces)

    async def send_slowly(self, *pieces: bytes) -> None:
        """Write pieces so that each is read alone."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0.02)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of one answer: status and headers."""
        async with asyncio.timeout(LIMIT_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:] if line)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Read one answer; return status, headers and decoded body."""
        status, headers = await self.head()
        async with asyncio.timeout(LIMIT_S):
            body = await self._reader.readexactly(int(headers["content-length"]))
        return status, headers, json.loads(body) if body else None

    async def ask(self, *pieces: bytes) -> tuple[int, dict[str, str], Any]:
        """Write a request, and read its answer."""
        self.send(*pieces)
        return await self.answer()

    async def rest(self) -> bytes:
        """Read until the server closes the connection."""
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.read()

    def half_close(self) -> None:
        """Close the sending side and continue to read."""
        self._writer.write_eof()

    def abort(self) -> None:
        """Close at once, even with unsent data. Otherwise the connection would stay open for ever."""
        self._writer.transport.abort()


class Port:
    """A running server and the connections that a test opened to it."""

    def __init__(self, stack: Any, port: int) -> None:
        self.stack = stack
        self.port = port
        self._wires: list[Wire] = []

    async def connect(self, tls: ssl.SSLContext | None = None) -> Wire:
        """Open a connection."""
        name = "gateway" if tls else None
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name))
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        """End every connection."""
        for wire in self._wires:
            wire.abort()


@asynccontextmanager
async def serving(stack: Any, tls: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
    """Serve a stack whose gateway runs, as its settings say."""
    async with listening(stack.gateway, tls) as number:
        port = Port(stack, number)
        try:
            yield port
        finally:
            port.close()


Serve = Callable[..., AbstractAsyncContextManager[Port]]
"""The fixture ``serve``: a port of a gateway with the test's settings."""
