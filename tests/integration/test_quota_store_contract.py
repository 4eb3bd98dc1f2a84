"""One suite over the store of quotas in memory and a real Redis server."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.callers import redis_store
from gateway.callers.redis_store import RedisStore
from gateway.callers.shared_quotas import QuotaStore, Report, StoreAway
from gateway.testing import FakeQuotaStore
from tests.stores import RedisServer
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.integration

PASSWORD = "a secret of tests"
FIRST = Report(
    "t", "w1", 1, 0, (600.0, math.inf), 100.0, spent=(10.0, 0.0), told=(0.0, 0.0), estimate=(590.0, math.inf),
    wanted=(20.0, 0.0), least=(1.0, 1.0), held=0.0, wanted_held=10.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for this file."""
    with RedisServer(tmp_path_factory.mktemp("redis"), PASSWORD) as server:
        yield server


@pytest.fixture(params=["fake", pytest.param("redis", marks=pytest.mark.redis)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QuotaStore]:
    """An empty store."""
    if request.param == "fake":
        yield FakeQuotaStore(time.monotonic)
        return
    server = request.getfixturevalue("server")
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    made = RedisStore(server.url, password_file=str(password), name=tmp_path.name)
    yield made
    await made.close()


async def one(store: QuotaStore, report: Report) -> tuple[float, float, float]:
    """Send one report; return what is left, the lease, and the concurrent tokens."""
    [grant] = await store.step([report])
    assert grant is not None
    return grant.left[0], grant.lease[0], grant.held


async def test_what_was_spent_is_spent_for_everybody(store: QuotaStore) -> None:
    """A worker that comes later starts from what is left, and from what came back since."""
    began = time.monotonic()
    left, lease, _ = await one(store, FIRST)
    assert 590 == left
    assert pytest.approx(295, abs=1) == lease
    left, lease, _ = await one(store, dataclasses.replace(FIRST, worker="w2", spent=(5.0, 0.0)))
    back = 10 * (time.monotonic() - began) + 1
    assert 584 <= left <= 585 + back
    assert 20 <= lease <= 585 - 295 + back


async def test_a_report_counts_once(store: QuotaStore) -> None:
    """A repeated one and an older one change nothing; the next counts what was spent since."""
    await one(store, dataclasses.replace(FIRST, number=5))
    assert [None] == await store.step([dataclasses.replace(FIRST, number=5)])
    assert [None] == await store.step([dataclasses.replace(FIRST, number=4, spent=(0.0, 0.0))])
    left, _, _ = await one(store, dataclasses.replace(FIRST, number=6, spent=(110.0, 0.0)))
    assert pytest.approx(490, abs=1) == left


async def test_leases_are_never_more_than_is_left(store: QuotaStore) -> None:
    """For three workers that want everything; and none is left without its part."""
    leases: dict[str, float] = {}
    for number in range(1, 6):
        for worker in ("w1", "w2", "w3"):
            _, leases[worker], _ = await one(
                store, dataclasses.replace(FIRST, worker=worker, number=number, wanted=(1000.0, 0.0), spent=(0.0, 0.0))
            )  # fmt: skip
            assert sum(leases.values()) <= 600
    assert min(leases.values()) >= 0.95 * 200


async def test_a_worker_that_leaves_returns_its_lease(store: QuotaStore) -> None:
    """What it did not use is there for the others."""
    await one(store, dataclasses.replace(FIRST, wanted=(590.0, 0.0)))
    greedy = dataclasses.replace(FIRST, worker="w2", wanted=(1000.0, 0.0), spent=(0.0, 0.0))
    _, lease, _ = await one(store, greedy)
    assert lease < 10
    await store.step([dataclasses.replace(FIRST, number=2, leaves=True)])
    _, lease, _ = await one(store, dataclasses.replace(greedy, number=2))
    assert lease > 580


async def test_concurrent_tokens_are_divided_by_what_is_wanted(store: QuotaStore) -> None:
    """What one holds, another cannot have; without a limit there is none."""
    _, _, held = await one(store, dataclasses.replace(FIRST, held=60.0, wanted_held=60.0))
    assert held >= 60
    _, _, held = await one(store, dataclasses.replace(FIRST, worker="w2", wanted_held=100.0))
    assert 0 < held <= 40
    _, _, held = await one(store, dataclasses.replace(FIRST, worker="w3", concurrent=math.inf))
    assert math.inf == held


async def test_a_bucket_refills_and_debts_end_after_a_minute(store: QuotaStore) -> None:
    """At the limit's rate; a debt is never more than a minute's worth."""
    quick = dataclasses.replace(FIRST, limits=(6e6, math.inf), estimate=(0.0, math.inf), spent=(0.0, 0.0))
    await one(store, quick)
    number, left = 1, 0.0
    while left <= 1000:  # bounded by the timeout of the test
        number += 1
        left, _, _ = await one(store, dataclasses.replace(quick, number=number))
    left, _, _ = await one(store, dataclasses.replace(quick, number=number + 1, spent=(1e9, 0.0)))
    assert -6e6 == left


async def test_a_worker_that_knew_other_buckets_owes_nothing_to_new_ones(store: QuotaStore) -> None:
    """The store had lost what it knew: the worker that comes first says about what is left."""
    left, _, _ = await one(store, dataclasses.replace(FIRST, known=12345, spent=(500.0, 0.0), estimate=(100.0, 0.0)))
    assert 100 == left
    left, _, _ = await one(store, dataclasses.replace(FIRST, worker="w2", known=12345, spent=(300.0, 0.0)))
    assert pytest.approx(100, abs=1) == left


async def test_tenants_are_apart(store: QuotaStore) -> None:
    """Many in one step, whatever their names are."""
    names = ["a", "ä ö/:{}*", "b" * 100, *(f"t{number}" for number in range(100))]
    found = await store.step([
        dataclasses.replace(FIRST, tenant=name, spent=(float(at), 0.0), estimate=(600.0 - at, math.inf))
        for at, name in enumerate(names)
    ])  # fmt: skip
    assert [600 - at for at in range(len(names))] == [grant.left[0] for grant in found if grant is not None]


@pytest.mark.redis
async def test_a_wrong_password_is_no_secret_in_the_message(server: RedisServer, tmp_path: Path) -> None:
    """The file is read for each connection: with the right one in it, the same store works."""
    password = tmp_path / "password"
    password.write_text("hunter2-wrong")
    store = RedisStore(server.url, password_file=str(password), name=tmp_path.name)
    with pytest.raises(StoreAway) as away:
        await store.step(())
    assert "hunter2" not in str(away.value)
    password.write_text(PASSWORD)
    assert [] == await store.step(())
    await store.close()


@pytest.mark.redis
async def test_a_clock_that_goes_back_takes_nothing_away(server: RedisServer, tmp_path: Path) -> None:
    """As the one of a replica that takes over."""
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    store = RedisStore(server.url, password_file=str(password), name=tmp_path.name)
    await one(store, FIRST)
    async with Redis.from_url(server.url, password=PASSWORD, decode_responses=True) as client:
        key = f"{tmp_path.name}:quota:t"
        name, at, *left = str(await client.hget(key, "_")).split()
        await client.hset(key, "_", " ".join([name, str(float(at) + 60_000), *left]))
    left_now, _, _ = await one(store, dataclasses.replace(FIRST, number=2))
    assert pytest.approx(590, abs=1) == left_now
    await store.close()


async def test_a_name_server_that_does_not_answer_occupies_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the store is asked; other work of the process needs the threads."""
    release, asked = threading.Event(), []

    def look_up(host: str, *_: object, **_more: object) -> list[object]:
        asked.append(host)
        release.wait(120)
        raise socket.gaierror(socket.EAI_AGAIN, "name servers are back, and know nothing")

    monkeypatch.setattr(redis_store, "STEP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    store = RedisStore("redis://quotas.example")
    try:
        for _ in range(3):
            with pytest.raises(StoreAway):
                await store.step(())
        assert ["quotas.example"] == asked
    finally:
        release.set()
    monkeypatch.setattr(redis_store, "STEP_TIMEOUT_S", 60.0)
    with pytest.raises(StoreAway, match="know nothing"):
        await store.step(())
    await store.close()


@pytest.mark.redis
@pytest.mark.parametrize("how", ["killed", "frozen", "without its script"])
async def test_a_server_that_does_not_answer_is_away_soon_and_usable_again(how: str, tmp_path: Path) -> None:
    """Each step ends within its time, and no late reply is taken for another one's."""
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        await one(store, FIRST)
        back: Callable[[], None] = server.start
        if how == "frozen":
            server.freeze()
            back = server.thaw
        elif how == "killed":
            server.kill()
        else:
            server.kill()
            server.start()
            await store.close()  # as after a first failed step
        if how != "without its script":
            for number in (2, 3):
                with pytest.raises(StoreAway):
                    async with asyncio.timeout(LIMIT_S):
                        await store.step([dataclasses.replace(FIRST, number=number)])
            back()

        for number in itertools.count(10):  # bounded by the timeout of the test
            later = dataclasses.replace(FIRST, number=number, spent=(20.0, 0.0), told=(10.0, 0.0))
            try:
                left, _, _ = await one(store, later)
            except StoreAway:
                await asyncio.sleep(0.01)
            else:
                assert 570 < left <= 600
                break
        await store.close()
