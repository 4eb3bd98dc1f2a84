"""One set of replicas over two transports: what is repeated, who is healthy, and which transport a call takes."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BackendRefused, BackendUnavailable, DeadlineExceeded
from gateway.triton.addresses import pair
from gateway.triton.backend import TritonBackend
from gateway.triton.grpc import GrpcTransport
from gateway.triton.http import HttpTransport
from gateway.triton.replicas import Departures
from tests.waiting import soon

from .servers import GrpcServer, HttpServer, together, tritons

INPUT = {"x": np.array([[1]], np.int64)}


@dataclass(eq=False)
class Triton:
    """Both faces of one server."""

    grpc: GrpcServer
    http: HttpServer

    @property
    def counts(self) -> tuple[int, int]:
        """Calls over gRPC and over HTTP."""
        return self.grpc.calls, len(self.http.calls)


@asynccontextmanager
async def serving(count: int) -> AsyncIterator[tuple[TritonBackend, list[Triton]]]:
    """So many servers, and the backend that knows both ways to each."""
    made = [Triton(GrpcServer(str(number)), HttpServer()) for number in range(count)]
    for one in made:
        await one.grpc.start()
        await one.http.start()
    http = ",".join(f"127.0.0.1:{one.http.address[1]}" for one in made)
    backend = TritonBackend(together(*(one.grpc for one in made)), http=http)
    assert await backend.is_live()
    while not all(one.http.is_open for one in backend._replicas.all):  # a busy machine may not hear it in time
        await backend._replicas.ask_http()
    try:
        yield backend, made
    finally:
        await backend.close()
        for one in made:
            await one.http.stop()
            await one.grpc.server.stop(None)


async def call(backend: TritonBackend, *, timeout: float = 20) -> Any:
    """One inference."""
    return await backend.infer("m", INPUT, ["out"], timeout=timeout)


async def hang_up(_head: bytes, _body: bytes) -> None:
    """Close the connection instead of an answer."""
    return


async def test_calls_take_http() -> None:
    """The cheaper transport, on every replica that has it."""
    async with serving(2) as (backend, (a, b)):
        for _ in range(10):
            await call(backend)
        assert [(0, 5), (0, 5)] == [a.counts, b.counts]


async def test_replica_whose_http_does_not_answer_gets_its_share_over_grpc() -> None:
    """Only its gRPC port is reachable: that is no reason to leave it idle."""
    async with serving(2) as (backend, (a, b)):
        await b.http.stop()
        await asyncio.sleep(0.05)
        for one in backend._replicas.all:
            await one.http.is_live()
        for _ in range(10):
            await call(backend)
        assert [(0, 5), (5, 0)] == [a.counts, b.counts]


async def test_repeats_keep_one_budget_whatever_the_transport() -> None:
    """A server that hangs up on every call over HTTP does not get all of them again over gRPC."""
    async with serving(1) as (backend, (one,)):
        one.http.answer = hang_up  # type: ignore[method-assign]
        found = await asyncio.gather(*(call(backend) for _ in range(400)), return_exceptions=True)
        over_http = len(one.http.calls)
        straight_over_grpc = 400 - over_http
        assert over_http > 200
        assert one.grpc.calls - straight_over_grpc <= 64 + 40
        assert {BackendUnavailable} == {kind for kind in map(_base, found) if kind is not None}


def _base(found: Any) -> type | None:
    return BackendUnavailable if isinstance(found, BackendUnavailable) else type(found) if isinstance(
        found, BaseException) else None  # fmt: skip


async def test_repeat_goes_to_another_replica_first() -> None:
    """Over the transport that suits that one: not to the same server in another way."""
    async with serving(2) as (backend, (a, b)):
        a.http.answer = hang_up  # type: ignore[method-assign]
        for _ in range(10):
            await call(backend)
            for one in backend._replicas.all:  # as if it had answered that it is alive
                one.is_unhealthy, one.http.is_open = False, True
        assert 0 == a.grpc.calls == b.grpc.calls
        assert 10 == len(b.http.calls)


async def test_lone_server_whose_http_hangs_up_answers_over_grpc() -> None:
    """There is no other: the transport that has not failed is tried."""
    async with serving(1) as (backend, (one,)):
        one.http.answer = hang_up  # type: ignore[method-assign]
        await call(backend)
        assert (1, 1) == one.counts


async def test_health_is_one_state_fed_by_both_transports() -> None:
    """A Triton that is stopping says so over HTTP: streams and calls over gRPC go elsewhere as well."""
    async with serving(2) as (backend, (a, b)):
        stopping = (grpc.StatusCode.UNAVAILABLE, "Server is stopping")
        a.grpc.refusal = stopping
        a.http.answer = hang_up  # type: ignore[method-assign]
        a.http.is_alive = False
        for _ in range(4):
            await call(backend)
        assert 1 == backend.replicas
        for one in backend._replicas.all:
            one.http.is_open = False
        for _ in range(4):
            await call(backend)
        assert (0, 1) == a.counts
        assert 8 == sum(b.counts)


async def test_a_callers_short_deadline_says_nothing_about_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two milliseconds are over before a new connection is there: the open ones stay, and the next call uses them."""
    # On a slow machine a caller who left would be worth gRPC.
    monkeypatch.setattr("gateway.triton.replicas._GRPC_COSTS_S", math.inf)
    async with serving(1) as (backend, (one,)):
        await asyncio.gather(*(call(backend) for _ in range(4)))
        known = one.http.connections
        hold, answer = asyncio.Event(), one.http.answer

        async def wait(head: bytes, body: bytes) -> bytes | None:
            await hold.wait()
            return await answer(head, body)

        one.http.answer = wait  # type: ignore[method-assign]
        held = [asyncio.create_task(call(backend)) for _ in range(known)]
        while len(one.http.calls) < 4 + known:
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def slowly(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(0.05)
            return await connect(*arguments, **named)

        monkeypatch.setattr(loop, "create_connection", slowly)
        with pytest.raises(DeadlineExceeded):
            await call(backend, timeout=0.002)
        hold.set()
        await asyncio.gather(*held)
        await call(backend)
        replica = backend._replicas.all[0]
        assert (False, True, 1) == (replica.is_unhealthy, replica.http.is_open, backend.replicas)
        assert (0, 5 + known) == one.counts


async def test_server_that_is_silent_is_found_out_although_every_caller_is_in_a_hurry() -> None:
    """Its calls end at their own deadlines, long before a silence would be remarkable in one of them."""
    async with serving(2) as (backend, (_, b)):
        b.http.is_stopped = True
        b.grpc.stops = asyncio.Event()
        async with asyncio.timeout(20):
            while backend.replicas == 2:
                with contextlib.suppress(DeadlineExceeded):
                    await call(backend, timeout=0.2)
        b.grpc.stops.set()


async def test_a_model_that_cannot_be_called_so_takes_no_server_out() -> None:
    """A decoupled model refuses plain calls: the caller's mistake, and no reason to ask every replica."""
    async with serving(2) as (backend, (a, b)):
        for one in (a, b):
            one.grpc.refusal = (grpc.StatusCode.UNIMPLEMENTED, "ModelInfer RPC doesn't support decoupled models")
        for replica in backend._replicas.all:
            replica.http = HttpTransport(None)
        with pytest.raises(BackendRefused, match="decoupled"):
            await call(backend)
        assert (2, 1) == (backend.replicas, a.grpc.calls + b.grpc.calls)


async def test_model_whose_callers_leave_is_called_over_grpc_until_they_stay() -> None:
    """Triton's HTTP does not notice that a caller has left; gRPC takes the call out of the queue."""
    async with serving(1) as (backend, (one,)):
        hold, answer = asyncio.Event(), one.http.answer

        async def wait(head: bytes, body: bytes) -> bytes | None:
            await hold.wait()
            return await answer(head, body)

        one.http.answer = wait  # type: ignore[method-assign]
        leaving = [asyncio.create_task(call(backend)) for _ in range(4)]
        await soon(lambda: len(one.http.calls) == 4)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        hold.set()
        assert (0, 4) == one.counts
        for _ in range(20):
            await call(backend)
        assert (20, 4) == one.counts
        for _ in range(400):
            await call(backend)
        assert len(one.http.calls) > 4
        assert not backend._replicas.all[0].is_unhealthy


async def test_closing_ends_calls_in_flight_as_unavailable() -> None:
    """As the port promises; over either transport."""
    async with serving(2) as (backend, (a, b)):
        a.grpc.hold = b.grpc.hold = asyncio.Event()
        for one in (a, b):
            one.http.is_stopped = True
        other = backend._replicas.all[1]
        other.http = HttpTransport(None)
        running = [asyncio.create_task(call(backend)) for _ in range(4)]
        await soon(lambda: 4 == sum(one.in_flight for one in backend._replicas.all))
        await backend.close()
        found = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(one, BackendUnavailable) for one in found), found
        a.grpc.hold.set()


