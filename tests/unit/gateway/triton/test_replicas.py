"""Several Tritons behind one address: every call is answered as long as one of them can answer it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme

from gateway.errors import BackendUnavailable, ModelNotReady
from gateway.triton.addresses import servers_of
from gateway.triton.backend import TritonBackend
from gateway.triton.tls import TritonTls
from tests.waiting import LIMIT_S, soon

from .servers import GrpcServer, together, tritons

INPUT = {"x": np.zeros((1, 1), np.int64)}
STOPPING = (grpc.StatusCode.UNAVAILABLE, "Server is stopping, scheduler for model has stopped accepting")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8001", ["127.0.0.1:8001"]), ("triton:8001", [("triton", 8001)]),
        ("grpcs://triton-2:8001", [("triton-2", 8001)]), ("dns:///triton.ns.svc:8001", [("triton.ns.svc", 8001)]),
        ("dns:triton:8001", [("triton", 8001)]), ("dns://10.0.0.10/triton:8001", [("triton", 8001)]),
        ("grpc://ipv4:10.0.0.1:8001,10.0.0.2:8001", ["10.0.0.1:8001", "10.0.0.2:8001"]),
        ("ipv6:[::1]:8001", ["[::1]:8001"]), ("unix:/run/triton.sock", ["unix:/run/triton.sock"]),
        ("dns:///x:8001; 10.0.0.1:8001", [("x", 8001), "10.0.0.1:8001"]),
    ],
)  # fmt: skip
def test_addresses_are_read_as_grpc_and_clearml_write_them(address: str, expected: object) -> None:
    """The gateway resolves names itself and uses fixed addresses unchanged."""
    assert expected == servers_of(address)


async def call(backend: TritonBackend, model: str = "m", timeout: float = LIMIT_S) -> None:
    """Make one inference call."""
    await backend.infer(model, INPUT, [], timeout=timeout)


@dataclass
class Pair:
    """Two servers and their backend."""

    a: GrpcServer
    b: GrpcServer
    backend: TritonBackend

    async def called(self, times: int) -> tuple[int, int]:
        """Make calls; return all calls of each server so far."""
        for _ in range(times):
            await call(self.backend)
        return self.a.calls, self.b.calls


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A backend that looks up at every opportunity."""
    async with tritons("a", "b") as (a, b):
        backend = TritonBackend(together(a, b), lookup_every=0)
        yield Pair(a, b, backend)
        await backend.close()


async def test_replica_that_refuses_costs_no_call_and_gets_no_more(pair: Pair) -> None:
    """A stopping Triton answers UNAVAILABLE. The call and all later ones go to another server.

    Fewer than twelve calls each: from there on a server that a busy machine has slowed down gets less.
    """
    assert await pair.backend.is_live()
    assert ((2, 2), 2) == (await pair.called(4), pair.backend.replicas)
    pair.a.refusal = STOPPING
    assert ((3, 6), 1) == (await pair.called(4), pair.backend.replicas)
    pair.a.refusal = None
    assert await pair.backend.is_live()
    assert ((5, 8), 2) == (await pair.called(4), pair.backend.replicas)


async def test_a_call_whose_server_dies_is_repeated(pair: Pair) -> None:
    """Inference changes nothing, so a call that was in flight may run twice."""
    pair.a.hold, pair.b.hold = asyncio.Event(), asyncio.Event()
    calls = [asyncio.create_task(call(pair.backend)) for _ in range(4)]
    await soon(lambda: pair.a.calls + pair.b.calls == 4)
    await pair.a.server.stop(None)
    pair.b.hold.set()
    await asyncio.gather(*calls)
    assert 4 == pair.b.calls


