"""Quotas that several workers share through a real Redis server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.callers import shared_quotas
from gateway.callers.quotas import Limits, Quota, Quotas
from gateway.callers.shared_quotas import SharedQuotas
from gateway.errors import QuotaExceeded
from tests.stores import RedisServer
from tests.waiting import LIMIT_S, soon

pytestmark = [pytest.mark.integration, pytest.mark.redis]

PASSWORD = "a secret of tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for this file."""
    with RedisServer(tmp_path_factory.mktemp("redis"), PASSWORD) as server:
        yield server


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[Redis]:
    """A client of the emptied server."""
    async with Redis.from_url(server.url, password=PASSWORD, decode_responses=True) as client:
        await client.flushall()
        yield client


class Worker:
    """One of four workers that share a store, and the quota of one tenant in it."""

    def __init__(self, store: SharedQuotas, client: Redis, tenant: str, limits: Limits) -> None:
        self.store, self.over = store, []  # type: tuple[SharedQuotas, list[str]]
        self._client, self._tenant = client, tenant
        quotas = Quotas(lambda _tenant, reason: self.over.append(reason))
        quotas.configure({tenant: limits}, 0.25)
        quota = quotas.of(tenant, 0.0)
        assert quota is not None
        self.quota: Quota = quota

    async def ask(self, tokens: int = 1) -> str:
        """Ask with a body of about so many tokens; why it was refused, else empty."""
        try:
            await self.store.admit(self.quota, 4 * (tokens - 1))
        except QuotaExceeded as error:
            return error.because
        return ""

    async def left(self) -> tuple[float, float]:
        """The requests and tokens that the store has left for the tenant; infinite for what it does not know."""
        found = await self._client.hmget(f"triton-gateway:quota:{self._tenant}", ["requests", "tokens"])
        requests, tokens = (float(one) if one else math.inf for one in found)
        return requests, tokens


@contextlib.asynccontextmanager
async def running(url: str, *more: Any) -> AsyncIterator[SharedQuotas]:
    """Use the store at ``url`` as a worker does."""
    store = SharedQuotas(url, *more)
    task = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a second for the next check."""
    monkeypatch.setattr(shared_quotas, "CHECK_S", 0.01)


Workers = Callable[..., Worker]
"""A worker of the first or the second process (``number``) that uses one store."""


@pytest.fixture
async def worker(
    server: RedisServer, client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Workers]:
    """Make workers of an empty store; ``client`` has emptied it. They wait for it on a busy machine too."""
    monkeypatch.setattr(shared_quotas, "TIMEOUT_S", LIMIT_S)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    told = server.url, str(tmp_path / "password")
    async with running(*told) as first, running(*told) as second:
        await soon(lambda: first.is_good and second.is_good)
        stores = first, second
        yield lambda tenant="t", *, number=0, **limits: Worker(stores[number], client, tenant, Limits(**limits))


def passed() -> Callable[[], float]:
    """Return what gives the seconds since now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began


async def test_a_limit_holds_over_all_workers(worker: Workers) -> None:
    """However the requests are spread."""
    since = passed()
    workers = [worker(number=number, requests_per_minute=40) for number in range(2)]
    found = [await workers[number % 5 == 0].ask() for number in range(60)]
    assert 40 <= found.count("") <= 41 + since() * 40 / 60
    assert found.count("quota_requests") == 60 - found.count("") == sum(len(one.over) for one in workers)


async def test_a_request_takes_from_both_buckets_or_from_none(worker: Workers) -> None:
    """The first limit that lacks is named, and nothing is taken."""
    one = worker(requests_per_minute=3, tokens_per_minute=100)
    assert "" == await one.ask(160)
    assert pytest.approx((2, -60)) == (await one.left())
    assert "quota_tokens" == await one.ask(100)
    assert (await one.left())[0] >= 2
    assert (await one.left())[1] >= -60