async def test_http_whose_name_is_unknown_is_no_reason_not_to_call() -> None:
    """gRPC serves."""
    server = GrpcServer("a")
    await server.start()
    backend = TritonBackend(f"127.0.0.1:{server.port}", http="no such name:8000")
    await call(backend)
    await backend.close()
    await server.server.stop(None)


def test_http_is_given_up_only_while_callers_leave_slow_models() -> None:
    """By what it wastes: one in fifty of calls that take 50 ms, not of calls that take 1 ms; and not for ever."""
    for seconds, leaves in ((0.05, True), (0.001, False)):
        callers = Departures()
        for number in range(500):
            callers.ended(seconds, has_left=number % 50 == 0)
        assert leaves == callers.prefer_grpc
    callers = Departures()
    for _ in range(10):
        callers.ended(0.01, has_left=True)
    assert callers.prefer_grpc
    for _ in range(200):
        callers.ended(0.01, has_left=False)
    assert not callers.prefer_grpc


@given(st.lists(st.floats(0, 100), max_size=50))
def test_callers_that_stay_never_cost_http(times: list[float]) -> None:
    """However long their calls take."""
    callers = Departures()
    for seconds in times:
        callers.ended(seconds, has_left=False)
    assert not callers.prefer_grpc


@pytest.mark.parametrize(
    ("targets", "https", "pairs"),
    [
        (["a:1"], [], [("a:1", None)]),
        (["a:1", "b:1"], [("b", 8), ("a", 8)], [("a:1", ("a", 8)), ("b:1", ("b", 8))]),
        (["a:1", "a:2"], [("a", 8), ("a", 9)], [("a:1", ("a", 8)), ("a:2", ("a", 9))]),
        (["a:1", "b:1"], [("a", 8)], [("a:1", ("a", 8)), ("b:1", None)]),
        (["[::1]:1"], [("::1", 8)], [("[::1]:1", ("::1", 8))]),
        (["a:1", "b:1"], [("proxy", 8)], [("a:1", ("proxy", 8)), ("b:1", ("proxy", 8))]),
        (["service:1"], [("a", 8), ("b", 8)], [("service:1", ("a", 8)), ("service:1", ("b", 8))]),
        (["unix:/run/triton"], [("a", 8)], [("unix:/run/triton", ("a", 8))]),
    ],
)
def test_http_addresses_of_their_own_find_their_server(targets: Any, https: Any, pairs: Any) -> None:
    """By host; in order if no host has both."""
    assert pairs == pair(targets, https)


