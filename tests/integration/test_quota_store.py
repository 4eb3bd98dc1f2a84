"""The store of quotas on a real Redis server."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.callers.quotas import REQUESTS, TOKENS, Limits
from gateway.callers.shared_quotas import RedisStore, StoreAway, Taken
from tests.stores import RedisServer
from tests.waiting import LIMIT_S

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


@pytest.fixture
async def store(
    server: RedisServer, client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RedisStore]:
    """An empty store; ``client`` has emptied it. It waits for a server that a busy machine keeps from answering."""
    monkeypatch.setattr("gateway.callers.shared_quotas.TIMEOUT_S", LIMIT_S)
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    made = RedisStore(server.url, str(password))
    yield made
    await made.close()


async def test_a_request_takes_from_both_buckets_or_from_none(store: RedisStore) -> None:
    """The first limit that lacks is named, and nothing is taken."""
    limits = Limits(requests_per_minute=3, tokens_per_minute=100)
    assert Taken("", 2, 40) == await store.take("t", limits, 60, 0.0)
    lacks = await store.take("t", limits, 60, 0.0)
    assert TOKENS == lacks.lacks
    assert pytest.approx(2, abs=0.5) == lacks.requests
    assert "" == (await store.take("t", limits, 1, 0.0)).lacks
    assert "" == (await store.take("t", limits, 1, 0.0)).lacks
    assert REQUESTS == (await store.take("t", limits, 1, 0.0)).lacks


async def test_what_is_owed_is_taken_in_any_case(store: RedisStore) -> None:
    """Also by a request that is refused; and what was estimated too high comes back, up to the limit."""
    limits = Limits(tokens_per_minute=100)
    assert Taken(TOKENS, math.inf, -400.0) == await store.take("t", limits, 1, 500.0)
    assert (await store.take("t", limits, 1, -700.0)).tokens == pytest.approx(99, abs=0.1)


async def test_a_request_larger_than_its_bucket_is_admitted_when_it_is_full(store: RedisStore) -> None:
    """A limit of 0 admits none."""
    assert Taken("", math.inf, -900.0) == await store.take("t", Limits(tokens_per_minute=100), 1000, 0.0)
    assert REQUESTS == (await store.take("u", Limits(requests_per_minute=0), 1, 0.0)).lacks
    assert TOKENS == (await store.take("v", Limits(tokens_per_minute=0), 1, 0.0)).lacks


async def test_many_requests_at_once_take_no_more_than_there_is(store: RedisStore) -> None:
    """Over a few connections."""
    limits = Limits(requests_per_minute=100)
    began = asyncio.get_running_loop().time()
    found = await asyncio.gather(*(store.take("t", limits, 1, 0.0) for _ in range(300)))
    come_back = (asyncio.get_running_loop().time() - began) * 100 / 60
    assert 100 <= sum(not one.lacks for one in found) <= 101 + come_back


async def test_buckets_refill_by_the_servers_clock(store: RedisStore, client: Redis) -> None:
    """At the limit's rate, to a minute's worth. A clock that goes back takes nothing away."""
    limits = Limits(requests_per_minute=60)
    began = asyncio.get_running_loop().time()
    for _ in range(10):
        await store.take("t", limits, 1, 0.0)
    [key] = await client.keys()
    at = float(await client.hget(key, "at") or 0)
    left = float(await client.hget(key, "requests") or 0)
    for seconds, wanted in ((5.0, left + 4), (-5.0, left - 1), (1e6, 59.0)):
        await client.hset(key, mapping={"at": at - seconds, "requests": left})
        found = (await store.take("t", limits, 1, 0.0)).requests
        assert wanted - 0.001 <= found <= wanted + 0.001 + asyncio.get_running_loop().time() - began
    assert 0 < await client.ttl(key) <= 3600


async def test_a_limit_that_is_added_begins_full(store: RedisStore) -> None:
    """Before it there was none to take from."""
    await store.take("t", Limits(requests_per_minute=10), 500, 0.0)
    found = await store.take("t", Limits(requests_per_minute=10, tokens_per_minute=100), 30, 0.0)
    assert ("", 70.0) == (found.lacks, found.tokens)


async def test_tenants_are_apart(store: RedisStore) -> None:
    """Whatever their names are."""
    for name in ("a", "ä ö/:{}*", "b" * 100):
        assert Taken("", 9, math.inf) == await store.take(name, Limits(requests_per_minute=10), 1, 0.0)


async def test_a_wrong_password_is_no_secret_in_the_message(server: RedisServer, tmp_path: Path) -> None:
    """The file is read for each connection: with the right one in it, the same store works."""
    password = tmp_path / "password"
    password.write_text("hunter2-wrong")
    store = RedisStore(server.url, str(password))
    with pytest.raises(StoreAway) as away:
        await store.check()
    assert "hunter2" not in str(away.value)
    password.write_text(PASSWORD)
    await store.check()
    await store.close()


async def test_a_name_server_that_does_not_answer_occupies_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work of the process needs the threads."""
    release, asked = threading.Event(), threading.Semaphore(0)

    def look_up(*_: object, **_more: object) -> list[object]:
        asked.release()
        release.wait(LIMIT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "name servers are back, and know nothing")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    store = RedisStore("redis://quotas.example")
    check = asyncio.create_task(store.check())
    assert await asyncio.to_thread(asked.acquire, timeout=LIMIT_S)
    assert not check.done()
    release.set()
    with pytest.raises(StoreAway, match="know nothing"):
        await check
    await store.close()


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_server_that_does_not_answer_is_away_soon_and_usable_again(how: str, tmp_path: Path) -> None:
    """No late reply is taken for another one's; a server without its script gets it again."""
    limits, others = Limits(requests_per_minute=600), Limits(tokens_per_minute=600)
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        await _take(store, "t", limits)
        (server.freeze if how == "frozen" else server.kill)()
        for _ in range(2):
            with pytest.raises(StoreAway):
                async with asyncio.timeout(LIMIT_S):
                    await store.take("late", limits, 1, 0.0)
        (server.thaw if how == "frozen" else server.start)()
        found = await _take(store, "other", others)
        assert ("", math.inf) == (found.lacks, found.requests)
        assert 590 < found.tokens < 600
        await store.close()


async def _take(store: RedisStore, tenant: str, limits: Limits) -> Taken:
    """Take one token as soon as the server answers in time."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await store.take(tenant, limits, 1, 0.0)
            except StoreAway:
                await asyncio.sleep(0.01)
