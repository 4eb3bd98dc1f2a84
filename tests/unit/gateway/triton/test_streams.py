"""Streams of decoupled models: they are read to their end, whoever leaves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from gateway.errors import BackendUnavailable, DeadlineExceeded, ModelNotReady
from gateway.triton.backend import TritonBackend
from tests.waiting import soon

from .servers import GrpcServer, together, tritons

INPUT = {"x": np.array([[1]], np.int64)}


async def leave_after_two(backend: TritonBackend, server: GrpcServer, ended: Any) -> None:
    """As for a stop string."""
    assert server.steps is not None
    server.steps.release()
    server.steps.release()
    async with aclosing(backend.stream("m", INPUT, (), timeout=30, ended=ended)) as responses:
        assert [0, 1] == [int((await anext(responses))["token"][0]) for _ in range(2)]


async def be_cancelled(backend: TritonBackend, server: GrpcServer, ended: Any) -> None:
    """As for a client that has closed its connection, while the next token is awaited."""
    assert server.steps is not None
    server.steps.release()
    seen = asyncio.Event()

    async def read() -> None:
        async with aclosing(backend.stream("m", INPUT, (), timeout=30, ended=ended)) as responses:
            async for _ in responses:
                seen.set()

    task = asyncio.create_task(read())
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def be_late(backend: TritonBackend, server: GrpcServer, ended: Any) -> None:
    """Its deadline passes after it was sent."""
    assert server.steps is not None
    server.steps.release()
    responses = backend.stream("m", INPUT, (), timeout=0.5, ended=ended)
    with pytest.raises(DeadlineExceeded):
        [one async for one in responses]


@pytest.mark.parametrize("leave", [leave_after_two, be_cancelled, be_late])
async def test_a_stream_is_read_to_its_end_and_never_cancelled(leave: Any) -> None:
    """Until then it counts as a call in flight there, and ``ended`` is called once after it."""
    async with tritons("a") as (server,):
        server.steps = asyncio.Semaphore(0)
        backend = TritonBackend(together(server))
        ended: list[bool] = []
        await leave(backend, server, lambda: ended.append(True))
        [replica] = backend.all
        assert ([], [], 1) == (server.streams, ended, replica.in_flight)
        for _ in range(4):
            server.steps.release()
        await soon(lambda: ended)
        assert (["whole"], [True], 0) == (server.streams, ended, replica.in_flight)
        await backend.close()


async def test_a_stream_that_ends_by_itself_is_not_cancelled_either() -> None:
    """Also a refused one; and ``ended`` is called if there is no server to call."""
    async with tritons("a") as (server,):
        backend = TritonBackend(together(server))
        ended: list[str] = []
        got = [one async for one in backend.stream("m", INPUT, (), timeout=30, ended=lambda: ended.append("m"))]
        assert [0, 1, 2, 3] == [int(one["token"][0]) for one in got]
        with pytest.raises(ModelNotReady):
            [one async for one in backend.stream("none", INPUT, (), timeout=30, ended=lambda: ended.append("none"))]
        await soon(lambda: len(ended) == 2)
        assert (["whole", "whole"], {"m", "none"}) == (server.streams, set(ended))
        await backend.close()
    backend = TritonBackend("127.0.0.1:1")
    with pytest.raises(BackendUnavailable):
        [one async for one in backend.stream("m", INPUT, (), timeout=30, ended=lambda: ended.append("away"))]
    await soon(lambda: "away" in ended)
    await backend.close()


async def test_closing_reads_what_callers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that stops, or needs a Triton no more, cancels no stream while it can be read."""
    async with tritons("a") as (server,):
        server.steps = asyncio.Semaphore(0)
        backend = TritonBackend(together(server))
        await leave_after_two(backend, server, lambda: None)
        closing = asyncio.create_task(backend.close())
        await asyncio.sleep(0)
        for _ in range(4):
            server.steps.release()
        await closing
        assert ["whole"] == server.streams
        # For a stuck one it does not wait for ever.
        monkeypatch.setattr("gateway.triton.grpc._CLOSE_S", 0.01)
        backend = TritonBackend(together(server))
        server.steps = asyncio.Semaphore(0)
        await leave_after_two(backend, server, lambda: None)
        await backend.close()
        await soon(lambda: server.streams == ["whole", "cancelled"])