@given(
    st.lists(st.sampled_from(["a:1", "a:2", "b:1", "c:1"]), unique=True, max_size=4),
    st.lists(st.sampled_from([("a", 8), ("a", 9), ("b", 8), ("x", 8), ("y", 8)]), unique=True, max_size=5),
)
def test_every_address_is_used(targets: list[str], https: list[tuple[str, int]]) -> None:
    """No server is left out, no pair comes twice."""
    pairs = pair(targets, https)
    assert len(set(pairs)) == len(pairs)
    assert set(targets) == {target for target, _ in pairs}
    assert not targets or set(https) == {http for _, http in pairs} - {None}


async def test_a_server_that_is_gone_is_not_live_although_nobody_calls_it() -> None:
    """That HTTP answered when it was last used says nothing about now."""
    async with serving(1) as (backend, (one,)):
        await call(backend)
        await one.grpc.server.stop(None)
        assert await backend.is_live()  # models are called over HTTP
        await one.http.stop()
        assert not await backend.is_live()


async def test_a_question_on_a_connection_that_is_closed_meanwhile_has_no_answer() -> None:
    """The server has left the name: whoever asked, and asks others too, is not cancelled by that."""
    async with tritons("a") as (server,):
        server.stops = asyncio.Event()
        transport = GrpcTransport(together(server), options={}, is_compressed=False, tls=None, host="")
        asked = asyncio.create_task(transport.is_live())
        await asyncio.sleep(0.1)
        await transport.close()
        async with asyncio.timeout(30):
            assert await asked is False
        assert await transport.is_live() is False
        assert await transport.holds("") is None
        server.stops.set()


async def test_replica_that_is_slow_gets_copies_of_calls_until_it_is_as_fast_as_the_others() -> None:
    """No caller waits for it meanwhile; what it says to a copy is nobody's answer."""
    async with serving(3) as (backend, (a, b, c)):
        quick = b.http.answer

        async def slowly(head: bytes, body: bytes) -> bytes | None:
            await asyncio.sleep(0.02)
            return await quick(head, body)

        b.http.answer = slowly
        while backend.replicas == 3:
            await asyncio.gather(*(call(backend) for _ in range(3)))
        slow = backend._replicas.all[1]
        assert (2, True) == (backend.replicas, slow.is_outlier)
        assert backend.has_outliers
        assert backend.servers("model").has_outliers
        assert backend.spare == slow.pace
        slow.probe_at = math.inf
        before = [len(one.http.calls) for one in (a, b, c)]
        for _ in range(10):
            await call(backend)
        assert [5, 0, 5] == [len(one.http.calls) - had for one, had in zip((a, b, c), before, strict=True)]
        b.http.answer = quick
        probes = len(b.http.calls)
        while backend.replicas == 2:
            slow.probe_at = 0.0
            await call(backend)
        assert 0 < len(b.http.calls) - probes < 10
        assert math.inf == backend.spare
        assert not backend.has_outliers


async def test_probe_that_fails_is_nobodys_error() -> None:
    """The copy went to a server that hangs up: that one is out, the call was answered by another."""
    async with serving(3) as (backend, (_, b, _c)):
        slow = backend._replicas.all[1]
        slow.is_outlier = True
        backend._replicas._count()
        b.http.answer = hang_up
        await b.grpc.server.stop(None)  # else it would be well again as soon as it is asked
        await call(backend)
        async with asyncio.timeout(20):
            while not slow.is_unhealthy:
                await asyncio.sleep(0.01)
        assert 2 == backend.replicas
