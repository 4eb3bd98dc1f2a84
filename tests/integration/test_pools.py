"""Pools on real Tritons with the real model sync: who holds what, and what is unloaded comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gateway.control.wishes import Wishes
from gateway.errors import ModelNotReady
from gateway.triton.backend import TritonBackend
from tests.fakes import FakeRegistry
from tests.integration.test_triton_sync import serve, syncing
from tests.triton_server import TritonServer
from tests.waiting import LIMIT_S, soon, until

pytestmark = pytest.mark.integration

HOSTS = ("127.0.0.1", "127.0.0.2")
ROW = {"input_ids": np.array([[1, 2, 3]], np.int64), "attention_mask": np.ones((1, 3), np.int64)}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, make_token_model: Callable[..., Path]) -> Iterator[Any]:
    """Two Tritons of the pool ``default``, the first one of ``a10`` too, with one serving Task."""
    folder = tmp_path_factory.mktemp("pools")
    registry = FakeRegistry()
    for url, options in {
        "both": {}, "only": {"pool": "a10"}, "cold": {"unload_after": "10s"},
    }.items():  # fmt: skip
        path = make_token_model(folder / "uploads" / url / "net.onnx")
        serve(registry, url, path, **({"auxiliary_cfg": {"gateway": options}} if options else {}))
    servers = [TritonServer(folder / host, folder / host / "models", host=host) for host in HOSTS]
    addresses = [server.grpc for server in servers]
    try:
        with contextlib.ExitStack() as stack:
            syncs = {
                host: stack.enter_context(syncing(registry, folder / host, address, pools=frozenset(of)))
                for host, address, of in zip(HOSTS, addresses, ({"default", "a10"}, {"default"}), strict=True)
            }
            yield SimpleNamespace(registry=registry, addresses=addresses, syncs=syncs)
    finally:
        for server in servers:
            server.stop()


def states(pair: Any, host: str) -> dict[str, tuple[str, str]]:
    """Endpoint → state and name of its model, as the sync of one Triton says."""
    return {
        m["url"]: ("cold" if "idle" in m["doing"] else m["state"], m["name"])
        for m in pair.syncs[host].status()["models"]
    }


def held(pair: Any) -> dict[str, set[str]]:
    """Endpoint → hosts that hold it, or have held it until nobody asked."""
    found: dict[str, set[str]] = {}
    for host in HOSTS:
        for url, (state, _) in states(pair, host).items():
            if state in ("loaded", "cold"):
                found.setdefault(url, set()).add(host)
    return found


async def ask(backend: TritonBackend, model: str) -> float:
    """The sum of the ids, as the model has it."""
    answer = await backend.infer(model, ROW, ["logits"], timeout=LIMIT_S)
    return float(answer["logits"].item())


def test_each_triton_holds_what_its_pools_say(pair: Any) -> None:
    """All of the pool; those of the pool that an endpoint names."""
    until(lambda: {"both": set(HOSTS), "cold": set(HOSTS), "only": {HOSTS[0]}} == held(pair))


async def test_calls_find_who_holds_a_model_and_one_that_was_unloaded_comes_back(pair: Any) -> None:
    """One address of both, as behind a name; the request for what is cold waits until a Triton has loaded it."""
    await soon(lambda: len(held(pair).get("cold", ())) == 2)
    names = {url: name for host in HOSTS for url, (_, name) in states(pair, host).items() if name}
    wishes = Wishes(pair.registry.ledger)
    backend = TritonBackend("ipv4:" + ",".join(pair.addresses), cold_s=LIMIT_S, wish=wishes.make)
    try:
        await soon_ready(backend, names["both"])
        assert [6.0] * 4 == [await ask(backend, names["both"]) for _ in range(4)]
        await soon(lambda: {"cold"} == {states(pair, host).get("cold", ("",))[0] for host in HOSTS})
        with pytest.raises(ModelNotReady):
            await ask(backend, names["cold"])  # of nobody that is known to be unloaded
        leave = backend.expect_cold(names["cold"])
        assert 6.0 == await ask(backend, names["cold"])
        leave()
    finally:
        await backend.close()


async def soon_ready(backend: TritonBackend, model: str) -> None:
    """Wait until a version of it could be served."""
    async with asyncio.timeout(LIMIT_S):
        while not await backend.is_ready(model):
            await asyncio.sleep(0.1)
