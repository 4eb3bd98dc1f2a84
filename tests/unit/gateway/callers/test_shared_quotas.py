"""Quotas through a store: what a worker asks, what it does while the store is away, and what it tells callers."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace

import pytest

from gateway.callers import shared_quotas
from gateway.callers.quotas import REQUESTS, TOKENS, Limits, Quota, Quotas
from gateway.callers.shared_quotas import SharedQuotas, StoreAway, Taken
from gateway.errors import QuotaExceeded
from tests.waiting import soon


class MemoryStore:
    """A ``Store`` whose buckets never refill."""

    address = "memory:0"

    def __init__(self) -> None:
        self.left: dict[str, list[float]] = {}
        self.asked: list[tuple[int, float]] = []
        self.is_away = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def take(self, tenant: str, limits: Limits, tokens: int, owed: float) -> Taken:
        self.asked.append((tokens, owed))
        await self.answers.wait()
        await self.check()
        left = self.left.setdefault(tenant, [limits.requests_per_minute, limits.tokens_per_minute])
        left[1] -= owed
        lacks = REQUESTS if left[0] < 1 else TOKENS if left[1] < min(tokens, limits.tokens_per_minute) else ""
        if not lacks:
            left[:] = left[0] - 1, left[1] - tokens
        return Taken(lacks, left[0], left[1])

    async def check(self) -> None:
        if self.is_away:
            raise StoreAway("told to be away")

    async def close(self) -> None: ...


class Worker:
    """One of four workers that share a store."""

    def __init__(self, store: MemoryStore, **limits: float) -> None:
        self.over: list[str] = []
        self.reports: list[bool] = []
        quotas = Quotas(lambda _tenant, reason: self.over.append(reason))
        quotas.configure({"t": Limits(**limits)}, 0.25, 0.0)  # type: ignore[arg-type]
        found = quotas.of("t", 0.0)
        assert found is not None
        self.quota: Quota = found
        self.shared = SharedQuotas(store, lambda _address, is_good: self.reports.append(is_good))
        self.task = asyncio.create_task(self.shared.run())

    async def ask(self, size: int = 0) -> str:
        try:
            await self.shared.admit(self.quota, size)
        except QuotaExceeded as error:
            return error.because
        return "admitted"


@pytest.fixture
async def store() -> MemoryStore:
    """An empty store."""
    return MemoryStore()


async def worker(store: MemoryStore, **limits: float) -> Worker:
    """Return a worker that has asked the store once."""
    made = Worker(store, **limits)
    await soon(lambda: made.reports)
    return made


async def test_a_limit_holds_over_all_workers(store: MemoryStore) -> None:
    """However the requests are spread; headers and ``Retry-After`` tell what is left of the whole."""
    first, second = await worker(store, requests_per_minute=10), await worker(store, requests_per_minute=10)
    assert ["admitted"] * 9 == [await first.ask() for _ in range(9)]
    assert b"remaining-requests: 1\r" in first.quota.head()
    assert ["admitted", "quota_requests"] == [await second.ask() for _ in range(2)]
    assert ["quota_requests"] == second.over
    assert b"remaining-requests: 0\r" in second.quota.head()
    with pytest.raises(QuotaExceeded) as refused:
        await first.shared.admit(first.quota, 0)
    assert 6 == refused.value.retry_after


async def test_the_tokens_of_an_answer_are_told_with_the_next_request(store: MemoryStore) -> None:
    """One round trip for each request."""
    one = await worker(store, tokens_per_minute=1000)
    charged = await one.shared.admit(one.quota, 400)
    one.quota.settle(charged, 900)
    assert "admitted" == await one.ask()
    assert [(101, 0.0), (1, 799.0)] == store.asked
    assert [math.inf, 99] == store.left["t"]


async def test_a_shadow_limit_refuses_nothing(store: MemoryStore) -> None:
    """It is counted."""
    one = await worker(store, requests_per_minute=1, is_shadow=True)
    assert ["admitted"] * 3 == [await one.ask() for _ in range(3)]
    assert ["quota_requests"] * 2 == one.over


async def test_without_its_store_a_worker_admits_its_share(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what was left. Only the first request asks; a task finds out when the store is back."""
    monkeypatch.setattr(shared_quotas, "CHECK_S", 0.01)
    still = SimpleNamespace(time=time.time, strftime=time.strftime, gmtime=time.gmtime, monotonic=lambda: 7.0)
    monkeypatch.setattr(shared_quotas, "time", still)  # nothing comes in meanwhile
    one = await worker(store, requests_per_minute=80)
    assert ["admitted"] * 40 == [await one.ask() for _ in range(40)]
    store.is_away, asked = True, len(store.asked)
    told = [await one.ask() for _ in range(20)]
    assert 10 == told.count("admitted")
    assert len(store.asked) <= asked + 1
    assert not one.shared.status()["in_use"]
    assert "told to be away" == one.shared.status()["problem"]
    assert 1 == caplog.text.count("each gateway admits its share")
    store.is_away = False
    await soon(lambda: one.shared.status()["in_use"])
    assert "admitted" == await one.ask()
    assert None is one.shared.status()["problem"]
    assert {True, False} == set(one.reports)
    one.task.cancel()
