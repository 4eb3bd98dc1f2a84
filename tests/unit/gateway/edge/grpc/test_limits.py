"""Connections of the gRPC port that say nothing, and more of them than there is room for."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.edge.grpc.server import RpcServer
from tests.unit.gateway.edge.grpc.test_server import _nothing


async def silent(port: int, begun: bytes) -> bool:
    """Open a connection, say hardly anything, and return whether it was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun)
    try:
        async with asyncio.timeout(15):
            while await reader.read(1000):
                pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        writer.close()


async def test_silent_connections_end_and_places_are_counted(stack: Any) -> None:
    """Neither nothing nor half a greeting holds a place for long; beyond the places nobody is let in."""
    gateway = stack.gateway
    server = RpcServer(
        gateway.plane, gateway.table, gateway.health, _nothing, version="1", timeout=5, max_message_bytes=1 << 20,
        head_timeout=1.0, max_connections=4,
    )  # fmt: skip
    port = await server.start("127.0.0.1", 0)
    try:
        greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        assert [True] * 3 == await asyncio.gather(*(silent(port, b) for b in (b"", greeting[:9], greeting)))
        settled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in settled:
            writer.write(greeting + b"\0\0\0\4\0\0\0\0\0")
        for reader, _ in settled:
            assert await reader.read(9)
        assert await silent(port, b"")
        for _, writer in settled:
            writer.close()
    finally:
        await server.stop(0)
