"""Connections end with an answer, never with a request in transit; and the renewal of certificates."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.http.certificates import LOOK_S, Renewed, tls_context
from tests.core_client import listening
from tests.waiting import LIMIT_S

BODY = b'{"text": "good"}'


def request(path: str = "/serve/e") -> bytes:
    """Return one request with keep-alive, the default of HTTP/1.1."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
    return head.encode() + BODY


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, raw: bytes = b"") -> tuple[int, bool]:
        """Send a request. Return its status, and whether the answer closes the connection."""
        self._writer.write(raw or request())
        async with asyncio.timeout(LIMIT_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            await self._reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        return int(head.split()[1]), b"connection: close" in head

    async def is_closed(self) -> bool:
        """Return whether the server has closed the connection."""
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.read(1) == b""

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class Port:
    """A stack's gateway on a free port."""

    def __init__(self, stack: Any, tls: ssl.SSLContext | None) -> None:
        self._callers: list[Caller] = []
        self._serving = listening(stack.gateway, tls)
        self._port = 0

    async def start(self) -> Port:
        """Listen."""
        self._port = await self._serving.__aenter__()
        return self

    async def connect(self, tls: ssl.SSLContext | None = None) -> Caller:
        """Open a connection that is closed with the port at the latest."""
        name = "gateway" if tls else None
        made = await asyncio.open_connection("127.0.0.1", self._port, ssl=tls, server_hostname=name)
        self._callers.append(Caller(*made))
        return self._callers[-1]

    async def stop(self) -> None:
        """Stop the server."""
        for caller in self._callers:
            caller.close()
        await self._serving.__aexit__(None, None, None)


async def deployed(stack: Any, tls: ssl.SSLContext | None = None) -> Port:
    """A port of a gateway that serves `e`."""
    stack.deploy("e")
    await stack.served("e")
    return await Port(stack, tls).start()


@pytest.mark.parametrize("path", ["/serve/e", "/serve/e?version=", "/v1/status"], ids=["path", "query", "operations"])
async def test_a_draining_gateway_answers_and_closes_each_connection(stack: Any, path: str) -> None:
    """On open and new connections. Readiness fails at once, liveness does not."""
    port = await deployed(stack)
    raw = request(path) if path.startswith("/serve") else f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    old = await port.connect()
    assert (200, False) == await old.ask(raw)
    assert [] == stack.gateway.health.reasons()
    stack.gateway.leave()
    assert ["shutting down"] == stack.gateway.health.reasons()
    assert (200, True) == await old.ask(raw)
    assert await old.is_closed()
    new = await port.connect()
    assert (200, True) == await new.ask(raw)
    assert await new.is_closed()
    for caller in (old, new):
        caller.close()
    await port.stop()


async def test_a_request_in_flight_when_draining_begins_is_answered(stack: Any) -> None:
    """With `connection: close`."""
    port = await deployed(stack)
    stack.backend.hold = asyncio.Event()
    caller = await port.connect()
    answer = asyncio.create_task(caller.ask())
    await stack.until(lambda: len(stack.backend.calls) and stack.gateway.permits.in_flight)
    stack.gateway.leave()
    stack.backend.hold.set()
    assert (200, True) == await answer
    assert await caller.is_closed()
    caller.close()
    await port.stop()


async def test_an_old_connection_ends_with_an_answer(stack: Any) -> None:
    """It is not closed while idle, because a request might be in transit."""
    stack.gateway.connections.age = 1.0
    port = await deployed(stack)
    caller = await port.connect()
    assert (200, False) == await caller.ask()
    async with asyncio.timeout(LIMIT_S):
        while (200, False) == (last := await caller.ask()):
            await asyncio.sleep(0.02)
    assert (200, True) == last
    assert await caller.is_closed()
    caller.close()
    await port.stop()


def issue(authority: trustme.CA, folder: Path, *names: str) -> tuple[Path, Path]:
    """Write a certificate and its key."""
    made = authority.issue_cert(*names)
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "cert.pem").write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    return folder / "cert.pem", folder / "key.pem"


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """Return a client that trusts only this authority."""
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authority.cert_pem.bytes().decode())
    return context


async def test_mutual_tls(stack: Any, tmp_path: Path) -> None:
    """With a client certificate the request is answered, without one the handshake fails."""
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path, "gateway")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    port = await deployed(stack, tls_context(str(certificate), str(key), str(tmp_path / "ca.pem")))
    known = trusting(authority)
    authority.issue_cert("caller").configure_cert(known)
    caller = await port.connect(known)
    assert (200, False) == await caller.ask()
    caller.close()
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await (await port.connect(trusting(authority))).ask()
    await port.stop()


async def test_renewed_certificate_is_shown_to_new_connections(stack: Any, tmp_path: Path) -> None:
    """The files are checked regularly. A certificate that does not match its key changes nothing."""
    old, new = trustme.CA(), trustme.CA()
    certificate, key = issue(old, tmp_path, "gateway")
    tls = tls_context(str(certificate), str(key))
    port = await deployed(stack, tls)
    first = await port.connect(trusting(old))
    assert (200, False) == await first.ask()
    renewed = tls.sni_callback
    assert isinstance(renewed, Renewed)
    before = key.read_bytes()
    issue(new, tmp_path, "gateway")
    after, _ = key.read_bytes(), key.write_bytes(before)
    os.utime(certificate, (time.time() + 5, time.time() + 5))
    renewed._due = 0
    assert (200, False) == await (await port.connect(trusting(old))).ask()
    key.write_bytes(after)
    renewed._due = time.monotonic() - LOOK_S
    assert (200, False) == await (await port.connect(trusting(new))).ask()
    assert (200, False) == await first.ask()
    with pytest.raises(ssl.SSLCertVerificationError):
        await port.connect(trusting(old))
    first.close()
    await port.stop()
