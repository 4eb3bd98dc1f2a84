"""Silent connections at the gRPC port, more connections than allowed, and what a request holds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from typing import Any

import grpc
import pytest

from tests.unit.gateway.grpc.test_server import channel_to, make_server, texts
from tests.waiting import LIMIT_S

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client of HTTP/2 sends first, but for its settings."""


async def is_closed(port: int, begun: bytes) -> bool:
    """Open a connection, send almost nothing, and return when it was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun)
    with contextlib.suppress(ConnectionError):
        while await reader.read(1000):
            pass
    writer.close()
    return True


async def settled(port: int) -> asyncio.StreamWriter:
    """Return a connection that the server has greeted.

    Tries again if it is refused: the server may still count connections that have just ended, or be late for this one.
    """
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING + b"\0\0\0\4\0\0\0\0\0")
        with contextlib.suppress(ConnectionError):
            if await reader.read(9):
                return writer
        writer.close()


async def test_silent_connections_end_and_connections_are_limited(stack: Any) -> None:
    """A connection without a complete handshake ends soon. Connections above the limit are refused."""
    server = make_server(stack, head_timeout=1.0, max_connections=4)
    port = await server.start("127.0.0.1", 0)
    try:
        assert all(await asyncio.gather(*(is_closed(port, begun) for begun in (b"", GREETING[:9], GREETING))))
        connections = [await settled(port) for _ in range(4)]
        assert await is_closed(port, b"")
        for writer in connections:
            writer.close()
    finally:
        await server.stop(0)


async def test_no_message_is_read_before_its_request_has_a_permit(make_stack: Any) -> None:
    """Otherwise 200 messages of the largest size would be in memory before the first is refused."""
    stack = make_stack(max_in_flight=1)
    async with stack.gateway.running():
        stack.deploy("e")
        await stack.served("e")
        permits, message = stack.gateway.permits, texts("e", "x").SerializeToString()
        async with channel_to(stack) as channel:
            ask = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            first = ask(timeout=LIMIT_S)
            await stack.until(lambda: permits.in_flight == 1)
            second = ask(timeout=LIMIT_S)
            with pytest.raises(grpc.aio.AioRpcError, match="already works on 1 requests"):
                await second  # although it has sent nothing yet
            await first.write(message)
            assert await first
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(timeout=0.2)
            await stack.until(lambda: permits.in_flight == 0)
            nothing = ask(timeout=LIMIT_S)
            await nothing.done_writing()
            with pytest.raises(grpc.aio.AioRpcError, match="no message"):
                await nothing


async def test_an_ended_request_is_freed(served: Any) -> None:
    """Answered, refused or unreadable, as a call or in a stream: neither gRPC nor a reference cycle keeps it."""
    large = "good " * 60_000
    wrong, unread = texts("e", large), texts("e", large)
    wrong.inputs[0].name, unread.inputs[0].datatype = "wrong", "NO"
    messages = [one.SerializeToString() for one in (texts("e", large), wrong, unread)] + [b"\xff" * len(large)]
    service = "/inference.GRPCInferenceService/"
    try:
        async with channel_to(served) as channel:
            ask = channel.unary_unary(f"{service}ModelInfer")
            stream = channel.stream_stream(f"{service}ModelStreamInfer")

            async def everything() -> None:
                for message in messages:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await ask(message, timeout=LIMIT_S)
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        [_ async for _ in stream(iter([message]), timeout=LIMIT_S)]

            await everything()  # what is made once
            gc.collect()
            gc.disable()
            tracemalloc.start()
            for _ in range(3):
                await everything()
            kept, _ = tracemalloc.get_traced_memory()
        assert kept < len(large)
    finally:
        tracemalloc.stop()
        gc.enable()
