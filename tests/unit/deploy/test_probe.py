"""The program behind the images' health checks."""

from __future__ import annotations

import asyncio

import pytest

from deploy import probe
from tests.sites import nobody
from tests.waiting import LIMIT_S


async def test_probe_ends_with_the_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """0 for 2xx, 1 with a line otherwise: what HEALTHCHECK needs."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = b"200 OK" if b"/good" in head else b"503 Unavailable"
        writer.write(b"HTTP/1.1 " + line + b"\r\ncontent-length: 3\r\n\r\nwhy")
        await writer.drain()
        writer.close()

    monkeypatch.setattr(probe, "TIMEOUT_S", LIMIT_S)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        assert 0 == await asyncio.to_thread(probe.main, [f"{base}/good"])
        assert 1 == await asyncio.to_thread(probe.main, [f"{base}/bad"])
    with nobody() as port:
        assert 1 == await asyncio.to_thread(probe.main, [f"http://127.0.0.1:{port}/good"])
    said = capsys.readouterr().out
    assert "answered 503: why" in said
    assert "does not answer" in said