async def test_the_tokens_of_an_answer_are_told_with_the_next_request(worker: Workers) -> None:
    """Also by one that is refused; and what was estimated too high comes back, up to the limit."""
    since = passed()
    one = worker(tokens_per_minute=600)
    one.quota.settle(await one.store.admit(one.quota, 400), 500)
    assert "" == await one.ask()
    assert 98.9 <= (await one.left())[1] <= 99.1 + 10 * since()
    one.quota.owed = 50_000
    assert "quota_tokens" == await one.ask()
    assert (await one.left())[1] <= -49_000 + 10 * since()
    one.quota.owed = -90_000
    assert "" == await one.ask()
    assert pytest.approx(599) == (await one.left())[1]


async def test_a_request_larger_than_its_bucket_is_admitted_when_it_is_full(worker: Workers) -> None:
    """A refusal then says when the store has enough for the request. A limit of 0 admits none."""
    one = worker(tokens_per_minute=100)
    assert "" == await one.ask(1000)
    assert -900 == (await one.left())[1]
    with pytest.raises(QuotaExceeded) as refused:
        await one.store.admit(one.quota, 4 * 79)
    assert pytest.approx((80 - (await one.left())[1]) * 60 / 100, abs=1) == refused.value.retry_after
    assert "quota_requests" == await worker("u", requests_per_minute=0).ask()
    assert "quota_tokens" == await worker("v", tokens_per_minute=0).ask()


async def test_buckets_refill_by_the_servers_clock(worker: Workers, client: Redis) -> None:
    """At the limit's rate, to a minute's worth. A clock that goes back takes nothing away."""
    one = worker(requests_per_minute=60)
    began = asyncio.get_running_loop().time()
    for _ in range(10):
        await one.ask()
    [key] = await client.keys()
    at = float(await client.hget(key, "at") or 0)
    left = float(await client.hget(key, "requests") or 0)
    for seconds, wanted in ((5.0, left + 4), (-5.0, left - 1), (1e6, 59.0)):
        await client.hset(key, mapping={"at": at - seconds, "requests": left})
        await one.ask()
        assert wanted - 0.001 <= (await one.left())[0] <= wanted + 0.001 + asyncio.get_running_loop().time() - began
    assert 0 < await client.ttl(key) <= 3600


async def test_a_wrong_password_is_no_secret_in_the_log(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is read for each connection: with the right one in it, the same store works."""
    password = tmp_path / "password"
    password.write_text("hunter2-wrong")
    async with running(server.url, str(password)) as store:
        await soon(lambda: store.is_good is False)
        assert "is away" in caplog.text
        assert "hunter2" not in caplog.text
        password.write_text(PASSWORD)
        await soon(lambda: store.is_good)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_without_its_store_a_worker_admits_its_share(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No late reply is taken for another one's, and a server without its script gets it again."""
    monkeypatch.setattr(shared_quotas, "time", SimpleNamespace(monotonic=lambda: 7.0))
    reports: list[bool] = []
    with RedisServer(tmp_path) as server:
        async with contextlib.AsyncExitStack() as stack:
            told = running(server.url, "", lambda _address, is_good: reports.append(is_good))
            store = await stack.enter_async_context(told)
            await soon(lambda: store.is_good)
            client = await stack.enter_async_context(Redis.from_url(server.url, decode_responses=True))
            one = Worker(store, client, "t", Limits(80))
            other = Worker(store, client, "other", Limits(tokens_per_minute=600))
            (server.freeze if how == "frozen" else server.kill)()
            assert 20 == [await one.ask() for _ in range(30)].count("")
            assert (False, False) == (reports[-1], store.is_good)
            assert "each gateway admits its share" in caplog.text
            (server.thaw if how == "frozen" else server.start)()
            async with asyncio.timeout(LIMIT_S):
                while (await other.left())[1] == math.inf:
                    await soon(lambda: store.is_good)
                    await other.ask()
            assert math.inf == (await other.left())[0]
            assert 500 < (await other.left())[1] < 600
            await soon(lambda: (True, True) == (reports[-1], store.is_good))