@pytest.mark.parametrize("stops", [False, True], ids=["slow", "stopping"])
async def test_a_replica_that_lives_keeps_its_calls(pair: Pair, stops: bool) -> None:
    """A slow model must not run twice, however often its server is probed; one that says it stops answers what it has,
    and gets no more. A caller that leaves ends its call.
    """
    pair.a.hold = pair.b.hold = asyncio.Event()
    running = [asyncio.create_task(call(pair.backend, timeout=3600)) for _ in range(4)]
    await soon(lambda: pair.a.calls + pair.b.calls == 4)
    pair.a.refusal = STOPPING if stops else None
    for _ in range(3):
        assert await pair.backend.is_live()
    assert 2 - stops == pair.backend.replicas
    running[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await running[0]
    pair.a.hold.set()
    await asyncio.gather(*running[1:])
    assert 4 == pair.a.calls + pair.b.calls  # how they are shared depends on the time


async def test_what_no_server_can_answer_fails_at_once(pair: Pair) -> None:
    """A model that none has, for which a repeat could not help, and servers that are down."""
    alone = TritonBackend(together(pair.a))
    for backend, calls in ((pair.backend, (1, 1)), (alone, (2, 1))):
        with pytest.raises(ModelNotReady):
            await call(backend, "other")
        assert calls == (pair.a.calls, pair.b.calls)
    await alone.close()
    await asyncio.gather(pair.a.server.stop(None), pair.b.server.stop(None))
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(BackendUnavailable):
            await call(pair.backend, timeout=36_000)
    assert not await pair.backend.is_live()


class Names:
    """A name server: targets by host."""

    def __init__(self, **known: Sequence[GrpcServer]) -> None:
        self.known, self.away = known, False

    async def lookup(self, host: str, _port: int) -> tuple[str, ...]:
        """Return the targets of a host."""
        if self.away or not (found := self.known.get(host)):
            raise OSError(-2, "Name or service not known")
        return tuple(f"127.0.0.1:{one.port}" for one in found)

    def backend(self, address: str = "dns:///t:8001", **settings: Any) -> TritonBackend:
        """Return a backend that looks up at every opportunity."""
        return TritonBackend(address, lookup=self.lookup, lookup_every=0, **settings)


async def test_replicas_follow_their_names() -> None:
    """New ones get calls once they answer and have the model; those that left get none; an error changes nothing."""
    async with tritons("a", "b", "c", "d") as servers:
        a, b, c, d = servers

        async def called(times: int) -> list[int]:
            before = [one.calls for one in servers]
            for _ in range(times):
                await call(backend)
            return [one.calls - had for one, had in zip(servers, before, strict=True)]

        names = Names(x=[a], y=[d])
        backend = names.backend("dns:///x:8001;dns:///y:8001")
        assert await backend.is_live()
        assert [2, 0, 0, 2] == await called(4)
        names.known["x"] = [a, b, c]
        c.models = set()
        await backend.is_ready("m")
        await backend.is_live()
        assert [2, 2, 0, 2] == await called(6)
        names.away = True
        assert await backend.is_live()
        assert [2, 2, 0, 2] == await called(6)
        names.away, names.known = False, {"y": [b]}  # only x is not known
        await backend.is_live()
        found = await called(6)
        assert (0, True) == (found[3], found[0] > 0)
        names.known["x"] = [b]
        await backend.is_live()
        assert [0, 6, 0, 0] == await called(6)
        await backend.close()


async def test_tls_with_a_client_certificate_and_its_renewal(tmp_path: Path) -> None:
    """Server and client authenticate each other. Replaced files are read again. An unknown client is refused."""
    ours, others = trustme.CA(), trustme.CA()

    def write(authority: trustme.CA) -> TritonTls:
        client = authority.issue_cert("gateway")
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        client.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
        (tmp_path / "cert.pem").write_bytes(b"".join(c.bytes() for c in client.cert_chain_pems))
        return TritonTls(*(str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem")), name="triton")

    mine = ours.issue_cert("triton")
    credentials = grpc.ssl_server_credentials(
        [(mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes())], ours.cert_pem.bytes(), True
    )
    server = GrpcServer("a")
    await server.start(credentials)
    backend = TritonBackend(f"grpcs://127.0.0.1:{server.port}", tls=write(others), lookup_every=0)
    assert not await backend.is_live()
    write(ours)
    assert await backend.is_live()
    await call(backend)
    await backend.close()
    plain = TritonBackend(f"127.0.0.1:{server.port}")
    assert not await plain.is_live()
    await plain.close()
    lost = TritonBackend(f"grpcs://127.0.0.1:{server.port}", tls=TritonTls(str(tmp_path / "no.pem")))
    assert "no.pem" in await lost.why_not_ready("m")
    await server.server.stop(None)


async def test_the_list_of_each_server_is_read_for_all_models_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty versions waiting for three Tritons do not cause fifty reads of each."""
    monkeypatch.setattr("gateway.triton.replicas._SURVEY_S", 3600.0)
    async with tritons("a", "b", "c") as servers:
        backend = TritonBackend(together(*servers), lookup_every=3600)
        for _ in range(3):
            assert [False] * 50 == await asyncio.gather(*(backend.is_ready(f"m{i}") for i in range(50)))
        assert [1, 1, 1] == [server.surveys for server in servers]
        await backend.close()


async def test_a_call_for_a_pool_without_servers_waits_until_one_has_started() -> None:
    """For a limited time. It is counted, so that a server is started. Without the setting it fails at once."""
    async with tritons("a") as (a,):
        names = Names()
        patient, plain = names.backend(away_s=LIMIT_S), names.backend()
        assert (0, 0) == (patient.waiting, plain.waiting)
        with pytest.raises(BackendUnavailable):
            await call(plain)
        assert 1 == plain.waiting  # for a minute: it is wanted, whether anybody waits or not
        calls = [asyncio.create_task(call(patient, timeout=3600)) for _ in range(3)]
        await soon(lambda: patient.waiting == 3)
        a.models = set()
        names.known["t"] = [a]
        async with asyncio.timeout(LIMIT_S):
            while not await patient.is_live():
                await asyncio.sleep(0.01)
        assert not any(one.done() for one in calls)  # it has started and has not loaded the model yet
        assert 0 == patient.waiting
        a.models = {"m"}
        await asyncio.gather(*calls)
        await patient.close()
        await plain.close()


@pytest.mark.parametrize(("away_s", "timeout"), [(0.2, 30.0), (30.0, 0.3)])
async def test_a_call_that_waited_in_vain_gets_the_reason_and_a_retry_time(away_s: float, timeout: float) -> None:
    """It ends before the request's deadline, so that the answer still reaches the caller."""
    backend = Names().backend(away_s=away_s)
    with pytest.raises(BackendUnavailable, match=r"Name or service not known.*a Triton is being started") as caught:
        await call(backend, timeout=timeout)
    assert caught.value.retry_after
    assert "Name or service not known" in await backend.why_not_ready("m")
    await backend.close()


async def test_a_cold_model_is_requested_and_called_once_loaded() -> None:
    """Only while a version says that it is unloaded when idle; two versions of one model may overlap."""
    async with tritons("a", "b") as (a, b):
        asked: list[str] = []
        backend = TritonBackend(together(a, b), lookup_every=0, cold_s=LIMIT_S, ask_to_load=asked.append)
        await call(backend)
        a.models, b.models = set(), set()
        leave = [backend.expect_cold("m") for _ in range(2)]
        leave[0]()
        waiting = asyncio.create_task(call(backend, timeout=3600))
        await soon(lambda: asked)
        b.models, calls_before = {"m"}, b.calls
        await waiting
        assert calls_before < b.calls
        assert ({"m"}, 0) == (set(asked), backend.waiting)
        b.models = set()
        with pytest.raises(ModelNotReady, match="the model is being loaded"):
            await call(backend, timeout=0.2)
        leave[1]()
        asked.clear()
        with pytest.raises(ModelNotReady):
            await call(backend)
        assert [] == asked
        await backend.close()


async def test_a_triton_that_still_loads_models_delays_no_version() -> None:
    """It gets calls for the models that it has. Versions wait for it once it has had all models."""
    async with tritons("a", "b") as (a, b):
        names = Names(t=[a])
        a.models, b.models = {"m", "n", "few"}, {"m"}
        backend = names.backend()
        backend.expect_cold("few")

        async def becomes(fact: Callable[[], bool], model: str = "n") -> None:
            async with asyncio.timeout(LIMIT_S):
                while not (await backend.is_ready(model) and await backend.is_live() and fact()):
                    await asyncio.sleep(0.01)

        await becomes(lambda: True, "m")
        names.known["t"] = [a, b]
        await becomes(lambda: backend.replicas == 2)
        for _ in range(6):
            await call(backend, "n")
        assert (6, 0) == (a.calls, b.calls)
        b.models = {"m", "n"}
        await becomes(lambda: not backend.all[1].lacks("n"))
        a.models = {"m", "n", "few", "new"}
        await becomes(lambda: not backend.all[0].lacks("new"))
        assert not await backend.is_ready("new")
        b.models = {"m", "n", "new"}
        await becomes(lambda: True, "new")
        await backend.close()
