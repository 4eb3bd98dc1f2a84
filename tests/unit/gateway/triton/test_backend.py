"""One set of replicas over two transports: repeats, health, and the choice of the transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from gateway.errors import BackendRefused, BackendUnavailable
from gateway.triton.backend import TritonBackend
from gateway.triton.http import HttpTransport
from tests.waiting import LIMIT_S, soon

from .servers import GrpcServer, HttpServer, together

INPUT = {"x": np.array([[1]], np.int64)}


@dataclass(eq=False)
class Triton:
    """The gRPC and the HTTP side of one server."""

    grpc: GrpcServer
    http: HttpServer

    @property
    def counts(self) -> tuple[int, int]:
        """Return the numbers of calls over gRPC and over HTTP."""
        return self.grpc.calls, len(self.http.calls)


@asynccontextmanager
async def serving(count: int) -> AsyncIterator[tuple[TritonBackend, list[Triton]]]:
    """Start servers, and return the backend that knows both addresses of each."""
    made = [Triton(GrpcServer(str(number)), HttpServer()) for number in range(count)]
    for one in made:
        await one.grpc.start()
        await one.http.start()
    http = {f"127.0.0.1:{one.grpc.port}": one.http.address for one in made}
    backend = TritonBackend(together(*(one.grpc for one in made)), http_of=http.get)
    assert await backend.is_live()
    while not all(one.http.is_open for one in backend.all):  # a busy machine may not hear it in time
        await backend.is_live()
    try:
        yield backend, made
    finally:
        await backend.close()
        for one in made:
            await one.http.stop()
            await one.grpc.server.stop(None)


async def call(backend: TritonBackend, *, timeout: float = LIMIT_S) -> Any:
    """Make one inference call."""
    return await backend.infer("m", INPUT, ["out"], timeout=timeout)


async def test_calls_use_http_where_it_is_offered() -> None:
    """It is the cheaper transport; a replica whose only reachable port is gRPC gets its share over that."""
    async with serving(2) as (backend, (a, b)):
        for _ in range(10):
            await call(backend)
        assert [(0, 5), (0, 5)] == [a.counts, b.counts]
        await b.http.stop()
        for one in backend.all:
            await one.http.is_live()
        for _ in range(10):
            await call(backend)
        assert [(0, 10), (5, 5)] == [a.counts, b.counts]


async def test_a_lost_call_is_repeated_once() -> None:
    """A server that loses every call over either transport does not get many more than it was sent."""
    async with serving(1) as (backend, (one,)):
        one.http.says(None)
        one.grpc.refusal = (grpc.StatusCode.UNAVAILABLE, "Server is stopping")
        found = await asyncio.gather(*(call(backend) for _ in range(50)), return_exceptions=True)
        assert all(isinstance(error, BackendUnavailable) for error in found)
        assert 50 <= sum(one.counts) <= 100


async def test_repeat_goes_to_another_replica_first() -> None:
    """Before it goes to the same one over gRPC. Health is one state: gRPC calls go elsewhere, too."""
    async with serving(2) as (backend, (a, b)):
        a.http.says(None)
        for _ in range(10):
            for one in backend.all:  # as if it had answered that it is alive
                one.is_unhealthy, one.http.is_open = False, True
            await call(backend)
        assert (0, 10) == (a.grpc.calls, len(b.http.calls))
        lost = a.counts
        for one in backend.all:
            one.http.is_open = False
        for _ in range(4):
            await call(backend)
        assert (lost, (4, 10), 1) == (a.counts, b.counts, backend.replicas)


async def test_a_single_server_whose_http_hangs_up_is_called_over_grpc() -> None:
    """There is no other replica, so the other transport is tried. A health check opens HTTP again."""
    async with serving(1) as (backend, (one,)):
        answer = one.http.answer
        one.http.says(None)
        await call(backend)
        assert (1, 1) == one.counts
        one.http.answer = answer
        async with asyncio.timeout(LIMIT_S):
            while not backend.all[0].http.is_open:
                await backend.is_live()
        await call(backend)
        assert (1, 2) == one.counts


async def test_a_refused_plain_call_of_a_decoupled_model_marks_no_server_unhealthy() -> None:
    """It is the caller's mistake and is not repeated at every replica."""
    async with serving(2) as (backend, (a, b)):
        for one in (a, b):
            one.grpc.refusal = (grpc.StatusCode.UNIMPLEMENTED, "ModelInfer RPC doesn't support decoupled models")
        for replica in backend.all:
            replica.http = HttpTransport(None)
        with pytest.raises(BackendRefused, match="decoupled"):
            await call(backend)
        assert (2, 1) == (backend.replicas, a.grpc.calls + b.grpc.calls)


async def test_closing_ends_calls_in_flight_as_unavailable() -> None:
    """Over either transport, as the port promises."""
    async with serving(2) as (backend, (a, b)):
        a.grpc.hold = b.grpc.hold = asyncio.Event()
        for one in (a, b):
            one.http.is_stopped = True
        other = backend.all[1]
        other.http = HttpTransport(None)
        running = [asyncio.create_task(call(backend)) for _ in range(4)]
        await soon(lambda: 4 == sum(one.in_flight for one in backend.all))
        await backend.close()
        found = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(one, BackendUnavailable) for one in found), found
        a.grpc.hold.set()


async def test_a_server_is_live_over_either_transport_and_a_restarted_one_without_its_models_is_known() -> None:
    """The health check asks what it holds; when it has been filled, that is known, too."""
    async with serving(1) as (backend, (one,)):
        await call(backend)
        one.grpc.refusal = (grpc.StatusCode.UNAVAILABLE, "away")
        assert await backend.is_live()  # models are called over HTTP
        assert (False, False) == (backend.is_away, backend.lacks("m"))
        one.http.is_alive = False
        assert not await backend.is_live()
        assert (True, False) == (backend.is_away, backend.lacks("m"))
        one.grpc.refusal, one.http.is_alive = None, True
        one.grpc.models.clear()
        assert await backend.is_live()
        assert (False, True) == (backend.is_away, backend.lacks("m"))
        one.grpc.models.add("m")
        while backend.lacks("m"):
            await backend.is_live()
            await asyncio.sleep(0.02)
