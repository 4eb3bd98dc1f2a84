"""Compressed bodies: unpacked in a thread, up to the limit."""

from __future__ import annotations

import gzip
import threading
from typing import Any

import pytest

from gateway.errors import GatewayError, MalformedBody, PayloadTooLarge, UnsupportedMedia
from gateway.http import body
from gateway.http.exchange import Exchange
from tests.core_client import in_memory
from tests.unit.gateway.http.serving import post
from tests.waiting import soon

PACKED = gzip.compress(b'{"text": "good"}', mtime=0)


@pytest.mark.parametrize(
    ("packed", "encoding", "error"),
    [
        (b"not gzip", b"gzip", MalformedBody), (b"", b"gzip", MalformedBody), (PACKED[:-1], b"x-gzip", MalformedBody),
        (PACKED[:-8] + b"\0" * 8, b"gzip", MalformedBody), (PACKED + b"\0", b"gzip", MalformedBody),
        (PACKED + PACKED, b"gzip", MalformedBody), (PACKED, b"br", UnsupportedMedia),
        (gzip.compress(b"x" * 101), b"gzip", PayloadTooLarge),
        (gzip.compress(b"x" * 50_000_000), b"gzip", PayloadTooLarge),
    ],
    ids=["no gzip", "empty", "cut short", "wrong sum", "a byte behind it", "two members", "br", "101 bytes", "a bomb"],
)  # fmt: skip
def test_a_faulty_body_is_refused(packed: bytes, encoding: bytes, error: type[GatewayError]) -> None:
    """Nothing is dropped silently, and unpacking stops at the limit."""
    with pytest.raises(error):
        body.unpack(packed, encoding, limit=100)


def test_a_body_up_to_the_limit_is_unpacked() -> None:
    """One without encoding is returned as it is."""
    assert b"x" * 100 == body.unpack(gzip.compress(b"x" * 100), b" GZIP ", limit=100)
    assert PACKED == body.unpack(PACKED, b"identity", limit=1)


async def test_bodies_are_unpacked_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may unpack to megabytes. What comes and what it unpacks to count as held."""
    threads: list[str] = []
    read: list[object] = []
    unpack = body.unpack

    def recorded(*given: Any, **named: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return unpack(*given, **named)

    async def answer(exchange: Exchange) -> None:
        exchange.open()
        read.append(await exchange.read_body(100, read.append))
        exchange.reply(200, [(b"content-length", b"0")], b"")

    monkeypatch.setattr(body, "unpack", recorded)
    ear, connection = in_memory(answer)
    connection.data_received(post(PACKED, "/", "content-encoding: gzip"))
    await soon(lambda: ear.heard)
    assert [len(PACKED), 16, b'{"text": "good"}'] == read
    assert [True] == [name.startswith("bodies") for name in threads]
