"""Connections end with an answer, never with a request in transit; and the renewal of certificates."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path

import pytest
import trustme

from gateway.http.certificates import tls_context
from tests.unit.gateway.http.serving import GOOD, Serve, Wire, post
from tests.waiting import LIMIT_S


async def ask(wire: Wire, raw: bytes = b"") -> tuple[int, bool]:
    """Send a request. Return the status of its answer, and whether that closes the connection."""
    status, headers, _ = await wire.ask(raw or post())
    return status, headers.get("connection") == "close"


@pytest.mark.parametrize("path", ["/serve/e", "/serve/e?version=", "/v1/status"], ids=["path", "query", "operations"])
async def test_a_draining_gateway_answers_and_closes_each_connection(serve: Serve, path: str) -> None:
    """On open and new connections. Readiness fails at once, liveness does not."""
    raw = post(path=path) if path.startswith("/serve") else f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    async with serve() as port:
        gateway = port.stack.gateway
        old = await port.connect()
        assert (200, False) == await ask(old, raw)
        assert [] == gateway.health.reasons()
        gateway.leave()
        assert ["shutting down"] == gateway.health.reasons()
        for wire in (old, await port.connect()):
            assert (200, True) == await ask(wire, raw)
            assert await wire.is_closed()


async def test_a_request_in_flight_when_draining_begins_is_answered(serve: Serve) -> None:
    """With `connection: close`."""
    async with serve() as port:
        stack = port.stack
        stack.backend.hold = asyncio.Event()
        wire = await port.connect()
        answer = asyncio.create_task(ask(wire))
        await stack.until(lambda: len(stack.backend.calls) and stack.gateway.permits.in_flight)
        stack.gateway.leave()
        stack.backend.hold.set()
        assert (200, True) == await answer
        assert await wire.is_closed()


async def test_an_old_connection_ends_with_an_answer(serve: Serve) -> None:
    """It is not closed while idle, because a request might be in transit."""
    async with serve({"age": 1.0}) as port:
        wire = await port.connect()
        async with asyncio.timeout(LIMIT_S):
            while (200, False) == (last := await ask(wire)):
                await asyncio.sleep(0.02)
        assert (200, True) == last
        assert await wire.is_closed()


async def test_a_refused_request_whose_body_is_still_to_come_does_not_silence_its_connection(serve: Serve) -> None:
    """The connection is to end, and its client was not told so yet: the next request is answered, and closes it."""
    head, body = post(path="/serve/none")[: -len(GOOD)], GOOD
    async with serve() as port:
        wire = await port.connect()
        assert (404, False) == await ask(wire, head)
        port.stack.gateway.leave()
        wire.send(body)
        [connection] = port.stack.gateway.connections.open
        await port.stack.until(lambda: connection._current is None)
        assert (200, True) == await ask(wire)
        assert await wire.is_closed()


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


async def test_renewed_certificate_is_shown_to_new_connections(serve: Serve, tmp_path: Path) -> None:
    """A certificate that does not match its key changes nothing."""
    old, new = trustme.CA(), trustme.CA()
    certificate, key = issue(old, tmp_path, "gateway")
    tls = tls_context(str(certificate), str(key))
    async with serve(tls=tls) as port:
        first = await port.connect(trusting(old))
        assert (200, False) == await ask(first)
        before = key.read_bytes()
        issue(new, tmp_path, "gateway")
        after, _ = key.read_bytes(), key.write_bytes(before)
        os.utime(certificate, (time.time() + 5, time.time() + 5))
        assert (200, False) == await ask(await port.connect(trusting(old)))
        key.write_bytes(after)
        os.utime(key, (time.time() + 5, time.time() + 5))
        assert (200, False) == await ask(await port.connect(trusting(new)))
        assert (200, False) == await ask(first)
        with pytest.raises(ssl.SSLCertVerificationError):
            await port.connect(trusting(old))
